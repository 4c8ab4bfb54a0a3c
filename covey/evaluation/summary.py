"""The result of evaluating a policy."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from html import escape
from typing import Any

import numpy as np

from covey.evaluation.rollout import ACTION_CHANGE, ACTION_LIMITS, Episodes
from covey.evaluation.stats import Interval


@dataclass(frozen=True, repr=False)
class Evaluation:
    """The mean return of a policy with its 95 % interval over episodes, and the results of each episode.

    Args:
        mean: The mean return and its interval.
        episodes: Return, length, descriptor and annotations of each episode.
        skills: Measures of the skills, if the agent learns any.
    """

    mean: Interval
    episodes: Episodes
    skills: dict[str, float]

    def __str__(self) -> str:
        means = {"length": f"{np.mean(self.episodes.length):.0f}"}
        means |= {name: f"{np.mean(x):.2f}" for name, x in self.episodes.reported().items()}
        found = "".join(f", mean {name} {value}" for name, value in means.items())
        found += "".join(f"\n  {name}: {value}" for name, value in self._actions().items())
        skills = "".join(f"\n  {name:<18} {value:.3g}" for name, value in self.skills.items())
        # An environment for skills may have no reward.
        returned = f"return {self.mean} over " if self.episodes.returns.any() or not self.skills else ""
        return f"{returned}{self.episodes.returns.size} episodes{found}{skills}"

    def __repr__(self) -> str:
        return f"Evaluation({str(self).replace(chr(10), ',')})"

    def _repr_html_(self) -> str:
        """Returns a table for notebooks."""
        episodes = self.episodes
        values = {
            "return": self.mean,
            "episodes": episodes.returns.size,
            "mean length": f"{np.mean(episodes.length):.0f}",
        }
        values |= {f"mean {name}": f"{np.mean(x):.2f}" for name, x in episodes.reported().items()}
        return html_table(values | self._actions() | {name: f"{value:.3g}" for name, value in self.skills.items()})

    def _actions(self) -> dict[str, str]:
        """Returns how smooth the actions are, as text; empty if it is not known."""
        if not {ACTION_CHANGE, ACTION_LIMITS} <= self.episodes.annotations.keys():
            return {}
        change, limits = (np.mean(self.episodes.annotations[name]) for name in (ACTION_CHANGE, ACTION_LIMITS))
        return {"actions": f"mean change {change:.2f} per step, {limits:.0%} at the limits".replace("%", " %")}

    def as_json(self) -> dict[str, Any]:
        """Returns the evaluation as JSON values, every episode included. Values that are not finite are null."""
        return {
            "return": _finite(self.mean.centre),
            "low": _finite(self.mean.low),
            "high": _finite(self.mean.high),
            "returns": [_finite(x) for x in self.episodes.returns],
            "lengths": self.episodes.length.tolist(),
            "descriptors": [[_finite(x) for x in each] for each in self.episodes.descriptor],
            **{name: [_finite(x) for x in values] for name, values in self.episodes.annotations.items()},
            **({"skills": {name: _finite(x) for name, x in self.skills.items()}} if self.skills else {}),
        }


def _finite(value: Any) -> float | None:
    return float(value) if math.isfinite(value) else None


def html_table(values: Mapping[str, Any]) -> str:
    """Returns an HTML table with a row for each value, for notebooks."""
    rows = (
        f"<tr><th style='text-align:left'>{escape(n)}</th><td>{escape(str(x))}</td></tr>" for n, x in values.items()
    )
    return f"<table>{''.join(rows)}</table>"
