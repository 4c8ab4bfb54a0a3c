"""Compares runs: means and interquartile means with intervals, and probabilities of improvement."""

from typing import Any

import numpy as np

from covey.evaluation.improvement import improvement_interval
from covey.evaluation.stats import iqm_interval, mean_interval
from covey.web.words import at_last_step

Numbers = list[float | None]
"""An estimate and the ends of its 95 % interval; the ends are None if there is only one value."""


def compare(runs: list[dict[str, Any]]) -> dict[str, Any]:
    """Returns a comparison of runs at the last evaluation that all of them have reached, as JSON values.

    The interval of a mean is Student's, those of the interquartile mean and of the probability of improvement are
    bootstrap intervals over members (Agarwal et al., 2021, arXiv 2108.13264).

    Args:
        runs: The runs (see `covey.web.data.run_data`).

    Returns:
        `metric`; `rows` with step, number of members, mean and IQM of each run; `improvement[i][j]`, the probability
        that a member of run i has a higher value than one of run j; and `notes` on what limits the comparison.

    Example:
        >>> compare([run_data(Path("runs/a")), run_data(Path("runs/b"))])["improvement"][0][1]
        [0.78, 0.56, 0.96]
    """
    curves = {run["curve"] for run in runs}
    metric = curves.pop() if len(curves) == 1 else "eval/return"
    reached = [at_last_step(run, metric) for run in runs]
    step = min((at for at, values in reached if values.size), default=0)
    found = [at_last_step(run, metric, step) for run in runs]
    rows = [
        {"step": at, "members": int(values.size), "mean": _mean(values), "iqm": _iqm(values)} for at, values in found
    ]
    values = [each for _, each in found]
    return {"metric": metric, "rows": rows, "improvement": _improvement(values), "notes": _notes(runs, found)}


def _mean(values: np.ndarray) -> Numbers:
    return [_finite(x) for x in mean_interval(values)] if values.size else [None] * 3


def _iqm(values: np.ndarray) -> Numbers:
    if values.size < 2:
        return [*map(float, values), *[None] * (3 - values.size)]
    return [_finite(x) for x in iqm_interval(values)]


def _improvement(values: list[np.ndarray]) -> list[list[Numbers | None]]:
    """Returns the probability of improvement of each run over each other one."""
    found: list[list[Numbers | None]] = [[None] * len(values) for _ in values]
    for i, ours in enumerate(values):
        for j, theirs in enumerate(values[:i]):
            if ours.size and theirs.size:
                centre, low, high = improvement_interval(ours, theirs)
                known = min(ours.size, theirs.size) > 1
                found[i][j] = [centre, low, high] if known else [centre, None, None]
                found[j][i] = [1 - centre, 1 - high, 1 - low] if known else [1 - centre, None, None]
    return found


def _notes(runs: list[dict[str, Any]], found: list[tuple[int, np.ndarray]]) -> list[str]:
    """Says why numbers can't be compared, or should not be trusted."""
    notes = []
    if len({run["env"] for run in runs}) > 1:
        notes.append("The runs have different environments, so their returns are not comparable.")
    if any(values.size == 1 for _, values in found):
        notes.append("A run with one member has no interval over seeds. Train with --seeds 5 for a comparison.")
    if any(run["population"] for run in runs):
        notes.append("Members of a population copy each other, so the interval of a population is too narrow.")
    if len({step for step, _ in found}) > 1:
        notes.append("The runs were evaluated at different steps; the nearest before the last common one is shown.")
    return notes


def _finite(value: Any) -> float | None:
    return float(value) if np.isfinite(value) else None
