"""`changes.jsonl`: the options that `covey resume` changed. Each line has a CRC-32, because resuming depends on it."""

import json
import zlib
from pathlib import Path
from typing import Any

from covey.storage import disk
from covey.storage.disk import DamagedError, read_error
from covey.storage.documents import is_count
from covey.storage.jsonl import read_rows

FIELDS = {"step", "name", "old", "new"}
REMEDY = "Restore it from a copy: a run can't be resumed exactly without it."


class Changes:
    """The file of changes of a run, which need not exist."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def rows(self, least: int = 0) -> list[dict[str, Any]]:
        """Returns the changes. Raises DamagedError if there are fewer than `least`."""
        return [row for row, _ in self._read(least)]

    def count(self) -> int:
        """Returns the number of changes."""
        return len(self._read())

    def append(self, changes: list[dict[str, Any]]) -> None:
        """Appends changes after the last complete line, and syncs them."""
        end = sum(len(line) for _, line in self._read())
        handle = disk.open_to_append(self.path)
        try:
            if disk.file_size(handle) > end:
                disk.truncate(handle, end)
            disk.write_all(handle, b"".join(_line(change) for change in changes))
            disk.sync(handle)
        finally:
            disk.close(handle)
        disk.sync_folder(self.path.parent)

    def _read(self, least: int = 0) -> list[tuple[dict[str, Any], bytes]]:
        try:
            found = [(row.values, row.line) for row in read_rows(self.path)]
        except FileNotFoundError:
            found = []
        except OSError as error:
            raise read_error(self.path, error) from error
        for number, (row, _) in enumerate(found, 1):
            known = row.pop("crc", None)
            fits = row.keys() == FIELDS and is_count(row["step"]) and isinstance(row["name"], str)
            if not fits or known not in (None, _crc(row)):
                raise DamagedError(f"{self.path} is damaged: line {number} is not as covey wrote it. {REMEDY}")
        if len(found) < least:
            raise DamagedError(f"{self.path} is damaged: it has {len(found)} of {least} recorded changes. {REMEDY}")
        return found


def _line(change: dict[str, Any]) -> bytes:
    return (json.dumps(change | {"crc": _crc(change)}) + "\n").encode()


def _crc(change: dict[str, Any]) -> int:
    return zlib.crc32(json.dumps(change, sort_keys=True).encode())
