"""What is said at the beginning and the end of a run, and made there without asking."""

import dataclasses
import json
from collections.abc import Callable
from typing import Any

import jax

from covey.errors import CoveyError
from covey.run.folder import RunFolder
from covey.run.presets import flat
from covey.run.program import Program
from covey.run.progress import Reporter
from covey.run.run import Run, summary
from covey.storage.atomic import replace_text


def introduce(program: Program, folder: RunFolder, reporter: Reporter, preset: str) -> None:
    config = program.config
    steps = program.total * program.block_steps
    reporter.heading(f"{config.algorithm} on {config.env}: {steps:,} steps, {_who(program)}")
    reporter.say(
        f"  environments {config.envs}, updates per step {config.updates_per_step:g}, warm-up "
        f"{program.warmup * program.block_steps:,} steps, replay {config.capacity:,} steps"
    )
    if preset:
        reporter.say(f"  preset for {config.algorithm} on {config.env}: {preset} (--preset off: without)")
    chosen = [f"{name} {new}" for name, _, new in differences(type(config.agent)(), config.agent)]
    reporter.say(f"  agent: {', '.join(chosen) or 'all defaults'}")
    hyper = ", ".join(f"{name} {value}" for name, value in flat(dataclasses.asdict(config.hyper)).items())
    reporter.say(f"  hyper-parameters: {hyper}")
    if config.pbt:
        ranges = ", ".join(f"{name} {each.low:g} to {each.high:g}" for name, each in program.space.items())
        number, replaced = len(program.generations), config.pbt.losers(config.seeds)
        reporter.say(f"  tuned: {ranges or 'nothing'}")
        reporter.say(
            f"  {number} generations, one every {config.pbt.interval:,} steps; in each, the {replaced} worst by "
            f"{config.fitness} copy one of the {config.pbt.donors(config.seeds)} best"
        )
    reporter.say(f"  run folder: {folder.path}")


def _who(program: Program) -> str:
    """The members, and what they run on."""
    config, loop, crew = program.config, program.loop, program.crew
    platform, last = jax.local_devices()[0].platform, config.seed + config.seeds - 1
    devices = platform if loop.devices == 1 else f"{loop.devices} {platform} devices"
    where = devices if crew.count == 1 else f"{devices} of each of {crew.count} processes"
    where = f"{config.islands} islands" if config.engine == "ray" else where
    if config.seeds == 1:
        return f"seed {last}, on {where}"
    how = {"map": "in turn", "vmap": "in lock-step"}[loop.axis]
    who = f"{config.seeds} members" if config.pbt else f"seeds {config.seed} to {last}"
    return f"{who} {how}, on {where}"


def finish(run: Run, program: Program, best_step: int, reporter: Reporter) -> None:
    """The last words of a run: an evaluation on new start states, the curve, the animation."""
    result = run.evaluate(program.config.episodes)
    replace_text(run.folder.episodes.parent / "final.json", json.dumps(summary(result), indent=2) + "\n")
    reporter.heading(f"Best policy (step {best_step:,}), new start states: {result}")
    reporter.say(f"learning curve: {_drawn(run.plot)}")
    reporter.say(f"one episode:    {run.plot_episode()}")
    reporter.say(f"animation:      {_drawn(run.animate)}")
    if run.config.pbt:
        reporter.say(f"population:     {_drawn(lambda: ', '.join(map(str, run.plot_population())))}")
    if program.skills:
        reporter.say(f"skills:         {run.plot_skills()}")
    reporter.say(f"run folder:     {run.path}")


def _drawn(draw: Callable[[], Any]) -> str:
    """Where a picture is, or why there is none: a run is not lost because nothing can be drawn."""
    try:
        return str(draw())
    except CoveyError as error:
        return f"none: {error}"


def differences(old: Any, new: Any, path: str = "") -> list[tuple[str, Any, Any]]:
    """The fields in which two configurations differ: name, old value, new value."""
    found = []
    for f in dataclasses.fields(old):
        before, after, name = getattr(old, f.name), getattr(new, f.name), f"{path}{f.name}"
        if dataclasses.is_dataclass(before) and type(before) is type(after):
            found += differences(before, after, f"{name}.")
        elif before != after:
            found.append((name, before, after))
    return found
