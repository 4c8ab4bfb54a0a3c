"""Optimisers whose learning rate is an argument, so that it can be scheduled, tuned and mapped over a population."""

import math
from dataclasses import dataclass

import jax
import optax

from covey.errors import require
from covey.types import Params, Scalar


@dataclass(frozen=True)
class Optimiser:
    """Adam (arXiv 1412.6980), with the options that people add to it."""

    weight_decay: float = 0.0
    """Decoupled weight decay, as in AdamW (arXiv 1711.05101): each step also takes learning rate times this off every
    weight. Biases and the scales of normalisation are left alone."""
    clip_norm: float = 0.0
    """Longest gradient, as a norm over all parameters of the actor, or of all critics; 0 means no limit."""
    beta1: float = 0.9
    """Decay of the first moment. CrossQ takes 0.5."""

    def __post_init__(self) -> None:
        for name in ("weight_decay", "clip_norm"):
            value = getattr(self, name)
            fits = 0 <= value < math.inf
            require(fits, f"--agent.optimiser.{name.replace('_', '-')} must be finite and not negative, not {value:g}.")
        require(0 <= self.beta1 < 1, f"--agent.optimiser.beta1 must lie in [0, 1), not {self.beta1:g}.")

    def init(self, params: Params) -> optax.OptState:
        return optax.scale_by_adam(self.beta1).init(params)

    def step(
        self, params: Params, gradient: Params, state: optax.OptState, learning_rate: Scalar
    ) -> tuple[Params, optax.OptState]:
        """One step with a traced learning rate."""
        with jax.numpy_dtype_promotion("standard"):  # optax raises a float to an integer count
            if self.clip_norm:
                gradient, _ = optax.clip_by_global_norm(self.clip_norm).update(gradient, optax.EmptyState())
            updates, state = optax.scale_by_adam(self.beta1).update(gradient, state)
        if self.weight_decay:
            updates = jax.tree.map_with_path(self._decayed, updates, params)
        return jax.tree.map(lambda p, u: p - learning_rate * u, params, updates), state

    def _decayed(self, path: tuple, update: jax.Array, weight: jax.Array) -> jax.Array:
        spared = getattr(path[-1], "key", "") in ("bias", "scale")
        return update if spared else update + self.weight_decay * weight


def polyak(target: Params, online: Params, rate: Scalar) -> Params:
    """The target moved towards the online parameters: target + rate (online - target)."""
    return jax.tree.map(lambda t, o: t + rate * (o - t), target, online)
