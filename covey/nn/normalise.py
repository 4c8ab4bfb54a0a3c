"""Running mean and variance of a stream of vectors, and how agents use them."""

from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from covey.types import Array, Scalar, Step

CLIP = 10.0
MOST_ROWS = 2.0**23
"""Beyond so many rows, the oldest fade: a float32 could not count them one by one."""
EPSILON = 1e-6


class RunningStats(NamedTuple):
    """What is known of a stream: how many rows, their mean, and the sum of squared deviations from it."""

    rows: Array
    mean: Array
    squares: Array


def init_stats(size: int) -> RunningStats:
    return RunningStats(jnp.zeros(()), jnp.zeros(size), jnp.zeros(size))


def update_stats(stats: RunningStats, rows: Array, weight: Array) -> RunningStats:
    """The statistics with rows [..., size] added, each counted `weight` times (0 or 1).

    Chan's formula for joining two samples: exact for any split of the stream up to MOST_ROWS, stable in float32. A row
    of weight 0 may hold anything, NaN included.
    """
    rows = rows.reshape(-1, rows.shape[-1])
    weight = weight.reshape(-1, 1).astype(rows.dtype)
    rows = jnp.where(weight > 0, rows, 0.0)
    count = jnp.sum(weight)
    mean = jnp.sum(rows * weight, axis=0) / jnp.maximum(count, 1.0)
    squares = jnp.sum(weight * (rows - mean[None]) ** 2, axis=0)
    total = stats.rows + count
    share = count / jnp.maximum(total, 1.0)
    delta = mean - stats.mean
    keep = jnp.minimum(1.0, MOST_ROWS / jnp.maximum(total, 1.0))
    return RunningStats(
        rows=keep * total,
        mean=stats.mean + delta * share,
        squares=keep * (stats.squares + squares + delta**2 * stats.rows * share),
    )


def deviation(stats: RunningStats) -> Array:
    """The standard deviation; 1 before there are two rows."""
    return jnp.sqrt(jnp.where(stats.rows > 1, stats.squares / jnp.maximum(stats.rows, 1.0), 1.0) + EPSILON)


def normalise(stats: RunningStats, x: Array) -> Array:
    """x with mean 0 and deviation 1 under the statistics, clipped at +-10; unchanged before there are two rows."""
    shape = (1,) * (x.ndim - 1) + stats.mean.shape
    return jnp.clip((x - stats.mean.reshape(shape)) / deviation(stats).reshape(shape), -CLIP, CLIP)


class Statistics(NamedTuple):
    """What an agent knows of its stream of data: a part of its state, so it is saved and copied with the policy."""

    observations: RunningStats
    returns: RunningStats
    running: Array
    """The discounted return of the episode under way in the first environment."""


@dataclass(frozen=True)
class Normalise:
    """Running normalisation of what an agent learns from. The replay keeps the raw numbers."""

    observations: bool = False
    """Observations with mean 0 and deviation 1, clipped at 10, in acting and learning alike."""
    rewards: bool = False
    """Rewards over the running standard deviation of the discounted return."""

    def init(self, obs_size: int) -> Statistics:
        return Statistics(init_stats(obs_size), init_stats(1), jnp.zeros(()))

    def observe(self, statistics: Statistics, rollout: Step, discount: Scalar) -> Statistics:
        """Fresh data [T, N]. Every record holds an observation of its own, so each is counted once, final ones too."""
        if self.observations:
            everything = jnp.ones(rollout.reward.shape)
            statistics = statistics._replace(
                observations=update_stats(statistics.observations, rollout.obs, everything)
            )
        if self.rewards:
            statistics = self._follow_return(statistics, rollout, discount)
        return statistics

    def _follow_return(self, statistics: Statistics, rollout: Step, discount: Scalar) -> Statistics:
        """G <- gamma G + r, from 0 in each episode. The first environment stands for all of them."""

        def follow(running: Array, row: tuple[Array, Array]) -> tuple[Array, Array]:
            reward, valid = row
            running = jnp.where(valid > 0, discount * running + reward, 0.0)
            return running, running

        rows = (rollout.reward[:, 0], rollout.valid[:, 0])
        running, returns = jax.lax.scan(follow, statistics.running, rows)
        return statistics._replace(returns=update_stats(statistics.returns, returns[:, None], rows[1]), running=running)

    def obs(self, statistics: Statistics, obs: Array) -> Array:
        return normalise(statistics.observations, obs) if self.observations else obs

    def batch(self, statistics: Statistics, batch: Step, reward_scale: Scalar) -> Step:
        """A batch from replay as the losses want it."""
        scale = reward_scale / deviation(statistics.returns)[0] if self.rewards else reward_scale
        extras = batch.extras
        if "rewards" in extras:  # the parts of the reward, where it has several
            extras = extras | {"rewards": scale * extras["rewards"]}
        obs, next_obs = self.obs(statistics, batch.obs), self.obs(statistics, batch.next_obs)
        return batch._replace(obs=obs, next_obs=next_obs, reward=scale * batch.reward, extras=extras)


def forget_episode(state: Any) -> Any:
    """Returns an agent's state for a copy of it that acts in other environments: the running return starts at 0."""

    def is_statistics(part: Any) -> bool:
        return isinstance(part, Statistics)

    def forget(part: Any) -> Any:
        return part._replace(running=np.zeros_like(part.running)) if is_statistics(part) else part

    return jax.tree.map(forget, state, is_leaf=is_statistics)
