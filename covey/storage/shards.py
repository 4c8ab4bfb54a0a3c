"""The checkpoints of a job of several processes, which another number of processes may resume.

Process 0 saves its members in `checkpoints`, process I in `checkpoints/process-I`, all at the same steps and each with
the same number of members. The `info.json` of process 0 holds the number of processes.
"""

from contextlib import suppress
from typing import Any, NamedTuple, Protocol

import numpy as np

from covey.errors import require
from covey.storage.checkpoint import Checkpoint
from covey.storage.disk import read_error, reading
from covey.storage.folder import RunFolder
from covey.storage.layout import BEST, Arrays, is_per_member
from covey.storage.store import Report, Store
from covey.storage.tensors import read_array, read_header, read_rows


class Group(Protocol):
    """The part of a process group that reading needs (see `covey.population.processes.ProcessGroup`)."""

    @property
    def index(self) -> int: ...

    @property
    def count(self) -> int: ...

    def gather(self, tree: Any) -> Any: ...

    def any_process(self, condition: bool) -> bool: ...


class Saved(NamedTuple):
    """A checkpoint that every process has: its step, and the number of processes that wrote it."""

    step: int
    processes: int


def read_newest(folder: RunFolder, group: Group, members: int, report: Report) -> Checkpoint | None:
    """Reads this process's part of the newest checkpoint of which every part is intact.

    Collective: all processes must call it. Damaged checkpoints are renamed.

    Args:
        folder: The run folder.
        group: The processes that resume the run.
        members: The members of this process, the same number in each.
        report: Called with a sentence about each damaged checkpoint.

    Returns:
        Arrays and info, or None if there is no checkpoint yet.
    """
    first = _store(folder, 0)
    if group.count == 1 and not any(folder.checkpoints.glob("process-*")):  # verifies and reads in one pass
        damaged = any(folder.checkpoints.glob("step_*.damaged"))
        return first.read_newest(report) if first.steps() or damaged else None
    steps = first.steps() if group.index == 0 else []
    while True:
        saved = Saved(*map(int, group.gather(np.array([_pop_intact(first, steps, report)]))[0]))
        if saved.processes == 0:
            break
        mine = [k for k in range(1, saved.processes) if k % group.count == group.index]
        if not group.any_process(not all(_store(folder, k).is_intact(saved.step, report) for k in mine)):
            return _read_part(folder, saved, group, members)
    require(
        not any(folder.checkpoints.glob("**/step_*.damaged")),
        f"{folder.checkpoints} holds no intact checkpoint (step), so there is nothing to resume from. "
        "Start the run again, or restore the folder from a copy.",
    )
    return None


def remove_unused(folder: RunFolder, count: int) -> None:
    """Removes the checkpoints of processes beyond `count`, unless one of process 0 still needs them."""
    for path in folder.checkpoints.glob("process-*"):
        number = path.name.removeprefix("process-")
        if number.isdigit() and int(number) >= count:
            Store(path, "step").keep_only(_store(folder, 0).steps())
            with suppress(OSError):
                path.rmdir()


def _store(folder: RunFolder, process: int) -> Store:
    return Store(folder.shard(process), "step")


def _pop_intact(first: Store, steps: list[int], report: Report) -> Saved:
    """Removes steps from the end of the list up to one whose part of process 0 is intact, and returns that."""
    while steps:
        step = steps.pop()
        if first.is_intact(step, report):
            return Saved(step, first.info(step).get("processes", 1))
    return Saved(-1, 0)


def _read_part(folder: RunFolder, saved: Saved, group: Group, members: int) -> Checkpoint:
    """Reads the members of this process, from the files of all processes that hold some of them."""
    if saved.processes == group.count:
        return _store(folder, group.index).read(saved.step)
    total = members * group.count
    require(
        total % saved.processes == 0, f"The run was saved by {saved.processes} processes, not with {total} members."
    )
    own = range(group.index * members, (group.index + 1) * members)
    found: Arrays = {}
    for process in range(saved.processes):
        part = _overlap(own, process, total // saved.processes)
        if part:
            _add_rows(found, _store(folder, process), saved.step, part, members)
    if group.index > 0:
        found = {name: x for name, x in found.items() if not name.startswith(BEST)}
    return found, _store(folder, 0).info(saved.step)


class Part(NamedTuple):
    """Rows `start` to `stop` of the arrays of one process, which are the rows from `target` on of another."""

    start: int
    stop: int
    target: int


def _overlap(own: range, process: int, each: int) -> Part | None:
    """Returns the rows of a process, with `each` members, that are members of `own`."""
    start = max(own.start, process * each)
    stop = min(own.stop, (process + 1) * each)
    return Part(start - process * each, stop - process * each, start - own.start) if start < stop else None


def _add_rows(found: Arrays, store: Store, step: int, part: Part, members: int) -> None:
    """Reads a part of the arrays [members, ...]. Reads only these rows: the whole file may not fit into memory."""
    path = store.arrays_file(step)
    try:
        with reading(path) as handle:
            for name, tensor in read_header(handle).tensors.items():
                if not is_per_member(name):
                    found[name] = read_array(handle, tensor)
                    continue
                rows = read_rows(handle, tensor, part.start, part.stop)
                if len(rows) == members:
                    found[name] = rows
                else:
                    found.setdefault(name, np.empty((members, *rows.shape[1:]), rows.dtype))
                    found[name][part.target : part.target + len(rows)] = rows
    except OSError as error:
        raise read_error(path, error) from error
