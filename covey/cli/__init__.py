"""The command line: one verb per intention, each a thin call into `covey.run`."""

import importlib
import json
import os
import sys
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any

import tyro

from covey.errors import CoveyError, LostProcess, require, unknown

USAGE = """\
covey: train continuous-control agents in one compiled JAX program

  covey train AGENT [--env ENV] [options]     train; --help lists every option of that agent
  covey evolve AGENT [--members N] [options]  train a population, and tune its hyper-parameters meanwhile
  covey resume RUN [--steps N] [options]      go on after Ctrl-C, a crash or a kill, or go on longer
  covey eval RUN [--episodes N]               judge the best policy: mean, 95 % interval, per-episode file
  covey plot RUN... [--out FILE.png]          learning curves of one or more runs, PNG and CSV
  covey skills RUN [--out FILE.png]           the map of a run's skills: where each of them leads
  covey plan RUN --goal 3,4 --goal -2,1       steer a run's skills from goal to goal, with no further training
  covey lineage RUN                           the pictures of a population: who copied whom, with which values
  covey replay RUN [--out FILE]               save a run's replay; `covey train AGENT --replay FILE` starts with it
  covey video RUN [--out FILE]                one episode of the best policy as a film: MP4, GIF or, of Brax, HTML
  covey envs [LIBRARY]                        the environments; those of another library, such as brax
  covey check-env ENV                         whether an environment keeps its promises, in words
  covey agents [AGENT]                        the agents, their hyper-parameters, defaults and search space
  covey presets                               the options that are the defaults of an agent on an environment

  --plugin MODULE   import a module first, which registers environments, networks or agents of your own
"""
TRAIN = """\
Trains an agent. Everything is counted in environment steps, summed over a member's environments.
Besides the options below: --out FOLDER is the run folder (by default the first free runs/ENV-AGENT-NUMBER; one that
holds the same run unfinished is gone on with), --config FILE starts from a saved config.json, --preset off starts from
the plain defaults instead of those for this agent and --env (`covey presets` lists them, and they are shown below),
--plugin MODULE imports a module of yours first."""
EVOLVE = """\
Trains a population, whose worst members now and then become varied copies of the best. Besides the options below, those
of `covey train` (--out, --config, --preset, --plugin), and for a job of several processes, each started with the same
options, --coordinator HOST:PORT --processes N --process I (or --coordinator auto under Slurm and Kubernetes). With
--engine ray the members are divided among islands that don't wait for each other, on this machine or, with
--ray-address HOST:PORT (or auto), on an existing Ray cluster."""
RESUME = """\
Goes on with a run from its newest checkpoint. What may change within a run: --steps, --evaluations, --episodes,
--checkpoint-minutes and --hyper.*; a change is written to changes.jsonl. The defaults shown are this run's values.
--ray-address says where the islands of a run with --engine ray go on."""
PLUGINS: list[str] = []
"""The modules that --plugin has named, which the islands of a cluster must import too."""


