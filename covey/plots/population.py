"""Figures of a population: which member copied which, the hyper-parameters, and the fitness."""

from pathlib import Path
from typing import Any

import numpy as np

from covey.errors import require
from covey.plots.style import (
    BACKGROUND,
    COLOURS,
    HIGHLIGHT,
    INK,
    Picture,
    empty_figure,
    new_figure,
    set_steps_axis,
    set_title,
    short_number,
    style_axes,
    write_figure,
)
from covey.storage.lineage import Lineage, winner_path

WINNER = COLOURS[1]
OTHERS = COLOURS[7]
NO_FITNESS = "#c3c9cf"
SCALES = ("log", "linear", "one_minus")


def plot_lineage(lineage: Lineage, out: Path, title: str) -> Picture:
    """Draws which member copied which: a row per member, in the colour of the fitness that it reached next.

    Args:
        lineage: The population (see `covey.storage.lineage.read_lineage`).
        out: The PNG.
        title: The title.

    Returns:
        The path of the PNG.
    """
    _require_drawable(lineage)
    members = lineage.fitness.shape[1]
    height = float(np.clip(0.27 * members, 2.2, 7.2))
    thickness = min(9.0, 0.5 * 72 * height / members)
    figure, axes = new_figure(8.6 if len(lineage.steps) <= 40 else 11.0, height + 1.4)
    _draw_members(axes, lineage, thickness)
    _draw_copies(axes, lineage, thickness)
    _draw_winner(axes, lineage, thickness)
    axes.set_ylim(members - 0.4, -0.6)
    axes.set_yticks(np.arange(0, members, 1 if members <= 16 else 8))
    axes.set_ylabel("member", color=INK)
    axes.grid(visible=False)
    _set_steps(axes, lineage)
    axes.set_xlabel("environment steps", color=INK)
    set_title(axes, title)
    return _save(figure, axes, out)


def _draw_members(axes: Any, lineage: Lineage, thickness: float) -> None:
    """Draws a row per member in the colours of its fitness."""
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import Normalize, to_rgba

    fitness = reached_fitness(lineage)
    scale = ScalarMappable(Normalize(*robust_limits(fitness, reach=3.0)), "viridis")
    colours = scale.to_rgba(fitness)
    colours[np.isnan(fitness)] = to_rgba(NO_FITNESS)
    moment, member = np.indices(fitness.shape).reshape(2, -1)
    rows = _lines(lineage.steps[moment], member, lineage.steps[moment + 1], member)
    _draw_lines(axes, rows, colors=colours.reshape(-1, 4), linewidths=thickness, zorder=3)
    _draw_scale(axes, scale, fitness)


def _draw_scale(axes: Any, scale: Any, fitness: np.ndarray) -> None:
    """Draws the colour bar, with a pointed end where fitness lies beyond it."""
    low = bool(np.nanmin(fitness) < scale.norm.vmin)
    high = bool(np.nanmax(fitness) > scale.norm.vmax)
    extend = "both" if low and high else "min" if low else "max" if high else "neither"
    aspect = 10.0 * axes.figure.get_figheight()
    bar = axes.figure.colorbar(scale, ax=axes, extend=extend, extendfrac=0.03, aspect=aspect, pad=0.02)
    bar.ax.yaxis.set_major_formatter(lambda x, _: tick_text(x))
    bar.set_label("fitness at the end of the interval", color=INK)
    bar.outline.set_visible(False)
    bar.ax.tick_params(colors=INK, length=0)


