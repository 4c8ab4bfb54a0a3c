"""How a run is started or resumed, on this machine or on islands, and what is made at its end."""

import dataclasses
import os
import shlex
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from covey.backend import on_device, use_cache, use_cpu_devices
from covey.callbacks import Hooks
from covey.doctor.facts import Facts
from covey.errors import CoveyError, require
from covey.evaluation import GIF_FRAMES, Interval
from covey.hyper.names import field_of
from covey.islands.merge import reached
from covey.islands.ray import Cluster, Connection, connected, train_islands
from covey.population.job import compare
from covey.population.processes import SINGLE_PROCESS, ProcessGroup
from covey.run.config import MOST_REPLAY, RunConfig, read_run_config
from covey.run.config_text import differences, flat, to_json
from covey.run.console import Reporter, introduce, option_text, seed_table
from covey.run.presets import PLAIN, Basis, preset_config, with_source
from covey.run.program import Program, build
from covey.run.run import Run
from covey.run.session import Session
from covey.run.stopping import resume_command
from covey.storage.finished import is_finished, write_final
from covey.storage.folder import RunFolder, disk_errors, new_folder
from covey.storage.metrics import Metrics, check_trackers
from covey.storage.replay_file import open_replay
from covey.storage.store import Store
from covey.web.report import write_report

UNTUNED = ("name", "members", "pbt", "space", "islands", "engine", "devices")
"""Options of a population that a run of one agent does not have."""
MEDIA = (".png", ".gif", ".mp4")
"""The files that trackers get at the end."""
COMMAND_WIDTH = 72
"""Columns of a command that is printed."""
LOCAL = Cluster()
MOST_PATH = 4096
RESUMABLE = (
    "steps",
    "capacity",
    "evaluations",
    "episodes",
    "checkpoint_minutes",
    "workers",
    "track",
    "hyper",
    "device",
    "devices",
)
"""Options that may change when a run is resumed."""


def start_run(
    config: RunConfig[Any, Any],
    out: Path | None,
    reporter: Reporter,
    basis: Basis = PLAIN,
    group: ProcessGroup = SINGLE_PROCESS,
    cluster: Cluster = LOCAL,
    hooks: Hooks | None = None,
) -> Run:
    """Trains a new run. A folder that holds the same run unfinished is resumed.

    Args:
        config: Its configuration.
        out: The run folder; by default the first free runs/ENV-AGENT-NUMBER.
        reporter: Prints progress.
        basis: The preset and the recipe that the configuration is based on, which are then shown.
        group: The processes that share the members.
        cluster: The Ray cluster, for `engine` ray.
        hooks: Callbacks and an evaluator, besides the registered callbacks.
    """
    shown = basis.shown(config)
    _check_hooks(config, hooks)
    _compare(config, group, out)
    config = config.resolved()
    check_trackers(config.track)
    try:
        config.check()
    except CoveyError as error:
        raise with_source(error, config, basis) from None
    _use_devices(config, group)
    if out and os.path.lexists(RunFolder(out).config) and (done := _finished(RunFolder(out), config, reporter, group)):
        return done
    with connected(config, cluster, reporter) as connection, on_device(config.device):
        program = _prepare(config, group)
        folder = _create(config, out, group)
        with folder.lock(group.index):
            return _train(program, folder, reporter, shown, connection, hooks or Hooks())


def resume_run(
    path: Path,
    config: RunConfig[Any, Any] | None,
    reporter: Reporter,
    group: ProcessGroup = SINGLE_PROCESS,
    cluster: Cluster = LOCAL,
    hooks: Hooks | None = None,
) -> Run:
    """Resumes a run from its newest checkpoint, with a changed configuration if one is given."""
    folder = RunFolder(path)
    old = read_run_config(folder)
    whole = folder.whole
    require(whole is None, f"{path} is an island of a run. Resume the whole run: covey resume {whole and whole.path}")
    _check_hooks(old, hooks)
    _compare(config or old, group, path)
    new = config or old
    new.check()
    check_trackers(new.resolved().track)
    _use_devices(new, group)
    if done := _finished(folder, new.resolved(), reporter, group):
        return done
    with connected(old, cluster, reporter) as connection, folder.lock(group.index), on_device(new.device):
        use_cache()
        with _one_at_a_time(group):
            program = _changed_program(folder, config, group)
        _warn_of_short_replay(old, program.config, reporter)
        return _train(program, folder, reporter, PLAIN, connection, hooks or Hooks())


