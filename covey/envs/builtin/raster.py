"""A rasteriser in JAX: small pictures of the built-in environments, drawn on the device.

A shape is a signed distance to its edge, from which each pixel gets the share of it that the shape covers. That
smooths the edges, so a move by a fraction of a pixel is visible. `covey.envs.builtin.canvas` draws larger and finer
pictures, for films, on the host.
"""

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from covey.envs.builtin.canvas import PAPER, Colour, Corner
from covey.types import Array

TARGET: Colour = (44, 123, 182)
"""The colour of goals. Films draw them in the agent's colour, which an encoder could not tell apart."""
THINNEST = 0.7
"""The smallest radius of a shape, in pixels: what is thinner fades at small sizes."""

Point = Sequence[float] | Array
"""A point (x, y) of the world: numbers, or traced scalars."""
Layer = tuple[Array, Colour]
"""The share of each pixel that a shape covers, [size, size], and the colour of the shape."""


@dataclass(frozen=True)
class Raster:
    """A square picture of a rectangle of the world, with x to the right and y upwards.

    Points are in world units. Radii are shares of the picture's side, so shapes stay round and lines keep their
    thickness if the rectangle is not square.

    Args:
        size: Width and height in pixels.
        low: The lower left corner of the rectangle.
        high: The upper right corner.

    Example:
        >>> raster = Raster(32, (-1.0, -1.0), (1.0, 1.0))
        >>> paint(raster.empty(), [(raster.disc((0.0, 0.5), 0.1), (255, 0, 0))])[8, 16]
        Array([255,   0,   0], dtype=uint8)
    """

    size: int
    low: Corner
    high: Corner

    def empty(self) -> np.ndarray:
        """Returns a picture without shapes, [size, size, 3], uint8."""
        return np.full((self.size, self.size, 3), PAPER, np.uint8)

    def place(self, point: Point) -> tuple[Array, Array]:
        """Converts a point to pixels: the distance from the left edge, and from the top."""
        width, height = self.high[0] - self.low[0], self.high[1] - self.low[1]
        x = (point[0] - self.low[0]) * (self.size / width)
        y = (self.high[1] - point[1]) * (self.size / height)
        return jnp.asarray(x, jnp.float32), jnp.asarray(y, jnp.float32)

    def disc(self, centre: Point, radius: float) -> Array:
        """Returns the share of each pixel that a disc covers."""
        x, y = self._offset(centre)
        return self._covered(jnp.sqrt(x * x + y * y), radius)

    def line(self, start: Point, end: Point, radius: float) -> Array:
        """Returns the share of each pixel that a line with round ends covers."""
        x, y = self._offset(start)
        (u, v), (a, b) = self.place(start), self.place(end)
        across, down = a - u, b - v
        # The nearest point of the line, as a share of its length. A line of length 0 is a disc.
        along = jnp.clip((x * across + y * down) / jnp.maximum(across * across + down * down, 1e-6), 0.0, 1.0)
        x, y = x - along * across, y - along * down
        return self._covered(jnp.sqrt(x * x + y * y), radius)

    def rectangle(self, low: Point, high: Point) -> Array:
        """Returns the share of each pixel that an upright rectangle covers."""
        (left, bottom), (right, top) = self.place(low), self.place(high)
        x, y = self._pixels()
        wide = jnp.clip(jnp.minimum(x + 0.5, right) - jnp.maximum(x - 0.5, left), 0.0, 1.0)
        tall = jnp.clip(jnp.minimum(y + 0.5, bottom) - jnp.maximum(y - 0.5, top), 0.0, 1.0)
        return wide * tall

    def below(self, height: Array) -> Array:
        """Returns the share of each pixel that lies below a curve.

        Args:
            height: The curve's y at each column of pixels, [size]; `columns` returns the x of these.
        """
        _, y = self.place((0.0, height))
        return jnp.clip(self._pixels()[1] + 0.5 - y[None, :], 0.0, 1.0)

    def columns(self) -> np.ndarray:
        """Returns the x of the centre of each column of pixels, [size], in world units."""
        share = (np.arange(self.size, dtype=np.float32) + 0.5) / self.size
        return self.low[0] + share * (self.high[0] - self.low[0])

    def _pixels(self) -> tuple[np.ndarray, np.ndarray]:
        """Returns the centres of all pixels: x [1, size] and y [size, 1], in pixels."""
        centres = np.arange(self.size, dtype=np.float32) + 0.5
        return centres[None, :], centres[:, None]

    def _offset(self, point: Point) -> tuple[Array, Array]:
        """Returns the vectors from a point to all pixels."""
        x, y = self._pixels()
        u, v = self.place(point)
        return x - u, y - v

    def _covered(self, distance: Array, radius: float) -> Array:
        pixels = max(radius * self.size, THINNEST)
        return jnp.clip(pixels + 0.5 - distance, 0.0, 1.0)


def paint(picture: np.ndarray | Array, layers: Sequence[Layer]) -> Array:
    """Paints shapes on a picture, one over the other.

    Args:
        picture: [size, size, 3], uint8.
        layers: The shapes, from the lowest.

    Returns:
        The picture with the shapes, [size, size, 3], uint8.
    """
    canvas = jnp.asarray(picture, jnp.float32)
    for covered, colour in layers:
        canvas = canvas + covered[:, :, None] * (jnp.array(colour, jnp.float32)[None, None] - canvas)
    return (canvas + 0.5).astype(jnp.uint8)


def backdrop(draw: Callable[[Any, int], Array]) -> Callable[[Any, int], np.ndarray]:
    """Decorates a function that draws what never moves in an environment, at a size.

    The picture is drawn once for each environment and size. It is a constant, also in a function that is being traced.

    Example:
        >>> @backdrop
        ... def wall(env, size):
        ...     raster = Raster(size, (-1.0, -1.0), (1.0, 1.0))
        ...     return paint(raster.empty(), [(raster.rectangle((-1.0, -1.0), (1.0, 0.0)), RULE)])
    """

    @functools.cache
    def drawn(env: Any, size: int) -> np.ndarray:
        with jax.ensure_compile_time_eval():
            return np.asarray(draw(env, size))

    return drawn
