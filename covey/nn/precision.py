"""Dense layers whose products can be rounded to bfloat16 on every device."""

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from covey.types import Array

WEIGHTS = {
    "lecun": nn.initializers.lecun_normal(),
    "uniform": nn.initializers.variance_scaling(1 / 3, "fan_in", "uniform"),
    "orthogonal": nn.initializers.orthogonal(),
    "he": nn.initializers.he_normal(),
}
"""Initialisers of a layer's weights: `lecun` is flax's default, `uniform` is PyTorch's, within +-1/sqrt(inputs), and
`orthogonal` is that of DrQ and DrQ-v2, with gain 1 in every layer. `he` is normal with deviation sqrt(2/inputs)."""


def dense(size: int, weights: str = "lecun", bias: bool = True) -> nn.Dense:
    """Returns a dense layer that obeys `jax.default_matmul_precision("bfloat16")` on every device.

    XLA ignores that setting on the CPU, so the layer rounds its inputs itself. Use it in networks of your own, and they
    obey `precision="bfloat16"` too.

    Args:
        size: Number of units.
        weights: Name of an initialiser in WEIGHTS.
        bias: Add a bias to each unit.

    Returns:
        A flax module.

    Example:
        >>> class Torso(flax.linen.Module):
        ...     @flax.linen.compact
        ...     def __call__(self, x):
        ...         return flax.linen.relu(dense(64)(x))
    """
    return nn.Dense(size, use_bias=bias, kernel_init=WEIGHTS[weights], dot_general=_dot_general)


def _dot_general(x: Array, kernel: Array, dimensions: Any, **options: Any) -> Array:
    if jax.config.jax_default_matmul_precision != "bfloat16":  # type: ignore[attr-defined]
        return jax.lax.dot_general(x, kernel, dimensions, **options)
    return _bfloat16_product(x, kernel)


def _rounded(x: Array, y: Array, dimensions: tuple[tuple[int, ...], tuple[int, ...]]) -> Array:
    """Returns the product of x and y rounded to bfloat16, accumulated in float32."""
    x = x.astype(jnp.bfloat16)
    y = y.astype(jnp.bfloat16)
    return jax.lax.dot_general(x, y, (dimensions, ((), ())), preferred_element_type=jnp.float32)


@jax.custom_vjp
def _bfloat16_product(x: Array, kernel: Array) -> Array:
    """Returns x [..., i] times kernel [i, j]. The products of the gradient are rounded the same way."""
    return _rounded(x, kernel, ((x.ndim - 1,), (0,)))


def _forward(x: Array, kernel: Array) -> tuple[Array, tuple[Array, Array]]:
    return _bfloat16_product(x, kernel), (x, kernel)


def _backward(saved: tuple[Array, Array], gradient: Array) -> tuple[Array, Array]:
    x, kernel = saved
    rows = tuple(range(x.ndim - 1))
    return _rounded(gradient, kernel, ((x.ndim - 1,), (1,))), _rounded(x, gradient, (rows, rows))


_bfloat16_product.defvjp(_forward, _backward)
