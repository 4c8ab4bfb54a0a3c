"""Adam with the learning rate as an argument, so that it can be scheduled, tuned and mapped over a population."""

import math
from dataclasses import dataclass

import jax
import optax

from covey.errors import require
from covey.types import Params, Scalar


@dataclass(frozen=True)
class Optimiser:
    """Adam (arXiv 1412.6980), with weight decay and gradient clipping.

    Example:
        >>> optimiser = Optimiser(clip_norm=10.0)
        >>> state = optimiser.init(params)
        >>> params, state = optimiser.step(params, gradient, state, 3e-4)
    """

    weight_decay: float = 0.0
    """Decoupled weight decay, as in AdamW (arXiv 1711.05101): each step also shrinks every weight by the learning rate
    times this. Biases and the scales of normalisation do not decay."""
    clip_norm: float = 0.0
    """Clip the norm of a gradient, over all parameters of the actor or of all critics; 0 does not clip."""
    beta1: float = 0.9
    """Decay of the first moment. CrossQ uses 0.5."""

    def __post_init__(self) -> None:
        for name in ("weight_decay", "clip_norm"):
            value = getattr(self, name)
            require(0 <= value < math.inf, f"`{name}` must be finite and not negative, not {value:g}.", self)
        require(0 <= self.beta1 < 1, f"`beta1` must lie in [0, 1), not {self.beta1:g}.", self)

    def init(self, params: Params) -> optax.OptState:
        """Returns the state of the optimiser before the first step."""
        return optax.scale_by_adam(self.beta1).init(params)

    def step(
        self, params: Params, gradient: Params, state: optax.OptState, learning_rate: Scalar
    ) -> tuple[Params, optax.OptState]:
        """Makes one step.

        Args:
            params: Parameters.
            gradient: Gradient of the loss.
            state: State of the optimiser.
            learning_rate: Step size; it may be traced.

        Returns:
            The parameters and the state of the optimiser after the step.
        """
        with jax.numpy_dtype_promotion("standard"):  # optax raises a float to an integer count
            if self.clip_norm:
                gradient, _ = optax.clip_by_global_norm(self.clip_norm).update(gradient, optax.EmptyState())
            updates, state = optax.scale_by_adam(self.beta1).update(gradient, state)
        if self.weight_decay:
            updates = jax.tree.map_with_path(self._decayed, updates, params)
        return jax.tree.map(lambda p, u: p - learning_rate * u, params, updates), state

    def _decayed(self, path: tuple, update: jax.Array, weight: jax.Array) -> jax.Array:
        """Adds the decay of one leaf to its update."""
        exempt = getattr(path[-1], "key", "") in ("bias", "scale")
        return update if exempt else update + self.weight_decay * weight


def polyak(target: Params, online: Params, rate: Scalar) -> Params:
    """Returns target + rate (online - target): the target moved towards the online parameters."""
    return jax.tree.map(lambda t, o: t + rate * (o - t), target, online)
