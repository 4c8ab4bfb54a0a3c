"""Population-based training (Jaderberg et al., 2017, arXiv 1711.09846).

The worst members become varied copies of the best. A generation is a pure function of what is known of the members,
the seed and the generation's number.
"""

from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np

from covey.errors import CoveyError, require
from covey.hyper.range import Space
from covey.hyper.space import explore, member_random

Reason = Literal["start", "kept", "worse", "failed"]


@dataclass(frozen=True)
class PBT:
    """How a population is tuned while it learns."""

    interval: int = 0
    """Environment steps between generations; 0 means as many as between evaluations."""
    bottom: float = 0.25
    """Share of the members that are replaced in a generation; 0 replaces none but failed ones."""
    top: float = 0.25
    """Share of the members that are copied."""
    resample: float = 0.25
    """Probability that a copied hyper-parameter is drawn anew instead of moved by a step."""
    significance: float = 0.0
    """Replace a member only where Welch's test finds it worse than the one it would copy, at this level, such as 0.05;
    0 means without a test."""
    replay: Literal["keep", "copy", "share"] = "keep"
    """What a replaced member learns from: its own data, a copy of the donor's, or (share) all members' data always."""
    fitness: str = ""
    """What members are ranked by: return, or a measure of skills such as information; by default return, or information
    where skills are learnt."""

    def __post_init__(self) -> None:
        for name in ("bottom", "top", "resample", "significance"):
            value = getattr(self, name)
            require(0 <= value <= 1, f"--pbt.{name} must lie in [0, 1], not {value:g}.")
        require(self.interval >= 0, f"--pbt.interval must not be negative, not {self.interval}.")
        require(self.top > 0, "--pbt.top must be above 0: somebody must be copied.")
        require(
            self.bottom + self.top <= 1,
            f"--pbt.bottom {self.bottom:g} and --pbt.top {self.top:g} overlap: together they must be at most 1.",
        )

    def donors(self, members: int) -> int:
        """How many of the members are copied in a generation."""
        return max(1, round(self.top * members))

    def losers(self, members: int) -> int:
        """How many of the members are replaced in a generation, none of them a donor, however both are rounded."""
        return min(round(self.bottom * members), members - self.donors(members))


class Ranking(NamedTuple):
    """What is known of the members [P] when a generation is decided: fitness, what it is the mean of, values."""

    fitness: np.ndarray
    scores: np.ndarray
    failed: np.ndarray
    hypers: dict[str, np.ndarray]


class Successor(NamedTuple):
    """What becomes of a member: whose weights it has from now on, with which hyper-parameters, and why."""

    parent: int
    hyper: dict[str, float]
    reason: Reason


def decide(pbt: PBT, space: Space, ranking: Ranking, seed: int, generation: int, rescue: int = 0) -> list[Successor]:
    """What becomes of every member. With `rescue`, a number of its own, only failed ones are replaced."""
    donors = best(ranking, pbt.donors(len(ranking.fitness)))
    replaced = {int(m): "failed" for m in np.flatnonzero(_failed(ranking))}
    if not rescue:
        replaced |= {m: "worse" for m in losers(pbt, ranking) if m not in replaced}
    successors = []
    for member in range(len(ranking.fitness)):
        own = {name: float(values[member]) for name, values in ranking.hypers.items()}
        random = member_random(seed, generation, member, rescue)
        donor = int(donors[random.integers(len(donors))])
        reason = replaced.get(member, "kept")
        if reason == "worse" and (donor == member or not is_worse(ranking, member, donor, pbt.significance)):
            reason = "kept"
        if reason == "kept":
            successors.append(Successor(member, own, "kept"))
            continue
        values = {name: float(values[donor]) for name, values in ranking.hypers.items()}
        successors.append(Successor(donor, explore(space, values, pbt.resample, random), reason))  # type: ignore[arg-type]
    return successors


def best(ranking: Ranking, count: int) -> np.ndarray:
    """The best members, of those that have not failed, best first; an error if all have."""
    alive = ranked(ranking)
    if not len(alive):
        raise CoveyError(
            f"All {len(ranking.fitness)} members have failed: the fitness or the numbers of every one were not finite "
            "(NaN or infinite). Search lower learning rates (--space.NAME LOW:HIGH), or look at the environment's "
            "rewards."
        )
    return alive[:count]


def ranked(ranking: Ranking) -> np.ndarray:
    """The members that have not failed, best first."""
    order = _order(ranking)
    return order[~_failed(ranking)[order]]


def losers(pbt: PBT, ranking: Ranking) -> list[int]:
    """The worst members of all, worst last."""
    order = _order(ranking)
    return [int(m) for m in order[len(order) - pbt.losers(len(order)) :]]


def is_worse(ranking: Ranking, member: int, donor: int, significance: float) -> bool:
    """Whether Welch's one-sided test finds the member's scores below the donor's; without a test, always."""
    if significance == 0:
        return True
    from scipy.special import stdtr

    ours, theirs = (ranking.scores[m].astype(np.float64) for m in (member, donor))
    if len(ours) < 2:
        return True
    parts = np.array([np.var(x, ddof=1) / len(x) for x in (ours, theirs)])
    gap, total = ours.mean() - theirs.mean(), parts.sum()
    if total == 0:
        return bool(gap < 0)
    freedom = total**2 / np.sum(parts**2 / (len(ours) - 1))
    return bool(stdtr(freedom, gap / np.sqrt(total)) < significance)


def _failed(ranking: Ranking) -> np.ndarray:
    return ranking.failed | ~np.isfinite(ranking.fitness)


def _order(ranking: Ranking) -> np.ndarray:
    """Members from the best to the worst; failed ones last; among equals the lower number first."""
    fitness = np.where(_failed(ranking), -np.inf, ranking.fitness)
    return np.lexsort((np.arange(len(fitness)), -fitness))
