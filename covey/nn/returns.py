"""Targets from windows of steps: n-step returns, and the compare-through target of TAAC. Losses of the TD error."""

import math
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp

from covey.errors import require
from covey.observation import Obs
from covey.types import Array, Scalar, Step

TDLoss = Literal["squared", "huber", "absolute"]
DELTA = 1.0
"""Default of `huber_delta`."""


class Transition(NamedTuple):
    """Transitions over one or more steps, [B, ...].

    Args:
        obs: First observation.
        action: First action.
        reward: Discounted sum of the rewards.
        discount: Factor of the value at `next_obs`; 0 if the task ended on the way.
        next_obs: Observation after the last step.
        valid: 0 if there is no transition: the entry must not enter any loss.
        successor: Observation after the first step.
        continues: 1 if the transition is valid and its first step did not end the task, else 0.
    """

    obs: Obs
    action: Array
    reward: Array
    discount: Array
    next_obs: Obs
    valid: Array
    successor: Array | tuple[()] = ()
    continues: Array | tuple[()] = ()


def n_step(batch: Step, discount: Scalar) -> Transition:
    """Converts windows of steps to n-step transitions.

    The reward of a transition is the discounted sum up to the end of the window or of the episode. A termination sets
    the discount to 0. A time limit shortens the window: the target then bootstraps from the final observation of the
    episode, with the discount of the steps that were made.

    Args:
        batch: Windows [B, T].
        discount: Discount of one step.

    Returns:
        Transitions [B].
    """
    window = batch.reward.shape[1]
    first = jax.tree.map(lambda x: x[:, 0], batch._replace(extras={}))
    after = (first.next_obs, first.valid * (1.0 - first.terminated))
    if window == 1:
        bootstrap = discount * (1.0 - first.terminated)
        return Transition(first.obs, first.action, first.reward, bootstrap, first.next_obs, first.valid, *after)

    powers = discount ** jnp.arange(window, dtype=batch.reward.dtype)
    reward = jnp.sum(jnp.where(batch.valid > 0, batch.reward * powers[None], 0.0), axis=1)
    steps = jnp.sum(batch.valid, axis=1).astype(jnp.int32)
    end = jnp.maximum(steps - 1, 0)[:, None]
    terminated = jnp.take_along_axis(batch.terminated, end, axis=1)[:, 0]

    def at_end(x: Array) -> Array:
        return jnp.take_along_axis(x, end.reshape(*end.shape, *(1,) * (x.ndim - end.ndim)), axis=1)[:, 0]

    next_obs = jax.tree.map(at_end, batch.next_obs)
    bootstrap = discount ** steps.astype(batch.reward.dtype) * (1.0 - terminated)
    return Transition(first.obs, first.action, reward, bootstrap, next_obs, first.valid, *after)


def mean_valid(x: Array, valid: Array) -> Array:
    """Returns the mean over the last axis where `valid` is 1. Other entries may hold anything, NaN included."""
    return jnp.sum(jnp.where(valid > 0, x, 0.0), axis=-1) / jnp.maximum(jnp.sum(valid, axis=-1), 1.0)


def compare_through(reward: Array, discount: Array, keep: Array, instead: Array) -> Array:
    """Computes the compare-through targets of TAAC, backwards in time.

    y_t = r_t + discount_t acc_{t+1}, where acc_t = keep_t y_t + instead_t, and the last acc is `instead`.

    Args:
        reward: Rewards [B, T, ...].
        discount: Discounts [B, T, ...], 0 at a termination.
        keep: Weight of the longer return at each step.
        instead: The bootstrap added at each step.

    Returns:
        Targets [B, T - 1, ...].
    """
    acc = instead[:, -1]
    targets = []
    for t in reversed(range(reward.shape[1] - 1)):
        y = reward[:, t] + discount[:, t] * acc
        acc = keep[:, t] * y + instead[:, t]
        targets.append(y)
    return jnp.stack(targets[::-1], axis=1)


def td_loss(kind: TDLoss, error: Array, delta: float = DELTA) -> Array:
    """Returns the loss of each TD error e: e^2, abs(e), or Huber's.

    Huber's is e^2 / 2 up to `delta`, and delta (abs(e) - delta / 2) beyond.

    Args:
        kind: `squared`, `huber` or `absolute`.
        error: TD errors, of any shape.
        delta: Absolute error from which Huber's loss is linear.
    """
    if kind == "squared":
        return error**2
    size = jnp.abs(error)
    if kind == "absolute":
        return size
    return jnp.where(size <= delta, 0.5 * error**2, delta * (size - 0.5 * delta))


def require_td_loss(config: Any) -> None:
    """Raises a CoveyError unless the fields `td_loss` and `huber_delta` of a configuration fit together."""
    kinds = ("squared", "huber", "absolute")
    kind, delta = config.td_loss, config.huber_delta
    require(kind in kinds, f"`td_loss` must be one of {', '.join(kinds)}, not {kind!r}.", config)
    require(0 < delta < math.inf, f"`huber_delta` must be positive and finite, not {delta:g}.", config)
    require(kind == "huber" or delta == DELTA, f"`huber_delta` is for `td_loss` huber, not {kind}.", config)
