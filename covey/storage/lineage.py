"""`lineage.jsonl`: the generations of a population."""

import os
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

import numpy as np

from covey.errors import require
from covey.storage.disk import DamagedError
from covey.storage.history import read_history
from covey.storage.jsonl import Row

REASONS = ("start", "kept", "worse", "failed")


class Lineage(NamedTuple):
    """A population of P members at G moments: its generations, and the moments between them at which members failed.

    Members are evaluated at generations only: between them, fitness is NaN, as it is where it was not finite.

    Attributes:
        generation: The number of the generation [G]; between two, that of the one before.
        steps: Environment steps [G].
        fitness: Fitness [G, P] before the exchange at each moment.
        parent: The member [G, P] whose weights each member has from each moment on; its own index if it kept them.
        reason: One of REASONS [G, P].
        hyper: Hyper-parameters [G, P] by name, used from each moment on.
    """

    generation: np.ndarray
    steps: np.ndarray
    fitness: np.ndarray
    parent: np.ndarray
    reason: np.ndarray
    hyper: dict[str, np.ndarray]

    @property
    def evaluated(self) -> np.ndarray:
        """Flags [G]: True where a moment is a generation."""
        return np.diff(self.generation, prepend=-1) > 0

    @property
    def replaced(self) -> np.ndarray:
        """Flags [G, P]: True where a member became a copy of another."""
        return (self.reason == "worse") | (self.reason == "failed")


class _Record(NamedTuple):
    """The values of a line of `lineage.jsonl`, and its number."""

    line: int
    generation: int
    step: int
    member: int
    parent: int
    fitness: float
    reason: str
    hyper: dict[str, float]


def read_lineage(path: Path) -> Lineage:
    """Reads `lineage.jsonl` up to its last complete generation; a kill may have cut off the rest.

    Args:
        path: The file, in a run folder.

    Raises:
        CoveyError: The file does not exist, is empty or is damaged.

    Example:
        >>> lineage = read_lineage(Path("runs/pendulum-sac-0/lineage.jsonl"))
        >>> lineage.hyper["actor_lr"][-1]  # of every member, at the end
    """
    require(os.path.lexists(path), f"{path} does not exist. Only runs that tune a population have a lineage.")
    records = read_history(path, lambda rows: [_as_record(path, row) for row in rows])
    moments = [list(group) for _, group in groupby(records, key=lambda record: (record.generation, record.step))]
    require(bool(moments), f"{path} is empty. Has the population been trained?")
    members = len(moments[0])
    generations = [i for i, moment in enumerate(moments) if i == 0 or _is_generation(moment, moments[i - 1])]
    if len(moments[generations[-1]]) < members and generations[-1] == len(moments) - 1:
        generations.pop()
    moments = moments[: generations[-1] + 1]
    for i, moment in enumerate(moments):
        _check_moment(path, moment, members, i in generations, moments[i - 1] if i else [])
    return _as_arrays(moments, members)


def _as_record(path: Path, row: Row) -> _Record:
    values = row.values
    try:
        member = int(values["member"])
        return _Record(
            line=row.number,
            generation=int(values["generation"]),
            step=int(values["step"]),
            member=member,
            parent=member if values["parent"] is None else int(values["parent"]),
            fitness=float("nan") if values["fitness"] is None else float(values["fitness"]),
            reason=REASONS[REASONS.index(values["reason"])],  # raises a ValueError if it is not one of them
            hyper={name: float(value) for name, value in values["hyper"].items()},
        )
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError):
        text = f"{path} is damaged: line {row.number}, {row.line.strip()[:80]!r}, is not a row of a lineage."
        raise DamagedError(text) from None


def _is_generation(moment: list[_Record], before: list[_Record]) -> bool:
    """Returns whether a moment is a generation, and not one between two."""
    return moment[0].generation != before[0].generation


def _check_moment(path: Path, moment: list[_Record], members: int, complete: bool, before: list[_Record]) -> None:
    """Raises an error that names the first line that does not follow from those before it."""
    names = (before or moment)[0].hyper.keys()
    for i, record in enumerate(moment):
        expected = record.member == i if complete else record.reason == "failed" and 0 <= record.member < members
        text = f"member {i} is expected here" if complete else "between generations, only failures are expected"
        _check(path, record, expected, text)
        _check(path, record, 0 <= record.parent < members, f"the parent {record.parent} is not a member")
        _check(path, record, record.hyper.keys() == names, f"the hyper-parameters should be {', '.join(names)}")
    last = moment[-1]
    _check(path, last, not complete or len(moment) == members, f"the generation should have {members} members")
    _check(path, last, not before or last.step > before[0].step, "the step should be greater than those before")


def _check(path: Path, record: _Record, condition: bool, text: str) -> None:
    require(condition, f"{path} is damaged: line {record.line} (step {record.step}, member {record.member}): {text}.")


def _as_arrays(moments: list[list[_Record]], members: int) -> Lineage:
    shape = (len(moments), members)
    lineage = Lineage(
        generation=np.array([moment[0].generation for moment in moments]),
        steps=np.array([moment[0].step for moment in moments]),
        fitness=np.full(shape, np.nan),
        parent=np.tile(np.arange(members), (len(moments), 1)),
        reason=np.full(shape, "kept", dtype="<U6"),
        hyper={name: np.zeros(shape) for name in moments[0][0].hyper},
    )
    for i, moment in enumerate(moments):
        for values in lineage.hyper.values():
            values[i] = values[max(i - 1, 0)]  # between generations, only members that failed have a line
        for record in moment:
            at = (i, record.member)
            lineage.fitness[at] = record.fitness
            lineage.parent[at] = record.parent
            lineage.reason[at] = record.reason
            for name, value in record.hyper.items():
                lineage.hyper[name][at] = value
    return lineage


def winner_path(lineage: Lineage) -> np.ndarray:
    """Returns the members [G] that held the weights which are the fittest at the end.

    Entry g is the member that held them from moment g on; the last entry, the member that was evaluated with them.
    """
    last = lineage.fitness[-1]
    require(bool(np.isfinite(last).any()), f"No member has a finite fitness at step {lineage.steps[-1]}: none has won.")
    path = np.full(len(lineage.steps), np.nanargmax(last))
    for moment in range(len(path) - 2, 0, -1):
        path[moment - 1] = lineage.parent[moment, path[moment]]
    return path
