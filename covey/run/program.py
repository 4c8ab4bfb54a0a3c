"""A configuration made concrete: agent, environment, compiled loop, and the moments at which a run does something."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from covey import agents, envs
from covey.agents.skills.contract import SkillAgent
from covey.backend import request_acting_device, silence_xla
from covey.envs.described import Described
from covey.errors import CoveyError, require, unknown
from covey.evaluation.evaluate import evaluate_members
from covey.evaluation.host import HostEvaluator
from covey.evaluation.rollout import Episodes
from covey.evaluation.skills import measure
from covey.hyper.range import Space
from covey.hyper.schedule import hyper_at
from covey.hyper.space import draw_hypers
from covey.population.pbt import PBT
from covey.population.processes import SINGLE_PROCESS, ProcessGroup
from covey.run.config import RunConfig
from covey.run.limits import LARGEST, MOST_GENERATIONS, check_memory, training_needs
from covey.storage.replay_file import ReplayFile, open_replay
from covey.training.device import DeviceLoop
from covey.training.host import HostLoop
from covey.training.member import Population
from covey.training.precision import in_precision
from covey.training.sharding import SPLIT, Axis, place
from covey.training.store import choose_axis
from covey.training.trainer import Trainer, make_trainer
from covey.types import Key, Metrics

LOGS_PER_EVALUATION = 5
EVALUATION, FINAL_EVALUATION, ANIMATION, SKILLS, GOALS = 1, 2, 3, 4, 5
"""Random streams beside the training's own."""
SKILL_EPISODES = 8
"""Episodes of each skill that stands for all, in the measures of skills."""
STREAMS = 0x5EED_C0DE
"""Their root, far from the seeds that people choose."""


class Program(NamedTuple):
    """What a run is made of. `warmup` and `total` count blocks; `evaluations` and `logs` are block numbers."""

    config: RunConfig[Any, Any]
    agent: Any
    env: Any
    loop: DeviceLoop | HostLoop
    warmup: int
    total: int
    evaluations: tuple[int, ...]
    logs: tuple[int, ...]
    generations: tuple[int, ...] = ()
    """Blocks after which the members are tuned."""
    skill_agent: SkillAgent[Any, Any, Any] | None = None
    """The agent, if it learns skills."""
    group: ProcessGroup = SINGLE_PROCESS
    """The processes that share the members: `loop` has this one's."""
    host_evaluator: HostEvaluator | None = None
    """Evaluates on host environments."""

    @property
    def block_steps(self) -> int:
        return self.loop.trainer.block_steps

    @property
    def updates_per_block(self) -> int:
        trainer = self.loop.trainer
        return trainer.iterations * trainer.updates * self.agent.plan.updates

    def stream(self, number: int, seed: int = 0) -> Key:
        """A random stream that training does not use, the same in every run: seeds are judged on the same starts."""
        require(-LARGEST <= seed <= LARGEST, f"--seed must lie between {-LARGEST} and {LARGEST}, not {seed}.")
        return jax.random.fold_in(jax.random.key(STREAMS + seed), number)

    @property
    def judged(self) -> frozenset[int]:
        """Blocks after which the members are evaluated."""
        return frozenset((*self.evaluations, *self.generations))

    @property
    def moments(self) -> frozenset[int]:
        """Blocks after which something is written down."""
        return frozenset((*self.logs, *self.judged))

    @property
    def members(self) -> range:
        """The numbers of this process's members."""
        return self.group.local_members(self.loop.members)

    @property
    def space(self) -> Space:
        """The hyper-parameters that are tuned."""
        return self.config.searched()

    @property
    def warmup_rows(self) -> int:
        return self.warmup * self.loop.trainer.iterations * self.loop.trainer.unroll

    def init(self, say: Callable[[str], None]) -> Population:
        """The members before the first step: member i from the seed + i, with the data of --replay if it is given."""
        with silence_xla():
            hypers = draw_hypers(self.space, self.config.seed, self.members)
            population = self.loop.init(hypers, self.config.seed + self.members.start)
        if not self.config.replay:
            return population
        file = open_replay(Path(self.config.replay))
        rows, replay = self.loaded_rows(file), self.loop.trainer.replay
        data = file.read(replay, rows, self.loop.members)
        say(
            f"Loaded {rows * replay.streams:,} of the {file.steps:,} steps of each member in {file.path}: "
            f"{file.algorithm} on {file.environment}, step {file.step:,}."
        )
        if file.environment != self.config.env:
            say(f"Note: these data are of {file.environment}, whose sizes fit, and this run is on {self.config.env}.")
        with silence_xla():
            return self.loop.load(population, jnp.asarray(data))

    def loaded_rows(self, file: ReplayFile) -> int:
        """The rows that the run starts with from a file; an error where it does not fit."""
        trainer = self.loop.trainer
        rows = file.rows_for(trainer.replay, trainer.unroll, self.config.env)
        trainer.replay.check(self.agent.plan, trainer.unroll, self.warmup_rows, rows)
        return rows

    def template(self) -> Population:
        """The shapes of the population, with nothing computed."""
        return self.loop.template()

    def hyper_at(self, hyper: Any, step: int) -> Any:
        """The members' hyper-parameters [p] at a step: those with a schedule follow it."""
        loop = self.loop
        now = hyper_at(hyper, loop.trainer.schedules, jnp.int32(step))
        return place(jax.tree.map(lambda x: jnp.broadcast_to(x, loop.members), now), loop.devices, SPLIT)

    def evaluate(self, agent_states: Any, hypers: Any, key: Key, episodes: int) -> Episodes:
        """Greedy episodes of every member, on the host."""
        with silence_xla():
            if self.host_evaluator:
                return self.host_evaluator(agent_states, hypers, key, episodes)
            how = self._how(hypers)
            return jax.device_get(evaluate_members(self.agent, self.env, agent_states, hypers, key, episodes, *how))

    def close(self) -> None:
        """Closes environments and worker processes."""
        self.loop.close()
        if self.host_evaluator:
            self.host_evaluator.close()

    def measure(self, agent_states: Any, hypers: Any) -> dict[str, np.ndarray]:
        """What every member's skills are worth, [P] each; nothing where there are none."""
        with silence_xla():
            return jax.device_get(self.measured(agent_states, hypers))

    def measured(self, agent_states: Any, hypers: Any) -> Metrics:
        """The same on the device."""
        if self.skill_agent is None:
            return {}
        states, how = (agent_states, hypers), self._how(hypers)
        return measure(self.skill_agent, self.env, *states, self.stream(SKILLS), SKILL_EPISODES, *how)

    def _how(self, hypers: Any) -> tuple[Axis, int]:
        """How members are mapped and spread: as in training, or a single policy alone."""
        own = len(jax.tree.leaves(hypers)[0]) == self.loop.members
        return (self.loop.axis, self.loop.devices) if own else ("vmap", 1)


