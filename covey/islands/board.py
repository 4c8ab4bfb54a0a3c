"""Islands: parts of a population that never wait for each other, and tell of themselves on a board.

An island judges its members when it comes by a generation, and compares them with what the others have said last,
however far these are. What is decided therefore depends on who is how fast.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import jax
import numpy as np

from covey.population.pbt import Ranking, ranked
from covey.population.processes import MemberLostError, pack, rows, unpack


class MemberReport(NamedTuple):
    """What is known of one member: a row of a Standing, and what its weights can be had for, if they may be copied."""

    fitness: float
    scores: np.ndarray
    failed: bool
    hypers: dict[str, float]
    weights: Any = None


class Board:
    """What all islands have said last. `keep` takes weights and returns what they can be had for."""

    def __init__(self, keep: Callable[[np.ndarray], Any] = lambda weights: weights) -> None:
        self._keep = keep
        self._reports: dict[int, MemberReport] = {}
        self._lines: list[tuple[int, str]] = []

    def publish(self, reports: dict[int, MemberReport]) -> None:
        """Replaces what was known of these members."""
        for member, report in reports.items():
            kept = None if report.weights is None else self._keep(report.weights)
            self._reports[member] = report._replace(weights=kept)

    def read(self) -> dict[int, MemberReport]:
        """What is known of the members, by their numbers."""
        return dict(self._reports)

    def tell(self, island: int, line: str) -> None:
        """A line for whoever watches the run."""
        self._lines.append((island, line))

    def news(self) -> list[tuple[int, str]]:
        """The lines since the last call, each with the island that told it."""
        lines, self._lines = self._lines, []
        return lines


class BoardClient(Protocol):
    """An island's way to the board. Nothing here fails or waits for long, whatever has become of the board."""

    def publish(self, reports: dict[int, MemberReport]) -> None: ...

    def read(self) -> dict[int, MemberReport]:
        """What is known of the members; nothing where the board does not answer."""
        ...

    def collect(self, weights: Any) -> np.ndarray | None:
        """The weights themselves; None where they are lost."""
        ...

    def tell(self, line: str) -> None: ...


@dataclass(frozen=True)
class Island:
    """The crew of one island: a process alone with its files and checkpoints, that hears of the others' members."""

    number: int
    members: int
    """Of all islands."""
    donors: int
    """How many of all members may be copied: of its own, an island offers no more than that."""
    client: BoardClient
    index: int = 0
    count: int = 1
    _known: dict[int, MemberReport] = field(default_factory=dict, init=False)
    """What was heard last, of its own members too."""

    def local_members(self, size: int) -> range:
        return range(self.number * size, (self.number + 1) * size)

    def reported_members(self, size: int) -> range:
        return self.local_members(size)

    def gather(self, tree: Any) -> Any:
        return jax.device_get(tree)

    def any_process(self, condition: bool) -> bool:
        return condition

    def gather_ranking(self, own: Ranking, agents: Any) -> Ranking:
        """What is known of all members. One that nobody has heard of counts as failed, so that nobody copies it."""
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
        """This island's members by their numbers."""

        def report(slot: int) -> MemberReport:
            hypers = {name: float(values[slot]) for name, values in own.hypers.items()}
            return MemberReport(float(own.fitness[slot]), own.scores[slot], bool(own.failed[slot]), hypers)

        return {member: report(slot) for slot, member in enumerate(self.local_members(len(own.fitness)))}

    def _table(self, own: Ranking) -> Ranking:
        """Everything known as columns [P]."""
        unheard = MemberReport(np.nan, np.full(own.scores.shape[1], np.nan), True, dict.fromkeys(own.hypers, np.nan))
        reports = [self._known.get(m, unheard) for m in range(self.members)]
        return Ranking(
            np.array([report.fitness for report in reports], own.fitness.dtype),
            np.stack([report.scores for report in reports]),
            np.array([report.failed for report in reports]),
            {name: np.array([report.hypers[name] for report in reports], np.float32) for name in own.hypers},
        )

    def _collect(self, member: int, like: Any) -> Any:
        """The row [1, ...] of another island's member."""
        offered = self._known[member].weights
        found = None if offered is None else self.client.collect(offered)
        if found is None:
            self.client.tell(f"The weights of member {member} are lost: it can't be copied.")
            raise MemberLostError(member)
        return unpack(found[None], like)
