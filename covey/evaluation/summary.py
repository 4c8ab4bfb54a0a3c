"""The result of evaluating a policy."""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from covey.evaluation.rollout import Episodes
from covey.evaluation.stats import Interval


@dataclass(frozen=True)
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
        means |= {name: f"{np.mean(x):.2f}" for name, x in self.episodes.annotations.items()}
        found = "".join(f", mean {name} {value}" for name, value in means.items())
        skills = "".join(f"\n  {name:<18} {value:.3g}" for name, value in self.skills.items())
        return f"return {self.mean} over {self.episodes.returns.size} episodes{found}{skills}"

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
