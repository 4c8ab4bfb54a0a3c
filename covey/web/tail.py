"""Follows a run folder while another process writes it. Only reads: no lock, no file, no touch."""

import math
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from covey.errors import CoveyError
from covey.storage import disk, documents
from covey.storage.disk import DamagedError
from covey.storage.folder import RunFolder
from covey.storage.jsonl import MOST_LINE
from covey.storage.metrics import COLUMNS, NUMBERS
from covey.storage.store import Store

FINGERPRINT = 4096
"""Bytes before the offset that are compared, to notice that a file was cut and written again."""


class MetricRow(NamedTuple):
    """A row of `metrics.jsonl`; the value is None where it was not finite."""

    name: str
    step: int
    member: int
    value: float | None
    wall: float


class Update(NamedTuple):
    """The news of a run folder since the last poll.

    Args:
        reset: The metrics were cut or written again: rows of earlier polls no longer count, and `rows` are all there
            are.
        rows: New rows of metrics.
        changed: Another file has changed: configuration, lineage, checkpoints, evaluations, figures.
    """

    reset: bool
    rows: list[MetricRow]
    changed: bool


class GrowingFile:
    """A file of lines that another process appends to, truncates or replaces.

    The file may not exist yet. What was read is compared by content, not by inode: file systems that come over a
    network may number their files anew.

    Args:
        path: The file.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._offset = 0
        self._known = b""  # the last bytes before the offset
        self._seen: tuple[int, int] | None = None

    def poll(self) -> tuple[bool, list[bytes]]:
        """Reads the complete lines that are new.

        Returns:
            Whether the file was cut or written again, in which case the lines are all of it; and the lines. A file
            that can't be read for now has no news.
        """
        try:
            found = os.stat(self.path)
            if (found.st_size, found.st_mtime_ns) == self._seen:
                return False, []
            with disk.reading(self.path) as handle:
                reset = not self._continues(handle)
                lines = list(self._lines(handle))
        except FileNotFoundError:
            gone = self._offset > 0
            self._forget()
            return gone, []
        except (OSError, DamagedError):
            return False, []
        self._seen = found.st_size, found.st_mtime_ns
        return reset, lines

    def _forget(self) -> None:
        self._offset = 0
        self._known = b""
        self._seen = None

    def _continues(self, handle: int) -> bool:
        """Returns whether the file still starts with what was read; otherwise starts from its beginning."""
        known = self._known
        if disk.file_size(handle) >= self._offset:
            before = disk.read_at(handle, len(known), self._offset - len(known)) if known else b""
            if before == known:
                return True
        self._forget()
        return False

    def _lines(self, handle: int) -> Iterator[bytes]:
        """Yields the complete lines after the offset, and moves it behind them."""
        rest = b""
        at = self._offset
        while part := disk.read_at(handle, disk.CHUNK, at):
            at += len(part)
            *complete, rest = (rest + part).split(b"\n")
            if complete:
                ended = b"\n".join(complete) + b"\n"
                self._offset = at - len(rest)
                self._known = (self._known + ended)[-FINGERPRINT:]
                yield from complete
            if len(rest) > MOST_LINE:  # no row is that long: the file is damaged, and what follows is skipped
                return


def metric_row(line: bytes) -> MetricRow | None:
    """Returns the row of metrics in a line, or None if it is damaged."""
    try:
        values = documents.parse(line)
        name = values["name"]
        step, wall, member, value = (values[column] for column in COLUMNS)
    except (DamagedError, TypeError, KeyError):
        return None
    if not isinstance(name, str) or not all(type(x) in NUMBERS for x in (step, wall, member, value)):
        return None
    if not (documents.is_count(step) and documents.is_count(member)):
        return None
    value, wall = (x if x is not None and math.isfinite(x) else None for x in (value, wall))
    return MetricRow(name, step, member, value, wall or 0.0)


class Checkpoints(NamedTuple):
    """The steps of the newest checkpoints; -1 where there is none."""

    best: int
    last: int


class Tail:
    """Follows a run folder, which may not exist yet.

    Args:
        path: The run folder.

    Example:
        >>> tail = Tail(Path("runs/pendulum-td3-0"))
        >>> tail.poll().rows[-1]
        MetricRow(name='eval/return', step=10000, member=0, value=-148.2, wall=12.4)
    """

    def __init__(self, path: Path) -> None:
        self.folder = RunFolder(path)
        self._metrics = GrowingFile(self.folder.metrics)
        self._signature: Any = None

    def poll(self) -> Update:
        """Returns the news since the last poll; the first time, everything."""
        signature = self._sign()
        changed = signature != self._signature
        self._signature = signature
        reset, lines = self._metrics.poll()
        rows = [row for row in map(metric_row, lines) if row]
        return Update(reset, rows, changed)

    def checkpoints(self) -> Checkpoints:
        """Returns the steps of the newest checkpoints."""
        folder = self.folder.checkpoints
        try:
            best, last = (max(Store(folder, kind).steps(), default=-1) for kind in ("best", "step"))
        except CoveyError:
            return Checkpoints(-1, -1)
        return Checkpoints(best, last)

    def _sign(self) -> Any:
        """Returns values that change when one of the other files does."""
        folder = self.folder
        files = [folder.config, folder.lineage, folder.changes, folder.episodes, folder.path / "finished.json"]
        folders = [folder.checkpoints, folder.episodes.parent, folder.media]
        return [_state_of(path) for path in (*files, *folders)]


def _state_of(path: Path) -> tuple[int, int] | None:
    try:
        found = os.stat(path)
    except (OSError, ValueError):
        return None
    return found.st_size, found.st_mtime_ns
