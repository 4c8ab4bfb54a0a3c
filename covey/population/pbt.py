"""Decides population-based training (Jaderberg et al., 2017, arXiv 1711.09846): who is replaced by whom.

The worst members become copies of the best with perturbed hyper-parameters. A generation is a pure function of the
ranking, the seed and the generation's number. `covey.population.exchange` carries it out.
"""

from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np

from covey.errors import CoveyError, require
from covey.hyper.range import Space
from covey.hyper.space import explore, member_random

Reason = Literal["start", "kept", "worse", "failed"]
"""Why a member has its parent: it is new, it was not replaced, it was among the worst, or it had failed."""


@dataclass(frozen=True)
class PBT:
    """The settings of population-based training.

    Example:
        >>> pbt = covey.PBT(bottom=0.25, top=0.25, significance=0.05)
        >>> population, successors = covey.exchange(pbt, loop, population, returns, space, generation=1)
    """

    interval: int = 0
    """Environment steps between generations; 0 for a generation at each evaluation."""
    bottom: float = 0.25
    """Share of the members that are replaced in a generation; 0 replaces only failed members."""
    top: float = 0.25
    """Share of the members that may be copied."""
    resample: float = 0.25
    """Probability that a copied hyper-parameter is drawn anew from its range instead of perturbed."""
    significance: float = 0.0
    """Replace a member only if Welch's t-test finds it worse than its donor at this level, for example 0.05; 0 for no
    test."""
    replay: Literal["keep", "copy", "share"] = "keep"
    """Replay of a replaced member: keep its own, copy the donor's, or share one replay among all members."""
    fitness: str = ""
    """Quantity that members are ranked by: return, or a measure of skills such as information. Default: return, or
    information for agents that learn skills."""

    def __post_init__(self) -> None:
        for name in ("bottom", "top", "resample", "significance"):
            value = getattr(self, name)
            require(0 <= value <= 1, f"`pbt.{name}` must lie in [0, 1], not {value:g}.")
        require(self.interval >= 0, f"`pbt.interval` must be at least 0, not {self.interval}.")
        require(self.top > 0, "`pbt.top` must be above 0: there must be a member to copy.")
        require(
            self.bottom + self.top <= 1,
            f"`pbt.bottom` {self.bottom:g} and `pbt.top` {self.top:g} overlap: their sum must be at most 1.",
        )

    def donors(self, members: int) -> int:
        """Returns how many of the members may be copied in a generation."""
        return max(1, round(self.top * members))

    def losers(self, members: int) -> int:
        """Returns how many of the members are replaced in a generation. However both are rounded, none is a donor."""
        return min(round(self.bottom * members), members - self.donors(members))


class Ranking(NamedTuple):
    """The members [P] as a generation sees them. `covey.population.exchange.rank` makes it.

    Args:
        fitness: [P]; higher is better. Not finite: the member counts as failed.
        scores: [P, n] values that the fitness is the mean of, for the significance test.
        failed: [P] members that must be replaced, and are never copied.
        hypers: Values [P] of the tuned hyper-parameters, by name.

    Example:
        >>> Ranking(np.array([1.0, 2.0]), np.array([[1.0], [2.0]]), np.zeros(2, bool), {"tau": np.array([0.01, 0.02])})
    """

    fitness: np.ndarray
    scores: np.ndarray
    failed: np.ndarray
    hypers: dict[str, np.ndarray]


class Successor(NamedTuple):
    """A member after a generation.

    Args:
        parent: The index of the member whose weights it has; its own if it was not replaced.
        hyper: Its tuned hyper-parameters, by name.
        reason: `kept`; or `worse` or `failed` if it was replaced.

    Example:
        >>> population, successors = covey.exchange(covey.PBT(), loop, population, returns, space)
        >>> {member: s.parent for member, s in enumerate(successors) if s.reason != "kept"}
        {3: 0, 6: 1}
    """

    parent: int
    hyper: dict[str, float]
    reason: Reason


def decide(pbt: PBT, space: Space, ranking: Ranking, seed: int, generation: int, rescue: int = 0) -> list[Successor]:
    """Decides a generation: who is replaced by whom, with which hyper-parameters.

    Args:
        pbt: The settings.
        space: The ranges of the tuned hyper-parameters.
        ranking: The members.
        seed: The seed of the population.
        generation: The number of the generation. With the seed it determines all random choices.
        rescue: If not 0, replaces only failed members, with the random numbers that this number selects.

    Returns:
        A successor for every member.

    Raises:
        CoveyError: If all members have failed.

    Example:
        >>> successors = decide(PBT(bottom=0.5), space, ranking, seed=0, generation=3)
    """
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
    """Returns the best members that have not failed, best first. Raises a CoveyError if all have."""
    alive = ranked(ranking)
    if not len(alive):
        raise CoveyError(
            f"All {len(ranking.fitness)} members have failed: each had a fitness or a quantity that was not finite "
            "(NaN or infinite). Limit the search space to lower learning rates, or check the environment's rewards."
        )
    return alive[:count]


def ranked(ranking: Ranking) -> np.ndarray:
    """Returns the members that have not failed, best first."""
    order = _order(ranking)
    return order[~_failed(ranking)[order]]


def losers(pbt: PBT, ranking: Ranking) -> list[int]:
    """Returns the members that may be replaced for being the worst, worst last."""
    order = _order(ranking)
    return [int(m) for m in order[len(order) - pbt.losers(len(order)) :]]


def is_worse(ranking: Ranking, member: int, donor: int, significance: float) -> bool:
    """Returns whether Welch's one-sided t-test finds the member's scores below the donor's; always with level 0."""
    if significance == 0:
        return True
    from scipy.special import stdtr

    ours, theirs = (ranking.scores[m].astype(np.float64) for m in (member, donor))
    if len(ours) < 2:
        return True
    parts = np.array([np.var(x, ddof=1) / len(x) for x in (ours, theirs)])
    gap = ours.mean() - theirs.mean()
    total = parts.sum()
    if total == 0:
        return bool(gap < 0)
    freedom = total**2 / np.sum(parts**2 / (len(ours) - 1))
    return bool(stdtr(freedom, gap / np.sqrt(total)) < significance)


def _failed(ranking: Ranking) -> np.ndarray:
    return ranking.failed | ~np.isfinite(ranking.fitness)


def _order(ranking: Ranking) -> np.ndarray:
    """Returns the members from best to worst; failed ones last; the lower index first among equals."""
    fitness = np.where(_failed(ranking), -np.inf, ranking.fitness)
    return np.lexsort((np.arange(len(fitness)), -fitness))
