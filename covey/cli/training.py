"""The commands that train: `train`, `evolve`, `resume`."""

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any

import tyro

from covey.cli.arguments import asks_for_help, first, parse, take, take_all, take_kwargs
from covey.cli.catalogue import agents
from covey.cli.flags import with_flags
from covey.errors import require

TRAIN = """\
Trains an agent. Everything is counted in environment steps, summed over a member's environments.
Besides the options below: --out FOLDER is the run folder (by default the first free runs/ENV-AGENT-NUMBER; a folder
that holds the same run unfinished is resumed). --config FILE starts from a saved config.json. --preset off starts from
the plain defaults instead of the preset for this agent and --env (`covey presets` lists them; its values are shown
below). --plugin MODULE imports your own module first."""
EVOLVE = """\
Trains a population with population-based training: at each generation, the worst members are replaced by copies of the
best with perturbed hyper-parameters. Besides the options below: --out, --config, --preset and --plugin, as in `covey
train`. For several processes, start each with the same options and --coordinator HOST:PORT --processes N --process I
(or --coordinator auto under Slurm and Kubernetes). With --engine ray the members are divided among islands that do not
wait for each other, on this machine or, with --ray-address HOST:PORT (or auto), on an existing Ray cluster."""
RESUME = """\
Resumes a run from its newest checkpoint. These options may change: --steps, --capacity (which can only grow),
--evaluations, --episodes, --checkpoint-minutes, --workers, --device, --devices and --hyper.*; a change is recorded in
changes.jsonl. The defaults shown are this run's values. --ray-address names the Ray cluster for a run with --engine
ray."""


def train(arguments: list[str]) -> None:
    from covey.launch import start_run
    from covey.run.config import config_type
    from covey.run.console import Reporter

    if asks_for_help(arguments) and arguments[0].startswith("-"):
        print("covey train AGENT [options]; `covey train AGENT --help` lists them.\n")
        agents([])
        return
    name, arguments = first(arguments, "an agent", "covey train td3 --env pendulum")
    default, out, presets, arguments = _beginning(name, arguments)
    config = parse(config_type(name), arguments, f"covey train {name}", default=default, description=TRAIN)
    start_run(config, out, Reporter(), presets)


def evolve(arguments: list[str]) -> None:
    from covey.population.job import ending_together

    if asks_for_help(arguments) and arguments[0].startswith("-"):
        print("covey evolve AGENT [options]; `covey evolve AGENT --help` lists them.\n")
        agents([])
        return
    with ending_together(lambda error: with_flags(error, ["evolve", *arguments])):
        _evolve(*first(arguments, "an agent", "covey evolve sac --env pendulum --members 8"))


def _evolve(name: str, arguments: list[str]) -> None:
    from covey.launch import start_run
    from covey.population.job import process_group
    from covey.population.pbt import PBT
    from covey.run.config import config_type
    from covey.run.config_text import space_text
    from covey.run.console import Reporter

    job, arguments = _job(arguments)
    cluster, arguments = _cluster(arguments)
    default, out, presets, arguments = _beginning(name, arguments)
    options = evolve_options(config_type(name), default, default.pbt or PBT(), default.space or space_text(name))
    given = parse(options, arguments, f"covey evolve {name}", description=EVOLVE)
    require(given.run.members == default.members, "`covey evolve` takes --members, not --seeds.")
    config = replace(given.run, members=given.members, pbt=given.pbt, space=given.space, islands=given.islands)
    group = process_group(job)
    start_run(config, out, Reporter(quiet=group.index > 0), presets, group, cluster)


