"""`lineage.jsonl`: the generations of a population, read back and checked line by line."""

import os
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

import numpy as np

from covey.errors import require
from covey.storage.atomic import DamagedError
from covey.storage.history import read_history
from covey.storage.jsonl import Row

REASONS = ("start", "kept", "worse", "failed")


class Lineage(NamedTuple):
    """A population of P members at G moments: its generations, and the moments between them at which members failed.

    Nobody is evaluated between generations: fitness is NaN there, as it is where it was not finite.
    """

    generation: np.ndarray  # [G]; a moment between generations has the number of the one before
    steps: np.ndarray  # [G]
    fitness: np.ndarray  # [G, P], before the exchange of the moment
    parent: np.ndarray  # [G, P], whose weights the member has from the moment on; its own number at the start
    reason: np.ndarray  # [G, P] of REASONS
    hyper: dict[str, np.ndarray]  # [G, P], used from the moment on

    @property
    def evaluated(self) -> np.ndarray:
        """Which moments [G] are generations."""
        return np.diff(self.generation, prepend=-1) > 0

    @property
    def replaced(self) -> np.ndarray:
        """Who [G, P] went on as the copy of another."""
        return (self.reason == "worse") | (self.reason == "failed")


class _Row(NamedTuple):
    """A line of `lineage.jsonl`, and its number."""

    line: int
    generation: int
    step: int
    member: int
    parent: int
    fitness: float
    reason: str
    hyper: dict[str, float]


def read_lineage(path: Path) -> Lineage:
    """`lineage.jsonl` up to its last whole generation: a kill may have cut off what came after."""
    require(os.path.lexists(path), f"{path} does not exist. Only runs that tune a population have a lineage.")
    rows = read_history(path, lambda rows: [_as_row(path, row) for row in rows])
    moments = [list(group) for _, group in groupby(rows, key=lambda row: (row.generation, row.step))]
    require(bool(moments), f"{path} is empty. Has the population been trained?")
    members = len(moments[0])
    generations = [i for i, moment in enumerate(moments) if i == 0 or _begins(moment, moments[i - 1])]
    if len(moments[generations[-1]]) < members and generations[-1] == len(moments) - 1:
        generations.pop()
    moments = moments[: generations[-1] + 1]
    for i, moment in enumerate(moments):
        _check_moment(path, moment, members, i in generations, moments[i - 1] if i else [])
    return _as_arrays(moments, members)


def _as_row(path: Path, row: Row) -> _Row:
    values = row.values
    try:
        member = int(values["member"])
        return _Row(
            line=row.number,
            generation=int(values["generation"]),
            step=int(values["step"]),
            member=member,
            parent=member if values["parent"] is None else int(values["parent"]),
            fitness=float("nan") if values["fitness"] is None else float(values["fitness"]),
            reason=REASONS[REASONS.index(values["reason"])],  # or a ValueError
            hyper={name: float(value) for name, value in values["hyper"].items()},
        )
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError):
        text = f"{path} is damaged: line {row.number}, {row.line.strip()[:80]!r}, is no row of a lineage."
        raise DamagedError(text) from None


def _begins(moment: list[_Row], before: list[_Row]) -> bool:
    """Whether a moment is a generation of its own."""
    return moment[0].generation != before[0].generation


def _check_moment(path: Path, moment: list[_Row], members: int, whole: bool, before: list[_Row]) -> None:
    """Raises an error that names the first line that does not follow from those before it."""
    names = (before or moment)[0].hyper.keys()
    for i, row in enumerate(moment):
        expected = row.member == i if whole else row.reason == "failed" and 0 <= row.member < members
        _check(
            path, row, expected, f"member {i} should come here" if whole else "between generations only failures come"
        )
        _check(path, row, 0 <= row.parent < members, f"there is no member {row.parent} to be the parent")
        _check(path, row, row.hyper.keys() == names, f"the hyper-parameters should be {', '.join(names)}")
    last = moment[-1]
    _check(path, last, not whole or len(moment) == members, f"{members} members should have come by here")
    _check(path, last, not before or last.step > before[0].step, "the step should be greater than those before")


def _check(path: Path, row: _Row, condition: bool, what: str) -> None:
    require(condition, f"{path} is damaged: line {row.line} (step {row.step}, member {row.member}): {what}.")


def _as_arrays(moments: list[list[_Row]], members: int) -> Lineage:
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
            values[i] = values[max(i - 1, 0)]  # of those who have no row between generations
        for row in moment:
            at = i, row.member
            lineage.fitness[at], lineage.parent[at], lineage.reason[at] = row.fitness, row.parent, row.reason
            for name, value in row.hyper.items():
                lineage.hyper[name][at] = value
    return lineage


def winner_path(lineage: Lineage) -> np.ndarray:
    """The members [G] through which the weights came that are the fittest at the end.

    Entry g is who held them from moment g on; the last, who held them when they were evaluated.
    """
    last = lineage.fitness[-1]
    require(bool(np.isfinite(last).any()), f"No member has a finite fitness at step {lineage.steps[-1]}: none has won.")
    path = np.full(len(lineage.steps), np.nanargmax(last))
    for moment in range(len(path) - 2, 0, -1):
        path[moment - 1] = lineage.parent[moment, path[moment]]
    return path
