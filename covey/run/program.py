"""The training program of a configuration: policy, loop, and the blocks at which a run logs, evaluates and tunes."""

import dataclasses
import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp

from covey import backend
from covey.errors import CoveyError, require, unknown
from covey.evaluation import EVALUATION, Episodes, current_hypers
from covey.hyper.space import Space, draw_hypers
from covey.population.processes import SINGLE_PROCESS, ProcessGroup
from covey.run.config import RunConfig
from covey.run.limits import MOST_GENERATIONS, check_training
from covey.run.policy import PolicyProgram, build_policy
from covey.storage.replay_file import ReplayFile, open_replay
from covey.storage.transfer import Source, Transfer, read_transfer
from covey.training.device import DeviceLoop
from covey.training.host import HostLoop
from covey.training.member import Population
from covey.training.store import choose_axis
from covey.training.trainer import Replay, Stored, Trainer, make_trainer

if TYPE_CHECKING:
    from covey.storage.folder import RunFolder

LOGS_PER_EVALUATION = 5


@dataclass(frozen=True)
class Program:
    """The training program of a run. `warmup` and `total` count blocks; the tuples hold block numbers."""

    config: RunConfig[Any, Any]
    policy: PolicyProgram
    loop: DeviceLoop | HostLoop
    group: ProcessGroup
    """The processes that share the members: `loop` has this one's."""
    warmup: int
    total: int
    evaluations: tuple[int, ...]
    logs: tuple[int, ...]
    generations: tuple[int, ...]
    """Blocks after which the members are tuned."""
    space: Space
    """The hyper-parameters that are tuned."""

    @property
    def block_steps(self) -> int:
        """Environment steps in a block."""
        return self.loop.trainer.block_steps

    @property
    def updates_per_block(self) -> int:
        """Gradient updates in a block."""
        trainer = self.loop.trainer
        return trainer.iterations * trainer.updates * trainer.agent.plan.updates

    @property
    def eval_blocks(self) -> frozenset[int]:
        """Blocks after which the members are evaluated."""
        return frozenset((*self.evaluations, *self.generations))

    @property
    def log_blocks(self) -> frozenset[int]:
        """Blocks after which metrics are logged."""
        return frozenset((*self.logs, *self.eval_blocks))

    @property
    def members(self) -> range:
        """The indices of this process's members."""
        return self.group.local_members(self.loop.members)

    @property
    def reported_members(self) -> range:
        """The indices of the members that this process reports."""
        return self.group.reported_members(self.loop.members)

    @property
    def warmup_rows(self) -> int:
        return self.warmup * self.loop.trainer.block_rows

    def init(self, say: Callable[[str], None], folder: "RunFolder | None" = None) -> Population:
        """Creates the members: member i from the seed + i, with what `init_from` and `replay` give them.

        Args:
            say: Called with lines about what they start with.
            folder: The run folder, which records what came from another run; needed with `init_from`.
        """
        with backend.silence_xla():
            hypers = draw_hypers(self.space, self.config.seed, self.members)
            population = self.loop.init(hypers, self.config.seed + self.members.start)
        if self.config.init_from:
            assert folder is not None
            population = self._start_from(population, folder, say)
        if not self.config.replay:
            return population
        file = open_replay(Path(self.config.replay))
        rows = self.loaded_rows(file)
        replay = self.loop.trainer.replay
        data = file.read(replay, rows, self.loop.members)
        say(
            f"Loaded {rows * replay.streams:,} of the {file.steps:,} steps of each member in {file.path}: "
            f"{file.algorithm} on {file.environment}, step {file.step:,}."
        )
        if file.environment != self.config.env:
            say(f"Note: these data are from {file.environment}, and this run trains on {self.config.env}.")
        with backend.silence_xla():
            return self.loop.load(population, jax.tree.map(jnp.asarray, data))

    def transfer(self) -> Transfer:
        """Reads what the run takes from the one that `init_from` names; an error if nothing fits."""
        return read_transfer(Source.parse(self.config.init_from), self.policy.shapes()[0])

    def _start_from(self, population: Population, folder: "RunFolder", say: Callable[[str], None]) -> Population:
        transfer = self.transfer()
        for line in transfer.lines(self.config.algorithm, dataclasses.asdict(self.config.agent)):
            say(line)
        if self.config.warmup_actions == "policy" and not transfer.has_actor:
            say(
                "Note: the actor was not loaded completely, and the warm-up acts with it. With --warmup-actions random "
                "its actions are uniform."
            )
        if self.group.index == 0:
            transfer.record(folder)
        return self.loop.start_from(population, transfer.into(population.members.agent))

    def loaded_rows(self, file: ReplayFile) -> int:
        """Returns the number of rows that the run takes from a replay file; an error if it does not fit."""
        trainer = self.loop.trainer
        rows = file.rows_for(trainer.replay, trainer.unroll, self.config.env)
        trainer.replay.check(trainer.agent.plan, trainer.unroll, self.warmup_rows, rows)
        return rows

    def restore(self, tree: dict[str, Any], changed: set[str]) -> Population:
        """Returns the population that a checkpoint holds.

        Args:
            tree: Its parts, as `covey.storage.layout.unpack` returns them.
            changed: Names of options that were changed since; hyper-parameters among them take their new values.
        """
        trainer = self.loop.trainer
        members = tree["members"]
        held = tree["replay"]
        replay = trainer.replay.restore(Stored(held["data"], held["frames"]), held["written"])
        hyper = self.config.reconfigured(members.hyper, changed)
        return self.loop.place(Population(members._replace(hyper=hyper), replay, tree["block"]))

    def hypers(self, population: Population) -> Any:
        """Returns the members' hyper-parameters [p] as of now: scheduled ones follow their schedule."""
        return current_hypers(self.loop, population)

    def evaluate(self, population: Population) -> tuple[Episodes, dict[str, Any]]:
        """Evaluates every member [p]: greedy episodes, and the measures of its skills if it has any."""
        agents = population.members.agent
        hypers = self.hypers(population)
        key = self.policy.stream(EVALUATION)
        mapping = (self.loop.axis, self.loop.devices)
        episodes = self.policy.evaluate(agents, hypers, key, self.config.episodes, *mapping)
        return episodes, self.policy.measure(agents, hypers, *mapping)

    def close(self) -> None:
        """Closes environments and worker processes."""
        self.loop.close()
        self.policy.close()


