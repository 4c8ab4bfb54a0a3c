"""Files of JSON lines: appended while a run trains, and verified against the newest checkpoint when they are read."""

import json
import zlib
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from covey.storage import disk
from covey.storage.atomic import replacing
from covey.storage.disk import DamagedError, read_error
from covey.storage.documents import is_count
from covey.storage.extent import EMPTY, Extent

MOST_LINE = 2**20
"""The bytes of the longest line."""


class Row(NamedTuple):
    """A line of a file: its number, counted from 1, its values, and its bytes."""

    number: int
    values: dict[str, Any]
    line: bytes


def read_rows(path: Path, known: Extent | None = None) -> Iterator[Row]:
    """Yields the rows of a file. An incomplete last line, which a kill may leave, is skipped.

    Args:
        path: The file.
        known: The part that a checkpoint relies on; the file must start with it.

    Raises:
        DamagedError: A line is not a JSON object, or the file does not start with the known part.
    """
    length = crc = 0
    with disk.reading(path) as handle:
        for number, line in enumerate(_lines(handle, path), 1):
            if known and length < known.length:
                crc = zlib.crc32(line, crc)
            length += len(line)
            if line.endswith(b"\n"):
                yield Row(number, _values(path, number, line), line)
            if known and length == known.length and crc != known.crc:
                raise DamagedError(f"{path} is damaged: its first {length:,} bytes are not those that were saved.")
            if known and length - len(line) < known.length < length:
                raise DamagedError(f"{path} is damaged: the checkpoint ends within its line {number}.")
    if known and length < known.length:
        raise DamagedError(f"{path} is damaged: it has {length:,} bytes, and {known.length:,} were saved.")


def _lines(handle: int, path: Path) -> Iterator[bytes]:
    """Yields the lines of an open file, with their line ends; the last line may have none."""
    rest = b""
    offset = 0
    while part := disk.read_at(handle, disk.CHUNK, offset):
        offset += len(part)
        *complete, rest = (rest + part).split(b"\n")
        for line in complete:
            yield line + b"\n"
        if len(rest) > MOST_LINE:
            raise DamagedError(f"{path} is damaged: it has a line of more than {MOST_LINE:,} bytes.")
    if rest:
        yield rest


def _values(path: Path, number: int, line: bytes) -> dict[str, Any]:
    try:
        values = json.loads(line.decode())
    except (ValueError, RecursionError):
        values = None
    if not isinstance(values, dict):
        raise DamagedError(f"{path} is damaged: line {number}, {line[:80]!r}, is not a JSON object.")
    return values


class Jsonl:
    """A file of JSON lines that is open to append.

    Args:
        path: The file; created if it does not exist.
        known: The part that the checkpoint relies on from which the run resumes. What follows it is cut off, because
            the resumed run writes it again. If the file does not start with it, the file is renamed to `*.damaged` and
            its valid rows up to the checkpoint are kept.
        report: Called with a sentence about a damaged or missing file.
        step: The environment step of the checkpoint.
    """

    def __init__(self, path: Path, known: Extent = EMPTY, report: Callable[[str], None] = print, step: int = 0) -> None:
        self.path = path
        self.recovered = False
        self._buffer = bytearray()
        self.extent = EMPTY
        if known.length:
            self.extent = known if self._starts_with(known) else self._recover(known, report, step)
        self._handle = disk.open_to_append(path)
        if disk.file_size(self._handle) > self.extent.length:
            disk.truncate(self._handle, self.extent.length)
        disk.sync_folder(path.parent)  # no checkpoint may rely on a file whose name a power loss can remove

    def row(self, **values: Any) -> None:
        """Appends a row to the buffer."""
        line = (json.dumps(values) + "\n").encode()
        self._buffer += line
        self.extent = Extent(self.extent.length + len(line), zlib.crc32(line, self.extent.crc))

    def flush(self) -> None:
        """Writes the buffer to the file."""
        rows = self._buffer
        self._buffer = bytearray()
        disk.write_all(self._handle, rows)

    def sync(self) -> Extent:
        """Flushes everything to the disk. Returns the extent, on which a checkpoint may then rely."""
        self.flush()
        disk.sync(self._handle)
        return self.extent

    def close(self) -> None:
        """Writes the buffer and closes the file. Further calls do nothing."""
        handle = self._handle
        self._handle = -1
        if handle < 0:
            return
        try:
            disk.write_all(handle, self._buffer)
        finally:
            disk.close(handle)

    def _starts_with(self, known: Extent) -> bool:
        """Returns whether the file starts with the known part, and a line ends there."""
        found = EMPTY
        last = b""
        try:
            with disk.reading(self.path) as handle:
                while part := disk.read_at(handle, min(disk.CHUNK, known.length - found.length), found.length):
                    found = Extent(found.length + len(part), zlib.crc32(part, found.crc))
                    last = part[-1:]
        except FileNotFoundError:
            return False
        except OSError as error:
            raise read_error(self.path, error) from error
        return found == known and last == b"\n"

    def _recover(self, known: Extent, report: Callable[[str], None], step: int) -> Extent:
        """Renames a damaged file, and keeps its valid rows up to the checkpoint under the old name."""
        self.recovered = True
        if not disk.exists(self.path):
            report(f"{self.path} is missing: its rows before step {step:,} are lost. Training starts a new file.")
            return EMPTY
        renamed = self._free_name()
        disk.rename(self.path, renamed)
        rows = 0
        extent = EMPTY
        with disk.reading(renamed) as old, replacing(self.path) as new:
            for line in _valid_rows(old, renamed, known.length, step):
                disk.write_all(new, line)
                extent = Extent(extent.length + len(line), zlib.crc32(line, extent.crc))
                rows += 1
        report(
            f"{self.path} is damaged: it does not match the checkpoint of step {step:,}. It was renamed to "
            f"{renamed.name}; its {rows:,} valid rows are kept, and training continues."
        )
        return extent

    def _free_name(self) -> Path:
        number = 1
        name = self.path.with_name(self.path.name + ".damaged")
        while disk.exists(name):
            number += 1
            name = self.path.with_name(f"{self.path.name}.damaged-{number}")
        return name


def _valid_rows(handle: int, path: Path, length: int, step: int) -> Iterator[bytes]:
    """Yields the lines of a damaged file that are rows, within its first `length` bytes and no later than `step`."""
    offset = last = 0
    for line in _complete_lines(handle, path):
        if offset >= length:
            return
        try:
            found = _values(path, 0, line).get("step")
        except DamagedError:
            # A damaged line may have lost its line end and so hold several rows. Counted as one row of usual length,
            # it does not end the search too early.
            offset += min(len(line), last)
            continue
        offset += len(line)
        last = len(line)
        if found is not None and is_count(found) and found <= step:
            yield line


def _complete_lines(handle: int, path: Path) -> Iterator[bytes]:
    """Yields the lines that have an end, up to the first that is too long to be a row."""
    with suppress(DamagedError):
        yield from (line for line in _lines(handle, path) if line.endswith(b"\n"))