def _draw_copies(axes: Any, lineage: Lineage, thickness: float) -> None:
    """Draws an arrow from each donor to its copy, and a cross for members that failed."""
    moment, member = np.nonzero(lineage.replaced)
    if not len(moment):
        return
    lines = _exchanges(lineage, moment, lineage.parent[moment, member], member)
    weight = float(np.clip(100.0 / len(moment), 0.3, 0.8))
    _draw_lines(axes, lines, colors=INK, linewidths=1.25 * weight, alpha=weight, zorder=4)
    x = lineage.steps[moment]
    head = {"marker": ">", "color": INK, "markeredgecolor": BACKGROUND, "zorder": 5}
    axes.plot(x, member, linestyle="", markersize=0.75 * thickness, markeredgewidth=0.06 * thickness, **head)
    axes.plot([], [], linewidth=1.0, markersize=6.0, markeredgewidth=0, label="a copy, from its donor", **head)
    failed = lineage.reason[moment, member] == "failed"
    if failed.any():
        style = {"color": HIGHLIGHT, "markersize": 3.0 + 0.4 * thickness, "markeredgewidth": 1.8, "zorder": 7}
        axes.plot(x[failed], member[failed], "x", label="failed: numbers not finite", **style)


def _draw_winner(axes: Any, lineage: Lineage, thickness: float) -> None:
    """Draws a frame around the rows of the winner's ancestors, and the copies between them in bold."""
    if not _has_winner(lineage):
        return
    path = winner_path(lineage)
    rows = _lines(lineage.steps[:-1], path[:-1], lineage.steps[1:], path[:-1])
    _draw_lines(axes, rows, colors=WINNER, linewidths=thickness + 4.0, zorder=2)
    moment = 1 + np.flatnonzero(np.diff(path))
    jumps = _exchanges(lineage, moment, path[moment - 1], path[moment])
    _draw_lines(axes, jumps, colors=WINNER, linewidths=2.6, zorder=6)
    axes.plot([], [], color=WINNER, linewidth=3.0, label=f"the winner's path, to member {path[-1]}")


