"""What a Python user calls: `covey.train`, `covey.evolve`, `covey.load`."""

import dataclasses
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from covey import agents, envs
from covey.agents import Entry
from covey.backend import use_cache, use_cpu_devices
from covey.errors import require
from covey.islands.merge import reached
from covey.islands.ray import Cluster, Connection, connected, train_islands
from covey.nn.networks import ACTOR_HEADS, CRITIC_HEADS, TORSOS, register
from covey.plugins import allow, import_plugins, module_of
from covey.population.job import compare
from covey.population.processes import SINGLE_PROCESS, ProcessGroup
from covey.run.config import MOST_REPLAY, RunConfig, default_config, differences, read_run_config, to_json
from covey.run.console import Reporter, introduce
from covey.run.presets import describe, flat, preset_config
from covey.run.program import Program, build
from covey.run.run import Run, finish
from covey.run.session import Session
from covey.run.stopping import resume_command
from covey.storage.folder import RunFolder, disk_errors, new_folder
from covey.storage.replay_file import open_replay
from covey.storage.store import Store

HERE = Cluster()
MOST_PATH = 4096
RESUMABLE = ("steps", "capacity", "evaluations", "episodes", "checkpoint_minutes", "workers", "hyper", "devices")


def train(
    algorithm: str,
    *,
    out: str | Path | None = None,
    quiet: bool = False,
    preset: bool = True,
    cluster: Cluster = HERE,
    **options: Any,
) -> Run:
    """Trains an agent and returns its run. The options are the fields of RunConfig, for example env, steps, seed.

    `agent` and `hyper` are dictionaries: train("td3", env="pendulum", hyper={"actor_lr": 1e-3}). What is not given is
    as in the preset for this algorithm and environment, or with `preset=False` as in the plain defaults.
    """
    require(isinstance(preset, bool), f"preset must be True or False, not {preset!r}.")
    allow(module_of(str(options.get("env", ""))))
    config = preset_config(algorithm, **options) if preset else default_config(algorithm, **options)
    return start(config, Path(out) if out else None, Reporter(quiet), preset, cluster=cluster)


def evolve(
    algorithm: str,
    *,
    members: int = 8,
    pbt: dict[str, Any] | None = None,
    space: dict[str, Any] | None = None,
    ray_address: str = "",
    plugins: tuple[str, ...] = (),
    **options: Any,
) -> Run:
    """Trains a population and tunes its hyper-parameters meanwhile. The options are those of `train`, and

    `pbt`, such as {"bottom": 0.5}; `space`, ranges that differ from the algorithm's own, such as
    {"actor_lr": "1e-5:1e-2", "tau": "off"}. The best member is the run's policy.

    With `engine="ray", islands=4` the members are divided among islands on this machine or, with `ray_address`, on a
    cluster; `plugins` are modules that each of them imports first, which register environments, networks or agents.
    """
    require("seeds" not in options, "evolve takes `members`, not `seeds`.")
    allow(*plugins)
    cluster = Cluster(ray_address)
    return train(algorithm, seeds=members, pbt=pbt or {}, space=space or {}, cluster=cluster, **options)


def load(path: str | Path, plugins: Sequence[str] = ()) -> Run:
    """The run in a folder.

    `plugins` are modules that are imported first. A run whose environment is `gymnasium:MODULE:NAME` needs its module
    there: load("runs/cart", plugins=["my_envs"]). A run folder alone never makes covey import code.
    """
    import_plugins(plugins)
    use_cache()
    folder = RunFolder(Path(path))
    return Run(folder, read_run_config(folder))


def start(
    config: RunConfig[Any, Any],
    out: Path | None,
    reporter: Reporter,
    preset: bool = False,
    group: ProcessGroup = SINGLE_PROCESS,
    cluster: Cluster = HERE,
) -> Run:
    """A new run, from its first step to its pictures. A folder that holds the same run unfinished is gone on with.

    `preset` says that the configuration began with a preset, which is then named.
    """
    chosen = describe(config.algorithm, config.env, config) if preset else ""
    _compare(config, group, out)
    config = config.resolved()
    with connected(config, cluster, reporter) as connection:
        program = _prepared(config, group)
        folder = _created(config, out, group)
        with folder.lock(group.index):
            return _fit(program, folder, reporter, chosen, connection)