def build(config: RunConfig[Any, Any], group: ProcessGroup = SINGLE_PROCESS, trains: bool = True) -> Program:
    """The program of a resolved configuration, for one of the processes; an error where it can't be run.

    Without `trains` it is only for evaluation, which needs no memory for replay and batches.
    """
    config.check()
    env: Any = envs.make(config.env)
    entry, on_host = agents.entry(config.algorithm), isinstance(env, envs.HostEnv)
    if on_host:
        request_acting_device()
    members = part(part(config.seeds, config.islands, "islands"), group.count, "processes")
    devices = 1 if on_host else _devices(config, members)
    shared = config.pbt is not None and config.pbt.replay == "share"
    _check_places(config, on_host, devices, group)
    env = Described(env) if entry.is_skill_agent else env  # type: ignore[arg-type]
    made = entry.make(config.agent, env.spec)
    agent = in_precision(made, config.precision)
    trainer = make_trainer(
        agent,
        env,
        config.schedules(),
        envs=config.envs,
        updates_per_step=config.updates_per_step,
        capacity=config.capacity,
        shared=shared,
    )
    warmup, total = (math.ceil(steps / trainer.block_steps) for steps in (config.warmup, config.steps))
    require(
        warmup < total,
        f"--steps {config.steps} is over before the warm-up of {config.warmup} steps is: both are rounded up to "
        f"blocks of {trainer.block_steps} steps. Raise --steps to at least {(warmup + 1) * trainer.block_steps}.",
    )
    axis = choose_axis(trainer, config.seeds) if config.population_axis == "auto" else config.population_axis
    axis = "map" if shared else axis
    if trains:
        _check_room(config, trainer, members, devices, axis)
    if on_host:
        loop = HostLoop(trainer, members, axis, config.overlap, config.workers)
    else:
        loop = DeviceLoop(trainer, members, axis, devices)
    program = Program(
        config,
        agent,
        env,
        loop,
        warmup,
        total,
        evaluations=_points(total, config.evaluations),
        logs=_points(total, config.evaluations * LOGS_PER_EVALUATION),
        generations=_generations(config, trainer.block_steps, warmup, total),
        skill_agent=made if entry.is_skill_agent else None,
        group=group,
        host_evaluator=HostEvaluator(agent, env, config.workers) if on_host else None,
    )
    if config.pbt:
        _check_fitness(program, config.pbt)
    if not config.replay:  # with data, the replay is checked when it begins with them; a run that goes on has them
        trainer.replay.check(agent.plan, trainer.unroll, program.warmup_rows)
    return program