def plot_hypers(lineage: Lineage, out: Path, title: str, ranges: dict[str, tuple[float, float, str]]) -> Picture:
    """Draws the hyper-parameters of every member over steps. A line ends where its member was replaced.

    Args:
        lineage: The population.
        out: The PNG.
        title: The title.
        ranges: The range of each hyper-parameter: low, high and one of SCALES.

    Returns:
        The path of the PNG.
    """
    _require_drawable(lineage)
    _check_ranges(lineage, ranges)
    number = len(lineage.hyper)
    columns = number if number <= 3 else 2 if number == 4 else 3 if number <= 9 else 4
    rows = -(-number // columns)
    figure = empty_figure({1: 7.2, 2: 8.6}.get(columns, 3.3 * columns), (3.2 if rows == 1 else 2.2 * rows) + 1.1)
    for i, name in enumerate(lineage.hyper):
        axes = style_axes(figure.add_subplot(rows, columns, i + 1))
        _draw_hyper(axes, lineage, name, *ranges[name])
        if i // columns == rows - 1:
            axes.set_xlabel("environment steps", color=INK)
    figure.suptitle(title, x=0.01, ha="left", color=INK, fontsize=12)
    return _save(figure, figure.axes[0], out)


def _check_ranges(lineage: Lineage, ranges: dict[str, tuple[float, float, str]]) -> None:
    require(bool(lineage.hyper), "The lineage has no hyper-parameters: none were searched.")
    for name, values in lineage.hyper.items():
        require(name in ranges, f"There is no range for {name!r}. There are ranges for: {', '.join(ranges) or 'none'}.")
        low, high, scale = ranges[name]
        require(scale in SCALES, f"The scale of {name!r} is {scale!r}. It must be one of: {', '.join(SCALES)}.")
        low, high = min(low, values.min()), max(high, values.max())
        drawable = {"log": 0.0 < low < high, "linear": low < high, "one_minus": low < high < 1.0}[scale]
        require(drawable, f"{name!r}, from {low:g} to {high:g}, can't be drawn on the scale {scale!r}.")


def _draw_hyper(axes: Any, lineage: Lineage, name: str, low: float, high: float, scale: str) -> None:
    values = lineage.hyper[name]
    label = name
    if scale == "one_minus":
        values = 1.0 - values
        low, high = 1.0 - high, 1.0 - low
        label = f"1 - {name}"
    faint = float(np.clip(6.0 / values.shape[1], 0.3, 0.8))
    for member in range(values.shape[1]):
        line = step_points(lineage.steps, values[:, member], lineage.replaced[:, member])
        axes.plot(*line, color=OTHERS, linewidth=0.9, alpha=faint, label="" if member else "a member, until replaced")
    if _has_winner(lineage):
        of_winner = values[np.arange(len(values)), winner_path(lineage)]
        line = step_points(lineage.steps, of_winner, np.zeros(len(values), bool))
        axes.plot(*line, color=WINNER, linewidth=2.4, label="the winner's path")
    for limit, text in ((low, "limits of the search"), (high, "")):
        axes.axhline(limit, color=OTHERS, linewidth=1.0, linestyle=":", label=text)
    _scale_values(axes, min(low, values.min()), max(high, values.max()), scale)
    _set_steps(axes, lineage, ticks=4)
    axes.set_title(label, loc="left", color=INK, fontsize=10)


def step_points(steps: np.ndarray, values: np.ndarray, breaks: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns the points of a line that keeps each value [G] until the next moment; `breaks` [G]: with a gap there."""
    x = np.stack([steps[:-1], steps[1:], steps[1:]], axis=1).astype(float)
    y = np.stack([values[:-1], values[:-1], np.where(breaks[1:], np.nan, values[:-1])], axis=1)
    return x.ravel(), y.ravel()


def _scale_values(axes: Any, low: float, high: float, scale: str) -> None:
    """Sets the vertical axis: limits a little wider than the values, and ticks."""
    from matplotlib.ticker import LogLocator, MaxNLocator, NullLocator

    if scale == "linear":
        axes.set_ylim(*_widen(low, high, 0.06))
        axes.yaxis.set_major_locator(MaxNLocator(5, steps=[1, 2, 5, 10]))
    else:
        axes.set_yscale("log")
        axes.set_ylim(*np.exp(_widen(np.log(low), np.log(high), 0.06)))
        axes.yaxis.set_major_locator(LogLocator(subs=(1.0,) if high / low > 90.0 else (1.0, 2.0, 5.0)))
        axes.yaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter(lambda x, _: tick_text(x))


def tick_text(number: float) -> str:
    """Returns a number as the text of a tick, such as 3e-4, 0.02, 1500 or 20k."""
    if 0.0 < abs(number) < 0.001:
        digits, power = f"{number:.2e}".split("e")
        return f"{float(digits):g}e{int(power)}"
    return f"{number:g}" if abs(number) < 10_000 else short_number(number)


def plot_fitness(lineage: Lineage, out: Path, title: str, label: str = "return") -> Picture:
    """Draws the best, median and worst fitness over steps, and the band of the middle half of the members.

    Args:
        lineage: The population.
        out: The PNG.
        title: The title.
        label: What the fitness is, for the axis.

    Returns:
        The path of the PNG.
    """
    _require_drawable(lineage)
    known = np.isfinite(lineage.fitness).any(axis=1)
    steps, fitness = lineage.steps[known], lineage.fitness[known]
    worst, median, best = np.nanquantile(fitness, [0.0, 0.5, 1.0], axis=1)
    # Rounded inwards to values that occur, so that one outlier of four members does not widen the band.
    low = np.nanquantile(fitness, 0.25, axis=1, method="higher")
    high = np.nanquantile(fitness, 0.75, axis=1, method="lower")
    bottom, top = fitness_limits(worst, median, best)
    figure, axes = new_figure(7.2, 4.2)
    axes.plot(steps, best, color=COLOURS[0], linewidth=1.8, label="best")
    axes.plot(steps, median, color=INK, linewidth=1.8, label="median")
    axes.fill_between(steps, low, high, color=COLOURS[0], alpha=0.18, linewidth=0, label="middle half")
    cut = f" (cut off, down to {tick_text(float(f'{worst.min():.2g}'))})" if worst.min() < bottom else ""
    axes.plot(steps, worst, color=OTHERS, linewidth=1.2, linestyle="--", label=f"worst{cut}")
    axes.set_ylim(*_widen(bottom, top, 0.05))
    axes.yaxis.set_major_formatter(lambda x, _: tick_text(x))
    axes.set_ylabel(label, color=INK)
    _set_steps(axes, lineage)
    axes.set_xlabel("environment steps", color=INK)
    set_title(axes, title)
    return _save(figure, axes, out)


def fitness_limits(worst: np.ndarray, median: np.ndarray, best: np.ndarray) -> tuple[float, float]:
    """Returns limits for the curves [G] of the best and the median, and of the worst if there is room.

    A median that rises gradually is shown from its start; single medians far below all others are cut off.
    """
    high = robust_limits(best, reach=20.0)[1]
    low = float(np.quantile(median, 0.5, method="lower"))
    for value in sorted(median[median < low], reverse=True):
        if low < high and low - value > 5.0 * (high - low):
            break
        low = float(value)
    near = worst[worst >= low - (0.5 * (high - low) or np.inf)]
    return min(low, near.min(initial=low)), high


def robust_limits(values: np.ndarray, reach: float) -> tuple[float, float]:
    """Returns the least and the greatest value, but no further from the middle half than `reach` times its width.

    Quartiles are rounded inwards to values that occur, so that one outlier of four does not widen the middle half.
    """
    values = values[np.isfinite(values)]
    low, high = np.quantile(values, 0.25, method="higher"), np.quantile(values, 0.75, method="lower")
    width = high - low
    if width <= 0.0:
        return float(values.min()), float(values.max())
    return float(max(values.min(), low - reach * width)), float(min(values.max(), high + reach * width))


def _require_drawable(lineage: Lineage) -> None:
    require(len(lineage.steps) > 1, "The lineage has one generation. There is nothing to draw before the second.")
    require(
        bool(np.isfinite(lineage.fitness[1:]).any()), "No fitness in the lineage is finite. There is nothing to draw."
    )


def _has_winner(lineage: Lineage) -> bool:
    return bool(np.isfinite(lineage.fitness[-1]).any())


def reached_fitness(lineage: Lineage) -> np.ndarray:
    """Returns the fitness [G - 1, P] at the first evaluation after each moment; NaN if the member failed before it."""
    reached = lineage.fitness[1:].copy()
    kept = ~lineage.replaced[1:]
    for i in np.flatnonzero(~lineage.evaluated[1:])[::-1]:
        reached[i] = np.where(kept[i], reached[i + 1], np.nan)
    return reached


def _exchanges(lineage: Lineage, moment: np.ndarray, donor: np.ndarray, member: np.ndarray) -> np.ndarray:
    """Returns lines from donors to members that end at the moment; slanted, so that those of one moment differ."""
    end = lineage.steps[moment]
    return _lines(end - 0.35 * (end - lineage.steps[moment - 1]), donor, end, member)


def _lines(x: np.ndarray, y: np.ndarray, x_end: np.ndarray, y_end: np.ndarray) -> np.ndarray:
    """Returns straight lines [L, 2, 2]."""
    return np.stack([x, y, x_end, y_end], axis=-1).reshape(-1, 2, 2)


def _draw_lines(axes: Any, lines: np.ndarray, **style: Any) -> None:
    from matplotlib.collections import LineCollection

    axes.add_collection(LineCollection(list(lines), capstyle="butt", **style))


def _set_steps(axes: Any, lineage: Lineage, ticks: int = 6) -> None:
    set_steps_axis(axes, ticks)
    axes.set_xlim(*_widen(float(lineage.steps[0]), float(lineage.steps[-1]), 0.015))


def _widen(low: float, high: float, share: float) -> tuple[float, float]:
    margin = share * (high - low) or 1.0
    return low - margin, high + margin


def _save(figure: Any, axes: Any, out: Path) -> Picture:
    """Writes the figure, with the legend of the axes at the bottom. Returns its path."""
    handles, labels = axes.get_legend_handles_labels()
    figure.legend(handles, labels, frameon=False, labelcolor=INK, ncols=4, loc="outside lower center")
    return write_figure(figure, out)
