"""The host loop: environments that run outside of JAX step on this thread while the device learns.

A block is collected with the policy as it was before the learning of the block before it, because that is still under
way: acting on block b+1 knows what was learned from block b-1. Without overlap every iteration is learned from before
the next one is collected, the same order as in the compiled loop.

Everything random in a block follows from the member's key and the block's number, as in the compiled loop; environments
are seeded from the member's key, and draw from their own generators then.
"""

from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from covey.agent import Decision
from covey.envs.base import HostBatch, HostEnv
from covey.replay import Record, ReplayState
from covey.training.device import Axis, DeviceLoop
from covey.training.evaluate import Episodes
from covey.training.host_episodes import evaluate_host
from covey.training.member import Member, Population, World, new_tally, start_world
from covey.training.trainer import Rows, Trainer
from covey.types import Array, Key

TICKET = 8
"""Bytes in the place of a state that can't be saved: by them the loop knows environments that are still its own."""


class HostWorld(NamedTuple):
    """What it takes to go on with N host environments, as plain arrays.

    `seeds` [N] of the first episodes; `state` [N, bytes], all 0 before them; `actor`, the agent that acts on the next
    block, which with overlap is not the newest, and `()` without.
    """

    seeds: Array
    state: Array
    actor: Any


class Learner(NamedTuple):
    """The part of a population that stays on the device: members without their worlds, and the replay."""

    members: Member
    replay: ReplayState


@dataclass(frozen=True)
class HostPrograms:
    """The compiled parts of the host loop. Static and hashable."""

    trainer: Trainer
    members: int
    axis: Axis
    overlap: bool

    @partial(jax.jit, static_argnames="self")
    def init(self, hypers: Any, keys: Key) -> Population:
        members = jax.vmap(self._member)(hypers, keys)
        return Population(members, self.trainer.replay.init(self.members), jnp.zeros((), jnp.int32))

    def _member(self, hyper: Any, key: Key) -> Member:
        trainer, envs = self.trainer, self.trainer.envs
        key_agent, key_world, key_stream = jax.random.split(key, 3)
        key_reset, key_begin = jax.random.split(key_world)
        agent = trainer.agent.init(hyper, key_agent)
        memory = jax.vmap(lambda k: trainer.agent.begin(agent, hyper, k))(jax.random.split(key_begin, envs))
        state = jnp.zeros((envs, trainer.env.state_size or TICKET), jnp.uint8)
        env = HostWorld(jax.random.bits(key_reset, (envs,), jnp.uint32), state, agent if self.overlap else ())
        world = start_world(env, jnp.zeros((envs, trainer.env.spec.obs_size)), memory)
        return Member(agent, hyper, world, new_tally(len(trainer.quantities)), key_stream)

    @partial(jax.jit, static_argnames="self")
    def step_keys(self, keys: Key, number: Array) -> Key:
        """The random numbers for acting in a block, [P, rows, ...]."""

        def one(key: Key) -> Key:
            drawn = self.trainer.draws(self.trainer.block_keys(key, number)[1]).step
            return drawn.reshape(-1, *drawn.shape[2:])

        return jax.vmap(one)(keys)

    @partial(jax.jit, static_argnames=("self", "warmup"))
    def act(
        self, actor: Any, hypers: Any, memory: Any, first: Array, obs: Array, keys: Key, row: Array, warmup: bool
    ) -> Decision:
        """Decisions [P, N] for row `row[1]` of block `row[0]`."""
        rows = self.trainer.iterations * self.trainer.unroll
        iteration = (row[0] * rows + row[1]) // self.trainer.unroll

        def one(agent: Any, hyper: Any, memory: Any, first: Array, obs: Array, keys: Key) -> Decision:
            hyper, keys = self.trainer.hyper_at(hyper, iteration), keys[row[1]]
            return self.trainer.decide(agent, hyper, memory, first, obs, keys, "random" if warmup else "sample")

        return jax.vmap(one)(actor, hypers, memory, first, obs, keys)

    @partial(jax.jit, static_argnames=("self", "warmup"), donate_argnames="learner")
    def learn(
        self, learner: Learner, rows: Rows, finished: Array, number: Array, start: Array, count: Array, warmup: bool
    ) -> Learner:
        """The learner after `count` iterations of block `number` from its iteration `start` on.

        Rows are [P, iterations, unroll, N, ...]; `finished` [P, 3] is what to add to the tally of episodes.
        """

        def one(member: Member, replay: ReplayState, rows: Rows, finished: Array, slot: Array) -> Learner:
            episodes = member.tally.episodes + finished
            member = member._replace(tally=member.tally._replace(episodes=episodes))
            draws = self.trainer.draws(self.trainer.block_keys(member.key, number)[1])

            def iterate(i: Array, carry: Learner) -> Learner:
                fresh, own = jax.tree.map(lambda x: x[i], rows), jax.tree.map(lambda x: x[start + i], draws)
                iteration = number * self.trainer.iterations + start + i
                return Learner(*self.trainer.learn(*carry, fresh, own, iteration, slot, warmup))

            return jax.lax.fori_loop(0, count, iterate, Learner(member, replay))

        written = learner.replay.written
        if self.axis == "vmap":
            axes = ReplayState(data=0, written=None)  # type: ignore[arg-type]
            own = ReplayState(learner.replay.data[:, None], written)
            step = jax.vmap(one, in_axes=(0, axes, 0, 0, None), out_axes=Learner(0, axes))  # type: ignore[arg-type]
            members, replay = step(learner.members, own, rows, finished, jnp.int32(0))
            return Learner(members, ReplayState(replay.data[:, 0], replay.written))

        def in_turn(data: Array, x: tuple[Member, Rows, Array, Array]) -> tuple[Array, Member]:
            member, rows, finished, slot = x
            after = one(member, ReplayState(data, written), rows, finished, slot)
            return after.replay.data, after.members

        each = (learner.members, rows, finished, jnp.arange(self.members, dtype=jnp.int32))
        data, members = jax.lax.scan(in_turn, learner.replay.data, each)
        return Learner(members, ReplayState(data, written + count * self.trainer.unroll))


