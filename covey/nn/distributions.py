"""The tanh-normal distribution of stochastic actors."""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from covey.types import Array

LOG_STD = (-10.0, 2.0)
"""Limits of the logarithm of a standard deviation."""


class TanhNormal(NamedTuple):
    """The distribution of tanh(u), where u is normal with independent dimensions.

    Args:
        mean: Mean of u, [..., A].
        log_std: Logarithm of the standard deviation of u, [..., A].
    """

    mean: Array
    log_std: Array

    def mode(self) -> Array:
        """Returns the deterministic action tanh(mean)."""
        return jnp.tanh(self.mean)

    def sample(self, noise: Array) -> tuple[Array, Array]:
        """Returns the action [..., A] of standard normal noise, and its log-probability [...].

        The log-probability comes from u, not from the action: near the edge of the box, tanh(u) rounds to 1.
        """
        u = self.mean + jnp.exp(self.log_std) * noise
        log_normal = -0.5 * (noise**2 + jnp.log(2.0 * jnp.pi)) - self.log_std
        return jnp.tanh(u), jnp.sum(log_normal - log_tanh_slope(u), axis=-1)

    def log_prob(self, action: Array) -> Array:
        """Returns the log-probability [...] of actions [..., A]. Actions at the edge of the box are moved inside."""
        u = jnp.arctanh(jnp.clip(action, -1.0 + 1e-6, 1.0 - 1e-6))
        noise = (u - self.mean) / jnp.exp(self.log_std)
        log_normal = -0.5 * (noise**2 + jnp.log(2.0 * jnp.pi)) - self.log_std
        return jnp.sum(log_normal - log_tanh_slope(u), axis=-1)


def log_tanh_slope(u: Array) -> Array:
    """Returns log(1 - tanh(u)^2). It is exact even if tanh(u) rounds to 1."""
    return 2.0 * (jnp.log(2.0) - u - jax.nn.softplus(-2.0 * u))
