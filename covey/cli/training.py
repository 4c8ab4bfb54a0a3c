"""The commands that train: `train`, `evolve`, `resume`."""

import dataclasses
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

from covey.cli.arguments import UsageError, asks_for_help, first, parse_part, parse_rest, take_all, take_kwargs, usage
from covey.cli.flags import with_flags
from covey.cli.help import command_help, grouped, option_rows, table
from covey.cli.options import SCHEDULE, Option, options_of
from covey.errors import CoveyError, require

TEXTS = {
    "train": "Trains an agent. Everything is counted in environment steps, summed over a member's environments. "
    "Options that you leave out take their value from the preset for the agent and the environment.",
    "evolve": "Trains a population with population-based training: at each generation, the worst members are replaced "
    "by copies of the best with perturbed hyper-parameters. For several processes, start each with the same options "
    "and --coordinator, --processes and --process. With --engine ray the members are divided among islands that do not "
    "wait for each other.",
    "resume": "Resumes a run from its newest checkpoint. The options below may change; a change is recorded in "
    "changes.jsonl. The defaults are this run's values.",
}
COMMON = ["env", "steps", "seed", "seeds", "members", "envs", "lr", "hidden", "recipe", "out", "preset", "config"]
COMMON += ["plugin"]
"""The options that `--help` shows first."""


@dataclass(frozen=True)
class StartOptions:
    """Options that decide the defaults of the others, and where the run is stored."""

    lr: str = ""
    """Learning rate of every network: a number or a schedule. One that is given by itself, such as --hyper.actor-lr,
    wins."""
    hidden: tuple[int, ...] = ()
    """Units of the hidden layers of every network. Those given by themselves, such as --agent.networks.actor.hidden,
    win."""
    recipe: str = ""
    """A named set of options, such as crossq for sac. It wins over the preset, and an option given by itself wins over
    it. `covey recipes` lists them."""
    out: Path | None = None
    """The run folder; by default the first free runs/ENV-AGENT-NUMBER. A folder that holds the same run unfinished is
    resumed."""
    preset: Literal["on", "off"] | None = None
    """off: start from the plain defaults instead of the preset for this agent and --env. `covey presets` lists them."""
    config: Path | None = None
    """Start from a saved config.json instead of a preset."""
    plugin: tyro.conf.UseAppendAction[tuple[str, ...]] = ()
    """Import a module first, which registers your own environments, networks or agents. May be repeated."""


@dataclass(frozen=True)
class JobOptions:
    """The processes of a population."""

    coordinator: str = ""
    """Several processes: the address of the first one, the same for all; auto under Slurm and Kubernetes."""
    processes: int | None = None
    """Several processes: their number."""
    process: int | None = None
    """Several processes: the index of this one, from 0."""
    ray_address: str = ""
    """With --engine ray: an existing Ray cluster, or auto; by default one is started on this machine."""


@dataclass(frozen=True)
class ResumeOptions:
    """Options of `covey resume` besides those of the run."""

    lr: str = ""
    """Learning rate of every network: a number or a schedule."""
    plugin: tyro.conf.UseAppendAction[tuple[str, ...]] = ()
    """Import a module first, which registers your own environments, networks or agents. May be repeated."""


def train(arguments: list[str]) -> None:
    from covey.launch import start_run
    from covey.run.config import config_type
    from covey.run.console import Reporter

    if asks_for_help(arguments[:1]):
        print(agents_help("train"))
        return
    name, arguments = _agent(arguments, "covey train td3 --env pendulum")
    kwargs, arguments = _env_kwargs(arguments)
    start, arguments = parse_part(StartOptions, arguments, f"covey train {name}")
    default = _with_kwargs(_default(name, start, arguments), kwargs)
    kind = config_type(name)
    options = train_options(name, default)
    if asks_for_help(arguments):
        print(training_help("train", name, options, default, start, everything="--help-all" in arguments))
        return
    config = parse_rest(kind, arguments, f"covey train {name}", options, default=default)
    start_run(config, start.out, Reporter(), _basis(start))