class HostLoop:
    """Advances P members whose environments run on the host. Between calls everything is in the population.

    It keeps the environments open. They are set to what a population says where that is not what they were left at: at
    the beginning, and after a checkpoint was read.
    """

    def __init__(self, trainer: Trainer, members: int, axis: Axis, overlap: bool = True, workers: int = 0) -> None:
        self.trainer, self.members, self.overlap, self.workers = trainer, members, overlap, workers
        self.axis: Axis = axis
        self.programs = HostPrograms(trainer, members, axis, overlap)
        self._broken, self._news = np.zeros(members), list[str]()
        self._batch: HostBatch | None = None
        self._judges: tuple[int, HostBatch] | None = None
        self._left: np.ndarray | None = None

    @property
    def env(self) -> HostEnv:
        return self.trainer.env

    def init(self, hypers: Any, keys: Key) -> Population:
        """New members from hyper-parameters [P] and keys [P]. Their environments start when they are first stepped."""
        return self.programs.init(hypers, keys)

    def load(self, population: Population, data: Array) -> Population:
        """New members with data [P, rows, N, width] in their replay, each record shown to the agent once."""
        return DeviceLoop(self.trainer, self.members, self.axis).load(population, data)

    def advance(self, population: Population, blocks: Array | int, warmup: bool) -> Population:
        """The population `blocks` blocks later; all that was collected has been learned from, or is being."""
        world, blocks = population.members.world, int(blocks)
        learner = Learner(population.members._replace(world=()), population.replay)
        acting = _Acting(self, population)
        if blocks == 0:
            return _joined(self._compiled(learner, acting, warmup), world, population.block)
        self._open(population, acting)
        start = int(population.block)
        for number in range(start, start + blocks):
            acting.begin(number)
            for first in range(0, self.trainer.iterations, self._group):
                rows, finished = acting.collect(self._batch, first, self._group, warmup)
                place = np.int32(number), np.int32(first), np.int32(self._group)
                learner = self._learned(learner, acting, rows, finished, place, warmup)
        self._broken += acting.broken
        end = start + blocks
        return _joined(learner, acting.world(self._saved(end), learner.members.agent), jnp.int32(end))

    @property
    def _group(self) -> int:
        """Iterations that are collected before they are learned from."""
        return self.trainer.iterations if self.overlap else 1

    def _learned(
        self, learner: Learner, acting: "_Acting", rows: Rows, finished: np.ndarray, place: Any, warmup: bool
    ) -> Learner:
        """Starts the learning and hands an agent over to act: with overlap, the one from before, without a wait."""
        if self.overlap:
            acting.take(learner.members.agent)
        learner = self.programs.learn(learner, rows, finished, *place, warmup=warmup)
        if not self.overlap:
            acting.take(learner.members.agent)
        return learner

    def _compiled(self, learner: Learner, acting: "_Acting", warmup: bool) -> Learner:
        """The learner as it is, after every program has been compiled."""
        acting.begin(0)
        decision = acting.decide(0, warmup)
        row = Rows(acting.record(decision, acting.returns), acting.obs)  # type: ignore[arg-type]
        rows = acting.stacked([row] * self._group * self.trainer.unroll, self._group)
        none = np.zeros((self.members, 3), np.float32)
        return self.programs.learn(learner, rows, none, *np.zeros(3, np.int32), warmup=warmup)

    def _open(self, population: Population, acting: "_Acting") -> None:
        """Sets the environments to where the population has them, unless they are there."""
        state, seeds = np.asarray(population.members.world.env.state), np.asarray(population.members.world.env.seeds)
        if self._batch is None:
            self._batch = self.env.open(seeds.size, self.workers)
        if self._left is not None and np.array_equal(state, self._left):
            return
        if not state.any():
            acting.obs = self._batch.reset(seeds.ravel()).reshape(acting.obs.shape)
        elif state[0, 0, 0]:
            self._batch.load(state.reshape(seeds.size, -1))
        else:
            block = int(population.block)
            again = [np.random.SeedSequence([int(seed), block]).generate_state(1)[0] for seed in seeds.ravel()]
            self._batch.restart(np.asarray(again, np.uint32))
            acting.last[:] = True
            self._say_restart()

    def _say_restart(self) -> None:
        self._news.append(
            "The state of the environments is not in the checkpoint "
            f"({self.env.unsaved or 'it could not be saved any more'}): their episodes were cut off and begin anew. "
            "The agent, its replay and its random numbers go on exactly."
        )

    def _saved(self, block: int) -> np.ndarray:
        """The states of the environments [P, N, bytes], or tickets for those that can't be saved."""
        assert self._batch is not None
        count, size = self.members * self.trainer.envs, self.env.state_size
        states = self._batch.save() if size else np.zeros((count, TICKET), np.uint8)
        if not states[:, 0].all():
            states[:] = 0
            states[:, :TICKET] = np.frombuffer(np.int64(block << 8).tobytes(), np.uint8)
        self._left = states.reshape(self.members, self.trainer.envs, -1)
        return self._left

    def evaluate(self, states: Any, hypers: Any, key: Key, episodes: int) -> Episodes:
        """Greedy episodes of every member, in environments of their own that stay open for the next time."""
        count = jax.tree.leaves(hypers)[0].shape[0] * episodes
        if self._judges is None or self._judges[0] != count:
            self._close_judges()
            self._judges = count, self.env.open(count, min(self.workers, count))
        limit = self.env.spec.episode_length
        return evaluate_host(self.trainer.agent, self._judges[1], states, hypers, key, episodes, limit)

    def take_news(self) -> list[str]:
        """What a user should know, once."""
        news, self._news = self._news, []
        return news

    def take_broken(self) -> np.ndarray:
        """How many episodes [P] broke off since this was last asked, because a worker failed."""
        broken, self._broken = self._broken, np.zeros(self.members)
        return broken

    def close(self) -> None:
        """Closes the environments; a later `advance` opens others, and sets them to where its population has them."""
        self._close_judges()
        if self._batch is not None:
            self._batch.close()
            self._batch, self._left = None, None

    def _close_judges(self) -> None:
        if self._judges is not None:
            self._judges[1].close()
            self._judges = None


