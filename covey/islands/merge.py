"""Merges the files of a run's islands into the files of one run."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from covey.storage.atomic import replace_bytes
from covey.storage.checkpoint import require_fields
from covey.storage.disk import DamagedError
from covey.storage.folder import RunFolder
from covey.storage.history import read_history
from covey.storage.jsonl import Row
from covey.storage.store import Store


def merge(folder: RunFolder, islands: int, members: int) -> None:
    """Writes the metrics, episodes and lineage of all members, and the best policy, into the run's own files.

    While a run is under way, they end at the slowest island: rows that not all members have are left out.
    """
    parts = [folder.island(number) for number in range(islands)]
    everyone = set(range(members))
    _write(folder.metrics, _whole([p.metrics for p in parts], lambda row: (row["step"], row["name"]), everyone))
    _write(folder.episodes, _whole([p.episodes for p in parts], lambda row: (row["step"],), everyone))
    _write(folder.lineage, _lineage([p.lineage for p in parts]))
    _merge_best(folder, parts)


def reached(folder: RunFolder, island: int) -> int:
    """Returns the step of an island's newest checkpoint; 0 before the first."""
    return max(Store(folder.island(island).checkpoints, "step").steps(), default=0)


def fingerprint(folder: RunFolder, islands: int) -> list[Any]:
    """Returns a value that changes whenever `merge` would read something new."""
    found: list[Any] = []
    for part in (folder.island(number) for number in range(islands)):
        for path in (part.metrics, part.episodes, part.lineage):
            found.append((path.stat().st_size, path.stat().st_mtime_ns) if path.exists() else None)
        found.append(Store(part.checkpoints, "best").steps())
    return found


def _whole(paths: list[Path], key_of: Callable[[dict[str, Any]], tuple[Any, ...]], everyone: set[int]) -> list[Row]:
    """Returns the rows whose key all members have, ordered by step, then by member. A key starts with the step."""
    groups: dict[tuple[Any, ...], list[Row]] = {}
    for path in paths:
        for row in _read(path):
            groups.setdefault(key_of(row.values), []).append(row)
    whole = {key: rows for key, rows in groups.items() if {row.values["member"] for row in rows} == everyone}
    in_order = sorted(whole, key=lambda key: key[0])
    return [row for key in in_order for row in sorted(whole[key], key=lambda row: row.values["member"])]


def _lineage(paths: list[Path]) -> list[Row]:
    """Returns the rows up to the last generation that all islands have reached."""
    parts = [_read(path) for path in paths]
    last = min((rows[-1].values["step"] if rows else -1) for rows in parts)
    rows = [row for rows in parts for row in rows if row.values["step"] <= last]
    return sorted(rows, key=lambda row: [row.values[name] for name in ("generation", "step", "member")])


def _merge_best(folder: RunFolder, parts: list[RunFolder]) -> None:
    """Copies the best policy of all islands into the run's folder, unless it is there already."""
    stores = [Store(part.checkpoints, "best") for part in parts]
    found = [store.read_newest(lambda text: None, set_aside=False) for store in stores if store.steps()]
    if not found:
        return
    for _, info in found:
        require_fields(info, "value", "step")
    arrays, info = max(found, key=lambda each: each[1]["value"])
    bests = Store(folder.checkpoints, "best", keep=1)
    if not bests.steps() or bests.read(bests.steps()[-1])[1] != info:
        bests.remove_after(-1)
        bests.write(info["step"], arrays, info)


KINDS = {"step": int, "member": int, "generation": int, "name": str}
"""The types of the fields that rows are merged by."""


def _read(path: Path) -> list[Row]:
    """Returns the rows of a file, without a last line that is incomplete (the process was killed)."""

    def checked(rows: Iterator[Row]) -> list[Row]:
        found = list(rows)
        for row in found:
            fits = all(type(row.values[name]) is kind for name, kind in KINDS.items() if name in row.values)
            if not fits or not {"step", "member"} <= row.values.keys():
                raise DamagedError(f"{path} is damaged: line {row.number}, {row.line[:80]!r}, is not a valid row.")
        return found

    return read_history(path, checked) if os.path.lexists(path) else []


def _write(path: Path, rows: list[Row]) -> None:
    replace_bytes(path, b"".join(row.line for row in rows))
