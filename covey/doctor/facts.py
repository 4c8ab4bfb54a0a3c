"""The facts about a run that the rules look at, and the findings that they return."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from covey.evaluation.stats import Interval
from covey.hyper.range import Range

if TYPE_CHECKING:
    from covey.evaluation.probe import Probe
    from covey.storage.lineage import Lineage

SEVERE, SERIOUS, MINOR = 3, 2, 1
SEVERITIES = {SEVERE: "severe", SERIOUS: "serious", MINOR: "minor"}
"""Severe: nothing can be learned. Serious: learning suffers. Minor: worth a look."""
LATE = 0.5
"""Rules about the end of learning wait for this share of the run's steps."""
NEWEST = 0.25
"""They look at this share of a curve, its newest points."""
LEAST_POINTS = 3
"""And need at least so many points."""


class Finding(NamedTuple):
    """Something that looks wrong in a run.

    Args:
        rule: The name of the rule.
        severity: SEVERE, SERIOUS or MINOR.
        evidence: What was found, with numbers.
        remedy: What to do about it; names an option of covey.

    Example:
        >>> print(Finding("warmup", SERIOUS, "the warm-up has 10 steps", "raise `warmup`"))
        the warm-up has 10 steps: raise `warmup`.
    """

    rule: str
    severity: int
    evidence: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.evidence}{';' if ':' in self.evidence else ':'} {self.remedy}."

    def as_json(self) -> dict[str, str]:
        """Returns the finding as JSON values."""
        named = {"rule": self.rule, "severity": SEVERITIES[self.severity]}
        return named | {"evidence": self.evidence, "remedy": self.remedy, "text": str(self)}


class Curve(NamedTuple):
    """A logged metric: environment steps [n], and the values [n, P] of every member."""

    steps: np.ndarray
    values: np.ndarray


class Fault(NamedTuple):
    """The first quantity that was not finite, which ended a training."""

    quantity: str
    member: int
    step: int


class Data(NamedTuple):
    """Transitions in the replay of a run, [n, ...].

    Args:
        obs: Observations of the environment, as the replay holds them: not normalised.
        action: Actions in [-1, 1].
        reward: Rewards, not scaled.
        terminated: 1 where the action ended the task.
        returns: Discounted sums of the scaled rewards from each transition to the end of its episode, or of the data.
    """

    obs: np.ndarray
    action: np.ndarray
    reward: np.ndarray
    terminated: np.ndarray
    returns: np.ndarray


class Facts(NamedTuple):
    """Known facts about a run; those that are not known yet are empty.

    Args:
        hyper: The start and the end of each hyper-parameter's schedule, by name.
        space: The search range of each.
        evaluations: Returns [P, E] of all evaluations since learning began, in order.
        untrained: The mean return of the evaluation before training.
        final: The mean return of the best policy at the end.
        actions: Greedy actions [T, A] of one episode of the best policy, in [-1, 1].
        curves: Logged metrics by name, since learning began. Of a population: those of its fittest member.
        options: The options of the run, by dotted names.
        progress: The share of the run's steps that were made.
        episode_length: The time limit of the environment.
        action_size: Numbers in an action.
        is_skill_agent: Whether the agent learns skills, and not the environment's reward.
        is_population: Whether the members' hyper-parameters differ (PBT).
        fault: What ended the training, if it was not finite.
        data: The replay.
        probes: What the networks of the members do with observations from the replay.
        lineage: The generations of a population.
        ranges: The ranges that a population searches.
    """

    hyper: Mapping[str, tuple[float, float]] = {}
    space: Mapping[str, Range] = {}
    evaluations: Sequence[np.ndarray] = ()
    untrained: Interval | None = None
    final: Interval | None = None
    actions: np.ndarray | None = None
    curves: Mapping[str, Curve] = {}
    options: Mapping[str, Any] = {}
    progress: float = 0.0
    episode_length: int = 0
    action_size: int = 0
    is_skill_agent: bool = False
    is_population: bool = False
    fault: Fault | None = None
    data: Data | None = None
    probes: Sequence["Probe"] = ()
    lineage: "Lineage | None" = None
    ranges: Mapping[str, Range] = {}

    def late(self, name: str, least: int = LEAST_POINTS) -> np.ndarray | None:
        """Returns the newest finite values of a metric, averaged over time, [P]; None before the run is half done."""
        curve = self.curves.get(name)
        if curve is None or self.progress < LATE or len(curve.values) < least:
            return None
        newest = curve.values[-max(least, int(NEWEST * len(curve.values))) :]
        return np.mean(newest, axis=0) if np.isfinite(newest).all() else None

    def option(self, name: str, default: Any = None) -> Any:
        """Returns the value of an option by the end of its dotted name: that of a SAC inside of DIAYN is found too."""
        ends = (value for each, value in self.options.items() if f".{each}".endswith(f".{name}"))
        return next(ends, default)

    def current(self, name: str, default: float) -> float:
        """Returns the newest value of a hyper-parameter, averaged over the members."""
        curve = self.curves.get(f"hyper/{name}")
        return float(np.mean(curve.values[-1])) if curve is not None and len(curve.values) else default
