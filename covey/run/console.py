"""Output of a run: a progress bar in a terminal or a notebook, plain lines elsewhere."""

import errno
import sys
import time
from base64 import b64encode
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from textwrap import fill
from typing import IO, Any

import jax
import numpy as np
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn
from rich.table import Column

from covey.agents.recipes import find_recipe
from covey.devices import devices as local_devices
from covey.doctor.facts import Facts, Finding
from covey.doctor.watch import Watch
from covey.evaluation.stats import Interval
from covey.hyper.names import by_name, field_of
from covey.plots.live import Point, live_curve
from covey.plots.style import short_number
from covey.run.config_text import differences, flat, to_json
from covey.run.limits import memory_plan, training_needs
from covey.run.presets import Basis
from covey.run.program import Program
from covey.storage.folder import RunFolder

LONG_COMPILATION = 5.0
"""Seconds of a compilation from which on covey says that it is cached."""
SILENCE = 60.0
"""Seconds without a line after which a log prints one."""
SMOOTHED = 5
"""Logs over which the return of training is averaged."""
NOTEBOOK_WIDTH = 100
"""Columns of a notebook's output."""
REDRAWN = 2.0
"""Seconds between two pictures of the curve in a notebook."""


class Reporter:
    """Prints to a terminal, or one plain line per event without one. `quiet` prints nothing."""

    def __init__(self, quiet: bool = False, file: IO[str] | None = None) -> None:
        """`file` is printed to instead of the standard output."""
        in_notebook = file is None and "ipykernel" in sys.modules
        width = NOTEBOOK_WIDTH if in_notebook else None
        # In a notebook rich would make a block of its own of every line, and print every frame of a spinner.
        plain = False if in_notebook else None
        self.console = Console(
            quiet=quiet,
            highlight=False,
            emoji=False,
            file=file,
            width=width,
            force_jupyter=plain,
            force_terminal=plain,
        )
        self.console.soft_wrap = not self.console.is_terminal and not in_notebook
        self.live = self.console.is_terminal and not quiet
        self.bar: Progress | None = None
        self.task: Any = None
        self._cell = _Cell() if in_notebook and not quiet else None
        self._total = 0
        self._figures: tuple[str, ...] = ()
        self._returns: list[float] = []
        self._train = ""
        self._speeds = (0.0, 0.0)
        self._pace = _Pace(0)
        self._spoke = time.monotonic()
        self._watch = Watch()

    def say(self, text: str = "") -> None:
        """Prints a line."""
        self._spoke = time.monotonic()
        try:
            self.console.print(text, markup=False)
        except OSError as error:
            if error.errno != errno.EIO:
                raise
            self.mute()  # the terminal is gone, but the run continues

    def mute(self) -> None:
        """Prints nothing from now on."""
        self.console.quiet = True

    def heading(self, text: str) -> None:
        """Prints a line in bold."""
        self.console.print(text, style="bold", markup=False)

    def detail(self, text: str) -> None:
        """Prints an indented line, wrapped at the width of the terminal."""
        width = 10_000 if self.console.soft_wrap else self.console.width
        self.say(fill(text, width, initial_indent="  ", subsequent_indent="    ", break_on_hyphens=False))

    def advise(self, facts: Facts) -> None:
        """Prints a note for each rule that applies (see `covey.doctor`), each rule once."""
        self._note(self._watch.new(facts))

    def introduced(self, facts: Facts) -> None:
        """Takes what is known before the training, and prints notes about it."""
        self._watch.facts = facts
        self.advise(facts)

    def watch(self, step: int, values: Mapping[str, np.ndarray]) -> None:
        """Takes logged numbers [P] by name, from which later notes are derived."""
        self._watch.add(step, values, step / max(self._total, 1))

    def _note(self, found: Sequence[Finding]) -> None:
        for finding in found:
            self.say(f"Note: {finding}")

    @contextmanager
    def busy(self, what: str) -> Iterator[None]:
        """Shows what is being done, and prints how long it took."""
        start = time.perf_counter()
        if self.live and self.bar is None:
            with self.console.status(f"{what} ..."):
                yield
        else:
            yield
        seconds = time.perf_counter() - start
        is_long = what.startswith("Compiling") and seconds >= LONG_COMPILATION
        is_cached = bool(jax.config.jax_compilation_cache_dir)  # pyright: ignore[reportAttributeAccessIssue]
        self.say(f"{what}: {seconds:.1f} s{' (cached for the next run)' if is_long and is_cached else ''}")

    def start(self, total: int, done: int, warmup: int = 0) -> None:
        """Starts the progress bar.

        Args:
            total: The steps of the run.
            done: The steps that were made before.
            warmup: The steps of the warm-up, whose speed says nothing about the time that remains.
        """
        self._total = total
        self._pace = _Pace(max(done, warmup))
        if self.live:
            columns = (
                BarColumn(bar_width=None),
                TextColumn("{task.description}", table_column=Column(no_wrap=True)),
                TextColumn("ETA {task.fields[remaining]}"),
            )
            self.bar = Progress(*columns, console=self.console, refresh_per_second=4, expand=True)
            self.task = self.bar.add_task("", total=total, completed=done, remaining="-:--:--")
            self.update(done, 0.0, 0.0)
            self.bar.start()

    def update(self, step: int, steps_per_second: float, updates_per_second: float) -> None:
        """Moves the progress bar."""
        self._speeds = (steps_per_second, updates_per_second)
        self._pace.reached(step)
        if self.bar is not None:
            text = self._description(step, self.console.width - 21)
            remaining = self._pace.remaining(self._total - step)
            self.bar.update(self.task, completed=step, description=text, remaining=remaining)
        if self._cell is not None:
            remaining = self._pace.remaining(self._total - step)
            share = step / max(self._total, 1)
            self._cell.show(share, f"{self._description(step, NOTEBOOK_WIDTH)}  ETA {remaining}")

    def _description(self, step: int, width: int) -> str:
        """Returns as much as fits on one line of a width."""
        steps, updates = self._speeds
        first = self._figures[0] if self._figures else ""
        centre = first.partition(" [")[0].partition(",")[0]  # without the interval, or the other members
        speeds = f"  {steps:,.0f} steps/s  {updates:,.0f} updates/s" if steps else ""
        long = f"{step:,} of {self._total:,} steps{speeds}"
        done, total, acted, learned = (short_number(x, digits=3) for x in (step, self._total, steps, updates))
        short = f"{done}/{total}  {acted} steps/s" if steps else f"{done}/{total}"
        options = (
            (long, first, self._train, *self._figures[1:]),
            (long, first, self._train),
            (f"{short}  {learned} updates/s", first, self._train),
            (short, first, self._train),
            (short, centre, self._train),
            (f"{done}/{total}", centre, self._train),
        )
        texts = ["  ".join(part for part in parts if part) for parts in options]
        return next((text for text in texts if len(text) <= width), texts[-1])

    def logged(self, step: int, train_return: float | None) -> None:
        """Shows the mean return of training over the newest logs; prints a line if there was none for long.

        Args:
            step: The step.
            train_return: The mean return of the episodes that ended since the last log; None if none did.
        """
        if train_return is not None:
            self._returns = [*self._returns, train_return][-SMOOTHED:]
            self._train = f"train {np.mean(self._returns):z.1f}"
        if self._train and time.monotonic() - self._spoke > SILENCE:
            self._line(step, (self._train,), self._speeds[0])
        self.update(step, *self._speeds)

    def evaluated(
        self,
        step: int,
        figures: tuple[str, ...],
        steps_per_second: float,
        returns: np.ndarray | None = None,
        point: tuple[str, Interval] | None = None,
    ) -> None:
        """Prints one line per evaluation, and shows the figures beside the bar.

        Args:
            step: The step.
            figures: The most important numbers as text, the first of them shown at any width.
            steps_per_second: The speed since the last evaluation; 0 at the first.
            returns: The returns [P, E], if the policies have learned; notes are derived from them.
            point: The metric of the learning curve and its value, for the curve in a notebook.
        """
        self._figures = figures
        train = (self._train,) if self._train else ()
        self._line(step, (*figures[:1], *train, *figures[1:]), steps_per_second)
        if returns is not None:
            self._note(self._watch.evaluated(returns))
        self.update(step, *self._speeds)
        if self._cell is not None and point is not None:
            self._cell.add(step, *point, self._total)

    def _line(self, step: int, texts: tuple[str, ...], speed: float) -> None:
        is_shown = speed and self.bar is None  # beside a bar the speed is known
        parts = [f"step {step:>10,}", *texts, *([f"{speed:,.0f} steps/s"] if is_shown else [])]
        width = 10_000 if self.console.soft_wrap else self.console.width
        while len("  ".join(parts)) > width and len(parts) > 2:
            parts.pop()  # the most important parts are the first
        while len("  ".join(parts)) > width and ", " in parts[-1]:  # without the interval, or the other members
            parts[-1] = parts[-1].rpartition(" [" if " [" in parts[-1] else ", ")[0]
        self.say("  ".join(parts))

    def stop(self) -> None:
        """Removes the progress bar, and completes the curve of a notebook."""
        if self._cell is not None:
            self._cell.draw(self._total)
        if self.bar is not None:
            self.bar.stop()
            self.bar = None


