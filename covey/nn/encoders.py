"""Encoders of the parts of an observation, and the options of those for images.

An encoder maps one part to a vector of features. Vectors need none, or take an MLP; images take a convolutional one.
The features of all parts that an actor or a critic sees are joined, in the order of their names.
"""

from dataclasses import dataclass

import flax.linen as nn
import jax
import jax.numpy as jnp

from covey.errors import require
from covey.nn.convolution import Convolution
from covey.nn.precision import dense
from covey.observation import Obs, Observation
from covey.types import Array, Key, Step

PRIVILEGED = "privileged"
"""The part of an observation that the actor does not see unless it is told to."""


@dataclass(frozen=True)
class Image:
    """The encoder of images.

    Example:
        >>> SACConfig(networks=Networks(image=Image(kind="impala", shift=4), actor_head="tanh_normal"))
    """

    kind: str = "drq"
    """Name of a registered encoder: `drq`, four layers (arXiv 2004.13649); `nature`, three layers for images from 36
    pixels on (DQN); `impala`, residual blocks (arXiv 1802.01561); or your own."""
    channels: tuple[int, ...] = ()
    """Channels of each convolutional layer, or of each group of residual blocks; none for those of the publication."""
    features: int = 0
    """Features that an image is encoded to; 0 for those of the publication."""
    shared: bool = True
    """One encoder for the actor and all critics, trained by the critics' loss; without, each has its own."""
    shift: int = 0
    """Random-shift augmentation (DrQ, arXiv 2004.13649): learn from images moved by up to this many pixels, such as 4.
    0 for none."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "channels", tuple(self.channels))
        require(all(n > 0 for n in self.channels), f"`channels` must be positive, not {self.channels}.", self)
        require(self.features >= 0, f"`features` must not be negative, not {self.features}.", self)
        require(self.shift >= 0, f"`shift` must not be negative, not {self.shift}.", self)


def scaled(x: Array) -> Array:
    """Returns images of bytes as numbers from -0.5 to 0.5; others as they are."""
    return x.astype(jnp.float32) / 255.0 - 0.5 if x.dtype == jnp.uint8 else x


def _flat(x: Array) -> Array:
    return x.reshape(*x.shape[:-3], -1)


def _require_pixels(kind: str, x: Array, least: int) -> None:
    height, width = x.shape[-3:-1]
    require(
        min(height, width) >= least,
        f"The encoder {kind} needs images of at least {least} x {least} pixels, not {height} x {width}. Choose another "
        "`networks.image.kind`, or larger images.",
    )


class DrQ(nn.Module):
    """The encoder of DrQ and DrQ-v2: four layers of 3 x 3, the first with stride 2, then a normalised projection.

    Reference: Yarats et al., 2020, arXiv 2004.13649. Here the projection (dense, layer normalisation, tanh) belongs to
    the encoder; DrQ-v2 gives the actor one of its own.
    """

    channels: tuple[int, ...] = (32, 32, 32, 32)
    features: int = 50
    weights: str = "orthogonal"

    @nn.compact
    def __call__(self, x: Array) -> Array:
        _require_pixels("drq", x, 4 * len(self.channels) - 1)
        x = scaled(x)
        for i, channels in enumerate(self.channels):
            x = nn.relu(Convolution(channels, 3, 2 if i == 0 else 1, weights=self.weights)(x))
        return nn.tanh(nn.LayerNorm()(dense(self.features, self.weights)(_flat(x))))


class Nature(nn.Module):
    """The encoder of DQN (Mnih et al., 2015): layers of 8 x 8, 4 x 4 and 3 x 3 with strides 4, 2 and 1."""

    channels: tuple[int, ...] = (32, 64, 64)
    features: int = 512
    weights: str = "orthogonal"

    @nn.compact
    def __call__(self, x: Array) -> Array:
        require(len(self.channels) == 3, f"The encoder nature has three layers, not `channels` {self.channels}.")
        _require_pixels("nature", x, 36)
        x = scaled(x)
        for channels, size, stride in zip(self.channels, (8, 4, 3), (4, 2, 1), strict=True):
            x = nn.relu(Convolution(channels, size, stride, weights=self.weights)(x))
        return nn.relu(dense(self.features, self.weights)(_flat(x)))


class Impala(nn.Module):
    """The residual encoder of IMPALA (Espeholt et al., 2018, arXiv 1802.01561): each group halves the image."""

    channels: tuple[int, ...] = (16, 32, 32)
    features: int = 256
    weights: str = "orthogonal"

    @nn.compact
    def __call__(self, x: Array) -> Array:
        _require_pixels("impala", x, 2 ** len(self.channels))
        x = scaled(x)
        for channels in self.channels:
            x = _halved(Convolution(channels, same=True, weights=self.weights)(x))
            for _ in range(2):
                inner = Convolution(channels, same=True, weights=self.weights)(nn.relu(x))
                x = x + Convolution(channels, same=True, weights=self.weights)(nn.relu(inner))
        return nn.relu(dense(self.features, self.weights)(_flat(nn.relu(x))))


def _halved(x: Array) -> Array:
    """Returns the largest value of each 3 x 3 pixels, at every second pixel."""
    images = x.reshape(-1, *x.shape[-3:])
    found = nn.max_pool(images, (3, 3), (2, 2), "SAME")
    return found.reshape(*x.shape[:-3], *found.shape[1:])


class Numbers(nn.Module):
    """A part that needs no encoder, as a vector of float32."""

    axes: int = 1

    def __call__(self, x: Array) -> Array:
        return x.astype(jnp.float32).reshape(*x.shape[: x.ndim - self.axes], -1)


class Encoders(nn.Module):
    """Encodes some parts of an observation, each by its own encoder; the others stay as they are."""

    encoders: dict[str, nn.Module]

    def __call__(self, obs: Obs) -> Obs:
        return {name: self.encoders[name](x) if name in self.encoders else x for name, x in obs.items()}


class Joined(nn.Module):
    """Encodes the parts that an actor or a critic sees, and joins their features."""

    encoders: dict[str, nn.Module]

    def __call__(self, obs: Obs) -> Array:
        return jnp.concatenate([self.encoders[name](obs[name]) for name in sorted(self.encoders)], axis=-1)


def shifted(batch: Step, observation: Observation, pixels: int, key: Key) -> Step:
    """Returns a batch whose images are moved by up to `pixels` pixels, each by its own; edges are repeated."""
    images = [name for name, part in observation.named if part.is_image]
    if not (pixels and images):
        return batch

    def moved(obs: Obs, key: Key) -> Obs:
        parts = observation.by_name(obs)
        keys = jax.random.split(key, len(images))
        return observation.of_names(parts | {n: _shift(parts[n], pixels, k) for n, k in zip(images, keys, strict=True)})

    key_now, key_next = jax.random.split(key)
    return batch._replace(obs=moved(batch.obs, key_now), next_obs=moved(batch.next_obs, key_next))


def _shift(x: Array, pixels: int, key: Key) -> Array:
    """Moves images [..., H, W, C] by up to `pixels` pixels in both directions."""
    images = x.reshape(-1, *x.shape[-3:])
    moves = jax.random.randint(key, (2, images.shape[0], 1), -pixels, pixels + 1)
    for axis, move in enumerate(moves, 1):
        size = images.shape[axis]
        place = jnp.clip(jnp.arange(size)[None] + move, 0, size - 1)
        images = jnp.take_along_axis(images, jnp.expand_dims(place, tuple({1, 2, 3} - {axis})), axis=axis)
    return images.reshape(x.shape)
