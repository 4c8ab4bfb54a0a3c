"""The rules while a run trains: on its numbers alone, and every finding once."""

from collections.abc import Mapping

import numpy as np

from covey.doctor.facts import Curve, Facts, Finding
from covey.doctor.outcome_rules import SAME
from covey.doctor.rules import findings

MOST_POINTS = 400
"""Points of a curve that are kept; of a longer one, every second."""
WATCHED = (
    *("eval/return", "eval/return_low", "eval/return_high", "eval/length", "eval/action_change", "eval/action_limits"),
    *("train/return", "train/length", "train/episodes", "skills/information", "agent/q_mean", "agent/entropy"),
    *("agent/temperature", "agent/action_temperature", "agent/repeat_probability"),
    *("hyper/target_entropy", "hyper/discount", "hyper/reward_scale"),
)
"""Metrics that the rules look at."""


class Watch:
    """Collects the numbers of a run while it trains.

    Example:
        >>> watch = Watch()
        >>> watch.add(1000, {"train/length": np.array([1.0])}, progress=0.1)
        >>> [str(finding) for finding in watch.new(watch.facts._replace(episode_length=200))]
    """

    def __init__(self) -> None:
        self.facts = Facts()
        """What is known about the run so far."""
        self._points: dict[str, list[tuple[int, np.ndarray]]] = {}
        self._told: set[str] = set()

    def add(self, step: int, values: Mapping[str, np.ndarray], progress: float) -> None:
        """Adds logged numbers [P] by name. Those of a population are left out: its members differ on purpose."""
        if self.facts.is_population:
            return
        for name, value in values.items():
            short = f"hyper/{name.rpartition('/')[2]}" if name.startswith("hyper/") else name
            if short in WATCHED:
                points = self._points.setdefault(short, [])
                points.append((step, np.asarray(value, float)))
                if len(points) > MOST_POINTS:
                    del points[1::2]
        self.facts = self.facts._replace(progress=progress)

    def evaluated(self, returns: np.ndarray) -> list[Finding]:
        """Adds an evaluation [P, E] after the warm-up. Returns the findings that are new."""
        curves = {
            name: Curve(np.array([step for step, _ in points]), np.stack([value for _, value in points]))
            for name, points in self._points.items()
        }
        kept = [*self.facts.evaluations, returns][-SAME:]
        self.facts = self.facts._replace(evaluations=kept, curves=curves)
        return self.new(self.facts)

    def new(self, facts: Facts) -> list[Finding]:
        """Returns the findings of rules that have not found anything before."""
        found = [each for each in findings(facts) if each.rule not in self._told]
        self._told |= {each.rule for each in found}
        return found
