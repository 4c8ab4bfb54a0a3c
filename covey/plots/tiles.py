"""A film of several skills side by side, and pictures of a path for environments that can't be drawn."""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from covey.envs.builtin.canvas import RULE, SHADE, Canvas, Colour
from covey.plots.skills import drawn_coordinates
from covey.types import Descriptor

TILE = 220
"""The width of a tile in pixels."""
BAR = 22
"""The height of the bar with the label."""
GAP = 6
"""Pixels between two tiles."""
ENDED = 0.55
"""How much of the paper covers the picture of an episode that has ended."""
PAPER = 255
PATH_POINTS = 80
"""Points of a path in a picture, at most."""
BRIGHT = 150
"""From this brightness on, the text on a colour is black."""

Limits = tuple[tuple[float, float], tuple[float, float]]
"""The lower left and the upper right corner."""


class Tile(NamedTuple):
    """One skill of a film.

    Args:
        label: The text above it.
        colour: Its colour, such as #d62839.
        pictures: Its pictures [height, width, 3], uint8.
    """

    label: str
    colour: str
    pictures: Sequence[np.ndarray]


def tiled(tiles: Sequence[Tile]) -> list[np.ndarray]:
    """Returns the pictures of a film that shows tiles in rows, all from their first picture on.

    A tile has a bar with its label in its colour. A tile with fewer pictures than others keeps its last one, paler.

    Args:
        tiles: The tiles, row by row.

    Returns:
        As many pictures [height, width, 3] as the longest tile has.
    """
    columns = math.ceil(math.sqrt(len(tiles)))
    rows = math.ceil(len(tiles) / columns)
    length = max(len(tile.pictures) for tile in tiles)
    shown = [_labelled(tile) for tile in tiles]
    height = max(len(pictures[0]) for pictures in shown)
    film = []
    for t in range(length):
        picture = np.full((rows * (height + GAP) + GAP, columns * (TILE + GAP) + GAP, 3), PAPER, np.uint8)
        for i, pictures in enumerate(shown):
            row, column = divmod(i, columns)
            top = GAP + row * (height + GAP)
            left = GAP + column * (TILE + GAP)
            now = pictures[t] if t < len(pictures) else _paler(pictures[-1])
            picture[top : top + len(now), left : left + TILE] = now
        film.append(picture)
    return film


def resized(picture: np.ndarray, width: int) -> np.ndarray:
    """Returns a picture [height, width, 3] with another width and the same shape."""
    from PIL import Image

    height = max(1, round(picture.shape[0] * width / picture.shape[1]))
    return np.asarray(Image.fromarray(picture).resize((width, height), Image.Resampling.LANCZOS))


def path_pictures(path: np.ndarray, every: int, limits: Limits, colour: str) -> list[np.ndarray]:
    """Returns pictures of an episode in the plane of its descriptor: the path so far, and where it is.

    Args:
        path: Descriptors [T + 1, D].
        every: Steps between two pictures.
        limits: The corners of the plane (see `plane_limits`).
        colour: The colour of the path.
    """
    (left, bottom), (right, top) = limits
    x, y = drawn_coordinates(path)
    points = np.stack([(x - left) / max(right - left, 1e-9), (y - bottom) / max(top - bottom, 1e-9)], axis=1)
    return [_path_picture(points[: t + 1], rgb(colour)) for t in range(0, len(path), every)]


def plane_limits(paths: Sequence[np.ndarray], descriptor: Descriptor) -> Limits:
    """Returns the corners of the plane that paths [T + 1, D] are drawn in: the descriptor's limits, or beyond."""
    drawn = [drawn_coordinates(path) for path in paths]
    low = [min(float(np.min(each[i])) for each in drawn) for i in range(2)]
    high = [max(float(np.max(each[i])) for each in drawn) for i in range(2)]
    first = 1 if descriptor.size == 1 else 0  # the only coordinate is drawn over time
    for axis in range(first, 2):
        low[axis] = min(low[axis], descriptor.low[axis - first])
        high[axis] = max(high[axis], descriptor.high[axis - first])
    return (low[0], low[1]), (high[0], high[1])


def rgb(colour: str) -> Colour:
    """Returns the numbers of a colour such as #d62839."""
    red, green, blue = bytes.fromhex(colour.removeprefix("#"))
    return red, green, blue


def _labelled(tile: Tile) -> list[np.ndarray]:
    """Returns the pictures of a tile with the same width, below a bar with its label."""
    bar = _bar(tile.label, rgb(tile.colour))
    return [np.concatenate([bar, resized(picture, TILE)]) for picture in tile.pictures]


def _bar(label: str, colour: Colour) -> np.ndarray:
    """Returns a bar of a colour with a text."""
    from PIL import Image, ImageDraw, ImageFont

    image = Image.new("RGB", (TILE, BAR), colour)
    red, green, blue = colour
    ink = "black" if 0.3 * red + 0.59 * green + 0.11 * blue >= BRIGHT else "white"
    ImageDraw.Draw(image).text((6, BAR / 2), label, fill=ink, font=ImageFont.load_default(14), anchor="lm")
    return np.asarray(image)


def _paler(picture: np.ndarray) -> np.ndarray:
    """Returns a labelled picture whose part below the bar is paler."""
    faded = (1.0 - ENDED) * picture[BAR:] + ENDED * PAPER
    return np.concatenate([picture[:BAR], faded.astype(np.uint8)])


def _path_picture(points: np.ndarray, colour: Colour) -> np.ndarray:
    """Returns a picture of a path [N, 2] in the unit square."""
    canvas = Canvas(TILE, (-0.05, -0.05), (1.05, 1.05))
    canvas.line([(0.0, 0.0), (1.0, 0.0), (1.0, 1.0), (0.0, 1.0), (0.0, 0.0)], 0.006, SHADE)
    chosen = np.unique(np.linspace(0, len(points) - 1, PATH_POINTS).round().astype(int))
    corners = [(float(x), float(y)) for x, y in points[chosen]]
    canvas.circle(corners[0], 0.018, RULE)
    canvas.line(corners, 0.012, colour)
    canvas.circle(corners[-1], 0.03, colour)
    return canvas.pixels()
