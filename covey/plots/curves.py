"""Learning curves as PNG, with the same numbers as CSV."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from covey.errors import require
from covey.evaluation.stats import iqm_interval
from covey.plots.style import COLOURS, INK, Picture, set_title, steps_figure, write_csv, write_figure

LABELS = {"eval/return": "return", "skills/information": "information in nats"}
"""Labels of the vertical axis, for metrics that have a common name."""

LONG_LABEL = 24
"""Characters of a label up to which the legend lies within the axes."""


class Curve(NamedTuple):
    """A metric of one run over environment steps, with its 95 % interval; all arrays are [points]."""

    label: str
    steps: np.ndarray
    centre: np.ndarray
    low: np.ndarray
    high: np.ndarray


def curve(metrics: Mapping[str, Mapping[str, Sequence[float]]], metric: str = "eval/return", label: str = "") -> Curve:
    """Returns the curve of a metric.

    With several members, it is their interquartile mean with a bootstrap interval. With one, it is the metric and the
    interval that was logged with it as `METRIC_low` and `METRIC_high`. Only steps that all members have logged count.

    Args:
        metrics: Columns by metric, as `Run.metrics` and `covey.storage.metrics.read_metrics` return them.
        metric: The name of the metric.
        label: The name of the curve in the legend.

    Example:
        >>> curve(covey.load("runs/pendulum-sac-0").metrics()).centre[-1]
    """
    require(metric in metrics, f"There is no metric {metric!r}. There are: {', '.join(sorted(metrics)) or 'none'}.")
    several = max(metrics[metric]["member"]) > 0
    limits = [name for name in (f"{metric}_low", f"{metric}_high") if name in metrics and not several]
    steps, values = _by_member([metrics[name] for name in (metric, *limits)])
    if several:
        return Curve(label, steps, *iqm_interval(values[0]))
    centre, low, high = (values[i if len(limits) == 2 else 0][0] for i in range(3))
    return Curve(label, steps, centre, low, high)


def _by_member(columns: list[Mapping[str, Sequence[float]]]) -> tuple[np.ndarray, list[np.ndarray]]:
    """Returns the steps [points] that all members have in all columns, and the values [P, points] of each column."""
    members = int(max(columns[0]["member"])) + 1
    found = [dict(zip(zip(c["step"], c["member"], strict=True), c["value"], strict=True)) for c in columns]
    steps = [s for s in sorted(set(columns[0]["step"])) if all((s, m) in c for c in found for m in range(members))]
    values = [np.array([[c[s, m] for s in steps] for m in range(members)], np.float64) for c in found]
    return np.asarray(steps), values


def plot_curves(curves: Sequence[Curve], out: Path, metric: str = "eval/return", title: str = "") -> Picture:
    """Draws curves into one PNG, and writes the same numbers beside it as CSV.

    Args:
        curves: The curves (see `curve`).
        out: The PNG.
        metric: The metric that they show, for the axis.
        title: The title; by default the label of a single curve, or the metric.

    Returns:
        The path of the PNG; a notebook shows the picture.

    Example:
        >>> plot_curves([curve(run.metrics(), label=run.path.name) for run in runs], Path("curves.png"))
    """
    require(bool(curves), "There is no curve to draw. Name at least one run.")
    picture = _draw({metric: curves}, out, title or (curves[0].label if len(curves) == 1 else metric))
    write_csv(out.with_suffix(".csv"), [["run", "step", "centre", "low", "high"], *_rows(curves)])
    return picture


def plot_metrics(panels: Mapping[str, Sequence[Curve]], out: Path, title: str = "") -> Picture:
    """Draws several metrics below each other into one PNG, and writes the same numbers beside it as CSV.

    Args:
        panels: The curves of each metric, in the same order.
        out: The PNG.
        title: The title.

    Returns:
        The path of the PNG; a notebook shows the picture.

    Example:
        >>> names = ("eval/return", "agent/critic_loss")
        >>> plot_metrics({name: [curve(run.metrics(), name)] for name in names}, Path("metrics.png"))
    """
    picture = _draw(panels, out, title)
    rows = [[metric, *row] for metric, curves in panels.items() for row in _rows(curves)]
    write_csv(out.with_suffix(".csv"), [["metric", "run", "step", "centre", "low", "high"], *rows])
    return picture


def _draw(panels: Mapping[str, Sequence[Curve]], out: Path, title: str) -> Picture:
    """Draws a panel for each metric into one PNG; the first has the title and the legend."""
    figure, all_axes = steps_figure(len(panels))
    for axes, (metric, curves) in zip(all_axes, panels.items(), strict=True):
        for i, each in enumerate(curves):
            colour = COLOURS[i % len(COLOURS)]
            axes.fill_between(each.steps, each.low, each.high, color=colour, alpha=0.18, linewidth=0)
            axes.plot(each.steps, each.centre, color=colour, linewidth=1.8, label=each.label)
        axes.set_ylabel(LABELS.get(metric, metric), color=INK)
    all_axes[-1].set_xlabel("environment steps", color=INK)
    set_title(all_axes[0], title)
    if any(len(curves) > 1 for curves in panels.values()):
        handles, labels = all_axes[0].get_legend_handles_labels()
        if max(map(len, labels)) > LONG_LABEL:  # it would cover the curves
            figure.legend(handles, labels, frameon=False, labelcolor=INK, loc="outside lower left")
        else:
            all_axes[0].legend(frameon=False, labelcolor=INK)
    return write_figure(figure, out)


def _rows(curves: Sequence[Curve]) -> list[list[Any]]:
    return [[label, int(s), *values] for label, *columns in curves for s, *values in zip(*columns, strict=True)]
