"""Pictures of runs: learning curves as PNG with their numbers as CSV."""

import csv
import os
from collections.abc import Iterable
from io import BytesIO, StringIO
from pathlib import Path
from typing import Any

import numpy as np

from covey.errors import CoveyError, require
from covey.run.media import Episode
from covey.run.sinks import read_metrics
from covey.run.stats import iqm_interval
from covey.storage.atomic import replace_output

MARKED, MOST_LABELS = "#d64541", 8
INK, GRID, BACKGROUND = "#22303c", "#d9dee3", "#ffffff"
COLOURS = ("#0b6e99", "#d9730d", "#448361", "#9065b0", "#c14c8a", "#cb912f", "#337ea9", "#787774")


def curve(folder: Path, name: str = "eval/return") -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Steps, centre, low and high of a metric of a run.

    Several members: their interquartile mean with a bootstrap interval. One: its mean over episodes with Student's.
    """
    require(folder.is_dir(), f"There is no run folder {str(folder)[:500]}.")
    path = folder / "metrics.jsonl"
    metrics = read_metrics(path) if os.path.lexists(path) or os.path.isdir(folder / "checkpoints") else {}
    if name not in metrics:
        known = f"It has: {', '.join(sorted(metrics))}." if metrics else "Has it been trained?"
        raise CoveyError(f"{str(folder)[:500]} has no metric {name!r}. {known}")
    several = max(metrics[name]["member"]) > 0
    ends = [end for end in (f"{name}_low", f"{name}_high") if end in metrics] if not several else []
    steps, values = _by_member([metrics[each] for each in (name, *ends)])
    if several:
        return steps, *iqm_interval(values[0])
    centre, low, high = (values[i if len(ends) == 2 else 0][0] for i in range(3))
    return steps, centre, low, high


def _by_member(columns: list[dict[str, list[float]]]) -> tuple[np.ndarray, list[np.ndarray]]:
    """Steps [points], and of each column the values [P, points]: of the steps that all members have in all columns."""
    members = int(max(columns[0]["member"])) + 1
    found = [dict(zip(zip(c["step"], c["member"], strict=True), c["value"], strict=True)) for c in columns]
    whole = [s for s in sorted(set(columns[0]["step"])) if all((s, m) in c for c in found for m in range(members))]
    return np.asarray(whole), [np.array([[c[s, m] for s in whole] for m in range(members)], np.float64) for c in found]


def plot_curves(folders: list[Path], out: Path, name: str = "eval/return", title: str = "") -> Path:
    """Draws the curves of runs into one PNG, and writes the same numbers beside it as CSV."""
    require(bool(folders), "Name at least one run folder.")
    curves = [(folder, *curve(folder, name)) for folder in folders]
    figure, axes = _figure()
    for i, (folder, steps, centre, low, high) in enumerate(curves):
        colour = COLOURS[i % len(COLOURS)]
        axes.fill_between(steps, low, high, color=colour, alpha=0.18, linewidth=0)
        axes.plot(steps, centre, color=colour, linewidth=1.8, label=folder.name)
    axes.set_title(title or (folders[0].name if len(folders) == 1 else name), loc="left", color=INK, fontsize=12)
    axes.set_xlabel("environment steps", color=INK)
    axes.set_ylabel({"eval/return": "return", "skills/information": "information in nats"}.get(name, name), color=INK)
    if len(folders) > 1:
        axes.legend(frameon=False, labelcolor=INK)
    write_figure(figure, out)
    _write_csv(out.with_suffix(".csv"), curves)
    return out


def plot_episode(episode: Episode, out: Path, title: str) -> Path:
    """Draws the actions of an episode over time. Where the policy marks a decision, a strip below shows it."""
    figure, axes = _figure()
    edges = np.arange(len(episode.actions) + 1)
    for i, action in enumerate(episode.actions.T):
        label = f"action {i}" if i < MOST_LABELS else None
        axes.stairs(action, edges, baseline=None, color=COLOURS[i % len(COLOURS)], linewidth=1.4, label=label)
    low = -1.08
    for name, values in episode.marks.items():
        marked = [(step, 1) for step in np.flatnonzero(values > 0.5)]
        axes.broken_barh(marked, (low - 0.12, 0.12), color=MARKED, linewidth=0, label=name)
        low -= 0.16
    axes.set_ylim(low - 0.04, 1.08)
    axes.set_title(title, loc="left", color=INK, fontsize=12)
    axes.set_xlabel("step", color=INK)
    axes.set_ylabel("action in [-1, 1]", color=INK)
    handles, _ = axes.get_legend_handles_labels()
    if len(handles) > 1:
        axes.legend(frameon=False, labelcolor=INK, ncols=4, loc="upper center", bbox_to_anchor=(0.5, -0.14))
    return write_figure(figure, out)


def write_figure(figure: Any, out: Path) -> Path:
    """Writes a figure as PNG."""
    picture = BytesIO()
    figure.savefig(picture, format="png", dpi=150)
    replace_output(out, picture.getbuffer())
    return out


def write_csv(out: Path, rows: Iterable[Iterable[Any]]) -> None:
    """Writes rows as CSV."""
    text = StringIO(newline="")
    csv.writer(text).writerows(rows)
    replace_output(out, text.getvalue().encode())


def new_figure(width: float, height: float) -> tuple[Any, Any]:
    """A figure and its axes, in the colours of all pictures."""
    figure = empty_figure(width, height)
    return figure, dressed(figure.add_subplot())


def empty_figure(width: float, height: float) -> Any:
    """A figure that has no axes yet."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained", facecolor=BACKGROUND)
    FigureCanvasAgg(figure)
    return figure


def dressed(axes: Any) -> Any:
    """Axes in the colours of all pictures."""
    axes.grid(color=GRID, linewidth=0.7)
    axes.set_axisbelow(True)
    axes.spines[:].set_color(GRID)
    axes.tick_params(colors=INK, length=0)
    return axes


def count_steps(axes: Any, most: int = 6) -> None:
    """Makes x an axis of environment steps: 500, 20k, 1.5M."""
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    axes.spines[["top", "right"]].set_visible(False)
    axes.xaxis.set_major_locator(MaxNLocator(most, steps=[1, 2, 2.5, 5, 10]))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: in_short(x)))


def in_short(number: float) -> str:
    """500, 20k or 1.5M."""
    for size, letter in ((1e6, "M"), (1e3, "k")):
        if abs(number) >= size:
            return f"{number / size:g}{letter}"
    return f"{number:g}"


def _figure() -> tuple[Any, Any]:
    """For curves over steps."""
    figure, axes = new_figure(7.2, 4.2)
    count_steps(axes)
    return figure, axes


def _write_csv(path: Path, curves: list[Any]) -> None:
    rows = [[folder.name, int(s), *values] for folder, *columns in curves for s, *values in zip(*columns, strict=True)]
    write_csv(path, [["run", "step", "centre", "low", "high"], *rows])