def build(config: RunConfig[Any, Any], group: ProcessGroup = SINGLE_PROCESS) -> Program:
    """Builds the training program of a resolved configuration for one process; an error if it can't be run."""
    config.check()
    policy = build_policy(config)
    members = part(part(config.members, config.islands, "islands"), group.count, "processes")
    devices = 1 if policy.on_host else _devices(config, members)
    shared = config.pbt is not None and config.pbt.replay == "share"
    _check_places(config, policy.on_host, devices, group)
    trainer = _trainer(config, policy)
    axis = choose_axis(trainer, config.members) if config.population_axis == "auto" else config.population_axis
    axis = "map" if shared else axis
    check_training(config, trainer, members, devices, axis)
    if policy.on_host:
        loop = HostLoop(trainer, members, axis, config.overlap, config.workers)
    else:
        loop = DeviceLoop(trainer, members, axis, devices)
    program = _scheduled(config, policy, loop, group)
    if config.pbt:
        _check_fitness(program)
    if not config.replay:  # a run that starts with data checks its replay when it loads them
        trainer.replay.check(policy.agent.plan, trainer.unroll, program.warmup_rows)
    return program


def _trainer(config: RunConfig[Any, Any], policy: PolicyProgram) -> Trainer:
    return make_trainer(
        policy.agent,
        policy.train_env,
        config.schedules(),
        envs=config.envs,
        updates_per_step=config.updates_per_step,
        capacity=config.capacity,
        shared=config.pbt is not None and config.pbt.replay == "share",
        warmup_mode="sample" if config.warmup_actions == "policy" else "random",
    )


def replay_of(config: RunConfig[Any, Any], policy: PolicyProgram | None = None) -> Replay:
    """Returns the replay's layout in a run. Allocates nothing."""
    return _trainer(config, policy or build_policy(config)).replay


