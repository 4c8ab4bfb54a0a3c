"""From windows of steps to targets."""

from typing import NamedTuple

import jax.numpy as jnp

from covey.types import Array, Scalar, Step


class Transition(NamedTuple):
    """From `obs` to `next_obs` in one or more steps: [B, ...]. `discount` is 0 where the task ended on the way."""

    obs: Array
    action: Array
    reward: Array
    discount: Array
    next_obs: Array
    valid: Array


def n_step(batch: Step, discount: Scalar) -> Transition:
    """Each window [B, T] as one transition: the discounted reward up to the window's end or the episode's.

    A termination sets the discount to 0. A time limit inside the window shortens it: the bootstrap is then from
    the true final observation, with the discount of the steps that were made.
    """
    window = batch.reward.shape[1]
    if window == 1:
        first = Step(*(x[:, 0] for x in batch[:-1]), extras={})
        bootstrap = discount * (1.0 - first.terminated)
        return Transition(first.obs, first.action, first.reward, bootstrap, first.next_obs, first.valid)

    powers = discount ** jnp.arange(window, dtype=batch.reward.dtype)
    reward = jnp.sum(jnp.where(batch.valid > 0, batch.reward * powers[None], 0.0), axis=1)
    steps = jnp.sum(batch.valid, axis=1).astype(jnp.int32)
    end = jnp.maximum(steps - 1, 0)[:, None]
    terminated = jnp.take_along_axis(batch.terminated, end, axis=1)[:, 0]
    next_obs = jnp.take_along_axis(batch.next_obs, end[..., None], axis=1)[:, 0]
    bootstrap = discount ** steps.astype(batch.reward.dtype) * (1.0 - terminated)
    return Transition(batch.obs[:, 0], batch.action[:, 0], reward, bootstrap, next_obs, batch.valid[:, 0])


def mean_valid(x: Array, valid: Array) -> Array:
    """The mean over the last axis where `valid` is 1; what stands elsewhere does not matter."""
    return jnp.sum(jnp.where(valid > 0, x, 0.0), axis=-1) / jnp.maximum(jnp.sum(valid, axis=-1), 1.0)


def compare_through(reward: Array, discount: Array, keep: Array, instead: Array) -> Array:
    """y_t = r_t + discount_t acc_{t+1}, [B, T - 1, ...], acc_t = keep_t y_t + instead_t; the last acc is `instead`."""
    acc, targets = instead[:, -1], []
    for t in reversed(range(reward.shape[1] - 1)):
        y = reward[:, t] + discount[:, t] * acc
        acc = keep[:, t] * y + instead[:, t]
        targets.append(y)
    return jnp.stack(targets[::-1], axis=1)
