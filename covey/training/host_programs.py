"""The compiled parts of the host loop: acting, and learning from what was collected."""

from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from covey.agent import Decision
from covey.replay import ReplayState
from covey.training.member import Member, Population, new_tally, start_world
from covey.training.sharding import Axis
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