def _scheduled(
    config: RunConfig[Any, Any], policy: PolicyProgram, loop: DeviceLoop | HostLoop, group: ProcessGroup
) -> Program:
    """Returns the program with its block numbers."""
    block_steps = loop.trainer.block_steps
    warmup = math.ceil(config.warmup / block_steps)
    total = math.ceil(config.steps / block_steps)
    require(
        warmup < total,
        f"`steps` {config.steps} ends before the warm-up of {config.warmup} steps does: both are rounded up to "
        f"blocks of {block_steps} steps. Raise `steps` to at least {(warmup + 1) * block_steps}.",
    )
    return Program(
        config,
        policy,
        loop,
        group,
        warmup,
        total,
        evaluations=_points(total, config.evaluations),
        logs=_points(total, config.evaluations * LOGS_PER_EVALUATION),
        generations=_generations(config, block_steps, warmup, total),
        space=config.searched(),
    )


def _check_places(config: RunConfig[Any, Any], on_host: bool, devices: int, group: ProcessGroup) -> None:
    """Raises a CoveyError if environments, members and data can't be placed as the configuration wants."""
    replay = config.pbt.replay if config.pbt else "keep"
    require(on_host or not config.workers, f"`workers` is for host environments; {config.env} is compiled.")
    require(
        not on_host or config.devices <= 1,
        f"`devices` {config.devices}: members of a host environment, such as {config.env}, share one device.",
    )
    require(
        replay != "share" or devices * group.count == 1,
        "`pbt.replay` share needs one process and `devices` 1: otherwise data would be sent with every update.",
    )
    require(
        config.islands == 1 or group.count == 1, "`engine` ray starts its processes itself: leave `coordinator` out."
    )
    require(
        config.islands == 1 or replay == "keep",
        f"Islands exchange no replay data: `engine` ray needs `pbt.replay` keep, not {replay}.",
    )


def _generations(config: RunConfig[Any, Any], block_steps: int, warmup: int, total: int) -> tuple[int, ...]:
    """Returns the blocks after which members are tuned: every `interval` steps after the warm-up, not at the end."""
    if config.pbt is None:
        return ()
    every = math.ceil(config.pbt.interval / block_steps)
    require(
        total // every <= MOST_GENERATIONS,
        f"`pbt.interval` {config.pbt.interval} makes {total // every:,} generations of {config.steps:,} steps; at most "
        f"{MOST_GENERATIONS:,} are allowed. Raise it.",
    )
    return tuple(block for block in range(every, total, every) if block > warmup)


def _check_fitness(program: Program) -> None:
    """Raises a CoveyError if there is no quantity with the name that members are to be ranked by."""
    name = program.config.fitness
    known = {"return"} if name == "return" else {"return"} | program.policy.measures()
    if name not in known:
        raise CoveyError(f"{unknown('fitness', name, known)}")
    pbt = program.config.pbt
    require(
        name == "return" or pbt is None or pbt.significance == 0,
        f"`pbt.significance` tests the returns of episodes, and {name} is a single number. Leave one of them out.",
    )


def part(members: int, among: int, what: str) -> int:
    """Divides members evenly; an error says which numbers work."""
    if members % among:
        fitting = [n for n in range(1, members + 1) if members % n == 0]
        near = sorted({members // among * among, -(-members // among) * among} - {0})
        raise CoveyError(
            f"{members} members can't be divided among {among} {what}. With {members} members there can be "
            f"{_listed(fitting)} {what}; {among} {what} can have {_listed(near)} members."
        )
    return members // among


def _listed(numbers: list[int]) -> str:
    return " or ".join(map(str, numbers))


def _devices(config: RunConfig[Any, Any], members: int) -> int:
    """Returns the number of devices that share this process's members."""
    available = len(backend.devices())
    shared = bool(config.pbt) and config.pbt.replay == "share"
    if config.devices == 0:
        return 1 if shared else max(n for n in range(1, min(available, members) + 1) if members % n == 0)
    require(
        config.devices <= available,
        f"`devices` {config.devices} is more than the {available} available. On a CPU they are created before jax is "
        f"first used: set jax.config.update('jax_num_cpu_devices', {config.devices}) at the start of your own program.",
    )
    part(members, config.devices, "devices")
    return config.devices


def _points(total: int, number: int) -> tuple[int, ...]:
    """Returns `number` evenly spaced blocks, the last one `total`; fewer if there are fewer blocks."""
    number = min(number, total)
    return tuple(sorted({math.ceil(k * total / number) for k in range(1, number + 1)}))
