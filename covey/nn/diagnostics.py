"""Metrics of learning that all agents share: moments, explained variance, and histograms over the valid rows.

Rows that are not valid may hold anything, NaN included. Every function is a few reductions over a batch.
"""

import math

import jax
import jax.numpy as jnp

from covey.nn.returns import mean_valid
from covey.types import Array, Metrics, Step

BINS = 32
"""Bins of a histogram of real numbers: 16 for each sign."""
UNIT = 0.01
"""Width of the two middle bins. Each bin away from 0 is twice as wide as the one before."""
LARGEST = 1e16
"""Numbers are clipped to plus or minus this: squares of larger ones may overflow, and a metric must not stop a run."""
COUNT_BINS = 10
"""Bins of a histogram of counts: 1, 2 to 3, 4 to 7, ..., 512 and more."""


def mean_and_std(x: Array, valid: Array) -> tuple[Array, Array]:
    """Returns the mean and the standard deviation over the last axis where `valid` is 1."""
    x = jnp.clip(x, -LARGEST, LARGEST)
    mean = mean_valid(x, valid)
    return mean, jnp.sqrt(mean_valid((x - mean[..., None]) ** 2, valid))


def observation_metrics(batch: Step) -> Metrics:
    """Returns the mean and the standard deviation of the numbers in observations; of images, if there are no others."""
    leaves = jax.tree.leaves(batch.obs)
    floats = [x for x in leaves if jnp.issubdtype(x.dtype, jnp.floating)] or [x.astype(jnp.float32) for x in leaves]
    valid = batch.valid.reshape(-1)
    rows = [x.reshape(valid.shape[0], -1) for x in floats]
    numbers = rows[0] if len(rows) == 1 else jnp.concatenate(rows, axis=-1)
    mean, std = mean_and_std(numbers.reshape(-1), jnp.repeat(valid, numbers.shape[-1]))
    return {"obs_mean": mean, "obs_std": std}


def value_metrics(value: Array, target: Array, valid: Array) -> Metrics:
    """Returns moments of values q, targets y and TD errors y - q [rows], and the explained variance.

    The explained variance is 1 - var(y - q) / var(y): 1 if the values predict the targets, 0 if a constant would do as
    well. It is at least -1, so that a batch of almost equal targets can't dominate a mean over batches, and 0 if all
    targets are equal.
    """
    mean, std = mean_and_std(jnp.stack([value, target, target - value]), valid[None])
    names = ("q", "target", "td_error")
    unexplained = jnp.minimum(std[2] / jnp.maximum(std[1], 1e-30), 2.0) ** 2
    return (
        {f"{name}_mean": mean[i] for i, name in enumerate(names)}
        | {f"{name}_std": std[i] for i, name in enumerate(names)}
        | {"explained_variance": jnp.where(std[1] > 0, jnp.maximum(1.0 - unexplained, -1.0), 0.0)}
    )


def value_details(values: Array, target: Array, valid: Array, rewards: tuple[str, ...] = ("",)) -> Metrics:
    """Returns the metrics of each critic and reward, with histograms.

    Args:
        values: Values [critics, rows, rewards].
        target: Targets [rows, rewards].
        valid: 1 for rows that count, [rows].
        rewards: Names of the rewards; one empty name if there is only one.

    Returns:
        Metrics by name, such as `critic_0_q_mean` or, with several rewards, `critic_0_gain_q_mean`.
    """
    found: Metrics = {}
    for r, reward in enumerate(rewards):
        named = f"{reward}_" if reward else ""
        y = target[:, r]
        found[f"{named}target_histogram"] = histogram(y, valid)
        for critic, each in enumerate(values[..., r]):
            moments = value_metrics(each, y, valid)
            own = {name: x for name, x in moments.items() if not name.startswith("target")}
            own |= {"q_histogram": histogram(each, valid), "td_error_histogram": histogram(y - each, valid)}
            found |= {f"critic_{critic}_{named}{name}": x for name, x in own.items()}
    return found


def histogram(x: Array, valid: Array) -> Array:
    """Returns the shares [BINS] of real numbers [rows] in bins that grow with the distance from 0.

    The lower edges of the positive bins are UNIT (2^k - 1) for k from 0 to 15: 0, 0.01, 0.03, 0.07, ..., 327.67. The
    negative bins mirror them. The outermost bins also hold what lies beyond them.
    """
    half = BINS // 2
    place = jnp.minimum(jnp.floor(jnp.log2(1.0 + jnp.abs(x) / UNIT)), half - 1.0)
    return shares(jnp.where(x < 0, half - 1.0 - place, half + place), BINS, valid)


def count_histogram(count: Array, valid: Array) -> Array:
    """Returns the shares [COUNT_BINS] of counts [rows], 1 or more: 1, 2 to 3, 4 to 7, ..., 512 and more."""
    return shares(jnp.minimum(jnp.floor(jnp.log2(jnp.maximum(count, 1.0))), COUNT_BINS - 1.0), COUNT_BINS, valid)


def bin_edges(name: str, bins: int) -> list[float]:
    """Returns the edges [bins + 1] of the histogram that is logged under a name; by default equal bins of [0, 1]."""
    if name.endswith("_repeats_histogram"):
        return [2.0**k for k in range(bins + 1)]
    if name.endswith("_histogram"):
        return [math.copysign(UNIT * (2.0 ** abs(k) - 1.0), k) for k in range(-(bins // 2), bins // 2 + 1)]
    return [i / bins for i in range(bins + 1)]


def shares(place: Array, bins: int, valid: Array) -> Array:
    """Returns the share of the valid rows in each bin, [bins], for whole-numbered places [rows] from 0."""
    return mean_valid((place[None] == jnp.arange(float(bins))[:, None]).astype(jnp.float32), valid[None])
