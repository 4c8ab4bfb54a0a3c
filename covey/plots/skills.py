"""Figures of skills: the path of each, and the paths of plans."""

import colorsys
from collections.abc import Sequence
from io import BytesIO
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from covey.plots.style import GRID, HIGHLIGHT, INK, Picture, new_figure, set_title
from covey.storage.atomic import replace_output
from covey.types import Descriptor

PATH = "#0b6e99"
DISTINCT = ("#d62839", "#1f6fd1", "#2e9e4f", "#f28e1c", "#8b3fc7", "#12b5b0", "#e05fb0", "#7a5230")
MOST_NUMBERED = 16
"""Up to this many discrete skills are numbered."""
MOST_COORDINATES = 3
"""Up to this many coordinates of a continuous skill are part of its label."""
SHADES = 256
"""Colours in the palette of a PNG, which makes the file smaller."""


def plot_skills(
    skills: np.ndarray, paths: np.ndarray, length: np.ndarray, descriptor: Descriptor, out: Path, title: str
) -> Picture:
    """Draws the paths of skills: the first two coordinates of the descriptor, or one over time.

    Continuous skills have the colour of their direction, paler towards the middle.

    Args:
        skills: Skills [S, K].
        paths: Descriptors [S, N, T + 1, D] along N episodes of each skill.
        length: Steps [S, N] of each episode.
        descriptor: The names and limits of the coordinates.
        out: The PNG.
        title: The title.

    Returns:
        The path of the PNG.
    """
    figure, axes = new_figure(6.4, 5.4)
    discrete = are_discrete(skills)
    numbered = discrete and len(skills) <= MOST_NUMBERED
    colours = skill_colours(skills)
    for s, colour in enumerate(colours):
        for n in range(paths.shape[1]):
            x, y = drawn_coordinates(paths[s, n, : length[s, n] + 1])
            axes.plot(x, y, color=colour, linewidth=1.5, alpha=0.85, label=f"skill {s}" if n == 0 else None)
            axes.plot(x[-1], y[-1], "o", color=colour, markersize=5)
            if numbered and n == 0:
                _number(axes, s, x, y, colour)
    _set_limits(axes, descriptor)
    set_title(axes, title)
    if numbered:
        axes.legend(frameon=False, labelcolor=INK, loc="center left", bbox_to_anchor=(1.0, 0.5))
    elif not discrete:
        _key(figure, axes, skills, colours)
    return _save(figure, out)


def are_discrete(skills: np.ndarray) -> bool:
    """Whether skills [S, K] are one-hot vectors."""
    return bool(np.isin(skills, (0.0, 1.0)).all() and (skills.sum(axis=1) == 1.0).all())


def skill_colours(skills: np.ndarray) -> list[str]:
    """Returns the colours of skills [S, K], such as #d62839: distinct ones, or those of continuous directions."""
    found = _distinct(len(skills)) if are_discrete(skills) else [_direction(skill) for skill in skills]
    return [each if isinstance(each, str) else "#" + bytes(round(255 * x) for x in each).hex() for each in found]


def skill_labels(skills: np.ndarray) -> list[str]:
    """Returns a short label of each of the skills [S, K]: its number and, of continuous skills, where it is.

    Example:
        >>> skill_labels(np.array([[1.0, 0.0], [0.0, -1.0], [0.4, 0.8]]))
        ['skill 0: 0°', 'skill 1: 270°', 'skill 2: 0.4, 0.8']
    """
    if are_discrete(skills) or skills.shape[1] > MOST_COORDINATES:
        return [f"skill {number}" for number in range(len(skills))]
    return [f"skill {number}: {_place(skill)}" for number, skill in enumerate(skills)]


def _place(skill: np.ndarray) -> str:
    """Returns the direction of a skill on the unit circle, or the coordinates of another one."""
    if len(skill) == 2 and abs(np.hypot(*skill) - 1.0) < 1e-3:
        return f"{round(np.degrees(np.arctan2(skill[1], skill[0]))) % 360}°"
    return ", ".join(f"{x:z.2g}" for x in skill)


class Visit(Protocol):
    """One episode of a planner: its path [T + 1, D], its goals [G, D], and whether each was reached."""

    @property
    def path(self) -> np.ndarray: ...

    @property
    def goals(self) -> np.ndarray: ...

    @property
    def reached(self) -> list[bool]: ...