def evolve(arguments: list[str]) -> None:
    from covey.population.job import ending_together

    if asks_for_help(arguments[:1]):
        print(agents_help("evolve"))
        return
    with ending_together(lambda error: with_flags(error, ["evolve", *arguments])):
        _evolve(*_agent(arguments, "covey evolve sac --env pendulum --members 8"))


def _evolve(name: str, arguments: list[str]) -> None:
    from covey.islands.ray import Cluster
    from covey.launch import start_run
    from covey.population.job import process_group
    from covey.run.console import Reporter

    prog = f"covey evolve {name}"
    kwargs, arguments = _env_kwargs(arguments)
    where, arguments = parse_part(JobOptions, arguments, prog)
    start, arguments = parse_part(StartOptions, arguments, prog)
    job = _job(where)
    default = _with_kwargs(_default(name, start, arguments, pbt={}), kwargs)
    kind = population_type(name, default)
    options = evolve_options(name, default)
    if asks_for_help(arguments):
        print(training_help("evolve", name, options, default, start, everything="--help-all" in arguments))
        return
    given = parse_rest(kind, arguments, prog, options)
    config = replace(given.run, members=given.members, pbt=given.pbt, space=given.space, islands=given.islands)
    group = process_group(job)
    reporter = Reporter(quiet=group.index > 0)
    start_run(config, start.out, reporter, _basis(start), group, Cluster(where.ray_address))


def population_type(name: str, run: Any) -> Any:
    """Returns what `covey evolve` parses: a run's options, the members, how they are tuned, and the search space."""
    from covey.run.config import config_type

    kind = config_type(name)
    number = run.members if run.members > 1 else 8
    how = type(run.pbt)
    where = type(run.space)
    divided, pbt, space = run.islands, run.pbt, run.space

    @dataclass(frozen=True)
    class Population:
        run: Annotated[kind, tyro.conf.arg(name="")] = field(default_factory=lambda: run)  # type: ignore[valid-type]
        members: int = number
        """Members of the population; member i has the seed + i."""
        islands: int = divided
        """With Ray, the number of islands; 0 means 4."""
        pbt: how = field(default_factory=lambda: pbt)  # type: ignore[valid-type]
        """How the members are tuned."""
        space: where = field(default_factory=lambda: space)  # type: ignore[valid-type]
        """Search range of each hyper-parameter: LOW:HIGH[:SCALE], SCALE one of log, linear, one_minus; or off."""

    return Population


def train_options(name: str, default: Any) -> list[Option]:
    """Returns the options of `covey train AGENT`."""
    from covey.run.config import config_type

    options = [*options_of(config_type(name), default), *options_of(StartOptions)]
    return list(_described(name, options))


def evolve_options(name: str, default: Any) -> list[Option]:
    """Returns the options of `covey evolve AGENT`."""
    parts = population_type(name, default), StartOptions, JobOptions
    options = [each for part in parts for each in options_of(part)]
    return [each for each in _described(name, options) if each.path != "seeds"]


def _described(name: str, options: Iterable[Option]) -> Iterable[Option]:
    """Adds to each hyper-parameter its type and its range, to each search range its text, and the agent's recipes."""
    from covey import agents
    from covey.hyper.range import Range
    from covey.run.presets import recipe_names

    space = agents.entry(name).space
    for each in options:
        group, _, hyper = each.path.partition(".")
        if group == "hyper":
            valid = space[hyper]
            unlimited = Range(0, 1).most
            limits = "Any number" if valid.least <= -unlimited else f"From {valid.least:g}"
            limits += f" to {valid.most:g}" if valid.most < unlimited else ""
            usual = f"{limits}, usually {valid.low:g} to {valid.high:g}."
            yield each._replace(metavar=SCHEDULE, text=f"{each.text} {usual}".strip())
        elif group == "space":
            yield each._replace(metavar="RANGE", text=f"Search range of --hyper.{hyper.replace('_', '-')}.")
        elif each.path == "recipe" and (known := recipe_names(name)):
            yield each._replace(choices=known, text=f"{each.text} Of {name}: {', '.join(known)}.")
        else:
            yield each