def _check_hooks(config: RunConfig[Any, Any], hooks: Hooks | None) -> None:
    require(
        hooks is None or config.engine != "ray" or not (hooks.own or hooks.evaluator),
        "`callbacks` and `evaluator` can't be sent to the processes of `engine` ray. Register callbacks in a module "
        "with covey.register_callback, and name it in `plugins`.",
    )


def _finished(folder: RunFolder, config: RunConfig[Any, Any], reporter: Reporter, group: ProcessGroup) -> Run | None:
    """Returns the run in a folder if it is finished and `config` changes nothing; compiles and evaluates nothing."""
    old = read_run_config(folder)
    with _one_at_a_time(group), folder.lock(group.index):
        if differences(old, config) or not is_finished(folder, old.steps, old.islands, reporter.say):
            return None
    reporter.say(
        f"{folder.path} is finished: it has made its {old.steps:,} steps. Train longer with: "
        f"{resume_command(folder.path)} --steps {2 * old.steps}"
    )
    return Run(folder, old)


def _prepare(config: RunConfig[Any, Any], group: ProcessGroup) -> Program:
    """Builds the program of a new run, and checks that the data it starts with fit."""
    use_cache()
    program = build(config, group)
    if config.replay:
        program.loaded_rows(open_replay(Path(config.replay)))
    if config.init_from:
        program.transfer()
    return program


