"""The checkpoints of a run that one or several processes have saved, for as many to resume it, or another number.

Process 0 saves its members in `checkpoints`, process I in `checkpoints/process-I`, all at the same steps. The
`info.json` of process 0 says how many they were; each has as many members.
"""

from contextlib import suppress
from typing import Any, NamedTuple, Protocol

import numpy as np

from covey.errors import require
from covey.storage.atomic import reading, unreadable
from covey.storage.folder import RunFolder
from covey.storage.layout import BEST, Arrays, is_per_member
from covey.storage.store import Say, Store
from covey.storage.tensors import read_header, read_leading


class Group(Protocol):
    """The part of a process group that reading needs (see `covey.population.processes.ProcessGroup`)."""

    @property
    def index(self) -> int: ...

    @property
    def count(self) -> int: ...

    def gather(self, tree: Any) -> Any: ...

    def any_process(self, wish: bool) -> bool: ...


class Saved(NamedTuple):
    """A checkpoint that every process has: its step, and how many processes wrote it."""

    step: int
    processes: int


def read_newest(folder: RunFolder, group: Group, size: int, say: Say) -> tuple[Arrays, dict[str, Any]] | None:
    """The `size` members of this process in the newest checkpoint that is whole; None before the first.

    All processes must call it. Damaged checkpoints are named and set aside.
    """
    first = _store(folder, 0)
    if group.count == 1 and not any(folder.checkpoints.glob("process-*")):  # one pass over the bytes is enough
        damaged = any(folder.checkpoints.glob("step_*.damaged"))
        return first.read_newest(say) if first.steps() or damaged else None
    steps = first.steps() if group.index == 0 else []
    while True:
        saved = Saved(*map(int, group.gather(np.array([_next_intact(first, steps, say)]))[0]))
        if saved.processes == 0:
            break
        mine = [k for k in range(1, saved.processes) if k % group.count == group.index]
        if not group.any_process(not all(_store(folder, k).is_intact(saved.step, say) for k in mine)):
            return _read(folder, saved, group, size)
    require(
        not any(folder.checkpoints.glob("**/step_*.damaged")),
        f"{folder.checkpoints} holds no intact checkpoint (step), so there is nothing to resume from. "
        "Start the run again, or restore the folder from a copy.",
    )
    return None


def remove_unused(folder: RunFolder, count: int) -> None:
    """Removes what processes beyond `count` once saved, as soon as no checkpoint of process 0 needs it any more."""
    for path in folder.checkpoints.glob("process-*"):
        number = path.name.removeprefix("process-")
        if number.isdigit() and int(number) >= count:
            Store(path, "step").keep_only(_store(folder, 0).steps())
            with suppress(OSError):
                path.rmdir()


def _store(folder: RunFolder, process: int) -> Store:
    return Store(folder.shard(process), "step")


def _next_intact(first: Store, steps: list[int], say: Say) -> Saved:
    """The newest of the steps, which it takes from the list, of which process 0's part is intact."""
    while steps:
        step = steps.pop()
        if first.is_intact(step, say):
            return Saved(step, first.info(step).get("processes", 1))
    return Saved(-1, 0)


def _read(folder: RunFolder, saved: Saved, group: Group, size: int) -> tuple[Arrays, dict[str, Any]]:
    if saved.processes == group.count:
        return _store(folder, group.index).read(saved.step)
    members = size * group.count
    require(
        members % saved.processes == 0, f"The run was saved by {saved.processes} processes, not with {members} members."
    )
    own = range(group.index * size, (group.index + 1) * size)
    found: Arrays = {}
    for process in range(saved.processes):
        part = _overlap(own, process, members // saved.processes)
        if part:
            _add_rows(found, _store(folder, process), saved.step, part, size)
    if group.index > 0:
        found = {name: x for name, x in found.items() if not name.startswith(BEST)}
    return found, _store(folder, 0).info(saved.step)


class Part(NamedTuple):
    """Rows `start` to `stop` of a process's members, which are those from `at` on of another division."""

    start: int
    stop: int
    at: int


def _overlap(own: range, process: int, each: int) -> Part | None:
    start, stop = max(own.start, process * each), min(own.stop, (process + 1) * each)
    return Part(start - process * each, stop - process * each, start - own.start) if start < stop else None


def _add_rows(found: Arrays, store: Store, step: int, part: Part, size: int) -> None:
    """Reads a part of the members' arrays [size, ...], row by row from the file: the whole may not fit into memory."""
    path = store.arrays_file(step)
    try:
        with reading(path) as handle:
            for name, tensor in read_header(handle).tensors.items():
                if not is_per_member(name):
                    found[name] = read_leading(handle, tensor)
                    continue
                rows = read_leading(handle, tensor, part.start, part.stop)
                if len(rows) == size:
                    found[name] = rows
                else:
                    found.setdefault(name, np.empty((size, *rows.shape[1:]), rows.dtype))
                    found[name][part.at : part.at + len(rows)] = rows
    except OSError as error:
        raise unreadable(path, error) from error
