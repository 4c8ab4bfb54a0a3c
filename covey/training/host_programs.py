"""The compiled parts of the host loop: acting, and learning from the collected rows."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from covey.agent import Decision
from covey.observation import Obs
from covey.replay import ReplayState
from covey.training.collect import Rows, decide
from covey.training.jaxprs import Divided, divide
from covey.training.member import Member, Population, new_tally, start_world
from covey.training.sharding import Axis
from covey.training.store import over_slots
from covey.training.trainer import Trainer, initial_shapes
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
    def prepare(self, hypers: Any, keys: Key, number: Array, mode: Mode) -> list[Array]:
        """Computes everything about decisions that depends neither on agents nor on observations, such as their noise.

        Args:
            hypers: Hyper-parameters [P].
            keys: The random keys of the rows [P, rows, ...].
            number: The number of the block.
            mode: How the policy acts.

        Returns:
            Arrays [rows, ...] for `act`.
        """
        rows = jnp.arange(keys.shape[1], dtype=jnp.int32)
        iterations = (number * self.trainer.block_rows + rows) // self.trainer.unroll
        early = divided_decision(self, mode).early
        return jax.vmap(lambda keys, iteration: early((hypers, keys, iteration)), (1, 0))(keys, iterations)

    def actor(self, agents: Any, mode: Mode) -> Any:
        """Returns the arrays of agents [P] that their decisions depend on, with None in place of the others."""
        used, *_ = divided_decision(self, mode).used
        return jax.tree.map(lambda is_used, x: x if is_used else None, used, agents)

    def act_in_numpy(self, mode: Mode) -> Callable[[list[Any], Any], Decision] | None:
        """Returns `act` in NumPy: a function of the row's arrays and of actor, memory, first and obs.

        Returns None for agents that need other operations than those of `in_numpy`, and for large ones. That depends on
        the agent and the number of environments only, so that a resumed run computes the same.
        """
        return divided_decision(self, mode).in_numpy

    @partial(jax.jit, static_argnames=("self", "mode"))
    def act(
        self, actor: Any, memory: Any, first: Array, obs: Obs, prepared: list[Array], row: Array, mode: Mode
    ) -> Decision:
        """Returns decisions [P, N] for a row of the block that was prepared."""
        arrays = [jax.lax.dynamic_index_in_dim(x, row, keepdims=False) for x in prepared]
        return divided_decision(self, mode).late(arrays, (actor, memory, first, obs))

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


@lru_cache
def divided_decision(programs: HostPrograms, mode: Mode) -> Divided:
    """Returns the decisions [P, N] of a row as a function of hyper-parameters, keys and iteration; and of the rest.

    A block's noise is drawn at once. What is left for a row is a small program, with the arrays that it needs.
    """
    trainer = programs.trainer

    def decisions(early: Any, late: Any) -> Decision:
        hypers, keys, iteration = early

        def one(hyper: Any, keys: Key, agent: Any, memory: Any, first: Array, obs: Obs) -> Decision:
            return decide(trainer.agent, agent, trainer.hyper_at(hyper, iteration), memory, first, obs, keys, mode)

        return jax.vmap(one)(hypers, keys, *late)

    members = jax.eval_shape(programs.init, *initial_shapes(trainer, programs.members)).members
    keys = jax.eval_shape(lambda: jax.random.split(jax.random.key(0), (programs.members, 3, trainer.envs)))
    early = members.hyper, keys, jax.ShapeDtypeStruct((), jnp.int32)
    return divide(decisions, early, (members.agent, members.world.memory, members.world.first, members.world.obs))