def _prepared(config: RunConfig[Any, Any], group: ProcessGroup) -> Program:
    """The program of a new run, which can be run with the data that it is to start with."""
    config.check()
    use_cache()
    _use_devices(config, group)
    program = build(config, group)
    if config.replay:
        program.loaded_rows(open_replay(Path(config.replay)))
    return program


def _use_devices(config: RunConfig[Any, Any], group: ProcessGroup) -> None:
    use_cpu_devices(max(1, config.seeds // (group.count * config.islands)), config.devices)


def _created(config: RunConfig[Any, Any], out: Path | None, group: ProcessGroup) -> RunFolder:
    """The folder of a new run, or of the same one unfinished."""
    folder = _agreed(RunFolder(out) if out else new_folder(config.env, config.algorithm), group)
    with _one_at_a_time(group):
        if os.path.lexists(folder.config):
            differing = differences(read_run_config(folder), config)
            require(
                not differing,
                f"{folder.path} holds a run of another configuration: {_listed(differing)}. Give another --out, or go "
                f"on with that run with `covey resume {folder.path}`.",
            )
        else:
            folder.create(to_json(config))
    return folder


def resume(
    path: Path,
    config: RunConfig[Any, Any] | None,
    reporter: Reporter,
    group: ProcessGroup = SINGLE_PROCESS,
    cluster: Cluster = HERE,
) -> Run:
    """Goes on with a run from its newest checkpoint, with another configuration if one is given."""
    folder = RunFolder(path)
    old, whole = read_run_config(folder), folder.whole
    require(whole is None, f"{path} is an island of a run. Go on with all of it: covey resume {whole and whole.path}")
    _compare(config or old, group, path)
    with connected(old, cluster, reporter) as connection, folder.lock(group.index):
        (config or old).check()
        use_cache()
        _use_devices(config or old, group)
        with _one_at_a_time(group):
            program = _changed_program(folder, config, group)
        _warn_of_short_replay(old, program.config, reporter)
        return _fit(program, folder, reporter, connection=connection)


def _compare(config: RunConfig[Any, Any], group: ProcessGroup, out: Path | None) -> None:
    """Raises an error where the processes of a job were given different options, before anything is compiled."""
    options = flat(to_json(config)) | {"out": str(out), "processes": group.count}
    if config.pbt:
        options["members"] = options.pop("seeds")
    compare({f"--{name.replace('_', '-')}": value for name, value in options.items()})


def _agreed(folder: RunFolder, group: ProcessGroup) -> RunFolder:
    """The folder that the first process of a job has chosen."""
    name = str(folder.path.absolute() if group.count > 1 else folder.path).encode()
    require(len(name) <= MOST_PATH, f"The path of the run folder is longer than {MOST_PATH} bytes.")
    message = np.frombuffer(name.ljust(MOST_PATH, b"\0"), np.uint8)[None]
    return RunFolder(Path(group.gather(message)[0].tobytes().rstrip(b"\0").decode()))


@contextmanager
def _one_at_a_time(group: ProcessGroup) -> Iterator[None]:
    """Lets the first process of a job do something to the folder before the others do."""
    if group.index > 0:
        group.any_process(False)
    yield
    if group.index == 0:
        group.any_process(False)


def _changed_program(folder: RunFolder, config: RunConfig[Any, Any] | None, group: ProcessGroup) -> Program:
    """The program of a run that goes on, after writing down what is to be another way from here on."""
    islands = [folder.island(number) for number in range(read_run_config(folder).islands)]
    parts = [island for island in islands if island.config.exists()]
    changes = [_change(part, config, group) for part in (*parts, folder)]
    for each in changes:
        each.record()
    return changes[-1].program


def _warn_of_short_replay(old: RunConfig[Any, Any], new: RunConfig[Any, Any], reporter: Reporter) -> None:
    """Says that a run becomes longer than its replay, which was made for its first length."""
    enough = min(new.steps, MOST_REPLAY)
    if new.steps > old.steps and new.capacity == old.capacity < enough:
        reporter.say(
            f"Note: the replay holds only the newest {new.capacity:,} of {new.steps:,} steps. "
            f"To keep more, resume with --capacity {enough}."
        )


class Change(NamedTuple):
    """What is to be another way in a run from a step on, which is possible."""

    folder: RunFolder
    program: Program
    step: int
    differing: list[tuple[str, Any, Any]]

    def record(self) -> None:
        if not self.differing:
            return
        with disk_errors(self.folder.path):
            self.folder.record_changes(self.step, self.differing)
            self.folder.write_config(to_json(self.program.config))


def _change(folder: RunFolder, config: RunConfig[Any, Any] | None, group: ProcessGroup) -> Change:
    """How a configuration changes a run; an error where it can't."""
    old = read_run_config(folder)
    new = config.resolved() if config else old
    if config and config.capacity == 0:  # as long as the run, and no less than it was
        new = dataclasses.replace(new, capacity=max(new.capacity, old.capacity))
    differing = differences(old, new)
    forbidden = [d for d in differing if d[0].split(".")[0] not in RESUMABLE]
    require(
        not forbidden,
        f"{_listed(forbidden)}: that can't change within a run. What can: {', '.join(RESUMABLE)}. For another value, "
        "start another run.",
    )
    require(
        new.capacity >= old.capacity,
        f"--capacity {new.capacity} is less than the {old.capacity} steps that the replay of {folder.path} holds. "
        "It can grow within a run, but not shrink.",
    )
    program = build(new, group)
    step = max(Store(folder.checkpoints, "step").steps(), default=0)
    require(
        new.steps >= old.steps or program.total * program.block_steps >= step,
        f"The run is already at step {step:,}, beyond --steps {new.steps:,}.",
    )
    return Change(folder, program, step, differing)


def _fit(
    program: Program,
    folder: RunFolder,
    reporter: Reporter,
    preset: str = "",
    connection: Connection | None = None,
) -> Run:
    run = Run(folder, program.config)
    introduce(program, folder, reporter, preset)
    if connection is not None:
        _fit_islands(run, program, reporter, connection)
        return run
    session = Session(program, folder, reporter)
    try:
        with session.stopping.stoppable():
            session.run()
            if program.group.index == 0:
                with disk_errors(folder.path):
                    finish(run, program, session.best.step, reporter)
                    reporter.say(session.writer.cost())
    except KeyboardInterrupt:
        session.stopping.wait()
        session.stopping.say_saved()
        raise
    return run


def _fit_islands(run: Run, program: Program, reporter: Reporter, connection: Connection) -> None:
    """The same on a cluster: the islands train, and what they leave is finished here."""
    config, folder = program.config, run.folder
    try:
        with disk_errors(folder.path):
            train_islands(config, folder, reporter, connection)
            bests = Store(folder.checkpoints, "best").steps()
            require(bool(bests), f"No evaluation of {folder.path} was finite, so it has no best policy.")
            finish(run, program, bests[-1], reporter)
    except KeyboardInterrupt:
        steps = [f"{reached(folder, number):,}" for number in range(config.islands)]
        reporter.say(f"The islands are saved at steps {', '.join(steps)}. Resume with: {resume_command(folder.path)}")
        raise


def _listed(differences: list[tuple[str, Any, Any]]) -> str:
    return "; ".join(f"{name} is {before!r} there and {after!r} here" for name, before, after in differences)


def register_env(name: str, factory: Callable[[], envs.Env], summary: str = "") -> None:
    """Adds an environment; `factory()` makes it."""
    envs.register(name, factory, summary)


def register_agent(name: str, entry: Entry) -> None:
    """Adds an algorithm."""
    require(name not in agents.REGISTRY, f"There is already an agent called {name!r}.")
    agents.REGISTRY[name] = entry


def register_torso(name: str) -> Callable[[type], type]:
    """Class decorator: a flax module that can be an encoder or a torso."""
    return register(TORSOS, name)


def register_actor_head(name: str) -> Callable[[type], type]:
    """Class decorator: a flax module from features to an action in [-1, 1]."""
    return register(ACTOR_HEADS, name)


def register_critic_head(name: str) -> Callable[[type], type]:
    """Class decorator: a flax module from features to one value."""
    return register(CRITIC_HEADS, name)