def _check_room(config: RunConfig[Any, Any], trainer: Trainer, members: int, devices: int, axis: Axis) -> None:
    """Raises a CoveyError where the memory, or the numbers that index it, do not reach."""
    check_memory(training_needs(config, trainer, members, devices, axis))
    records = trainer.replay.rows * trainer.replay.streams * (members // devices if axis == "map" else 1)
    require(
        records <= LARGEST,
        f"The replay of {members // devices} members would have {records:,} records, and {LARGEST:,} are the most. "
        "Lower --capacity, or train fewer --seeds at once.",
    )


def _check_places(config: RunConfig[Any, Any], on_host: bool, devices: int, group: ProcessGroup) -> None:
    """Raises a CoveyError where environments, members and their data can't be where the configuration wants them."""
    replay = config.pbt.replay if config.pbt else "keep"
    require(
        not (on_host and agents.entry(config.algorithm).is_skill_agent),
        f"{config.algorithm} learns skills in compiled environments only, and {config.env} runs on the host. Choose a "
        "compiled one (`covey envs` lists them), or another agent, such as sac.",
    )
    require(on_host or not config.workers, f"--workers is for environments on the host; {config.env} is compiled.")
    require(
        not on_host or config.devices <= 1,
        f"--devices {config.devices}: members whose environments run on the host, as {config.env} does, share one.",
    )
    require(
        replay != "share" or devices * group.count == 1,
        "--pbt.replay share needs one process and --devices 1: data would have to travel with every update.",
    )
    require(
        config.islands == 1 or group.count == 1, "--engine ray starts its processes itself: leave --coordinator out."
    )
    require(
        config.islands == 1 or replay == "keep",
        f"Between islands no data travel: --engine ray needs --pbt.replay keep, not {replay}.",
    )


def _generations(config: RunConfig[Any, Any], block_steps: int, warmup: int, total: int) -> tuple[int, ...]:
    """The blocks after which members are tuned: every `interval` steps, once there is something to judge, and not at
    the end."""
    if config.pbt is None:
        return ()
    every = math.ceil(config.pbt.interval / block_steps)
    require(
        total // every <= MOST_GENERATIONS,
        f"--pbt.interval {config.pbt.interval} makes {total // every:,} generations of {config.steps:,} steps, and "
        f"{MOST_GENERATIONS:,} are the most. Raise it.",
    )
    return tuple(block for block in range(every, total, every) if block > warmup)


def _check_fitness(program: Program, pbt: PBT) -> None:
    """Raises a CoveyError where there is nothing by that name to rank members by."""
    name, measures = program.config.fitness, {"return"}
    if program.skill_agent and name != "return":
        members = program.template().members
        one = jax.tree.map(lambda x: jax.ShapeDtypeStruct((1, *x.shape[1:]), x.dtype), (members.agent, members.hyper))
        measures |= set(jax.eval_shape(program.measured, *one))
    if name not in measures:
        raise CoveyError(f"{unknown('fitness', name, measures)}")
    require(
        name == "return" or pbt.significance == 0,
        f"--pbt.significance tests the returns of episodes; {name} is one number. Leave one of them out.",
    )


def part(members: int, among: int, what: str) -> int:
    """How many of the members each has; an error that says which numbers work."""
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
    """How many devices share this process's members."""
    there = len(jax.local_devices())
    shared = bool(config.pbt) and config.pbt.replay == "share"
    if config.devices == 0:
        return 1 if shared else max(n for n in range(1, min(there, members) + 1) if members % n == 0)
    require(
        config.devices <= there,
        f"--devices {config.devices} is more than the {there} there are. On a CPU they are made before jax is first "
        f"used: set jax.config.update('jax_num_cpu_devices', {config.devices}) at the start of your own program.",
    )
    part(members, config.devices, "devices")
    return config.devices


def _points(total: int, number: int) -> tuple[int, ...]:
    """`number` evenly spaced blocks, the last one `total`; fewer where there are not so many."""
    number = min(number, total)
    return tuple(sorted({math.ceil(k * total / number) for k in range(1, number + 1)}))