def main(arguments: list[str] | None = None) -> int:
    """Runs a command; returns its exit code."""
    arguments = sys.argv[1:] if arguments is None else arguments
    try:
        arguments = _import_plugins(list(arguments))
        if not arguments or arguments[0] in ("-h", "--help", "help"):
            print(USAGE, end="")
            return 0 if arguments else 2
        if arguments[0] == "--version":
            return _version()
        if arguments[0] not in VERBS:
            raise unknown("command", arguments[0], VERBS)
        VERBS[arguments[0]](arguments[1:])
        return 0
    except LostProcess as error:
        print(f"covey: {error}", file=sys.stderr, flush=True)
        sys.stdout.flush()
        os._exit(1)  # jax would wait for the lost process, and then end with a page of its own
    except CoveyError as error:
        print(f"covey: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        return 1


def entry() -> None:
    """The `covey` command."""
    sys.exit(main())


def _version() -> int:
    from covey import __version__

    print(__version__)
    return 0


def _import_plugins(arguments: list[str]) -> list[str]:
    sys.path.insert(0, str(Path.cwd()))
    name, arguments = _take(arguments, "--plugin")
    while name is not None:
        try:
            importlib.import_module(name)
        except CoveyError:
            raise
        except Exception as error:
            raise CoveyError(f"The plugin {name!r} can't be imported: {type(error).__name__}: {error}.") from error
        PLUGINS.append(name)
        name, arguments = _take(arguments, "--plugin")
    return arguments


def _first(arguments: list[str], what: str, example: str) -> tuple[str, list[str]]:
    require(bool(arguments) and not arguments[0].startswith("-"), f"Name {what} first, for example: {example}")
    return arguments[0], arguments[1:]


def _take(arguments: list[str], flag: str) -> tuple[str | None, list[str]]:
    """The value of a flag that must be known before the others can be parsed, and the other arguments."""
    at = next((i for i, text in enumerate(arguments) if text.partition("=")[0] == flag), None)
    if at is None:
        return None, arguments
    if "=" in arguments[at]:
        return arguments[at].partition("=")[2], arguments[:at] + arguments[at + 1 :]
    follows = at + 1 < len(arguments) and not arguments[at + 1].startswith("--")
    require(follows, f"{flag} needs a value, for example {flag} NAME.")
    return arguments[at + 1], arguments[:at] + arguments[at + 2 :]


def _parse(kind: Any, arguments: list[str], prog: str, **options: Any) -> Any:
    return tyro.cli(kind, args=arguments, prog=prog, **options)


def _train(arguments: list[str]) -> None:
    from covey.run.api import start
    from covey.run.config import config_type
    from covey.run.progress import Reporter

    if arguments[:1] in (["-h"], ["--help"]):
        print("covey train AGENT [options]; `covey train AGENT --help` lists them.\n")
        _agents([])
        return
    name, arguments = _first(arguments, "an agent", "covey train td3 --env pendulum")
    default, out, presets, arguments = _beginning(name, arguments)
    config = _parse(config_type(name), arguments, f"covey train {name}", default=default, description=TRAIN)
    start(config, out, Reporter(), presets)


def _evolve(arguments: list[str]) -> None:
    from covey.population.evolve import PBT
    from covey.run.api import start
    from covey.run.config import config_type, space_text
    from covey.run.devices import crew_of
    from covey.run.progress import Reporter

    if arguments[:1] in (["-h"], ["--help"]):
        print("covey evolve AGENT [options]; `covey evolve AGENT --help` lists them.\n")
        _agents([])
        return
    name, arguments = _first(arguments, "an agent", "covey evolve sac --env pendulum --members 8")
    job, arguments = _job(arguments)
    cluster, arguments = _cluster(arguments)
    default, out, presets, arguments = _beginning(name, arguments)
    options = evolve_options(config_type(name), default, default.pbt or PBT(), default.space or space_text(name))
    given = _parse(options, arguments, f"covey evolve {name}", description=EVOLVE)
    require(given.run.seeds == default.seeds, "`covey evolve` has --members, not --seeds: each has a seed of its own.")
    config = replace(given.run, seeds=given.members, pbt=given.pbt, space=given.space, islands=given.islands)
    crew = crew_of(*job)
    start(config, out, Reporter(quiet=crew.index > 0), presets, crew, cluster)


def evolve_options(kind: Any, run: Any, pbt: Any, space: Any) -> Any:
    """The options of `covey evolve`: those of a run, how many members, how they are tuned, and where."""
    number, how, where = run.seeds if run.pbt else 8, type(pbt), type(space)
    divided = run.islands

    @dataclass(frozen=True)
    class EvolveOptions:
        run: Annotated[kind, tyro.conf.arg(name="")] = field(default_factory=lambda: run)  # type: ignore[valid-type]
        members: int = number
        """Members of the population; member i has the seed + i."""
        islands: int = divided
        """With Ray, how many islands the members are divided among; 0 means 4."""
        pbt: how = field(default_factory=lambda: pbt)  # type: ignore[valid-type]
        """How they are tuned."""
        space: where = field(default_factory=lambda: space)  # type: ignore[valid-type]
        """Where each hyper-parameter is searched: LOW:HIGH[:SCALE], SCALE one of log, linear, one_minus; or off."""

    return EvolveOptions


def _beginning(name: str, arguments: list[str]) -> tuple[Any, Path | None, bool, list[str]]:
    """What a new run starts from: configuration, folder, whether it is a preset; and the arguments that remain."""
    from covey.run.config import default_config, load_config
    from covey.run.presets import preset_config

    file, arguments = _take(arguments, "--config")
    out, arguments = _take(arguments, "--out")
    preset, arguments = _take(arguments, "--preset")
    require(preset in (None, "on", "off"), f"--preset must be on or off, not {preset}. `covey presets` lists them.")
    require(not (file and preset == "on"), "--preset on and --config don't go together: the file says everything.")
    presets = not file and preset != "off"
    if file:
        default = load_config(Path(file))
    else:
        default = preset_config(name, **_environment(arguments)) if presets else default_config(name)
    require(default.algorithm == name, f"{file} is a configuration of {default.algorithm}, not of {name}.")
    return default, Path(out) if out else None, presets, arguments


def _job(arguments: list[str]) -> tuple[tuple[str | None, int | None, int | None], list[str]]:
    """The flags that say which process of which job this is, and the arguments that remain."""
    coordinator, arguments = _take(arguments, "--coordinator")
    numbers = []
    for flag in ("--processes", "--process"):
        text, arguments = _take(arguments, flag)
        require(text is None or text.isdigit(), f"{flag} must be a whole number, not {text}.")
        require(text is None or coordinator is not None, f"{flag} needs --coordinator HOST:PORT.")
        numbers.append(None if text is None else int(text))
    return (coordinator, numbers[0], numbers[1]), arguments


def _cluster(arguments: list[str]) -> tuple[Any, list[str]]:
    """The Ray cluster that the arguments name, and the arguments that remain."""
    from covey.run.cluster import Cluster

    address, arguments = _take(arguments, "--ray-address")
    return Cluster(address or "", tuple(PLUGINS)), arguments


def _environment(arguments: list[str]) -> dict[str, str]:
    """The environment that the arguments name, the last one if several; it is left among them."""
    found, (env, rest) = {}, _take(arguments, "--env")
    while env is not None:
        found["env"] = env
        env, rest = _take(rest, "--env")
    return found


def _resume(arguments: list[str]) -> None:
    from covey.run.api import load, resume
    from covey.run.config import config_type
    from covey.run.devices import crew_of
    from covey.run.progress import Reporter

    path, arguments = _first(arguments, "a run folder", "covey resume runs/pendulum-td3-0")
    job, arguments = _job(arguments)
    cluster, arguments = _cluster(arguments)
    old = load(path).config
    kind, prog = config_type(old.algorithm), f"covey resume {path}"
    new = _parse(kind, arguments, prog, default=old, description=RESUME) if arguments else None
    crew = crew_of(*job)
    resume(Path(path), new, Reporter(quiet=crew.index > 0), crew, cluster)


@dataclass(frozen=True)
class EvalOptions:
    """Judges the best policy of a run on start states that training never saw."""

    run: tyro.conf.Positional[Path]
    """The run folder."""
    episodes: int = 100
    """Episodes to run."""
    seed: int = 0
    """Seed of the start states."""


def _eval(arguments: list[str]) -> None:
    from covey.run.api import load
    from covey.run.folder import replace_text, writing
    from covey.run.run import summary

    options = _parse(EvalOptions, arguments, "covey eval")
    run = load(options.run)
    result = run.evaluate(options.episodes, options.seed)
    file = run.path / "evaluation" / f"eval-{options.episodes}-seed-{options.seed}.json"
    print(f"{run.config.algorithm} on {run.config.env}: {result}")
    with writing(run.path):
        replace_text(file, json.dumps(summary(result), indent=2) + "\n")
    print(f"per episode: {file}")


@dataclass(frozen=True)
class PlotOptions:
    """Draws a metric of one or more runs over environment steps."""

    runs: tyro.conf.Positional[tuple[Path, ...]]
    """Run folders."""
    out: Path | None = None
    """The PNG to write; by default media/curve.png of a single run, or curves.png here."""
    metric: str = "eval/return"
    """The metric, as it is called in metrics.jsonl."""


def _plot(arguments: list[str]) -> None:
    from covey.run.folder import writing
    from covey.run.plots import plot_curves

    options = _parse(PlotOptions, arguments, "covey plot")
    single = len(options.runs) == 1
    out = options.out or (options.runs[0] / "media" / "curve.png" if single else Path("curves.png"))
    require(out.suffix == ".png", f"--out must name a PNG, for example {out.with_suffix('.png')}, not {out}.")
    with writing(out.parent):
        plot_curves(list(options.runs), out, options.metric)
    print(f"{out}\n{out.with_suffix('.csv')}")


@dataclass(frozen=True)
class SkillsOptions:
    """Draws where each skill of a run leads, and writes where each episode ended as CSV beside it."""

    run: tyro.conf.Positional[Path]
    """The run folder."""
    out: Path | None = None
    """The PNG to write; by default media/skills.png of the run."""


def _skills(arguments: list[str]) -> None:
    from covey.run.api import load
    from covey.run.folder import writing

    options = _parse(SkillsOptions, arguments, "covey skills")
    out = options.out or options.run / "media" / "skills.png"
    require(out.suffix == ".png", f"--out must name a PNG, for example {out.with_suffix('.png')}, not {out}.")
    run = load(options.run)
    with writing(out.parent):
        run.plot_skills(out)
    print(f"{out}\n{out.with_suffix('.csv')}")


def _plan_options() -> Any:
    """The options of `covey plan`, of which the planner has some of its own."""
    from covey.agents.planner import Planning

    @dataclass(frozen=True)
    class PlanOptions:
        """Steers the skills of a DADS run from goal to goal, with no further training."""

        run: tyro.conf.Positional[Path]
        """The run folder."""
        planning: Planning = field(default_factory=Planning)
        """How far and how hard to think."""
        goal: tyro.conf.UseAppendAction[tuple[str, ...]] = ()
        """A goal in the descriptor's coordinates, such as 3,4; several are visited in turn in one episode."""
        random: int = 0
        """Instead of --goal: so many episodes with a random goal each."""
        radius: float | None = None
        """How near a goal is reached; by default a twentieth of the width of the descriptor's limits."""
        steps: int = 0
        """Steps of the episode; by default the environment's own number for each goal."""
        seed: int = 0
        """Seed of the start state and of random goals."""
        out: Path | None = None
        """The PNG to write; by default media/plan.png of the run. With --goal, a GIF is written beside it."""

    return PlanOptions


def _plan(arguments: list[str]) -> None:
    from covey.run.api import load
    from covey.run.folder import writing

    # A goal may begin with a minus, which must not look like a flag.
    options = _parse(_plan_options(), _joined(arguments, "--goal"), "covey plan")
    out = options.out or options.run / "media" / "plan.png"
    require(out.suffix == ".png", f"--out must name a PNG, for example {out.with_suffix('.png')}, not {out}.")
    require(bool(options.goal) != bool(options.random), "Give goals, as in --goal 3,4 --goal -2,1, or --random 20.")
    require(options.steps >= 0, f"--steps must not be negative, not {options.steps}.")
    run, how = load(options.run), {"planning": options.planning, "radius": options.radius, "seed": options.seed}
    with writing(out.parent):
        if options.goal:
            plans = [run.plan([_numbers(text) for text in options.goal], out, steps=options.steps, **how)]
        else:
            plans = run.random_plans(options.random, out, **how)
    for plan in plans:
        for goal, step in zip(plan.goals, plan.steps, strict=True):
            where = ", ".join(f"{x:.2f}" for x in goal)
            print(f"goal ({where}): {f'reached at step {step}' if step >= 0 else 'not reached'}")
    reached = [there for plan in plans for there in plan.reached]
    print(f"{sum(reached)} of {len(reached)} goals reached")
    print("\n".join(str(out.with_suffix(end)) for end in ([".png", ".gif"] if options.goal else [".png"])))


def _joined(arguments: list[str], flag: str) -> list[str]:
    """`flag value` as `flag=value`."""
    found = []
    for argument in arguments:
        if found and found[-1] == flag:
            found[-1] = f"{flag}={argument}"
        else:
            found.append(argument)
    return found


def _numbers(text: str) -> list[float]:
    try:
        return [float(x) for x in text.split(",")]
    except ValueError:
        raise CoveyError(f"--goal must be numbers with commas between them, as in --goal 3,4, not {text!r}.") from None


@dataclass(frozen=True)
class LineageOptions:
    """Draws a population: who copied whom, where the hyper-parameters went, how fit the members were."""

    run: tyro.conf.Positional[Path]
    """The run folder."""


def _lineage(arguments: list[str]) -> None:
    from covey.run.api import load
    from covey.run.folder import writing

    options = _parse(LineageOptions, arguments, "covey lineage")
    with writing(options.run):
        print("\n".join(map(str, load(options.run).plot_population())))


@dataclass(frozen=True)
class ReplayOptions:
    """Saves the replay of a run's newest checkpoint as a file that `covey train AGENT --replay FILE` starts with."""

    run: tyro.conf.Positional[Path]
    """The run folder."""
    out: Path | None = None
    """The file to write; by default replay.safetensors in the run folder."""


def _replay(arguments: list[str]) -> None:
    from covey.run.api import load
    from covey.run.replay_file import open_replay

    options = _parse(ReplayOptions, arguments, "covey replay")
    file = open_replay(load(options.run).save_replay(options.out))
    print(
        f"{file.algorithm} on {file.environment}, step {file.step:,}: {file.steps:,} steps of {file.members} member(s)"
    )
    print(file.path)


@dataclass(frozen=True)
class VideoOptions:
    """Films one episode of the best policy of a run."""

    run: tyro.conf.Positional[Path]
    """The run folder."""
    out: Path | None = None
    """The file to write: .mp4, .gif, or .html of a Brax run; by default media/policy.mp4 of the run."""
    steps: int = 0
    """Steps of the episode; by default as many as the environment's."""
    seed: int = 0
    """Seed of the start state."""


def _video(arguments: list[str]) -> None:
    from covey.run.api import load
    from covey.run.folder import writing

    options = _parse(VideoOptions, arguments, "covey video")
    run = load(options.run)
    with writing((options.out or run.folder.media / "policy.mp4").parent):
        print(run.video(options.out, steps=options.steps, seed=options.seed))


def _check_env(arguments: list[str]) -> None:
    from covey import envs
    from covey.run.cache import use_cache
    from covey.run.check import report

    name, rest = _first(arguments, "an environment", "covey check-env brax:ant")
    require(not rest, f"`covey check-env` takes one environment, not {' '.join(rest)} too.")
    use_cache()
    good = report(name, envs.make(name), print)
    require(good, f"{name} breaks the contract of an environment (docs/extending.md).")


def _envs(arguments: list[str]) -> None:
    from covey import envs

    require(len(arguments) <= 1, f"`covey envs` takes one library, such as brax, not {' '.join(arguments)}.")
    if arguments:
        print("\n".join(f"{arguments[0]}:{name}" for name in envs.adapter(arguments[0]).names()))
        return
    for name in envs.names():
        spec = envs.make(name).spec
        sizes = f"{spec.obs_size:>3} obs  {spec.action_size:>2} actions  {spec.episode_length:>5} steps"
        print(f"{name:<18}{sizes}   {envs.ENVS[name].summary}")
    print("\nOf other libraries (`covey envs LIBRARY` lists them):")
    for prefix in envs.ADAPTERS:
        summary = (envs.adapter(prefix).__doc__ or "").splitlines()[0]
        install = f"pip install 'covey[{prefix}]'"
        print(f"{prefix + ':':<18}{install:<34}{summary}")


def _agents(arguments: list[str]) -> None:
    import jax

    from covey import agents

    require(len(arguments) <= 1, f"`covey agents` takes one agent, not {' '.join(arguments)}.")
    for agent in arguments or agents.REGISTRY:
        entry = agents.entry(agent)
        print(f"{agent}: {entry.summary}")
        for path, value in jax.tree.flatten_with_path(entry.hyper())[0]:
            name = jax.tree_util.keystr(path, simple=True, separator=".")
            space = entry.space[name]
            flag = f"--hyper.{name.replace('_', '-')}"
            print(f"  {flag:<30}{value:<8g}  search {space.low:g} to {space.high:g}, {space.scale}")


def _presets(arguments: list[str]) -> None:
    from covey.run.presets import PRESETS, describe
    from covey.run.published import PUBLISHED

    require(not arguments, f"`covey presets` takes no arguments, not {' '.join(arguments)}.")
    for key in PRESETS:
        source = f" (published, not tuned here: {PUBLISHED[key].source})" if key in PUBLISHED else ""
        print(f"{key[0]} on {key[1]}: {describe(*key)}{source}")


VERBS = {
    "train": _train,
    "evolve": _evolve,
    "resume": _resume,
    "eval": _eval,
    "plot": _plot,
    "skills": _skills,
    "plan": _plan,
    "lineage": _lineage,
    "replay": _replay,
    "video": _video,
    "envs": _envs,
    "check-env": _check_env,
    "agents": _agents,
    "presets": _presets,
}