class _Pace:
    """The time that remains, by the mean speed since learning began, evaluations and checkpoints included.

    Args:
        since: The step from which on speed is measured.
    """

    def __init__(self, since: int) -> None:
        self.since = since
        self.start: tuple[int, float] | None = None
        self.now = (0, 0.0)

    def reached(self, step: int) -> None:
        """Takes the time of a step."""
        self.now = (step, time.monotonic())
        if self.start is None and step > self.since:
            self.start = self.now

    def remaining(self, steps: int) -> str:
        """Returns how long `steps` steps take, as H:MM:SS."""
        if self.start is None or self.now[0] == self.start[0]:
            return "0:00:00" if steps <= 0 else "-:--:--"
        seconds = int(steps * (self.now[1] - self.start[1]) / (self.now[0] - self.start[0]))
        return f"{seconds // 3600}:{seconds // 60 % 60:02}:{seconds % 60:02}"


class _Cell:
    """A line and a curve in the output of a notebook's cell, both updated in place."""

    def __init__(self) -> None:
        self.handle: Any = None
        self.curve: Any = None
        self.metric = ""
        self.points: list[Point] = []
        self.drawn = (0, -REDRAWN)  # the number of points, and the time

    def show(self, share: float, text: str) -> None:
        """Shows a bar and a text below it."""
        from IPython.display import display  # pyright: ignore[reportMissingImports]

        full = int(NOTEBOOK_WIDTH * 0.6 * min(share, 1.0))
        bar = "━" * full + "╌" * (int(NOTEBOOK_WIDTH * 0.6) - full)
        content = {"text/plain": f"{bar} {100 * share:.0f} %\n{text}"}
        if self.handle is None:
            self.handle = display(content, raw=True, display_id=True)
        else:
            self.handle.update(content, raw=True)

    def add(self, step: int, metric: str, value: Interval, total: int) -> None:
        """Adds a point to the curve, and draws it unless that was done just now."""
        self.metric = metric
        self.points.append((step, value.centre, value.low, value.high))
        if time.monotonic() - self.drawn[1] >= REDRAWN:
            self.draw(total)

    def draw(self, total: int) -> None:
        """Shows the curve, if it has new points and is more than a point."""
        from IPython.display import display  # pyright: ignore[reportMissingImports]

        if len(self.points) < 2 or len(self.points) == self.drawn[0]:
            return
        png = b64encode(live_curve(self.points, self.metric, total or self.points[-1][0])).decode()
        content = {"image/png": png, "text/plain": f"{self.metric} {Interval(*self.points[-1][1:])}"}
        if self.curve is None:
            self.curve = display(content, raw=True, display_id=True)
        else:
            self.curve.update(content, raw=True)
        self.drawn = (len(self.points), time.monotonic())


