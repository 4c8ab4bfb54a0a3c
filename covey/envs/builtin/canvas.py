"""A small drawing surface in world coordinates, so that a frame reads like the scene it shows."""

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

# Shapes are drawn this many times larger and averaged down, which smooths their edges.
_OVERSAMPLING = 4


class Canvas:
    """A picture of `width` pixels of the world's rectangle from `low` to `high`, x to the right and y upwards.

    The height follows from the world's, so that circles stay round. Thicknesses and radii are in world units.
    """

    def __init__(self, width: int, low: Corner, high: Corner):
        # Pillow takes a while to import and only drawing needs it.
        from PIL import Image, ImageDraw

        self._scale = _OVERSAMPLING * width / (high[0] - low[0])
        self._left, self._top = low[0], high[1]
        height = round(width * (high[1] - low[1]) / (high[0] - low[0]))
        self._image = Image.new("RGB", (_OVERSAMPLING * width, _OVERSAMPLING * height), PAPER)
        self._draw = ImageDraw.Draw(self._image)

    def line(self, points: Sequence[Corner], thickness: float, colour: Colour = INK) -> None:
        """A line through the points, with round joints and ends."""
        for (x, y), (u, v) in pairwise(points):
            # A rectangle rather than Pillow's wide line, which takes only whole pixels of width.
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
        """A disc; with an outline, the outline lies inside the radius."""
        x, y = self._pixel(centre)
        r = radius * self._scale
        self._draw.ellipse((x - r, y - r, x + r, y + r), fill=outline or fill)
        if outline is not None:
            r -= thickness * self._scale
            self._draw.ellipse((x - r, y - r, x + r, y + r), fill=fill)

    def polygon(self, points: Sequence[Corner], fill: Colour = INK) -> None:
        """A filled polygon."""
        self._draw.polygon([self._pixel(p) for p in points], fill=fill)

    def rectangle(self, low: Corner, high: Corner, fill: Colour = INK, rounding: float = 0.0) -> None:
        """A filled rectangle, its corners rounded by that radius."""
        (left, bottom), (right, top) = self._pixel(low), self._pixel(high)
        self._draw.rounded_rectangle((left, top, right, bottom), radius=rounding * self._scale, fill=fill)

    def goal(self, centre: Corner, radius: float) -> None:
        """The mark of a goal: the same in every environment."""
        self.circle(centre, radius, fill=GLOW, outline=ACCENT, thickness=0.22 * radius)

    def pixels(self) -> np.ndarray:
        """The picture: [height, width, 3], uint8."""
        return np.array(self._image.reduce(_OVERSAMPLING))

    def _pixel(self, point: Corner) -> Corner:
        return (point[0] - self._left) * self._scale, (self._top - point[1]) * self._scale
