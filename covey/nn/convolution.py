"""Convolution whose gradient is fast inside compiled loops, and a layer that uses it."""

from functools import partial

import flax.linen as nn
import jax
import jax.numpy as jnp

from covey.nn.precision import WEIGHTS
from covey.types import Array

DIMENSIONS = ("NHWC", "HWIO", "NHWC")
Padding = tuple[tuple[int, int], tuple[int, int]]


def _convolve(x: Array, kernel: Array, stride: int, padding: Padding) -> Array:
    return jax.lax.conv_general_dilated(x, kernel, (stride, stride), padding, dimension_numbers=DIMENSIONS)


@partial(jax.custom_vjp, nondiff_argnums=(2, 3))
def convolve(x: Array, kernel: Array, stride: int, padding: Padding) -> Array:
    """Returns the convolution of images [N, H, W, C] with a kernel [h, w, C, features].

    Its gradient is written out for CPUs. XLA has fast CPU code for a plain convolution only: in a compiled loop the
    gradients that it derives take many times longer than the formulas below (docs/observations.md). Accelerators use
    the derived ones.

    Args:
        x: Images.
        kernel: The kernel.
        stride: Pixels between two places of the kernel.
        padding: Pixels of zeros at the top and bottom, and at the left and right.
    """
    return _convolve(x, kernel, stride, padding)


def _forward(x: Array, kernel: Array, stride: int, padding: Padding) -> tuple[Array, tuple[Array, Array]]:
    return _convolve(x, kernel, stride, padding), (x, kernel)


def _backward(stride: int, padding: Padding, saved: tuple[Array, Array], gradient: Array) -> tuple[Array, Array]:
    x, kernel = saved
    cpu = partial(_cpu_gradients, stride, padding)
    return jax.lax.platform_dependent(x, kernel, gradient, cpu=cpu, default=partial(_derived, stride, padding))


def _derived(stride: int, padding: Padding, x: Array, kernel: Array, gradient: Array) -> tuple[Array, Array]:
    return jax.vjp(lambda x, k: _convolve(x, k, stride, padding), x, kernel)[1](gradient)


def _cpu_gradients(stride: int, padding: Padding, x: Array, kernel: Array, gradient: Array) -> tuple[Array, Array]:
    """Returns the gradients of the images and of the kernel as a plain convolution and a matrix product per row."""
    height, width, _, features = kernel.shape
    rows, columns = gradient.shape[1:3]
    padded = jnp.pad(x, ((0, 0), *padding, (0, 0)))

    def shifted(i: int, j: int) -> Array:
        """Returns the pixels that meet the kernel's place (i, j)."""
        return padded[:, i : i + stride * (rows - 1) + 1 : stride, j : j + stride * (columns - 1) + 1 : stride]

    flat = gradient.reshape(-1, features)
    patches = [jnp.concatenate([shifted(i, j) for j in range(width)], axis=-1) for i in range(height)]
    kernel_gradient = jnp.stack([patch.reshape(flat.shape[0], -1).T @ flat for patch in patches])

    if stride > 1:  # Zeros between the places of the kernel. (XLA would join `lax.pad` and the convolution again.)
        nothing, zeros = (0, 0), (0, stride - 1)
        spaced = jnp.pad(gradient[:, :, None, :, None], (nothing, nothing, zeros, nothing, zeros, nothing))
        spaced = spaced.reshape(gradient.shape[0], rows * stride, columns * stride, features)
        gradient = spaced[:, : (rows - 1) * stride + 1, : (columns - 1) * stride + 1]
    flipped = kernel[::-1, ::-1].swapaxes(2, 3)
    # Pixels at the end that no place of the kernel reached have no gradient.
    missed = [padded.shape[1 + a] - (gradient.shape[1 + a] + kernel.shape[a] - 1) for a in (0, 1)]
    around = ((height - 1, height - 1 + missed[0]), (width - 1, width - 1 + missed[1]))
    image_gradient = _convolve(gradient, flipped, 1, around)
    top, left = padding[0][0], padding[1][0]
    image_gradient = image_gradient[:, top : top + x.shape[1], left : left + x.shape[2]]
    return image_gradient, kernel_gradient.reshape(kernel.shape)


convolve.defvjp(_forward, _backward)


class Convolution(nn.Module):
    """A convolutional layer with a bias, for images [..., H, W, C] with any number of leading axes."""

    features: int
    size: int = 3
    stride: int = 1
    same: bool = False
    weights: str = "lecun"

    @nn.compact
    def __call__(self, x: Array) -> Array:
        shape = (self.size, self.size, x.shape[-1], self.features)
        kernel = self.param("kernel", WEIGHTS[self.weights], shape)
        bias = self.param("bias", nn.initializers.zeros, (self.features,))
        around = (self.size // 2, (self.size - 1) // 2) if self.same else (0, 0)
        images = x.reshape(-1, *x.shape[-3:])
        found: Array = convolve(images, kernel, self.stride, (around, around))  # type: ignore[assignment]
        found = found + bias[None, None, None]
        return found.reshape(*x.shape[:-3], *found.shape[1:])