def training_help(
    verb: str, name: str, options: list[Option], default: Any, start: StartOptions, everything: bool
) -> str:
    """Returns the help of `covey train AGENT` or `covey evolve AGENT`.

    Args:
        verb: `train` or `evolve`.
        name: The agent.
        options: All options.
        default: The configuration whose values are the defaults.
        start: The options that decided them.
        everything: Whether to list all options, or those that are used most.
    """
    origins = _basis(start).origins(default)
    marks = {("seeds" if path == "members" else path): f"from the {origin}" for path, origin in origins.items()}
    common = sorted((each for each in options if each.path in COMMON), key=lambda each: COMMON.index(each.path))
    rest = [each for each in options if each.path not in COMMON]
    shown = [each for each in rest if everything or each.path.startswith("hyper.") or each.group in ("agent", "pbt")]
    shown.sort(key=lambda each: _place(each.group))
    sections = [("common options:", option_rows(common, marks)), *grouped(shown, _title, marks)]
    hidden = len(rest) - len(shown)
    end = f"`covey {verb} {name} --help-all` also lists the other {hidden} options: " if hidden else ""
    end += "replay, evaluation, networks, critics, optimiser, normalisation, devices." if hidden else ""
    examples = [
        f"covey {verb} {name} --env {default.env} --steps {default.steps}",
        f"covey {verb} {name} --{'seeds' if verb == 'train' else 'members'} 5 --lr 1e-3 --hidden 64 64",
    ]
    return command_help(verb, f"covey {verb} {name} [options]", TEXTS[verb], *sections, end=end, examples=examples)


def _place(group: str) -> int:
    """The order of the groups of options: hyper-parameters, the agent's, the population's, and the rest of the run."""
    return ["hyper", "agent", "pbt", "space", ""].index(group.partition(".")[0])


def _title(group: str) -> str:
    titles = {
        "": "more options:",
        "hyper": "hyper-parameters, a number or a schedule KIND:START:END[:STEPS] with KIND one of linear, "
        "exponential, cosine, as in linear:0.3:0.05:",
        "agent": "options of the agent, which never change within a run:",
        "pbt": "how the members are tuned:",
        "space": "search ranges, LOW:HIGH[:SCALE] with SCALE one of log, linear, one_minus; or off:",
    }
    return titles.get(group, f"{group}:")


def agents_help(verb: str) -> str:
    """Returns the help of `covey train` or `covey evolve` without an agent."""
    from covey import agents
    from covey.run.config import default_config

    default = default_config("td3", pbt={})
    options = (train_options if verb == "train" else evolve_options)("td3", default)
    common = sorted((each for each in options if each.path in COMMON), key=lambda each: COMMON.index(each.path))
    plain = [each._replace(default="") if each.path == "steps" else each for each in common]
    sections = (
        ("agents:", table((name, entry.summary) for name, entry in agents.REGISTRY.items())),
        ("common options:", option_rows(plain)),
    )
    end = f"`covey {verb} AGENT --help` lists the options of an agent with their defaults, --help-all every option."
    return command_help(verb, f"covey {verb} AGENT [options]", TEXTS[verb], *sections, end=end)


def _agent(arguments: list[str], example: str) -> tuple[str, list[str]]:
    """Takes the agent, in any spelling. Returns its name and the other arguments."""
    from covey import agents

    name, arguments = first(arguments, "an agent", example)
    try:
        return agents.canonical_name(name), arguments
    except CoveyError as error:
        raise UsageError(str(error)) from None


def _basis(start: StartOptions) -> Any:
    """Returns the preset and the recipe that the other options start from."""
    from covey.run.presets import Basis

    return Basis(start.config is None and start.preset != "off", start.recipe)


