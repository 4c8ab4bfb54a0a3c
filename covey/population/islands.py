"""Islands: parts of a population that never wait for each other, and tell of themselves on a board.

An island judges its members when it comes by a generation, and compares them with what the others have said last,
however far these are. What is decided therefore depends on who is how fast.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import jax
import numpy as np

from covey.population.crew import LostError, pack, rows, unpack
from covey.population.evolve import Standing, ranked


class Note(NamedTuple):
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
        self._notes: dict[int, Note] = {}
        self._lines: list[tuple[int, str]] = []

    def publish(self, notes: dict[int, Note]) -> None:
        """Replaces what was known of these members."""
        for member, note in notes.items():
            kept = None if note.weights is None else self._keep(note.weights)
            self._notes[member] = note._replace(weights=kept)

    def read(self) -> dict[int, Note]:
        """What is known of the members, by their numbers."""
        return dict(self._notes)

    def tell(self, island: int, line: str) -> None:
        """A line for whoever watches the run."""
        self._lines.append((island, line))

    def news(self) -> list[tuple[int, str]]:
        """The lines since the last call, each with the island that told it."""
        lines, self._lines = self._lines, []
        return lines


class Post(Protocol):
    """An island's way to the board. Nothing here fails or waits for long, whatever has become of the board."""

    def publish(self, notes: dict[int, Note]) -> None: ...

    def read(self) -> dict[int, Note]:
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
    post: Post
    index: int = 0
    count: int = 1
    _known: dict[int, Note] = field(default_factory=dict, init=False)
    """What was heard last, of its own members too."""

    def own(self, size: int) -> range:
        return range(self.number * size, (self.number + 1) * size)

    def heard(self, size: int) -> range:
        return self.own(size)

    def gather(self, tree: Any) -> Any:
        return jax.device_get(tree)

    def agree(self, wish: bool) -> bool:
        return wish

    def standing(self, own: Standing, agents: Any) -> Standing:
        """What is known of all members. One that nobody has heard of counts as failed, so that nobody copies it."""
        mine = self._notes(own)
        first = self.own(len(own.fitness)).start
        offered = [int(slot) + first for slot in ranked(own)[: self.donors]]
        weights = {m: pack(rows(agents, [m - first]))[0] for m in offered}
        self.post.publish({m: note._replace(weights=weights.get(m)) for m, note in mine.items()})
        self._known.update(self.post.read())
        self._known.update(mine)
        return self._table(own)

    def fetch(self, tree: Any, members: list[int]) -> Any:
        own = self.own(len(jax.tree.leaves(tree)[0]))
        like = rows(tree, [0])
        parts = [rows(tree, [m - own.start]) if m in own else self._collect(m, like) for m in members]
        return jax.tree.map(lambda *own: np.concatenate(own), *parts)

    def _notes(self, own: Standing) -> dict[int, Note]:
        """This island's members by their numbers."""

        def note(slot: int) -> Note:
            hypers = {name: float(values[slot]) for name, values in own.hypers.items()}
            return Note(float(own.fitness[slot]), own.scores[slot], bool(own.failed[slot]), hypers)

        return {member: note(slot) for slot, member in enumerate(self.own(len(own.fitness)))}

    def _table(self, own: Standing) -> Standing:
        """Everything known as columns [P]."""
        unheard = Note(np.nan, np.full(own.scores.shape[1], np.nan), True, dict.fromkeys(own.hypers, np.nan))
        notes = [self._known.get(m, unheard) for m in range(self.members)]
        return Standing(
            np.array([note.fitness for note in notes], own.fitness.dtype),
            np.stack([note.scores for note in notes]),
            np.array([note.failed for note in notes]),
            {name: np.array([note.hypers[name] for note in notes], np.float32) for name in own.hypers},
        )

    def _collect(self, member: int, like: Any) -> Any:
        """The row [1, ...] of another island's member."""
        offered = self._known[member].weights
        found = None if offered is None else self.post.collect(offered)
        if found is None:
            self.post.tell(f"The weights of member {member} are lost: it can't be copied.")
            raise LostError(member)
        return unpack(found[None], like)
