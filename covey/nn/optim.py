"""Optimisers whose learning rate is an argument, so that it can be scheduled, tuned and mapped over a population."""

import jax
import optax

from covey.types import Params, Scalar


def adam_init(params: Params) -> optax.OptState:
    return optax.scale_by_adam().init(params)


def adam_step(
    params: Params, gradient: Params, state: optax.OptState, learning_rate: Scalar
) -> tuple[Params, optax.OptState]:
    """One step of Adam with a traced learning rate."""
    with jax.numpy_dtype_promotion("standard"):  # optax raises a float to an integer count
        updates, state = optax.scale_by_adam().update(gradient, state)
    return jax.tree.map(lambda p, u: p - learning_rate * u, params, updates), state


def polyak(target: Params, online: Params, rate: Scalar) -> Params:
    """The target moved towards the online parameters: target + rate (online - target)."""
    return jax.tree.map(lambda t, o: t + rate * (o - t), target, online)
