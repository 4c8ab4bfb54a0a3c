"""Pictures of a population: who copied whom, where the hyper-parameters went, and how fit the members were."""

from pathlib import Path
from typing import Any

import numpy as np

from covey.errors import require
from covey.plots.style import (
    BACKGROUND,
    COLOURS,
    INK,
    MARKED,
    count_steps,
    dressed,
    empty_figure,
    in_short,
    new_figure,
    write_figure,
)
from covey.storage.lineage import Lineage, winner_path

WINNER, CROWD, NO_FITNESS = COLOURS[1], COLOURS[7], "#c3c9cf"
SCALES = ("log", "linear", "one_minus")


def plot_lineage(lineage: Lineage, out: Path, title: str) -> Path:
    """Draws who copied whom: a row per member, in the colour of the fitness that it went on to reach."""
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
    _over_steps(axes, lineage)
    axes.set_xlabel("environment steps", color=INK)
    axes.set_title(title, loc="left", color=INK, fontsize=12)
    return _saved(figure, axes, out)


def _draw_members(axes: Any, lineage: Lineage, thickness: float) -> None:
    """A row per member in the colours of its fitness."""
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
    """Which colour is which fitness; pointed where some lie beyond."""
    low, high = bool(np.nanmin(fitness) < scale.norm.vmin), bool(np.nanmax(fitness) > scale.norm.vmax)
    extend = "both" if low and high else "min" if low else "max" if high else "neither"
    aspect = 10.0 * axes.figure.get_figheight()
    bar = axes.figure.colorbar(scale, ax=axes, extend=extend, extendfrac=0.03, aspect=aspect, pad=0.02)
    bar.ax.yaxis.set_major_formatter(lambda x, _: readable(x))
    bar.set_label("fitness at the end of the interval", color=INK)
    bar.outline.set_visible(False)
    bar.ax.tick_params(colors=INK, length=0)


def _draw_copies(axes: Any, lineage: Lineage, thickness: float) -> None:
    """A line from each donor to its copy, with a head where the copy begins; a cross for members that failed."""
    moment, member = np.nonzero(lineage.replaced)
    if not len(moment):
        return
    lines = _exchanges(lineage, moment, lineage.parent[moment, member], member)
    weight = float(np.clip(100.0 / len(moment), 0.3, 0.8))
    _draw_lines(axes, lines, colors=INK, linewidths=1.25 * weight, alpha=weight, zorder=4)
    x, head = lineage.steps[moment], {"marker": ">", "color": INK, "markeredgecolor": BACKGROUND, "zorder": 5}
    axes.plot(x, member, linestyle="", markersize=0.75 * thickness, markeredgewidth=0.06 * thickness, **head)
    axes.plot([], [], linewidth=1.0, markersize=6.0, markeredgewidth=0, label="a copy, from its donor", **head)
    failed = lineage.reason[moment, member] == "failed"
    if failed.any():
        style = {"color": MARKED, "markersize": 3.0 + 0.4 * thickness, "markeredgewidth": 1.8, "zorder": 7}
        axes.plot(x[failed], member[failed], "x", label="failed: numbers not finite", **style)


def _draw_winner(axes: Any, lineage: Lineage, thickness: float) -> None:
    """A frame around the rows through which the winner came, and its copies in bold."""
    if not _has_winner(lineage):
        return
    path = winner_path(lineage)
    rows = _lines(lineage.steps[:-1], path[:-1], lineage.steps[1:], path[:-1])
    _draw_lines(axes, rows, colors=WINNER, linewidths=thickness + 4.0, zorder=2)
    moment = 1 + np.flatnonzero(np.diff(path))
    jumps = _exchanges(lineage, moment, path[moment - 1], path[moment])
    _draw_lines(axes, jumps, colors=WINNER, linewidths=2.6, zorder=6)
    axes.plot([], [], color=WINNER, linewidth=3.0, label=f"the winner's path, to member {path[-1]}")


