"""Histograms, the outputs of distributional critics."""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from covey.types import Array


class Histogram(NamedTuple):
    """Values between `low` and `high` as probabilities of equal bins.

    This is HL-Gauss (Farebrother et al., 2024, arXiv 2403.03950): the histogram of a target holds the probability of
    each bin under a normal density around the target, with a standard deviation of 0.75 bins.

    Args:
        low: Lower edge of the first bin.
        high: Upper edge of the last bin.
        bins: Number of bins.
    """

    low: float
    high: float
    bins: int

    def value(self, logits: Array) -> Array:
        """Returns the mean [...] of logits [..., bins]."""
        edges = self._edges().reshape((1,) * (logits.ndim - 1) + (-1,))
        return jnp.sum(jax.nn.softmax(logits) * 0.5 * (edges[..., 1:] + edges[..., :-1]), axis=-1)

    def probabilities(self, value: Array) -> Array:
        """Returns the histograms [..., bins] of values [...], which are clipped to the limits."""
        width = (self.high - self.low) / self.bins
        value = jnp.clip(value, self.low, self.high)[..., None]
        edges = self._edges().reshape((1,) * (value.ndim - 1) + (-1,))
        below = jax.lax.erf((edges - value) / (jnp.sqrt(2.0) * 0.75 * width))
        return (below[..., 1:] - below[..., :-1]) / (below[..., -1:] - below[..., :1])

    def cross_entropy(self, logits: Array, value: Array) -> Array:
        """Returns the loss [N, ...] of logits [N, ..., bins] against values [...]."""
        return -jnp.sum(self.probabilities(value)[None] * jax.nn.log_softmax(logits), axis=-1)

    def _edges(self) -> Array:
        return jnp.linspace(self.low, self.high, self.bins + 1)
