"""`changes.jsonl`: what `covey resume` changed in a run. Each line carries a CRC-32, because resuming depends on it."""

import json
import zlib
from pathlib import Path
from typing import Any

from covey.storage.atomic import (
    DamagedError,
    close,
    open_to_append,
    size_of,
    sync,
    sync_folder,
    truncate,
    unreadable,
    write_all,
)
from covey.storage.documents import is_count
from covey.storage.jsonl import read_rows

FIELDS = {"step", "name", "old", "new"}


class Changes:
    """The lines of one file, which need not exist."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def rows(self, least: int = 0) -> list[dict[str, Any]]:
        """The changes, of which there must be so many; a last line that a kill cut short is left out."""
        return [row for row, _ in self._read(least)]

    def count(self) -> int:
        """How many changes there are."""
        return len(self._read())

    def append(self, changes: list[dict[str, Any]]) -> None:
        """Adds changes and brings them to the disk, after the last whole line."""
        end = sum(len(line) for _, line in self._read())
        handle = open_to_append(self.path)
        try:
            if size_of(handle) > end:
                truncate(handle, end)
            write_all(handle, b"".join(_line(change) for change in changes))
            sync(handle)
        finally:
            close(handle)
        sync_folder(self.path.parent)

    def _read(self, least: int = 0) -> list[tuple[dict[str, Any], bytes]]:
        try:
            found = [(row.values, row.line) for row in read_rows(self.path)]
        except FileNotFoundError:
            found = []
        except OSError as error:
            raise unreadable(self.path, error) from error
        for number, (row, _) in enumerate(found, 1):
            known = row.pop("crc", None)
            fits = row.keys() == FIELDS and is_count(row["step"]) and isinstance(row["name"], str)
            if not fits or known not in (None, _crc(row)):
                raise DamagedError(f"{self.path} is damaged: line {number} is not as covey wrote it. {REMEDY}")
        if len(found) < least:
            raise DamagedError(f"{self.path} is damaged: it has {len(found)} of {least} recorded changes. {REMEDY}")
        return found


REMEDY = "Restore it from a copy: a run can't be resumed exactly without it."


def _line(change: dict[str, Any]) -> bytes:
    return (json.dumps(change | {"crc": _crc(change)}) + "\n").encode()


def _crc(change: dict[str, Any]) -> int:
    return zlib.crc32(json.dumps(change, sort_keys=True).encode())