def _use_devices(config: RunConfig[Any, Any], group: ProcessGroup) -> None:
    use_cpu_devices(max(1, config.members // (group.count * config.islands)), config.devices)


def _create(config: RunConfig[Any, Any], out: Path | None, group: ProcessGroup) -> RunFolder:
    """Creates the folder of a new run, or finds the same run unfinished in it."""
    folder = _agreed(RunFolder(out) if out else _default_folder(config), group)
    with _one_at_a_time(group):
        if os.path.lexists(folder.config):
            differing = [each for each in differences(read_run_config(folder), config) if each[0] != "track"]
            require(
                not differing,
                f"{folder.path} holds a run of another configuration: {_listed(differing)}. Give another `out`, or "
                f"resume that run with `covey resume {folder.path}`.",
            )
            _change_trackers(folder, config)
        else:
            folder.create(to_json(config))
    return folder


def _change_trackers(folder: RunFolder, config: RunConfig[Any, Any]) -> None:
    """Records the trackers of a run that is started again: they are not a part of what the run is."""
    for part in (*_islands(folder), folder):
        old = read_run_config(part)
        if old.track != config.track:
            step = max(Store(part.checkpoints, "step").steps(), default=0)
            with disk_errors(part.path):
                part.record_changes(step, [("track", list(old.track), list(config.track))])
                part.write_config(to_json(dataclasses.replace(old, track=config.track)))


def _islands(folder: RunFolder) -> list[RunFolder]:
    """Returns the folders of the islands of a run that have been started."""
    islands = [folder.island(number) for number in range(read_run_config(folder).islands)]
    return [island for island in islands if island.has_config()]


def _default_folder(config: RunConfig[Any, Any]) -> RunFolder:
    return new_folder(config.env, config.algorithm, config.name, is_population=config.pbt is not None)


def _compare(config: RunConfig[Any, Any], group: ProcessGroup, out: Path | None) -> None:
    """Raises an error if the processes of a job have different options, before anything is compiled."""
    options = flat(to_json(config)) | {"out": str(out), "processes": group.count}
    compare({f"`{name}`": value for name, value in options.items()})


def _agreed(folder: RunFolder, group: ProcessGroup) -> RunFolder:
    """Returns the folder that the first process of a job has chosen."""
    if group.count == 1:
        return folder
    name = str(folder.path.absolute()).encode()
    require(len(name) <= MOST_PATH, f"The path of the run folder is longer than {MOST_PATH} bytes.")
    message = np.frombuffer(name.ljust(MOST_PATH, b"\0"), np.uint8)[None]
    return RunFolder(Path(group.gather(message)[0].tobytes().rstrip(b"\0").decode()))


@contextmanager
def _one_at_a_time(group: ProcessGroup) -> Iterator[None]:
    """Lets the first process of a job change the folder before the others look at it."""
    if group.index > 0:
        group.any_process(False)
    yield
    if group.index == 0:
        group.any_process(False)


def _changed_program(folder: RunFolder, config: RunConfig[Any, Any] | None, group: ProcessGroup) -> Program:
    """Builds the program of a resumed run, after recording which options changed."""
    changes = [_change(part, config, group) for part in (*_islands(folder), folder)]
    for each in changes:
        each.record()
    return changes[-1].program


def _warn_of_short_replay(old: RunConfig[Any, Any], new: RunConfig[Any, Any], reporter: Reporter) -> None:
    """Says that a run was extended beyond its replay, which was sized for its first length."""
    enough = min(new.steps, MOST_REPLAY)
    if new.steps > old.steps and new.capacity == old.capacity < enough:
        reporter.say(
            f"Note: the replay holds only the newest {new.capacity:,} of {new.steps:,} steps. "
            f"To keep more, resume with --capacity {enough}."
        )


class Change(NamedTuple):
    """A valid change of options that takes effect at `step`."""

    folder: RunFolder
    program: Program
    step: int
    differing: list[tuple[str, Any, Any]]

    def record(self) -> None:
        """Writes the change into the run folder."""
        if not self.differing:
            return
        with disk_errors(self.folder.path):
            self.folder.record_changes(self.step, self.differing)
            self.folder.write_config(to_json(self.program.config))


def _change(folder: RunFolder, config: RunConfig[Any, Any] | None, group: ProcessGroup) -> Change:
    """Returns how a configuration changes a run; an error if it can't."""
    old = read_run_config(folder)
    new = config.resolved() if config else old
    if config and config.capacity == 0:  # as long as the run, and no less than it was
        new = dataclasses.replace(new, capacity=max(new.capacity, old.capacity))
    differing = differences(old, new)
    forbidden = [d for d in differing if d[0].split(".")[0] not in RESUMABLE]
    require(
        not forbidden,
        f"{_listed(forbidden)}: that can't change within a run. These can: {', '.join(RESUMABLE)}. For another value, "
        "start another run.",
    )
    require(
        new.capacity >= old.capacity,
        f"`capacity` {new.capacity} is less than the {old.capacity} steps that the replay of {folder.path} holds. "
        "It can grow within a run, but not shrink.",
    )
    program = build(new, group)
    step = max(Store(folder.checkpoints, "step").steps(), default=0)
    require(
        new.steps >= old.steps or program.total * program.block_steps >= step,
        f"The run is already at step {step:,}, beyond `steps` {new.steps:,}.",
    )
    return Change(folder, program, step, differing)


def _train(
    program: Program,
    folder: RunFolder,
    reporter: Reporter,
    basis: Basis,
    connection: Connection | None,
    hooks: Hooks,
) -> Run:
    run = Run(folder, program.config, program.policy)
    introduce(program, folder, reporter, basis)
    if connection is not None:
        _train_islands(run, reporter, connection)
        return run
    session = Session(program, run, reporter, hooks)
    try:
        with session.stopping.stoppable():
            _run_and_finish(session, run, reporter)
    except KeyboardInterrupt:
        session.stopping.wait()
        session.stopping.say_saved()
        raise
    return run


def _run_and_finish(session: Session, run: Run, reporter: Reporter) -> None:
    """Trains to the end, and makes what is made at the end of a run."""
    media: dict[str, Path] = {}
    try:
        session.run()
        if session.group.index == 0:
            with disk_errors(run.path):
                if session.hooks.stopped:
                    reporter.say(f"Stopped by a callback at step {session.step:,}; saved.")
                finish(run, session.best.step, reporter)
                reporter.say(session.writer.cost())
            media = {path.stem: path for path in sorted(run.folder.media.iterdir()) if path.suffix in MEDIA}
    finally:
        session.end(media)


def _train_islands(run: Run, reporter: Reporter, connection: Connection) -> None:
    """Trains the islands on a cluster, and finishes the merged run here."""
    config = run.config
    folder = run.folder
    try:
        with disk_errors(folder.path):
            train_islands(config, folder, reporter, connection)
            bests = Store(folder.checkpoints, "best").steps()
            require(bool(bests), f"No evaluation of {folder.path} was finite, so it has no best policy.")
            finish(run, bests[-1], reporter)
    except KeyboardInterrupt:
        steps = [f"{reached(folder, number):,}" for number in range(config.islands)]
        reporter.say(f"The islands are saved at steps {', '.join(steps)}. Resume with: {resume_command(folder.path)}")
        raise


def finish(run: Run, best_step: int, reporter: Reporter) -> None:
    """Evaluates the best policy on new start states, and draws the figures of a finished run."""
    result = run.evaluate(run.config.episodes)
    write_final(run.folder, run.config.steps, result.as_json())
    metrics = run.metrics()
    if run.config.members > 1 and run.config.pbt is None and not run.best.program.skill_agent:
        for line in seed_table(metrics, run.config.seed):
            reporter.say(line)
    which = "Newest" if run.best.program.skill_agent else "Best"
    reporter.heading(f"{which} policy (step {best_step:,}), new start states: {result}")
    reporter.say(f"learning curve: {_path_or_reason(run.plot)}")
    try:
        episode = run.episode(frames=GIF_FRAMES)
        animation = _path_or_reason(lambda: run.animate(episode=episode))
    except CoveyError as error:  # an environment that can't be drawn has actions to plot all the same
        episode = run.episode()
        animation = f"none: {error}"
    reporter.say(f"one episode:    {run.plot_episode(episode=episode)}")
    reporter.say(f"animation:      {animation}")
    if run.config.pbt:
        reporter.say(f"population:     {_path_or_reason(lambda: ', '.join(map(str, run.plot_population())))}")
    if run.best.program.skill_agent:
        reporter.say(f"skills:         {run.plot_skills()}")
    reporter.say(f"report:         {_report(run)}")
    reporter.say(f"run folder:     {run.path}")
    if run.config.pbt:
        reporter.say(f"Train with the winner's hyper-parameters:\n  {winner_command(run)}")
    if not run.best.program.skill_agent:
        reporter.advise(Facts(untrained=_untrained(metrics), final=result.mean, actions=episode.actions))


def _untrained(metrics: Metrics) -> Interval | None:
    """Returns the evaluation before training, averaged over the members."""
    names = ("eval/return", "eval/return_low", "eval/return_high")
    first = [[x for s, x in zip(metrics[n]["step"], metrics[n]["value"], strict=True) if s == 0] for n in names]
    return Interval(*(float(np.mean(x)) for x in first)) if first[0] else None


def winner_command(run: Run) -> str:
    """Returns the command that trains with the hyper-parameters of the best policy of a population.

    Args:
        run: A run of `covey evolve`.
    """
    config = run.config
    plain = preset_config(config.algorithm, env=config.env).resolved()
    found = flat(run.best_hyper())
    tuned = {f"hyper.{name}": found[name] for name in map(field_of, config.searched())}
    changed = {name: value for name, _, value in differences(plain, config) if name.split(".")[0] not in UNTUNED}
    if config.capacity == min(config.steps, MOST_REPLAY):
        changed.pop("capacity", None)
    options = {"env": config.env, **changed, **tuned}
    texts = [f"covey train {config.algorithm}", *(_option(name, value) for name, value in options.items())]
    lines = [""]
    for text in texts:  # a shell joins lines that end with a backslash
        fits = len(f"{lines[-1]} {text}") <= COMMAND_WIDTH
        lines = [*lines[:-1], f"{lines[-1]} {text}".strip()] if fits else [*lines, text]
    return " \\\n    ".join(lines)


def _option(name: str, value: Any) -> str:
    flag = name.replace("_", "-")
    if isinstance(value, dict):
        return " ".join(f"--{flag}.{each} {shlex.quote(str(x))}" for each, x in value.items())
    if isinstance(value, bool):
        path, _, last = flag.rpartition(".")
        return f"--{path}{'.' if path else ''}{'' if value else 'no-'}{last}"
    return f"--{flag} {option_text(value)}"


def _path_or_reason(draw: Callable[[], Any]) -> str:
    """Returns the path of a figure, or why there is none: a run is not lost because a figure can't be drawn."""
    try:
        return str(draw())
    except CoveyError as error:
        return f"none: {error}"


def _report(run: Run) -> str:
    """Returns the path of the report, or why there is none. Nothing that goes wrong here ends the run."""
    try:
        return str(write_report([run.path]))
    except Exception as error:
        return f"none: {error}"


def _listed(differing: list[tuple[str, Any, Any]]) -> str:
    return "; ".join(f"{name} is {before!r} there and {after!r} here" for name, before, after in differing)