def _replay(program: Program) -> str:
    """Describes the replay: its steps, and the memory of each if it holds images."""
    replay = program.loop.trainer.replay
    size = f" of {replay.record_bytes / 1000:.3g} kB" if replay.frames else ""
    return f"replay {program.config.capacity:,} steps{size}"


def _memory(program: Program) -> str:
    """Says how much memory the training takes."""
    loop = program.loop
    return memory_plan(training_needs(program.config, loop.trainer, loop.members, loop.devices, loop.axis))


def introduce(program: Program, folder: RunFolder, reporter: Reporter, basis: Basis) -> None:
    """Prints the effective configuration at the start of a run: what differs from the defaults, and why."""
    config = program.config
    steps = program.total * program.block_steps
    named = f"{config.name}: " if config.name else ""
    reporter.heading(f"{named}{config.algorithm} on {config.env}, {steps:,} steps, {_who(program)}")
    reporter.detail(
        f"environments {config.envs}, updates per step {config.updates_per_step:g}, warm-up "
        f"{program.warmup * program.block_steps:,} steps, {_replay(program)}"
    )
    reporter.detail(_memory(program))
    if basis.recipe:
        recipe = find_recipe(config.algorithm, basis.recipe).recipe
        reporter.detail(f"recipe {basis.recipe}: {recipe.summary}{f' ({recipe.source})' if recipe.source else ''}")
    given = _environment_options(config)
    if given:
        reporter.detail(f"environment: {given}")
    tuned = {field_of(name) for name in program.space}
    hyper = [each for each in differences(type(config.hyper)(), config.hyper) if each[0] not in tuned]
    chosen = differences(type(config.agent)(), config.agent) + hyper
    if chosen:
        values = ", ".join(f"{name} {option_text(value)}" for name, _, value in chosen)
        reporter.detail(f"options{_origins(basis)}: {values}")
    if config.pbt:
        ranges = ", ".join(f"{name} {each.low:g} to {each.high:g}" for name, each in program.space.items())
        replaced = config.pbt.losers(config.members)
        donors = config.pbt.donors(config.members)
        reporter.detail(f"search space: {ranges or 'empty'}")
        reporter.detail(
            f"{len(program.generations)} generations, one every {config.pbt.interval:,} steps; in each, the "
            f"{f'{replaced} worst' if replaced > 1 else 'worst'} by {config.fitness} "
            f"{'copy' if replaced > 1 else 'copies'} {f'one of the {donors} best' if donors > 1 else 'the best'}"
        )
    reporter.detail(_evaluations(program))
    if config.track:
        reporter.detail(f"trackers: TensorBoard, {', '.join(config.track)}")
    reporter.detail(f"run folder: {folder.path}")
    values = {name: (each.start, each.end) for name, each in by_name(config.schedules()).items()}
    fixed = {name: value for name, value in values.items() if name not in program.space}
    reporter.introduced(
        Facts(
            hyper=fixed,
            space=config.entry.space,
            options=flat(to_json(config)),
            episode_length=program.policy.train_env.spec.episode_length,
            action_size=program.policy.spec.action_size,
            is_skill_agent=config.entry.is_skill_agent,
            is_population=config.pbt is not None,
        )
    )


