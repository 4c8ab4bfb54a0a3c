"""Distributions over a fixed support, the outputs of distributional critics: HL-Gauss and C51."""

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


class Categorical(NamedTuple):
    """Probabilities of equally spaced atoms from `low` to `high`: C51 (Bellemare et al., 2017, arXiv 1707.06887).

    A target is a whole distribution: the atoms of the next state's, moved by the Bellman operator and projected back.

    Args:
        low: First atom.
        high: Last atom.
        bins: Number of atoms.
    """

    low: float
    high: float
    bins: int

    def value(self, logits: Array) -> Array:
        """Returns the mean [...] of logits [..., bins]."""
        return self.mean(jax.nn.softmax(logits))

    def mean(self, probabilities: Array) -> Array:
        """Returns the mean [...] of probabilities [..., bins]."""
        return probabilities @ self._atoms()

    def project(self, probabilities: Array, reward: Array, discount: Array) -> Array:
        """Returns the distribution of r + discount z on the atoms, [rows, bins].

        Each moved atom is clipped to the limits and shares its probability between its two neighbours, in proportion to
        its closeness: neighbour j receives 1 - abs(z - z_j) / spacing. This sums over all pairs of atoms instead of
        scattering, so the result does not depend on the order of additions on a GPU.

        Args:
            probabilities: Distributions at the next states, [rows, bins].
            reward: Rewards [rows].
            discount: Discounts [rows].
        """
        moved = jnp.clip(reward[:, None] + discount[:, None] * self._atoms()[None], self.low, self.high)
        place = (moved - self.low) * ((self.bins - 1) / (self.high - self.low))
        atom = jnp.arange(self.bins, dtype=place.dtype)
        share = jax.nn.relu(1.0 - jnp.abs(place[:, :, None] - atom[None, None]))
        return jnp.sum(probabilities[:, :, None] * share, axis=1)

    def cross_entropy(self, logits: Array, target: Array) -> Array:
        """Returns the loss [N, rows] of logits [N, rows, bins] against distributions [rows, bins]."""
        return -jnp.sum(target[None] * jax.nn.log_softmax(logits), axis=-1)

    def _atoms(self) -> Array:
        return jnp.linspace(self.low, self.high, self.bins)
