"""What a member of a population owns, and the population itself."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from covey.replay import ReplayState
from covey.types import Array, Key


class World(NamedTuple):
    """N environments in the middle of their episodes."""

    env: Any
    obs: Array
    memory: Any
    first: Array
    last: Array
    clock: Array
    returns: Array
    episodes: Array


class Tally(NamedTuple):
    """Sums since the last log, and the first thing that was not finite.

    `sums` follows `Trainer.quantities`, over the `learned` iterations that were no warm-up; `episodes` is the number,
    return and length of the episodes that ended;
    `fault` is the quantity (-1 while all is well) and the iteration at which it appeared.
    """

    sums: Array
    learned: Array
    episodes: Array
    fault: Array


class Member(NamedTuple):
    """One agent, its hyper-parameters, environments and random stream. Its replay is a slot of the population's."""

    agent: Any
    hyper: Any
    world: World
    tally: Tally
    key: Key


class Population(NamedTuple):
    """P members (leading axis P), their replay, and the blocks done. A single agent is a population of one."""

    members: Member
    replay: ReplayState
    block: Array


def new_tally(quantities: int) -> Tally:
    return Tally(jnp.zeros(quantities), jnp.zeros((), jnp.int32), jnp.zeros(3), jnp.full(2, -1, jnp.int32))


def start_world(env: Any, obs: Array, memory: Any) -> World:
    """N environments at the start of their first episodes."""
    envs = obs.shape[0]
    yes, no, zero = jnp.ones(envs, bool), jnp.zeros(envs, bool), jnp.zeros(envs, jnp.int32)
    return World(env, obs, memory, yes, no, zero, jnp.zeros(envs), jnp.copy(zero))


def where(condition: Array, yes: Any, no: Any) -> Any:
    """`yes` or `no` for each environment: the condition is [N], the leaves [N, ...]."""

    def pick(a: Array, b: Array) -> Array:
        return jnp.where(condition.reshape(condition.shape + (1,) * (a.ndim - condition.ndim)), a, b)

    return jax.tree.map(pick, yes, no)