def _origins(basis: Basis) -> str:
    """Says where options come from besides the user."""
    named = (("the preset (--preset off ignores it)", basis.preset), ("the recipe", bool(basis.recipe)))
    origins = " and ".join(text for text, used in named if used)
    return f", also of {origins}" if origins else ""


def _environment_options(config: Any) -> str:
    """Returns the options of the environment that were given, as text."""
    names = ("env_kwargs", "wrappers", "episode_length", "reward_parts", "env_pixels", "env_pixels_beside", "env_stack")
    names += ("env_descriptor", "env_descriptor_low", "env_descriptor_high", "eval_env", "eval_env_kwargs")
    given = {name: getattr(config, name) for name in names if getattr(config, name)}
    return ", ".join(f"{name} {option_text(value)}" for name, value in given.items())


def option_text(value: Any) -> str:
    """Returns the value of an option as the command line takes it."""
    return " ".join(map(str, value)) if isinstance(value, tuple | list) else str(value)


def _evaluations(program: Program) -> str:
    """Says when the run is evaluated, and what the numbers of an evaluation mean."""
    config = program.config
    blocks = program.total / len(program.evaluations)
    when = f"every {blocks * program.block_steps:,.0f} steps"
    if not blocks.is_integer():
        when = f"about {when} (after whole blocks of {program.block_steps})"
    episodes = f"{config.episodes} greedy episodes"
    if program.policy.entry.is_skill_agent:
        return f"evaluation {when}: {episodes}; `covey skills` draws the skills"
    if config.pbt:
        return f"evaluation {when}: {episodes} of each member"
    if config.members > 1:
        return f"evaluation {when}: mean return of {config.members} seeds, {episodes} each [95 % interval over seeds]"
    return f"evaluation {when}: mean return of {episodes} [95 % interval]"


def seed_table(metrics: Mapping[str, Mapping[str, Sequence[float]]], seed: int) -> list[str]:
    """Returns a table with a line for each seed: its last evaluation, its best one, and the step of that."""
    names = ("eval/return", "eval/return_low", "eval/return_high")
    columns = zip(metrics[names[0]]["member"], metrics[names[0]]["step"], strict=True)
    values = zip(*(metrics[name]["value"] for name in names), strict=True)
    by_member: dict[int, list[tuple[int, Interval]]] = {}
    for (member, step), numbers in zip(columns, values, strict=True):
        by_member.setdefault(int(member), []).append((int(step), Interval(*numbers)))
    lines = [f"{'seed':>6}  {'last evaluation':<28}{'best':>10}  at step"]
    for member, found in sorted(by_member.items()):
        step, best = max(found, key=lambda each: each[1].centre)
        lines.append(f"{seed + member:>6}  {found[-1][1]!s:<28}{best.centre:>z10.1f}  {step:,}")
    return lines


def _who(program: Program) -> str:
    """Describes the members and the devices that they run on."""
    config = program.config
    loop = program.loop
    group = program.group
    platform = local_devices()[0].platform
    last = config.seed + config.members - 1
    devices = platform if loop.devices == 1 else f"{loop.devices} {platform} devices"
    where = devices if group.count == 1 else f"{devices} of each of {group.count} processes"
    where = f"{config.islands} islands" if config.engine == "ray" else where
    if config.members == 1:
        return f"seed {last}, on {where}"
    how = {"map": "one after the other", "vmap": "in lock-step"}[loop.axis]
    who = f"{config.members} members" if config.pbt else f"{config.members} seeds ({config.seed} to {last})"
    return f"{who} {how}, on {where}"