def plot_hypers(lineage: Lineage, out: Path, title: str, ranges: dict[str, tuple[float, float, str]]) -> Path:
    """Draws every member's hyper-parameters over steps, each within its range: low, high and one of SCALES.

    A line ends where its member was replaced.
    """
    _require_drawable(lineage)
    _check_ranges(lineage, ranges)
    number = len(lineage.hyper)
    columns = number if number <= 3 else 2 if number == 4 else 3 if number <= 9 else 4
    rows = -(-number // columns)
    figure = empty_figure({1: 7.2, 2: 8.6}.get(columns, 3.3 * columns), (3.2 if rows == 1 else 2.2 * rows) + 1.1)
    for i, name in enumerate(lineage.hyper):
        axes = dressed(figure.add_subplot(rows, columns, i + 1))
        _draw_hyper(axes, lineage, name, *ranges[name])
        if i // columns == rows - 1:
            axes.set_xlabel("environment steps", color=INK)
    figure.suptitle(title, x=0.01, ha="left", color=INK, fontsize=12)
    return _saved(figure, figure.axes[0], out)


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
    values, label = lineage.hyper[name], name
    if scale == "one_minus":
        values, low, high, label = 1.0 - values, 1.0 - high, 1.0 - low, f"1 - {name}"
    faint = float(np.clip(6.0 / values.shape[1], 0.3, 0.8))
    for member in range(values.shape[1]):
        line = held(lineage.steps, values[:, member], lineage.replaced[:, member])
        axes.plot(*line, color=CROWD, linewidth=0.9, alpha=faint, label="" if member else "a member, until replaced")
    if _has_winner(lineage):
        of_winner = values[np.arange(len(values)), winner_path(lineage)]
        line = held(lineage.steps, of_winner, np.zeros(len(values), bool))
        axes.plot(*line, color=WINNER, linewidth=2.4, label="the winner's path")
    for limit, of_both in ((low, "limits of the search"), (high, "")):
        axes.axhline(limit, color=CROWD, linewidth=1.0, linestyle=":", label=of_both)
    _scale_values(axes, min(low, values.min()), max(high, values.max()), scale)
    _over_steps(axes, lineage, most=4)
    axes.set_title(label, loc="left", color=INK, fontsize=10)


def held(steps: np.ndarray, values: np.ndarray, breaks: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The points of a line that holds each value [G] until the next moment, and is broken there if `breaks` [G]."""
    x = np.stack([steps[:-1], steps[1:], steps[1:]], axis=1).astype(float)
    y = np.stack([values[:-1], values[:-1], np.where(breaks[1:], np.nan, values[:-1])], axis=1)
    return x.ravel(), y.ravel()


def _scale_values(axes: Any, low: float, high: float, scale: str) -> None:
    """Limits a little wider than the values, with ticks that can be read."""
    from matplotlib.ticker import LogLocator, MaxNLocator, NullLocator

    if scale == "linear":
        axes.set_ylim(*_widened(low, high, 0.06))
        axes.yaxis.set_major_locator(MaxNLocator(5, steps=[1, 2, 5, 10]))
    else:
        axes.set_yscale("log")
        axes.set_ylim(*np.exp(_widened(np.log(low), np.log(high), 0.06)))
        axes.yaxis.set_major_locator(LogLocator(subs=(1.0,) if high / low > 90.0 else (1.0, 2.0, 5.0)))
        axes.yaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter(lambda x, _: readable(x))


def readable(number: float) -> str:
    """3e-4, 0.02, 1500 or 20k."""
    if 0.0 < abs(number) < 0.001:
        digits, power = f"{number:.2e}".split("e")
        return f"{float(digits):g}e{int(power)}"
    return f"{number:g}" if abs(number) < 10_000 else in_short(number)


def plot_fitness(lineage: Lineage, out: Path, title: str, label: str = "return") -> Path:
    """Draws the best, median and worst fitness over steps, and the band of the middle half of the members."""
    _require_drawable(lineage)
    known = np.isfinite(lineage.fitness).any(axis=1)
    steps, fitness = lineage.steps[known], lineage.fitness[known]
    worst, median, best = np.nanquantile(fitness, [0.0, 0.5, 1.0], axis=1)
    low = np.nanquantile(fitness, 0.25, axis=1, method="higher")  # of four members, one may be anything
    high = np.nanquantile(fitness, 0.75, axis=1, method="lower")
    bottom, top = fitness_limits(worst, median, best)
    figure, axes = new_figure(7.2, 4.2)
    axes.plot(steps, best, color=COLOURS[0], linewidth=1.8, label="best")
    axes.plot(steps, median, color=INK, linewidth=1.8, label="median")
    axes.fill_between(steps, low, high, color=COLOURS[0], alpha=0.18, linewidth=0, label="middle half")
    cut = f" (cut off, down to {readable(float(f'{worst.min():.2g}'))})" if worst.min() < bottom else ""
    axes.plot(steps, worst, color=CROWD, linewidth=1.2, linestyle="--", label=f"worst{cut}")
    axes.set_ylim(*_widened(bottom, top, 0.05))
    axes.yaxis.set_major_formatter(lambda x, _: readable(x))
    axes.set_ylabel(label, color=INK)
    _over_steps(axes, lineage)
    axes.set_xlabel("environment steps", color=INK)
    axes.set_title(title, loc="left", color=INK, fontsize=12)
    return _saved(figure, axes, out)


def fitness_limits(worst: np.ndarray, median: np.ndarray, best: np.ndarray) -> tuple[float, float]:
    """Limits for the curves [G] of the best and the median, and of the worst where there is room.

    A curve comes up step by step and is shown whole; medians that lie far below all others are not.
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
    """The least and the greatest value, but no further from the middle half than `reach` times its width.

    Quartiles are taken from the values themselves, inwards: of four, one may be anything.
    """
    values = values[np.isfinite(values)]
    low, high = np.quantile(values, 0.25, method="higher"), np.quantile(values, 0.75, method="lower")
    width = high - low
    if width <= 0.0:
        return float(values.min()), float(values.max())
    return float(max(values.min(), low - reach * width)), float(min(values.max(), high + reach * width))


def _require_drawable(lineage: Lineage) -> None:
    require(len(lineage.steps) > 1, "The lineage has one generation: there is nothing to draw before the second.")
    require(bool(np.isfinite(lineage.fitness[1:]).any()), "No fitness in the lineage is finite: no picture of it.")


def _has_winner(lineage: Lineage) -> bool:
    return bool(np.isfinite(lineage.fitness[-1]).any())


def reached_fitness(lineage: Lineage) -> np.ndarray:
    """The fitness [G - 1, P] that came of each interval: at its next evaluation, NaN if the member failed before."""
    reached = lineage.fitness[1:].copy()
    kept = ~lineage.replaced[1:]
    for i in np.flatnonzero(~lineage.evaluated[1:])[::-1]:
        reached[i] = np.where(kept[i], reached[i + 1], np.nan)
    return reached


def _exchanges(lineage: Lineage, moment: np.ndarray, donor: np.ndarray, member: np.ndarray) -> np.ndarray:
    """Lines from donors to members that end at the moment: slanted, so that those of one moment can be told apart."""
    end = lineage.steps[moment]
    return _lines(end - 0.35 * (end - lineage.steps[moment - 1]), donor, end, member)


def _lines(x: np.ndarray, y: np.ndarray, x_end: np.ndarray, y_end: np.ndarray) -> np.ndarray:
    """Straight lines [L, 2, 2]."""
    return np.stack([x, y, x_end, y_end], axis=-1).reshape(-1, 2, 2)


def _draw_lines(axes: Any, lines: np.ndarray, **style: Any) -> None:
    from matplotlib.collections import LineCollection

    axes.add_collection(LineCollection(list(lines), capstyle="butt", **style))


def _over_steps(axes: Any, lineage: Lineage, most: int = 6) -> None:
    count_steps(axes, most)
    axes.set_xlim(*_widened(float(lineage.steps[0]), float(lineage.steps[-1]), 0.015))


def _widened(low: float, high: float, share: float) -> tuple[float, float]:
    margin = share * (high - low) or 1.0
    return low - margin, high + margin


def _saved(figure: Any, axes: Any, out: Path) -> Path:
    """Writes the figure with the legend of the axes below everything."""
    handles, labels = axes.get_legend_handles_labels()
    figure.legend(handles, labels, frameon=False, labelcolor=INK, ncols=4, loc="outside lower center")
    return write_figure(figure, out)
