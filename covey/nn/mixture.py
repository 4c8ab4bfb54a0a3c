"""Mixtures of normal distributions, and a network that outputs one."""

from typing import NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp

from covey.nn.precision import dense
from covey.types import Array, Key


class Mixture(NamedTuple):
    """A mixture of M normal distributions with diagonal covariance.

    Args:
        logits: Logits of the components, [..., M].
        mean: Means, [..., M, D].
        std: Standard deviations, [..., M, D].
    """

    logits: Array
    mean: Array
    std: Array

    def log_prob(self, x: Array) -> Array:
        """Returns log sum_m w_m N(x; mean_m, std_m) of x [..., D]."""
        z = (x[..., None, :] - self.mean) / self.std
        each = -jnp.sum(0.5 * z**2 + jnp.log(self.std) + 0.5 * jnp.log(2.0 * jnp.pi), axis=-1)
        return jax.nn.logsumexp(jax.nn.log_softmax(self.logits) + each, axis=-1)

    def expected(self) -> Array:
        """Returns the mean of the mixture, [..., D]."""
        return jnp.sum(jax.nn.softmax(self.logits)[..., None] * self.mean, axis=-2)

    def sample(self, key: Key) -> Array:
        """Draws a value, [..., D]."""
        key_component, key_noise = jax.random.split(key)
        component = jax.random.categorical(key_component, self.logits)[..., None, None]
        mean, std = (jnp.take_along_axis(x, component, axis=-2)[..., 0, :] for x in (self.mean, self.std))
        return mean + std * jax.random.normal(key_noise, mean.shape)


class MixtureNetwork(nn.Module):
    """x -> torso -> mixture.

    Args:
        torso: The torso.
        size: Dimensions of the mixture.
        components: Number of normal distributions.
        std: Fixed standard deviation; 0 learns the deviations.
        limits: Limits of learnt deviations.
    """

    torso: nn.Module
    size: int
    components: int
    std: float
    limits: tuple[float, float]

    @nn.compact
    def __call__(self, x: Array) -> Mixture:
        features = self.torso(x)
        shape = (*x.shape[:-1], self.components, self.size)
        mean = dense(self.components * self.size)(features).reshape(shape)
        if self.std:
            std = jnp.full_like(mean, self.std)
        else:
            std = jnp.clip(jax.nn.softplus(dense(self.components * self.size)(features)).reshape(shape), *self.limits)
        return Mixture(dense(self.components)(features), mean, std)