def plot_plan(
    plans: Sequence[Visit], radius: float, descriptor: Descriptor | None, names: list[str], out: Path, title: str
) -> Picture:
    """Draws the paths of plans and their goals, filled if they were reached.

    Args:
        plans: The episodes.
        radius: The distance at which a goal counts as reached.
        descriptor: The names and limits of the coordinates; None if they have no limits.
        names: The names of the coordinates, used if there is no descriptor.
        out: The PNG.
        title: The title.

    Returns:
        The path of the PNG.
    """
    from matplotlib.patches import Circle

    figure, axes = new_figure(6.4, 5.4)
    for plan in plans:
        path = plan.path
        x, y = drawn_coordinates(path)
        axes.plot(x, y, color=PATH, linewidth=1.2, alpha=0.9)
        axes.plot(x[0], y[0], "o", color=INK, markersize=3)
        for number, (goal, reached) in enumerate(zip(plan.goals, plan.reached, strict=True)):
            if path.shape[1] == 1:
                axes.axhline(goal[0], color=HIGHLIGHT, linewidth=1.0, linestyle="-" if reached else ":")
                continue
            axes.add_patch(Circle(goal[:2], radius, fill=reached, facecolor=HIGHLIGHT, alpha=0.25, linewidth=0))
            axes.add_patch(Circle(goal[:2], radius, fill=False, edgecolor=HIGHLIGHT, linestyle="-" if reached else ":"))
            if len(plan.goals) > 1:
                axes.annotate(str(number + 1), goal[:2], color=INK, ha="center", va="center", fontsize=9)
    if descriptor is None:
        axes.set_xlabel(names[0] if len(names) > 1 else "step", color=INK)
        axes.set_ylabel(names[min(1, len(names) - 1)], color=INK)
    else:
        _set_limits(axes, descriptor)
    set_title(axes, title)
    return _save(figure, out)


def drawn_coordinates(path: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns what is drawn of a path [T + 1, D]: its first two coordinates, or time and the only one."""
    if path.shape[1] == 1:
        return np.arange(len(path)), path[:, 0]
    return path[:, 0], path[:, 1]


def _set_limits(axes: Any, descriptor: Descriptor) -> None:
    """Gives axes the limits and names of a descriptor."""
    low, high = descriptor.low, descriptor.high
    margins = [0.03 * (b - a) for a, b in zip(low, high, strict=True)]
    if descriptor.size == 1:
        axes.set_xlabel("step", color=INK)
    else:
        axes.set_xlim(low[0] - margins[0], high[0] + margins[0])
        axes.set_aspect("equal" if descriptor.is_position else "auto")
        axes.set_xlabel(descriptor.names[0], color=INK)
    i = min(1, descriptor.size - 1)
    axes.set_ylim(low[i] - margins[i], high[i] + margins[i])
    axes.set_ylabel(descriptor.names[i], color=INK)


def _number(axes: Any, number: int, x: np.ndarray, y: np.ndarray, colour: Any) -> None:
    """Writes the number of a skill on its path, halfway to its farthest point: the ends of paths may coincide."""
    distance = np.hypot(x - x[0], y - y[0])
    i = int(np.argmax(distance >= 0.5 * distance.max()))
    disc = {"boxstyle": "circle,pad=0.2", "facecolor": "white", "edgecolor": colour}
    axes.annotate(str(number), (x[i], y[i]), color=INK, fontsize=8, ha="center", va="center", bbox=disc, zorder=4)


def _distinct(number: int) -> list[Any]:
    """Returns distinct colours; for many skills, hues of alternating brightness."""
    if number <= len(DISTINCT):
        return list(DISTINCT[:number])
    return [colorsys.hsv_to_rgb(i / number, 0.85, 0.85 if i % 2 else 0.65) for i in range(number)]


def _direction(skill: np.ndarray) -> tuple[float, float, float]:
    """Returns the colour of a continuous skill."""
    x, y = (float(skill[0]), float(skill[1])) if len(skill) > 1 else (float(skill[0]), 0.0)
    hue = (np.arctan2(y, x) / (2 * np.pi)) % 1.0
    return colorsys.hsv_to_rgb(hue, min(1.0, 0.15 + 0.75 * float(np.hypot(x, y))), 0.8)


def _key(figure: Any, axes: Any, skills: np.ndarray, colours: list[Any]) -> None:
    """Draws a small map of the colours of skills."""
    key = axes.inset_axes((1.03, 0.72, 0.25, 0.25))
    key.scatter(skills[:, 0], skills[:, 1] if skills.shape[1] > 1 else np.zeros(len(skills)), c=colours, s=22)
    key.set_title("skill", color=INK, fontsize=9)
    key.set_xticks([-1, 1])
    key.set_yticks([-1, 1] if skills.shape[1] > 1 else [])
    key.tick_params(colors=INK, length=0, labelsize=7)
    for side in key.spines.values():
        side.set_color(GRID)


def _save(figure: Any, out: Path) -> Picture:
    """Writes the figure as PNG with a palette. Returns its path."""
    from PIL import Image

    large, small = BytesIO(), BytesIO()
    figure.savefig(large, format="png", dpi=110, bbox_inches="tight")  # includes what is beside the axes
    with Image.open(large) as picture:
        picture.convert("RGB").quantize(SHADES).save(small, "PNG", optimize=True)
    replace_output(out, small.getbuffer())
    return Picture(out)
