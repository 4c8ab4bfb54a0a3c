"""Pictures of skills: where each leads, and the path of a plan."""

import colorsys
from collections.abc import Sequence
from io import BytesIO
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from covey.plots.style import GRID, INK, MARKED, new_figure
from covey.storage.atomic import replace_output
from covey.types import Descriptor

PATH = "#0b6e99"
DISTINCT = ("#d62839", "#1f6fd1", "#2e9e4f", "#f28e1c", "#8b3fc7", "#12b5b0", "#e05fb0", "#7a5230")
MOST_NUMBERED = 16
"""So many discrete skills are numbered in their map."""
SHADES = 256
"""Colours in the palette of a picture, which makes it smaller."""


def plot_skills(
    skills: np.ndarray, where: np.ndarray, length: np.ndarray, own: Descriptor, out: Path, title: str
) -> Path:
    """Draws the descriptors [S, N, T + 1, D] that skills [S, K] came through in `length` [S, N] steps.

    One coordinate is drawn over time, of more the first two. Continuous skills have the colour of their direction,
    paler towards the middle.
    """
    figure, axes = new_figure(6.4, 5.4)
    discrete = bool(np.isin(skills, (0.0, 1.0)).all() and (skills.sum(axis=1) == 1.0).all())
    numbered = discrete and len(skills) <= MOST_NUMBERED
    colours = _distinct(len(skills)) if discrete else [_direction(skill) for skill in skills]
    for s, colour in enumerate(colours):
        for n in range(where.shape[1]):
            path = where[s, n, : length[s, n] + 1]
            x, y = (np.arange(len(path)), path[:, 0]) if own.size == 1 else path.T[:2]
            axes.plot(x, y, color=colour, linewidth=1.5, alpha=0.85, label=f"skill {s}" if n == 0 else None)
            axes.plot(x[-1], y[-1], "o", color=colour, markersize=5)
            if numbered and n == 0:
                _number(axes, s, x, y, colour)
    _frame(axes, own)
    axes.set_title(title, loc="left", color=INK, fontsize=12)
    if numbered:
        axes.legend(frameon=False, labelcolor=INK, loc="center left", bbox_to_anchor=(1.0, 0.5))
    elif not discrete:
        _key(figure, axes, skills, colours)
    return _saved(figure, out)


class Visit(Protocol):
    """A path [T + 1, D], goals [G, D], and which were reached."""

    @property
    def path(self) -> np.ndarray: ...

    @property
    def goals(self) -> np.ndarray: ...

    @property
    def reached(self) -> list[bool]: ...


def plot_plan(
    plans: Sequence[Visit], radius: float, own: Descriptor | None, names: list[str], out: Path, title: str
) -> Path:
    """Draws paths and their goals, filled where they were reached."""
    from matplotlib.patches import Circle

    figure, axes = new_figure(6.4, 5.4)
    for plan in plans:
        path = plan.path
        x, y = (np.arange(len(path)), path[:, 0]) if path.shape[1] == 1 else path.T[:2]
        axes.plot(x, y, color=PATH, linewidth=1.2, alpha=0.9)
        axes.plot(x[0], y[0], "o", color=INK, markersize=3)
        for number, (goal, there) in enumerate(zip(plan.goals, plan.reached, strict=True)):
            if path.shape[1] == 1:
                axes.axhline(goal[0], color=MARKED, linewidth=1.0, linestyle="-" if there else ":")
                continue
            axes.add_patch(Circle(goal[:2], radius, fill=there, facecolor=MARKED, alpha=0.25, linewidth=0))
            axes.add_patch(Circle(goal[:2], radius, fill=False, edgecolor=MARKED, linestyle="-" if there else ":"))
            if len(plan.goals) > 1:
                axes.annotate(str(number + 1), goal[:2], color=INK, ha="center", va="center", fontsize=9)
    if own is None:
        axes.set_xlabel(names[0] if len(names) > 1 else "step", color=INK)
        axes.set_ylabel(names[min(1, len(names) - 1)], color=INK)
    else:
        _frame(axes, own)
    axes.set_title(title, loc="left", color=INK, fontsize=12)
    return _saved(figure, out)


def _frame(axes: Any, own: Descriptor) -> None:
    """The limits and names of the descriptor."""
    margins = [0.03 * (high - low) for low, high in zip(own.low, own.high, strict=True)]
    if own.size == 1:
        axes.set_xlabel("step", color=INK)
    else:
        axes.set_xlim(own.low[0] - margins[0], own.high[0] + margins[0])
        axes.set_aspect("equal" if own.is_position else "auto")
        axes.set_xlabel(own.names[0], color=INK)
    i = min(1, own.size - 1)
    axes.set_ylim(own.low[i] - margins[i], own.high[i] + margins[i])
    axes.set_ylabel(own.names[i], color=INK)


def _number(axes: Any, number: int, x: np.ndarray, y: np.ndarray, colour: Any) -> None:
    """The number of a skill, where its path is half as far from its start as it gets: ends may lie together."""
    far = np.hypot(x - x[0], y - y[0])
    i = int(np.argmax(far >= 0.5 * far.max()))
    disc = {"boxstyle": "circle,pad=0.2", "facecolor": "white", "edgecolor": colour}
    axes.annotate(str(number), (x[i], y[i]), color=INK, fontsize=8, ha="center", va="center", bbox=disc, zorder=4)


def _distinct(number: int) -> list[Any]:
    """Colours that are told apart at a glance; of many skills, hues that differ in brightness next to each other."""
    if number <= len(DISTINCT):
        return list(DISTINCT[:number])
    return [colorsys.hsv_to_rgb(i / number, 0.85, 0.85 if i % 2 else 0.65) for i in range(number)]


def _direction(skill: np.ndarray) -> tuple[float, float, float]:
    x, y = (float(skill[0]), float(skill[1])) if len(skill) > 1 else (float(skill[0]), 0.0)
    hue = (np.arctan2(y, x) / (2 * np.pi)) % 1.0
    return colorsys.hsv_to_rgb(hue, min(1.0, 0.15 + 0.75 * float(np.hypot(x, y))), 0.8)


def _key(figure: Any, axes: Any, skills: np.ndarray, colours: list[Any]) -> None:
    """A small map of which skill has which colour."""
    key = axes.inset_axes((1.03, 0.72, 0.25, 0.25))
    key.scatter(skills[:, 0], skills[:, 1] if skills.shape[1] > 1 else np.zeros(len(skills)), c=colours, s=22)
    key.set_title("skill", color=INK, fontsize=9)
    key.set_xticks([-1, 1])
    key.set_yticks([-1, 1] if skills.shape[1] > 1 else [])
    key.tick_params(colors=INK, length=0, labelsize=7)
    for side in key.spines.values():
        side.set_color(GRID)


def _saved(figure: Any, out: Path) -> Path:
    from PIL import Image

    large, small = BytesIO(), BytesIO()
    figure.savefig(large, format="png", dpi=110, bbox_inches="tight")  # with what stands beside the axes
    with Image.open(large) as picture:
        picture.convert("RGB").quantize(SHADES).save(small, "PNG", optimize=True)
    replace_output(out, small.getbuffer())
    return out
