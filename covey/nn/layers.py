"""Layers that flax does not have: dense ones in a chosen precision, cheaper dropout, batch renormalisation."""

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from covey.types import Array

WEIGHTS = {
    "lecun": nn.initializers.lecun_normal(),
    "uniform": nn.initializers.variance_scaling(1 / 3, "fan_in", "uniform"),
}
"""What a layer starts with: flax's own, or what PyTorch's have, uniform within +-1/sqrt(inputs)."""


def dense(size: int, weights: str = "lecun") -> nn.Dense:
    """A dense layer that obeys `jax.default_matmul_precision("bfloat16")` on every device, the CPU included.

    A network of one's own that uses it obeys `covey train --precision` too. `weights` is one of WEIGHTS.
    """
    return nn.Dense(size, kernel_init=WEIGHTS[weights], dot_general=_dot_general)


def _dot_general(x: Array, kernel: Array, dimensions: Any, **options: Any) -> Array:
    if jax.config.jax_default_matmul_precision != "bfloat16":  # type: ignore[attr-defined]
        return jax.lax.dot_general(x, kernel, dimensions, **options)
    return _bfloat16_product(x, kernel)


def _rounded(x: Array, y: Array, dimensions: tuple[tuple[int, ...], tuple[int, ...]]) -> Array:
    """The product of x and y rounded to bfloat16, summed up in float32."""
    x, y = x.astype(jnp.bfloat16), y.astype(jnp.bfloat16)
    return jax.lax.dot_general(x, y, (dimensions, ((), ())), preferred_element_type=jnp.float32)


@jax.custom_vjp
def _bfloat16_product(x: Array, kernel: Array) -> Array:
    """x [..., i] times kernel [i, j]. The products of the gradient are rounded the same way."""
    return _rounded(x, kernel, ((x.ndim - 1,), (0,)))


def _forward(x: Array, kernel: Array) -> tuple[Array, tuple[Array, Array]]:
    return _bfloat16_product(x, kernel), (x, kernel)


def _backward(saved: tuple[Array, Array], gradient: Array) -> tuple[Array, Array]:
    x, kernel = saved
    rows = tuple(range(x.ndim - 1))
    return _rounded(gradient, kernel, ((x.ndim - 1,), (1,))), _rounded(x, gradient, (rows, rows))


_bfloat16_product.defvjp(_forward, _backward)


class Dropout(nn.Module):
    """Drops units at random where a random stream `dropout` is given.

    The random numbers are what dropout costs on a CPU, so 16 bits are drawn for a unit, not 32.
    """

    rate: float

    @nn.compact
    def __call__(self, x: Array) -> Array:
        if not self.has_rng("dropout"):
            return x
        dropped = round(self.rate * 2**16)
        bits = jax.random.bits(self.make_rng("dropout"), x.shape, jnp.uint16)
        return jnp.where(bits < dropped, 0.0, x / (1.0 - dropped / 2**16))


class BatchRenorm(nn.Module):
    """Batch renormalisation (Ioffe, 2017, arXiv 1702.03275), as CrossQ uses it (Bhatt et al., 2024, arXiv 1902.05605).

    While the collection `batch_stats` is mutable, the batch's own statistics are used and the running ones follow;
    after `warmup` such batches, a correction makes the result agree with the running statistics as far as the limits
    allow. Otherwise the running statistics are used.
    """

    momentum: float = 0.99
    warmup: int = 100_000
    most_scale: float = 3.0
    most_shift: float = 5.0
    epsilon: float = 1e-3

    @nn.compact
    def __call__(self, x: Array) -> Array:
        size = x.shape[-1]
        mean = self.variable("batch_stats", "mean", jnp.zeros, size)
        variance = self.variable("batch_stats", "variance", jnp.ones, size)
        batches = self.variable("batch_stats", "batches", jnp.zeros, ())
        scale = self.param("scale", nn.initializers.ones, (size,))
        bias = self.param("bias", nn.initializers.zeros, (size,))
        old_mean, old_std = mean.value, jnp.sqrt(variance.value + self.epsilon)
        shape = (1,) * (x.ndim - 1) + (size,)
        if not self.is_mutable_collection("batch_stats") or self.is_initializing():
            x = (x - old_mean.reshape(shape)) / old_std.reshape(shape)
            return x * scale.reshape(shape) + bias.reshape(shape)

        rows = tuple(range(x.ndim - 1))
        new_mean, new_variance = jnp.mean(x, axis=rows), jnp.var(x, axis=rows)
        new_std = jnp.sqrt(new_variance + self.epsilon)
        warm = batches.value >= self.warmup
        r = jnp.where(warm, jnp.clip(new_std / old_std, 1.0 / self.most_scale, self.most_scale), 1.0)
        d = jnp.where(warm, jnp.clip((new_mean - old_mean) / old_std, -self.most_shift, self.most_shift), 0.0)
        r, d = jax.lax.stop_gradient((r, d))
        mean.value += (1.0 - self.momentum) * (new_mean - mean.value)
        variance.value += (1.0 - self.momentum) * (new_variance - variance.value)
        batches.value += 1.0
        x = (x - new_mean.reshape(shape)) / new_std.reshape(shape) * r.reshape(shape) + d.reshape(shape)
        return x * scale.reshape(shape) + bias.reshape(shape)
