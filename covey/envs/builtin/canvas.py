"""A drawing surface in world coordinates, for the frames of the built-in environments."""

import math
from collections.abc import Sequence
from itertools import pairwise

import numpy as np

Colour = tuple[int, int, int]
Corner = tuple[float, float]

PAPER: Colour = (250, 249, 246)
SHADE: Colour = (233, 231, 225)
RULE: Colour = (193, 192, 187)
INK: Colour = (52, 60, 72)
ACCENT: Colour = (226, 92, 58)
GLOW: Colour = (250, 218, 205)

# Shapes are drawn this many times larger and then averaged, which smooths their edges.
_OVERSAMPLING = 4


class Canvas:
    """A picture of a rectangle of the world, with x to the right and y upwards.

    Thicknesses and radii are in world units.

    Args:
        width: The picture's width in pixels. Its height follows from the rectangle, so that circles stay round.
        low: The lower left corner of the rectangle.
        high: The upper right corner.
    """

    def __init__(self, width: int, low: Corner, high: Corner):
        # Pillow is slow to import, and only drawing needs it.
        from PIL import Image, ImageDraw

        self._scale = _OVERSAMPLING * width / (high[0] - low[0])
        self._left = low[0]
        self._top = high[1]
        height = round(width * (high[1] - low[1]) / (high[0] - low[0]))
        self._image = Image.new("RGB", (_OVERSAMPLING * width, _OVERSAMPLING * height), PAPER)
        self._draw = ImageDraw.Draw(self._image)

    def line(self, points: Sequence[Corner], thickness: float, colour: Colour = INK) -> None:
        """Draws a line through the points, with round joints and ends."""
        for (x, y), (u, v) in pairwise(points):
            # A rectangle, because Pillow's wide lines have a whole number of pixels.
            half = thickness / (2.0 * max(math.hypot(u - x, v - y), 1e-9))
            across, along = (v - y) * half, (u - x) * half
            corners = [
                (x - across, y + along),
                (x + across, y - along),
                (u + across, v - along),
                (u - across, v + along),
            ]
            self.polygon(corners, colour)
        for point in points:
            self.circle(point, thickness / 2.0, colour)

    def circle(
        self, centre: Corner, radius: float, fill: Colour = INK, outline: Colour | None = None, thickness: float = 0.0
    ) -> None:
        """Draws a disc. An outline lies inside the radius."""
        x, y = self._pixel(centre)
        r = radius * self._scale
        self._draw.ellipse((x - r, y - r, x + r, y + r), fill=outline or fill)
        if outline is not None:
            r -= thickness * self._scale
            self._draw.ellipse((x - r, y - r, x + r, y + r), fill=fill)

    def polygon(self, points: Sequence[Corner], fill: Colour = INK) -> None:
        """Draws a filled polygon."""
        self._draw.polygon([self._pixel(p) for p in points], fill=fill)

    def rectangle(self, low: Corner, high: Corner, fill: Colour = INK, rounding: float = 0.0) -> None:
        """Draws a filled rectangle with rounded corners."""
        (left, bottom), (right, top) = self._pixel(low), self._pixel(high)
        self._draw.rounded_rectangle((left, top, right, bottom), radius=rounding * self._scale, fill=fill)

    def goal(self, centre: Corner, radius: float) -> None:
        """Draws a goal, in the same style in every environment."""
        self.circle(centre, radius, fill=GLOW, outline=ACCENT, thickness=0.22 * radius)

    def pixels(self) -> np.ndarray:
        """Returns the picture: [height, width, 3], uint8."""
        return np.array(self._image.reduce(_OVERSAMPLING))

    def _pixel(self, point: Corner) -> Corner:
        return (point[0] - self._left) * self._scale, (self._top - point[1]) * self._scale
