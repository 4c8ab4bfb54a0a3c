"""Writes the summary of a run as sentences, with 95 % intervals."""

from typing import Any

import numpy as np

from covey.evaluation.stats import Interval, iqm_interval, mean_interval
from covey.plots.style import short_number

NAN = float("nan")


def summary(run: dict[str, Any]) -> list[str]:
    """Returns sentences about a run.

    Args:
        run: The run (see `covey.web.data.run_data`).

    Example:
        >>> summary(run_data(Path("runs/pendulum-td3-0")))[0]
        'The best policy returns -121.3 [-135.0, -108.2] over 20 episodes, after 10,000 steps.'
    """
    sentences = [*_result(run), *_members(run), *_population(run)]
    return sentences or ["The run has not been evaluated yet."]


def at_last_step(run: dict[str, Any], metric: str, step: int | None = None) -> tuple[int, np.ndarray]:
    """Returns the last step at which all members have a value of a metric, and their values [P] there.

    Args:
        run: The run.
        metric: The metric.
        step: The latest step to consider; by default any.
    """
    by_step: dict[int, dict[int, float]] = {}
    for at, member, value, _ in run["curves"].get(metric, []):
        if value is not None and (step is None or at <= step):
            by_step.setdefault(at, {})[member] = value
    count = max(map(len, by_step.values()), default=0)
    whole = [at for at, values in by_step.items() if len(values) == count]
    if not whole:
        return 0, np.zeros(0)
    last = by_step[max(whole)]
    return max(whole), np.array([last[member] for member in sorted(last)])


def _result(run: dict[str, Any]) -> list[str]:
    """Tells what the best policy reaches: the final evaluation, or the last one so far."""
    found: list[str] = []
    metric = "eval/return"
    final = run["final"]
    skilled = run["curve"].startswith("skills/")
    which = "newest" if skilled else "best"
    if final and (any(final.get("returns") or []) or not skilled):
        interval = _interval(final.get("return"), final.get("low"), final.get("high"))
        episodes = len(final.get("returns") or [])
        found.append(f"The {which} policy returns {interval} over {episodes} episodes, after {run['step']:,} steps.")
        if run["best_step"] is not None and run["best_step"] != run["step"]:
            found.append(f"It is the policy of step {run['best_step']:,}.")
    elif not final and not skilled:
        step, values = at_last_step(run, metric)
        if values.size:
            shown = mean_interval(values) if values.size > 1 else _logged(run, metric, step)
            over = f"on average over {values.size} members" if values.size > 1 else "in its last evaluation"
            found.append(f"At step {step:,} of {run['steps']:,} the policy returns {shown} {over}.")
    if skilled:
        measures = (final or {}).get("skills") or {n: _mean(x) for n, x in run["skills"].items()}
        texts = [f"{name.replace('_', ' ')} {short_number(x, 3)}" for name, x in measures.items() if x is not None]
        found += [f"Measures of its skills: {', '.join(texts)}."] if texts else []
    else:
        before = [value for step, _, value, _ in run["curves"].get(metric, []) if step == 0 and value is not None]
        if before and found:
            shown = mean_interval(np.array(before)) if len(before) > 1 else _logged(run, metric, 0)
            found.append(f"Before training it was {shown}.")
    return found


def _members(run: dict[str, Any]) -> list[str]:
    """Tells how seeds agree."""
    step, values = at_last_step(run, run["curve"])
    if values.size < 2 or run["population"]:
        return []
    centre, low, high = (float(x) for x in iqm_interval(values))
    return [
        f"Over {values.size} seeds, {run['curve']} at step {step:,} has the mean {_number(mean_interval(values))} "
        f"and the interquartile mean {_number(Interval(centre, low, high))} (95 % intervals)."
    ]


def _population(run: dict[str, Any]) -> list[str]:
    """Tells who replaced whom how often, and who is the fittest."""
    rows = run["lineage"]
    if not rows:
        return []
    replaced = sum(row["reason"] in ("worse", "failed") for row in rows)
    generations = max(row["generation"] for row in rows)
    fitness: dict[int, float] = {row["member"]: row["fitness"] for row in rows if row["fitness"] is not None}
    counted = "was 1 replacement" if replaced == 1 else f"were {replaced} replacements"
    text = f"In {generations} generations of {run['members']} members, there {counted}."
    if not fitness:
        return [text]
    best = max(fitness, key=lambda member: fitness[member])
    return [text, f"The fittest is member {best}, with a fitness of {short_number(fitness[best], 4)}."]


def _logged(run: dict[str, Any], metric: str, step: int) -> Interval:
    """Returns the value of the first member at a step, with the interval over episodes that was logged with it."""
    ends = []
    for name in (metric, f"{metric}_low", f"{metric}_high"):
        found = [row[2] for row in run["curves"].get(name, []) if row[0] == step and row[2] is not None]
        ends.append(found[0] if found else None)
    return _interval(*ends)


def _interval(centre: float | None, low: float | None, high: float | None) -> Interval:
    return Interval(*(NAN if x is None else x for x in (centre, low, high)))


def _number(interval: Interval) -> str:
    """Returns an interval with enough digits for small numbers."""
    if abs(interval.centre) >= 10 or np.isnan(interval.low):
        return str(interval)
    return f"{interval.centre:z.3g} [{interval.low:z.3g}, {interval.high:z.3g}]"


def _mean(values: list[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return float(np.mean(known)) if known else None
