"""Learning curves of runs as PNG, with the same numbers as CSV."""

import os
from pathlib import Path
from typing import Any

import numpy as np

from covey.errors import CoveyError, require
from covey.evaluation.stats import iqm_interval
from covey.plots.style import COLOURS, INK, steps_figure, write_csv, write_figure
from covey.storage.metrics import read_metrics


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
    figure, axes = steps_figure()
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
    _write_curves(out.with_suffix(".csv"), curves)
    return out


def _write_curves(path: Path, curves: list[Any]) -> None:
    rows = [[folder.name, int(s), *values] for folder, *columns in curves for s, *values in zip(*columns, strict=True)]
    write_csv(path, [["run", "step", "centre", "low", "high"], *rows])
