"""Running mean and variance of a stream of vectors, and normalisation with them."""

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from covey.errors import require
from covey.observation import Obs, Observation, Part
from covey.types import Array, Scalar, Step

CLIP = 10.0
MOST_ROWS = 2.0**23
"""Beyond this many rows, old rows are forgotten gradually: a float32 can't count further one by one."""
EPSILON = 1e-6


class RunningStats(NamedTuple):
    """Running statistics of a stream of vectors.

    Args:
        rows: Number of rows, [].
        mean: Their mean, [size].
        squares: Sum of squared deviations from the mean, [size].
    """

    rows: Array
    mean: Array
    squares: Array


def init_stats(size: int) -> RunningStats:
    """Returns the statistics of an empty stream of vectors [size]."""
    return RunningStats(jnp.zeros(()), jnp.zeros(size), jnp.zeros(size))


def update_stats(stats: RunningStats, rows: Array, weight: Array) -> RunningStats:
    """Adds rows to running statistics.

    It uses Chan's formula for joining two samples, which is stable in float32 and, up to MOST_ROWS, gives the same
    result for any split of the stream.

    Args:
        stats: The statistics so far.
        rows: New rows [..., size].
        weight: 1 for rows that count, 0 for those that do not, [...]. The latter may hold anything, NaN included.

    Returns:
        The statistics with the rows added.
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
    """Returns the standard deviation; 1 before there are two rows."""
    return jnp.sqrt(jnp.where(stats.rows > 1, stats.squares / jnp.maximum(stats.rows, 1.0), 1.0) + EPSILON)


def normalise(stats: RunningStats, x: Array) -> Array:
    """Scales x to mean 0 and deviation 1, clipped to +-10. Before there are two rows, x is not scaled."""
    shape = (1,) * (x.ndim - 1) + stats.mean.shape
    return jnp.clip((x - stats.mean.reshape(shape)) / deviation(stats).reshape(shape), -CLIP, CLIP)


class Statistics(NamedTuple):
    """Running statistics of an agent's data. They are part of its state, so they are saved and copied with its policy.

    Args:
        observations: Statistics of observations: of a vector, or by name of the parts that are vectors.
        returns: Statistics of discounted returns.
        running: Discounted return so far of the current episode in the first environment.
        largest: Largest absolute value of `running` so far; () without `reward_bound`.
    """

    observations: RunningStats | dict[str, RunningStats]
    returns: RunningStats
    running: Array
    largest: Array | tuple[()] = ()


@dataclass(frozen=True)
class Normalise:
    """Running normalisation of observations and rewards. The replay stores them unnormalised."""

    observations: bool = False
    """Scale observations to mean 0 and deviation 1, clipped to +-10, for acting and learning. Images are not changed:
    their encoder scales them."""
    rewards: bool = False
    """Divide rewards by the running standard deviation of the discounted return."""
    reward_bound: float = 0.0
    """With `rewards`: divide by more where needed, so that no discounted return so far exceeds this value.
    Distributional critics with the limits -5 and 5 use 5 (SimbaV2, FlashSAC). 0 for no bound."""

    def __post_init__(self) -> None:
        require(
            0 <= self.reward_bound < math.inf and (self.rewards or not self.reward_bound),
            f"`reward_bound` {self.reward_bound:g} bounds normalised rewards: it must be finite and not negative, and "
            "needs `rewards`.",
            self,
        )

    def init(self, observation: int | Observation) -> Statistics:
        """Returns the statistics before any data."""
        observation = Observation.of(observation)
        largest = jnp.zeros(()) if self.reward_bound else ()
        if observation.is_vector:
            stats: Any = init_stats(observation.size)
        else:
            vectors = {name: part for name, part in observation.named if _is_vector(part)}
            stats = {name: init_stats(part.shown[0]) for name, part in vectors.items()}
        return Statistics(stats, init_stats(1), jnp.zeros(()), largest)

    def observe(self, statistics: Statistics, rollout: Step, discount: Scalar) -> Statistics:
        """Adds fresh data [T, N]. Each observation is counted once, final ones included: invalid steps hold them."""
        if self.observations:
            everything = jnp.ones(rollout.reward.shape)
            stats = statistics.observations
            if isinstance(stats, dict):
                stats = {name: update_stats(each, rollout.obs[name], everything) for name, each in stats.items()}
            else:
                stats = update_stats(stats, rollout.obs, everything)
            statistics = statistics._replace(observations=stats)
        if self.rewards:
            statistics = self._track_return(statistics, rollout, discount)
        return statistics

    def _track_return(self, statistics: Statistics, rollout: Step, discount: Scalar) -> Statistics:
        """Updates G <- gamma G + r, from 0 in each episode. The first environment represents all of them."""

        def track(running: Array, row: tuple[Array, Array]) -> tuple[Array, Array]:
            reward, valid = row
            running = jnp.where(valid > 0, discount * running + reward, 0.0)
            return running, running

        rows = (rollout.reward[:, 0], rollout.valid[:, 0])
        running, returns = jax.lax.scan(track, statistics.running, rows)
        if self.reward_bound:
            largest = jnp.maximum(jnp.asarray(statistics.largest), jnp.max(jnp.abs(returns)))
            statistics = statistics._replace(largest=largest)
        return statistics._replace(returns=update_stats(statistics.returns, returns[:, None], rows[1]), running=running)

    def reward_scale(self, statistics: Statistics) -> Array:
        """Returns the number that rewards are divided by."""
        scale = deviation(statistics.returns)[0]
        return jnp.maximum(scale, jnp.asarray(statistics.largest) / self.reward_bound) if self.reward_bound else scale

    def obs(self, statistics: Statistics, obs: Obs) -> Obs:
        """Returns observations as the networks receive them."""
        stats = statistics.observations
        if not self.observations:
            return obs
        if isinstance(stats, dict):
            return obs | {name: normalise(each, obs[name]) for name, each in stats.items()} if stats else obs
        return normalise(stats, obs)

    def batch(self, statistics: Statistics, batch: Step, reward_scale: Scalar) -> Step:
        """Returns a batch from replay with normalised observations and scaled rewards."""
        scale = reward_scale / self.reward_scale(statistics) if self.rewards else reward_scale
        extras = batch.extras
        if "rewards" in extras:  # the components of the reward, if it has several
            extras = extras | {"rewards": scale * extras["rewards"]}
        obs = self.obs(statistics, batch.obs)
        next_obs = self.obs(statistics, batch.next_obs)
        return batch._replace(obs=obs, next_obs=next_obs, reward=scale * batch.reward, extras=extras)


def _is_vector(part: Part) -> bool:
    return part.dtype == "float32" and len(part.shape) == 1


def forget_episode(state: Any) -> Any:
    """Returns an agent's state with the running return set to 0, for a copy that acts in other environments."""

    def is_statistics(part: Any) -> bool:
        return isinstance(part, Statistics)

    def forget(part: Any) -> Any:
        return part._replace(running=jnp.zeros_like(part.running)) if is_statistics(part) else part

    return jax.tree.map(forget, state, is_leaf=is_statistics)
