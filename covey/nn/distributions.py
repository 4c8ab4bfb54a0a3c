"""Distributions: the tanh-normal of stochastic actors, and the histograms of distributional critics."""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from covey.types import Array

LOG_STD_LOW, LOG_STD_HIGH = -10.0, 2.0


class TanhNormal(NamedTuple):
    """tanh of a normal variable, each dimension on its own: [..., A]."""

    mean: Array
    log_std: Array

    def mode(self) -> Array:
        """The deterministic action."""
        return jnp.tanh(self.mean)

    def sample(self, noise: Array) -> tuple[Array, Array]:
        """The action [..., A] of standard normal noise and its log-probability [...], from the value before tanh."""
        u = self.mean + jnp.exp(self.log_std) * noise
        log_normal = -0.5 * (noise**2 + jnp.log(2.0 * jnp.pi)) - self.log_std
        return jnp.tanh(u), jnp.sum(log_normal - log_tanh_slope(u), axis=-1)

    def log_prob(self, action: Array) -> Array:
        """The log-probability [...] of actions [..., A]; one at the edge of the box counts as just inside it."""
        u = jnp.arctanh(jnp.clip(action, -1.0 + 1e-6, 1.0 - 1e-6))
        noise = (u - self.mean) / jnp.exp(self.log_std)
        log_normal = -0.5 * (noise**2 + jnp.log(2.0 * jnp.pi)) - self.log_std
        return jnp.sum(log_normal - log_tanh_slope(u), axis=-1)


def log_tanh_slope(u: Array) -> Array:
    """log(1 - tanh(u)^2), exact where tanh(u) rounds to 1."""
    return 2.0 * (jnp.log(2.0) - u - jax.nn.softplus(-2.0 * u))


class Histogram(NamedTuple):
    """Values between `low` and `high` as probabilities of equal bins: HL-Gauss (Farebrother et al., 2024,
    arXiv 2403.03950). A target is a normal density around the value, 0.75 bins wide, summed up over each bin."""

    low: float
    high: float
    bins: int

    def _edges(self) -> Array:
        return jnp.linspace(self.low, self.high, self.bins + 1)

    def value(self, logits: Array) -> Array:
        """The mean [...] of logits [..., bins]."""
        edges = self._edges().reshape((1,) * (logits.ndim - 1) + (-1,))
        return jnp.sum(jax.nn.softmax(logits) * 0.5 * (edges[..., 1:] + edges[..., :-1]), axis=-1)

    def probabilities(self, value: Array) -> Array:
        """Values [...] as histograms [..., bins]; one outside the limits counts as the limit."""
        width = (self.high - self.low) / self.bins
        value = jnp.clip(value, self.low, self.high)[..., None]
        edges = self._edges().reshape((1,) * (value.ndim - 1) + (-1,))
        below = jax.lax.erf((edges - value) / (jnp.sqrt(2.0) * 0.75 * width))
        return (below[..., 1:] - below[..., :-1]) / (below[..., -1:] - below[..., :1])

    def cross_entropy(self, logits: Array, value: Array) -> Array:
        """The loss of logits [N, ..., bins] against values [...]."""
        return -jnp.sum(self.probabilities(value)[None] * jax.nn.log_softmax(logits), axis=-1)