def evolve_options(kind: Any, run: Any, pbt: Any, space: Any) -> Any:
    """Returns the options of `covey evolve`: those of a run, the members, how they are tuned, and the search space."""
    number = run.members if run.pbt else 8
    how = type(pbt)
    where = type(space)
    divided = run.islands

    @dataclass(frozen=True)
    class EvolveOptions:
        run: Annotated[kind, tyro.conf.arg(name="")] = field(default_factory=lambda: run)  # type: ignore[valid-type]
        members: int = number
        """Members of the population; member i has the seed + i."""
        islands: int = divided
        """With Ray, the number of islands; 0 means 4."""
        pbt: how = field(default_factory=lambda: pbt)  # type: ignore[valid-type]
        """How the members are tuned."""
        space: where = field(default_factory=lambda: space)  # type: ignore[valid-type]
        """Search range of each hyper-parameter: LOW:HIGH[:SCALE], SCALE one of log, linear, one_minus; or off."""

    return EvolveOptions


def _beginning(name: str, arguments: list[str]) -> tuple[Any, Path | None, bool, list[str]]:
    """Returns the initial configuration, the folder, whether a preset is used, and the remaining arguments."""
    from covey.run.config import default_config, load_config
    from covey.run.presets import preset_config

    file, arguments = take(arguments, "--config")
    out, arguments = take(arguments, "--out")
    preset, arguments = take(arguments, "--preset")
    require(preset in (None, "on", "off"), f"--preset must be on or off, not {preset}. `covey presets` lists them.")
    require(not (file and preset == "on"), "--preset on and --config exclude each other: the file sets every option.")
    presets = not file and preset != "off"
    if file:
        default = load_config(Path(file))
    else:
        default = preset_config(name, **_environment(arguments)) if presets else default_config(name)
    require(default.algorithm == name, f"{file} is a configuration of {default.algorithm}, not of {name}.")
    kwargs, arguments = take_kwargs(arguments, "--env-kwargs")
    eval_kwargs, arguments = take_kwargs(arguments, "--eval-env-kwargs")
    default = replace(
        default, env_kwargs=default.env_kwargs | kwargs, eval_env_kwargs=default.eval_env_kwargs | eval_kwargs
    )
    return default, Path(out) if out else None, presets, arguments


def _job(arguments: list[str]) -> tuple[Any, list[str]]:
    """Returns the place of this process in a job, if it is in one, and the remaining arguments."""
    from covey.population.job import JobOptions, plan

    coordinator, arguments = take(arguments, "--coordinator")
    numbers = []
    for flag in ("--processes", "--process"):
        text, arguments = take(arguments, flag)
        require(text is None or text.isdigit(), f"{flag} must be a whole number, not {text}.")
        require(text is None or coordinator is not None, f"{flag} needs --coordinator HOST:PORT.")
        numbers.append(None if text is None else int(text))
    if coordinator is None:
        return None, arguments
    place = JobOptions(coordinator, *numbers)
    plan(place)
    return place, arguments


def _cluster(arguments: list[str]) -> tuple[Any, list[str]]:
    """Returns the Ray cluster that the arguments name, and the remaining arguments."""
    from covey.islands.ray import Cluster

    address, arguments = take(arguments, "--ray-address")
    return Cluster(address or ""), arguments


def _environment(arguments: list[str]) -> dict[str, str]:
    """Returns the environment that the arguments name, the last one if several, as options."""
    given = take_all(arguments, "--env")[0]
    return {"env": given[-1]} if given else {}


def resume(arguments: list[str]) -> None:
    from covey.population.job import ending_together

    if asks_for_help(arguments) and arguments[0].startswith("-"):
        print(f"covey resume RUN [options]; `covey resume RUN --help` lists them.\n\n{RESUME}")
        return
    with ending_together(lambda error: with_flags(error, ["resume", *arguments])):
        _resume(*first(arguments, "a run folder", "covey resume runs/pendulum-td3-0"))


def _resume(path: str, arguments: list[str]) -> None:
    from covey.api import load
    from covey.launch import resume_run
    from covey.population.job import process_group
    from covey.run.config import config_type
    from covey.run.console import Reporter

    job, arguments = _job(arguments)
    cluster, arguments = _cluster(arguments)
    old = load(path).config
    kind, prog = config_type(old.algorithm), f"covey resume {path}"
    new = parse(kind, arguments, prog, default=old, description=RESUME) if arguments else None
    group = process_group(job)
    resume_run(Path(path), new, Reporter(quiet=group.index > 0), group, cluster)
