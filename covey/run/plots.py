"""Pictures of runs: learning curves as PNG with their numbers as CSV."""

import csv
from pathlib import Path
from typing import Any

import numpy as np

from covey.errors import CoveyError, require
from covey.run.media import Episode
from covey.run.sinks import read_metrics
from covey.run.stats import iqm_interval

MARKED, MOST_LABELS = "#d64541", 8
INK, GRID, BACKGROUND = "#22303c", "#d9dee3", "#ffffff"
COLOURS = ("#0b6e99", "#d9730d", "#448361", "#9065b0", "#c14c8a", "#cb912f", "#337ea9", "#787774")


def curve(folder: Path, name: str = "eval/return") -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Steps, centre, low and high of a metric of a run.

    Several members: their interquartile mean with a bootstrap interval. One: its mean over episodes with Student's.
    """
    require(folder.is_dir(), f"There is no run folder {folder}.")
    metrics = read_metrics(folder / "metrics.jsonl") if (folder / "metrics.jsonl").exists() else {}
    if name not in metrics:
        known = f"It has: {', '.join(sorted(metrics))}." if metrics else "Has it been trained?"
        raise CoveyError(f"{folder} has no metric {name!r}. {known}")
    values = _by_member(metrics, name)
    steps = np.unique(metrics[name]["step"])[: values.shape[1]]
    if values.shape[0] > 1:
        return steps, *iqm_interval(values)
    ends = [f"{name}_low", f"{name}_high"]
    low, high = (_by_member(metrics, end)[0] if end in metrics else values[0] for end in ends)
    whole = min(len(low), len(high))
    return steps[:whole], values[0][:whole], low[:whole], high[:whole]


def _by_member(metrics: dict[str, dict[str, list[float]]], name: str) -> np.ndarray:
    """Values [P, points]; a last point that a kill cut short is left out."""
    column = metrics[name]
    members = int(max(column["member"])) + 1
    points = len(column["value"]) // members
    return np.asarray(column["value"][: points * members], np.float64).reshape(points, members).T


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
    out.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(out, dpi=150)
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
    out.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(out, dpi=150)
    return out


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
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["run", "step", "centre", "low", "high"])
        for folder, *columns in curves:
            writer.writerows([folder.name, int(s), *values] for s, *values in zip(*columns, strict=True))
