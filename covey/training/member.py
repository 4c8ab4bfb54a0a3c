"""The data of a member and of a population."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from covey.observation import Obs
from covey.replay import ReplayState
from covey.types import Array, Key


class World(NamedTuple):
    """N environments in the middle of their episodes: arrays [N, ...].

    Args:
        env: The states of the environments (for host environments, a `HostWorld`).
        obs: Their observations.
        memory: The policy's memories.
        first: The next step is the first of an episode.
        last: The observation is the final one of an episode: the next step ignores its action and starts a new one.
        clock: Steps of the episode so far.
        returns: Its return so far.
        episodes: Episodes that ended so far, of each environment.
    """

    env: Any
    obs: Obs
    memory: Any
    first: Array
    last: Array
    clock: Array
    returns: Array
    episodes: Array


class Tally(NamedTuple):
    """Sums since the last log, and the first quantity that was not finite.

    Args:
        sums: Sums of `Trainer.quantities` over iterations.
        learned: The number of iterations that learned, so not those of the warm-up.
        episodes: [3]: the number of episodes that ended, and the sums of their returns and lengths.
        fault: [2]: the index of the first quantity that was not finite (-1 for none), and its iteration.
    """

    sums: Array
    learned: Array
    episodes: Array
    fault: Array


class Member(NamedTuple):
    """One agent with its hyper-parameters, environments, statistics and random key.

    Its replay is one slot of the population's.
    """

    agent: Any
    hyper: Any
    world: World
    tally: Tally
    key: Key


class Population(NamedTuple):
    """All that training changes: plain arrays, which can be saved, restored and moved between devices.

    A single agent is a population of one.

    Args:
        members: The members; every array has the leading axis P.
        replay: Their replay, one slot per member.
        block: The number of blocks done.

    Example:
        >>> population = loop.advance(loop.init(seed=0), blocks=10, warmup=True)
        >>> population.members.hyper.actor_lr.shape
        (8,)
    """

    members: Member
    replay: ReplayState
    block: Array


def new_tally(quantities: int) -> Tally:
    """Returns an empty tally of a number of quantities."""
    # In NumPy: outside of a program, jax would compile one for each array.
    sums: Any = np.zeros(quantities, np.float32)
    learned: Any = np.zeros((), np.int32)
    episodes: Any = np.zeros(3, np.float32)
    fault: Any = np.full(2, -1, np.int32)
    return Tally(sums, learned, episodes, fault)


def start_world(env: Any, obs: Obs, memory: Any) -> World:
    """Returns N environments at the start of their first episodes."""
    envs = jax.tree.leaves(obs)[0].shape[0]
    return World(
        env,
        obs,
        memory,
        first=jnp.ones(envs, bool),
        last=jnp.zeros(envs, bool),
        clock=jnp.zeros(envs, jnp.int32),
        returns=jnp.zeros(envs),
        episodes=jnp.zeros(envs, jnp.int32),
    )


def where(condition: Array, yes: Any, no: Any) -> Any:
    """Selects rows of two trees: the condition is [N], the leaves are [N, ...]."""

    def pick(a: Array, b: Array) -> Array:
        return jnp.where(condition.reshape(condition.shape + (1,) * (a.ndim - condition.ndim)), a, b)

    return jax.tree.map(pick, yes, no)