class _Acting:
    """The acting half: the worlds of all members [P, N, ...] in NumPy, and the agent that acts in them.

    It acts on a device of its own, because a program on the learner's would wait behind all the learning under way.
    """

    def __init__(self, loop: HostLoop, population: Population) -> None:
        world = population.members.world
        self.programs, self.trainer = loop.programs, loop.trainer
        self.device = acting_device()
        agent = population.members.agent if world.env.actor == () else world.env.actor
        self.take(agent)
        self.seeds = world.env.seeds
        self.hypers, self.memory, self.keys = jax.device_put(
            (population.members.hyper, world.memory, population.members.key), self.device
        )
        names = ("obs", "first", "last", "clock", "returns", "episodes")
        self.obs, self.first, self.last, self.clock, self.returns, self.episodes = (
            np.array(getattr(world, name)) for name in names
        )
        self.number = 0
        self.broken = np.zeros(loop.members)

    def take(self, agent: Any) -> None:
        """Acts as this agent from now on; its arrays are copied, because the learner gives its own away."""
        self.actor = _copied(agent, self.device)

    def begin(self, number: int) -> None:
        """Draws the random numbers of a block."""
        self.number = number
        self.drawn = self.programs.step_keys(self.keys, np.int32(number))

    def decide(self, row: int, warmup: bool) -> Decision:
        place = np.array([self.number, row], np.int32)
        return self.programs.act(
            self.actor, self.hypers, self.memory, self.first, self.obs, self.drawn, place, warmup=warmup
        )

    def collect(self, batch: Any, start: int, group: int, warmup: bool) -> tuple[Rows, np.ndarray]:
        """The rows of some iterations, [P, group, unroll, N, ...], and the episodes that ended in them."""
        unroll, found = self.trainer.unroll, []
        finished = np.zeros((self.obs.shape[0], 3), np.float32)
        for row in range(start * unroll, (start + group) * unroll):
            decision = self.decide(row, warmup)
            found.append(self._row(batch, decision, finished))
        return self.stacked(found, group), finished

    def _row(self, batch: Any, decision: Decision, finished: np.ndarray) -> Rows:
        """One step of every environment. Where there was no answer, the record closes its episode instead."""
        shape = self.clock.shape
        action = np.asarray(decision.action)
        step = batch.step(action.reshape(-1, action.shape[-1]))
        obs = step.obs.reshape(self.obs.shape)
        reward, terminated, truncated, broken = (x.reshape(shape) for x in step[1:])
        ended = self.last | broken
        going = ~ended
        reward, terminated = np.where(going, reward, np.float32(0)), terminated & going
        closes = going & (terminated | truncated)
        rows = Rows(self.record(decision, reward)._replace(terminated=terminated, last=ended), obs)
        returns, clock = self.returns + reward, self.clock + 1
        if closes.any():
            finished += np.stack([np.where(closes, x, 0).sum(-1) for x in (np.ones(shape), returns, clock)], axis=-1)
        self.broken += broken.sum(-1)
        self.obs, self.first, self.last, self.memory = obs, ended, closes, decision.memory
        self.clock, self.returns = np.where(ended, 0, clock), np.where(ended, np.float32(0), returns)
        self.episodes = self.episodes + ended.astype(np.int32)
        return rows

    def record(self, decision: Decision, reward: np.ndarray) -> Record:
        action = np.asarray(decision.action)
        extras = {name: np.asarray(x) for name, x in decision.extras.items()}
        none = np.zeros(self.last.shape, bool)
        return Record(self.obs, action, np.asarray(reward, np.float32), none, none, extras)  # type: ignore[arg-type]

    def stacked(self, found: list[Any], group: int) -> Any:
        """Rows [P, N, ...] of several times as [P, group, unroll, N, ...]."""

        def stack(*leaves: np.ndarray) -> np.ndarray:
            joined = np.stack(leaves, axis=1)
            return joined.reshape(joined.shape[0], group, self.trainer.unroll, *joined.shape[2:])

        return jax.tree.map(stack, *found)

    def world(self, state: np.ndarray, agent: Any) -> World:
        """The worlds as a population holds them, on the learner's device."""
        home = jax.tree.leaves(agent)[0].devices().pop()
        actor = self.actor if self.programs.overlap else ()
        host = HostWorld(self.seeds, jnp.asarray(state), actor)
        clock = self.clock.astype(np.int32)
        parts = World(host, self.obs, self.memory, self.first, self.last, clock, self.returns, self.episodes)  # type: ignore[arg-type]
        return jax.tree.map(lambda x: jnp.asarray(jax.device_put(x, home)), parts)


def acting_device() -> Any:
    """A CPU device beside the learner's; the learner's own where there is no other."""
    learner = jax.devices()[0]
    return next((device for device in jax.local_devices(backend="cpu") if device != learner), learner)


def second_device() -> None:
    """Asks for two CPU devices, so that acting has one of its own. Too late once jax has begun."""
    try:
        jax.config.update("jax_num_cpu_devices", 2)
    except RuntimeError:
        return


def _copied(tree: Any, device: Any) -> Any:
    """The arrays on a device, never in the same memory."""
    moved = jax.device_put(tree, device)
    return jax.tree.map(lambda new, old: jnp.copy(new) if new is old else new, moved, tree)


def _joined(learner: Learner, world: Any, block: Array) -> Population:
    return Population(learner.members._replace(world=world), learner.replay, block)
