"""Running mean and variance of a stream of vectors."""

from typing import NamedTuple

import jax.numpy as jnp

from covey.types import Array

CLIP = 10.0
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

    Chan's formula for joining two samples: exact for any split of the stream, stable in float32. A row of weight 0
    may hold anything, NaN included.
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
    return RunningStats(
        rows=total,
        mean=stats.mean + delta * share,
        squares=stats.squares + squares + delta**2 * stats.rows * share,
    )


def normalise(stats: RunningStats, x: Array) -> Array:
    """x with mean 0 and deviation 1 under the statistics, clipped at +-10; unchanged before there are two rows."""
    variance = jnp.where(stats.rows > 1, stats.squares / jnp.maximum(stats.rows, 1.0), 1.0)
    shape = (1,) * (x.ndim - 1) + stats.mean.shape
    mean, deviation = stats.mean.reshape(shape), jnp.sqrt(variance + EPSILON).reshape(shape)
    return jnp.clip((x - mean) / deviation, -CLIP, CLIP)
