"""CAPS: regularisation of an actor towards smooth actions (Mysore et al., 2021, arXiv 2012.06644)."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import jax
import jax.numpy as jnp

from covey.errors import require
from covey.nn.returns import Transition, mean_valid
from covey.observation import Obs
from covey.types import Array, Key, Metrics

DEVIATION = 0.05
"""Default of `deviation`."""
NOISE = 2**32 - 1
"""The `fold_in` value of the noise: no key that is split off the same one equals it."""


@dataclass(frozen=True)
class Smoothness:
    """Terms of the actor's loss that keep its actions smooth. With both weights 0, there are none.

    The terms are the squared distances between the actions of neighbouring observations. (The paper has the distances,
    whose gradient is not defined at 0.)

    Example:
        >>> SACConfig(smoothness=Smoothness(temporal=1.0, spatial=1.0))
    """

    temporal: float = 0.0
    """Weight of the change of the action from one step to the next."""
    spatial: float = 0.0
    """Weight of the change of the action if noise is added to the observation."""
    deviation: float = DEVIATION
    """Standard deviation of that noise, in units of the observations as the networks receive them."""

    def __post_init__(self) -> None:
        for name in ("temporal", "spatial"):
            value = getattr(self, name)
            require(0 <= value < math.inf, f"`{name}` must be 0 (off) or positive and finite, not {value:g}.", self)
        require(
            0 < self.deviation < math.inf, f"`deviation` must be positive and finite, not {self.deviation:g}.", self
        )
        require(
            self.spatial > 0 or self.deviation == DEVIATION,
            "`deviation` is the noise of the spatial term, which is off. Set its weight `spatial` too, for example 1.",
            self,
        )

    def loss(self, policy: Callable[[Obs], Array], data: Transition, key: Key) -> Metrics:
        """Returns temporal mean ||pi(s) - pi(s')||^2 + spatial mean ||pi(s) - pi(s~)||^2, s~ ~ N(s, deviation^2).

        s' follows s after one step, whatever the number of steps of a transition. After a termination the policy never
        acts, so those s' do not count; after a time limit they do.

        Args:
            policy: The deterministic action pi(s) [B, A] of normalised observations [B, ...].
            data: Transitions with normalised observations.
            key: Key of the noise. It may be used for other things too.

        Returns:
            The term of the loss, as the metric `smoothness_loss`; empty if both weights are 0.

        Example:
            >>> Smoothness(temporal=1.0).loss(policy, data, key)["smoothness_loss"]
        """
        if not (self.temporal or self.spatial):
            return {}
        action = policy(data.obs)
        loss = jnp.zeros(())
        if self.temporal:
            assert not isinstance(data.successor, tuple) and not isinstance(data.continues, tuple)
            change = jnp.sum((action - policy(data.successor)) ** 2, axis=-1)
            loss += self.temporal * mean_valid(change, data.continues)
        if self.spatial:
            nearby = self._disturbed(data.obs, jax.random.fold_in(key, NOISE))
            change = jnp.sum((action - policy(nearby)) ** 2, axis=-1)
            loss += self.spatial * mean_valid(change, data.valid)
        return {"smoothness_loss": loss}

    def _disturbed(self, obs: Obs, key: Key) -> Obs:
        """Adds noise to observations. Images of bytes are not disturbed."""
        leaves, form = jax.tree.flatten(obs)
        keys = [key] if len(leaves) == 1 else list(jax.random.split(key, len(leaves)))
        moved = [
            x + self.deviation * jax.random.normal(k, x.shape) if jnp.issubdtype(x.dtype, jnp.floating) else x
            for x, k in zip(leaves, keys, strict=True)
        ]
        return jax.tree.unflatten(form, moved)