def _default(name: str, start: StartOptions, arguments: list[str], **population: Any) -> Any:
    """Returns the configuration whose values are the defaults of a command."""
    from covey.run.config import default_config, load_config
    from covey.run.config_text import expanded, merged, to_json

    both = start.config is not None and start.preset == "on"
    usage(not both, "--preset on and --config exclude each other: the file sets every option.")
    both = start.config is not None and start.recipe != ""
    usage(not both, "--recipe and --config exclude each other: the file sets every option.")
    short = {"lr": start.lr or None, "hidden": start.hidden or None, **population}
    if start.config is None:
        return _basis(start).config(name, **_environment(arguments), **short)
    loaded = load_config(start.config)
    require(loaded.algorithm == name, f"{start.config} is a configuration of {loaded.algorithm}, not of {name}.")
    values = to_json(loaded)
    del values["algorithm"]
    values = merged(values, {key: value for key, value in population.items() if values[key] is None})
    return default_config(name, **merged(values, expanded(name, short)))


def _env_kwargs(arguments: list[str]) -> tuple[dict[str, dict[str, Any]], list[str]]:
    """Takes the arguments of the environments. Returns them by the option of the run, and the other arguments."""
    found = {}
    for option in ("env_kwargs", "eval_env_kwargs"):
        found[option], arguments = take_kwargs(arguments, f"--{option.replace('_', '-')}")
    return found, arguments


def _with_kwargs(default: Any, kwargs: dict[str, dict[str, Any]]) -> Any:
    """Adds the arguments of the environments to a configuration."""
    return replace(default, **{name: getattr(default, name) | given for name, given in kwargs.items()})


def _environment(arguments: list[str]) -> dict[str, str]:
    """Returns the environment that the arguments name, the last one if several, as options."""
    given = take_all(arguments, "--env")[0]
    return {"env": given[-1]} if given else {}


def _job(given: JobOptions) -> Any:
    """Returns the place of this process in a job, or None if it is in none."""
    from covey.population import job

    for flag, value in (("--processes", given.processes), ("--process", given.process)):
        usage(value is None or bool(given.coordinator), f"{flag} needs --coordinator HOST:PORT.")
    if not given.coordinator:
        return None
    place = job.JobOptions(given.coordinator, given.processes, given.process)
    job.plan(place)
    return place


def resume(arguments: list[str]) -> None:
    from covey.population.job import ending_together

    if asks_for_help(arguments[:1]):
        end = "`covey resume RUN --help` lists the options that may change, with the values of that run."
        print(command_help("resume", "covey resume RUN [options]", TEXTS["resume"].split(". ")[0] + ".", end=end))
        return
    with ending_together(lambda error: with_flags(error, ["resume", *arguments])):
        _resume(*first(arguments, "a run folder", "covey resume runs/pendulum-td3-0"))


def _resume(path: str, arguments: list[str]) -> None:
    from covey.api import load
    from covey.islands.ray import Cluster
    from covey.launch import RESUMABLE, resume_run
    from covey.population.job import process_group
    from covey.run.config import config_type
    from covey.run.console import Reporter

    prog = f"covey resume {path}"
    where, arguments = parse_part(JobOptions, arguments, prog)
    short, arguments = parse_part(ResumeOptions, arguments, prog)
    job = _job(where)
    old = load(path).config
    kind = config_type(old.algorithm)
    run_options = list(_described(old.algorithm, options_of(kind, old)))
    extra = [*options_of(ResumeOptions), *options_of(JobOptions)]
    if asks_for_help(arguments):
        shown = [each for each in run_options if each.path.partition(".")[0] in RESUMABLE]
        shown.sort(key=lambda each: bool(each.group))
        sections = grouped(shown, lambda group: _title(group) if group else "options:")
        print(command_help("resume", f"{prog} [options]", TEXTS["resume"], *sections, ("more:", option_rows(extra))))
        return
    new = None
    if arguments or short.lr:
        new = parse_rest(kind, arguments, prog, [*run_options, *extra], default=_with_rates(old, short.lr))
    group = process_group(job)
    resume_run(Path(path), new, Reporter(quiet=group.index > 0), group, Cluster(where.ray_address))


def _with_rates(config: Any, lr: str) -> Any:
    """Returns a configuration with other learning rates, if there are any."""
    from covey.run.config_text import expanded, from_json

    if not lr:
        return config
    hyper = expanded(config.algorithm, {"lr": lr})["hyper"]
    return dataclasses.replace(config, hyper=from_json(type(config.hyper), hyper, "hyper", config.hyper))
