"""Islands: parts of a population that never wait for each other, and exchange members through a board.

An island evaluates its members when it reaches a generation, and ranks them among the last reports of the other
islands, however far these are. The exchange therefore depends on the speed of the islands.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import jax
import numpy as np

from covey.population.pbt import Ranking, ranked
from covey.population.processes import MemberLostError, pack, rows, unpack


class MemberReport(NamedTuple):
    """One member's row of a `Ranking`, and a handle to its weights (None if they are not offered for copying)."""

    fitness: float
    scores: np.ndarray
    failed: bool
    hypers: dict[str, float]
    weights: Any = None


class Board:
    """The last reports of all islands, and the lines that they log.

    Args:
        store: Stores the weights of a member and returns a handle to them.
    """

    def __init__(self, store: Callable[[np.ndarray], Any] = lambda weights: weights) -> None:
        self._store = store
        self._reports: dict[int, MemberReport] = {}
        self._lines: list[tuple[int, str]] = []

    def publish(self, reports: dict[int, MemberReport]) -> None:
        """Replaces the reports of these members."""
        for member, report in reports.items():
            handle = None if report.weights is None else self._store(report.weights)
            self._reports[member] = report._replace(weights=handle)

    def read(self) -> dict[int, MemberReport]:
        """Returns the reports by the index of the member."""
        return dict(self._reports)

    def log(self, island: int, line: str) -> None:
        """Adds a line to the log."""
        self._lines.append((island, line))

    def take_log(self) -> list[tuple[int, str]]:
        """Returns the lines since the last call, each with its island."""
        lines = self._lines
        self._lines = []
        return lines


class BoardClient(Protocol):
    """An island's access to the board. No method raises an error or blocks for long, even if the board is lost."""

    def publish(self, reports: dict[int, MemberReport]) -> None:
        """Replaces the reports of these members."""
        ...

    def read(self) -> dict[int, MemberReport]:
        """Returns the reports; none if the board does not answer."""
        ...

    def collect(self, weights: Any) -> np.ndarray | None:
        """Returns the weights of a handle; None if they are lost."""
        ...

    def log(self, line: str) -> None:
        """Adds a line to the log."""
        ...


@dataclass(frozen=True)
class Island:
    """The process group of one island: a single process with its own files, which can copy members of other islands."""

    number: int
    members: int
    """Members of all islands."""
    donors: int
    """The number of members that may be copied: an island offers no more of its own."""
    client: BoardClient
    index: int = 0
    count: int = 1
    _known: dict[int, MemberReport] = field(default_factory=dict, init=False)
    """The last reports, of its own members too."""

    def local_members(self, size: int) -> range:
        return range(self.number * size, (self.number + 1) * size)

    def reported_members(self, size: int) -> range:
        return self.local_members(size)

    def gather(self, tree: Any) -> Any:
        return jax.device_get(tree)

    def any_process(self, condition: bool) -> bool:
        return condition

    def gather_ranking(self, own: Ranking, agents: Any) -> Ranking:
        """Publishes this island's members and returns the ranking of all.

        A member without a report counts as failed, so that it is not copied.
        """
        mine = self._reports(own)
        first = self.local_members(len(own.fitness)).start
        offered = [int(slot) + first for slot in ranked(own)[: self.donors]]
        weights = {m: pack(rows(agents, [m - first]))[0] for m in offered}
        self.client.publish({m: report._replace(weights=weights.get(m)) for m, report in mine.items()})
        self._known.update(self.client.read())
        self._known.update(mine)
        return self._table(own)

    def fetch(self, tree: Any, members: list[int]) -> Any:
        own = self.local_members(len(jax.tree.leaves(tree)[0]))
        like = rows(tree, [0])
        parts = [rows(tree, [m - own.start]) if m in own else self._collect(m, like) for m in members]
        return jax.tree.map(lambda *own: np.concatenate(own), *parts)

    def _reports(self, own: Ranking) -> dict[int, MemberReport]:
        """Returns the reports of this island's members, without weights."""

        def report(slot: int) -> MemberReport:
            hypers = {name: float(values[slot]) for name, values in own.hypers.items()}
            return MemberReport(float(own.fitness[slot]), own.scores[slot], bool(own.failed[slot]), hypers)

        return {member: report(slot) for slot, member in enumerate(self.local_members(len(own.fitness)))}

    def _table(self, own: Ranking) -> Ranking:
        """Returns all known reports as columns [P]."""
        missing = MemberReport(np.nan, np.full(own.scores.shape[1], np.nan), True, dict.fromkeys(own.hypers, np.nan))
        reports = [self._known.get(m, missing) for m in range(self.members)]
        return Ranking(
            np.array([report.fitness for report in reports], own.fitness.dtype),
            np.stack([report.scores for report in reports]),
            np.array([report.failed for report in reports]),
            {name: np.array([report.hypers[name] for report in reports], np.float32) for name in own.hypers},
        )

    def _collect(self, member: int, like: Any) -> Any:
        """Returns the row [1, ...] of another island's member."""
        offered = self._known[member].weights
        found = None if offered is None else self.client.collect(offered)
        if found is None:
            self.client.log(f"The weights of member {member} are lost: it can't be copied.")
            raise MemberLostError(member)
        return unpack(found[None], like)
