"""The compiled parts of the host loop: acting, and learning from the collected rows."""

from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from covey.agent import Decision
from covey.observation import Obs
from covey.replay import ReplayState
from covey.training.collect import Rows, decide
from covey.training.member import Member, Population, new_tally, start_world
from covey.training.sharding import Axis
from covey.training.store import over_slots
from covey.training.trainer import Trainer
from covey.types import Array, Key, Mode

PLACEHOLDER_SIZE = 8
"""Bytes that replace the state of an environment that can't be saved. They identify the loop's own environments."""


class HostWorld(NamedTuple):
    """The state of N host environments as plain arrays.

    Args:
        seeds: [N] seeds of the first episodes.
        state: [N, bytes] states of the environments; all 0 before the first episode.
        actor: The agent that acts in the next block. With overlap it is not the newest; `()` without overlap.
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
    """The compiled parts of the host loop. Static and hashable, so that equal loops share them."""

    trainer: Trainer
    members: int
    axis: Axis
    overlap: bool

    @partial(jax.jit, static_argnames="self")
    def init(self, hypers: Any, keys: Key) -> Population:
        """Creates the members from hyper-parameters and keys [P]."""
        members = jax.vmap(self._member)(hypers, keys)
        return Population(members, self.trainer.replay.init(self.members), jnp.zeros((), jnp.int32))

    def _member(self, hyper: Any, key: Key) -> Member:
        trainer = self.trainer
        envs = trainer.envs
        key_agent, key_world, key_stream = jax.random.split(key, 3)
        key_reset, key_begin = jax.random.split(key_world)
        agent = trainer.agent.init(hyper, key_agent)
        memory = jax.vmap(lambda k: trainer.agent.begin(agent, hyper, k))(jax.random.split(key_begin, envs))
        state = jnp.zeros((envs, trainer.env.state_size or PLACEHOLDER_SIZE), jnp.uint8)
        env = HostWorld(jax.random.bits(key_reset, (envs,), jnp.uint32), state, agent if self.overlap else ())
        world = start_world(env, jax.tree.map(jnp.asarray, trainer.env.spec.observation.zeros(envs)), memory)
        return Member(agent, hyper, world, new_tally(len(trainer.quantities)), key_stream)

    @partial(jax.jit, static_argnames="self")
    def step_keys(self, keys: Key, number: Array) -> Key:
        """Returns the random keys for acting in a block, [P, rows, ...]."""

        def one(key: Key) -> Key:
            drawn = self.trainer.draws(self.trainer.block_keys(key, number)[1]).step
            return drawn.reshape(-1, *drawn.shape[2:])

        return jax.vmap(one)(keys)

    @partial(jax.jit, static_argnames=("self", "mode"))
    def act(
        self, actor: Any, hypers: Any, memory: Any, first: Array, obs: Obs, keys: Key, row: Array, mode: Mode
    ) -> Decision:
        """Returns decisions [P, N] for row `row[1]` of block `row[0]`."""
        iteration = (row[0] * self.trainer.block_rows + row[1]) // self.trainer.unroll

        def one(agent: Any, hyper: Any, memory: Any, first: Array, obs: Obs, keys: Key) -> Decision:
            hyper = self.trainer.hyper_at(hyper, iteration)
            return decide(self.trainer.agent, agent, hyper, memory, first, obs, keys[row[1]], mode)

        return jax.vmap(one)(actor, hypers, memory, first, obs, keys)

    @partial(jax.jit, static_argnames=("self", "warmup"), donate_argnames="learner")
    def learn(
        self, learner: Learner, rows: Rows, finished: Array, number: Array, start: Array, count: Array, warmup: bool
    ) -> Learner:
        """Learns from `count` iterations of block `number`, from its iteration `start` on.

        Args:
            learner: The learner; it is donated.
            rows: The collected rows, [P, iterations, unroll, N, ...].
            finished: [P, 3]: the number of episodes that ended in them, their returns and their lengths.
            number: The number of the block.
            start: The first iteration within the block.
            count: The number of iterations.
            warmup: Store the rows, but learn nothing.
        """

        def one(member: Member, replay: ReplayState, slot: Any, rows: Rows, finished: Array) -> Any:
            episodes = member.tally.episodes + finished
            member = member._replace(tally=member.tally._replace(episodes=episodes))
            draws = self.trainer.draws(self.trainer.block_keys(member.key, number)[1])

            def iterate(i: Array, carry: tuple[Member, ReplayState]) -> tuple[Member, ReplayState]:
                fresh = jax.tree.map(lambda x: x[i], rows)
                drawn = jax.tree.map(lambda x: x[start + i], draws)
                iteration = number * self.trainer.iterations + start + i
                return self.trainer.learn(*carry, fresh, drawn, iteration, slot, warmup)

            return jax.lax.fori_loop(0, count, iterate, (member, replay))

        return Learner(*over_slots(one, self.axis, learner.members, learner.replay, rows, finished))
