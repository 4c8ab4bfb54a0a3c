"""Lines of JSON: appended while a run trains, verified when they are read against what a checkpoint knows of them."""

import json
import zlib
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from covey.storage.atomic import (
    CHUNK,
    DamagedError,
    close,
    is_there,
    open_to_append,
    read_at,
    reading,
    rename,
    replacing,
    size_of,
    sync,
    sync_folder,
    truncate,
    unreadable,
    write_all,
)
from covey.storage.documents import is_count

MOST_LINE = 2**20
"""Bytes of the longest line."""


class Place(NamedTuple):
    """The first bytes of a file: how many, and their CRC-32. The CRC is unknown in runs of an earlier covey."""

    length: int
    crc: int | None = 0

    def as_json(self) -> dict[str, int | None]:
        return self._asdict()


START = Place(0, 0)


def as_place(value: Any) -> Place | None:
    """A place from JSON values; None where they are none."""
    if is_count(value):
        return Place(value, None)
    if isinstance(value, dict) and value.keys() == {"length", "crc"} and all(is_count(x) for x in value.values()):
        return Place(**value)
    return None


class Row(NamedTuple):
    """A line: its number from 1, its values, and the line itself."""

    number: int
    values: dict[str, Any]
    line: bytes


def read_rows(path: Path, known: Place | None = None) -> Iterator[Row]:
    """The rows of a file; a last line that a kill cut short is left out.

    An error where a line is no JSON object, or where the file does not begin with the bytes that are `known`.
    """
    length = crc = 0
    with reading(path) as handle:
        for number, line in enumerate(_lines(handle, path), 1):
            if known and length < known.length:
                crc = zlib.crc32(line, crc)
            length += len(line)
            if line.endswith(b"\n"):
                yield Row(number, _values(path, number, line), line)
            if known and length == known.length and known.crc not in (None, crc):
                raise DamagedError(f"{path} is damaged: its first {length:,} bytes are not those that were saved.")
            if known and length - len(line) < known.length < length:
                raise DamagedError(f"{path} is damaged: the checkpoint ends within its line {number}.")
    if known and length < known.length:
        raise DamagedError(f"{path} is damaged: it has {length:,} bytes, and {known.length:,} were saved.")


def _lines(handle: int, path: Path) -> Iterator[bytes]:
    """The lines of an open file, the last one perhaps without its end."""
    rest, offset = b"", 0
    while part := read_at(handle, CHUNK, offset):
        offset += len(part)
        *whole, rest = (rest + part).split(b"\n")
        for line in whole:
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
        raise DamagedError(f"{path} is damaged: line {number}, {line[:80]!r}, is no row.")
    return values


class Jsonl:
    """Rows appended to a file. `place` is where a checkpoint stands in it."""

    def __init__(self, path: Path, place: Place = START, say: Callable[[str], None] = print, step: int = 0) -> None:
        """Opens the file and forgets what was written after `place`: a resumed run writes it again.

        A file that does not begin with what the checkpoint of `step` knows is set aside, and its sound rows are kept.
        """
        self.path, self.recovered = path, False
        self._buffer = bytearray()
        self.place = START
        if place.length:
            self.place = self._verified(place) or self._recover(place, say, step)
        self._handle = open_to_append(path)
        if size_of(self._handle) > self.place.length:
            truncate(self._handle, self.place.length)
        sync_folder(path.parent)  # a checkpoint that counts on the file must not outlive its name

    def row(self, **values: Any) -> None:
        line = (json.dumps(values) + "\n").encode()
        self._buffer += line
        length, crc = self.place
        self.place = Place(length + len(line), zlib.crc32(line, crc or 0))

    def flush(self) -> None:
        rows, self._buffer = self._buffer, bytearray()
        write_all(self._handle, rows)

    def sync(self) -> Place:
        """Brings everything to the disk; returns the place, which a checkpoint may then rely on."""
        self.flush()
        sync(self._handle)
        return self.place

    def close(self) -> None:
        """May be called again."""
        handle, self._handle = self._handle, -1
        if handle < 0:
            return
        try:
            write_all(handle, self._buffer)
        finally:
            close(handle)

    def _verified(self, known: Place) -> Place | None:
        """The place, with its CRC, if the file begins so and a line ends there."""
        length, crc, last = 0, 0, b""
        try:
            with reading(self.path) as handle:
                while part := read_at(handle, min(CHUNK, known.length - length), length):
                    length, crc, last = length + len(part), zlib.crc32(part, crc), part[-1:]
        except FileNotFoundError:
            return None
        except OSError as error:
            raise unreadable(self.path, error) from error
        whole = length == known.length and known.crc in (None, crc) and last == b"\n"
        return Place(length, crc) if whole else None

    def _recover(self, known: Place, say: Callable[[str], None], step: int) -> Place:
        """Sets a damaged file aside and keeps what can be used of it: rows that can be read, up to the checkpoint."""
        self.recovered = True
        if not is_there(self.path):
            say(f"{self.path} is missing: what it held before step {step:,} is lost, and training starts a new one.")
            return START
        aside = self._free_name()
        rename(self.path, aside)
        rows, place = 0, START
        with reading(aside) as old, replacing(self.path) as new:
            for line in _sound(old, aside, known.length, step):
                write_all(new, line)
                place = Place(place.length + len(line), zlib.crc32(line, place.crc or 0))
                rows += 1
        say(
            f"{self.path} is damaged: it is not what the checkpoint of step {step:,} knows. Set aside as {aside.name}; "
            f"{rows:,} rows that can be read were kept, and training continues."
        )
        return place

    def _free_name(self) -> Path:
        number, aside = 1, self.path.with_name(self.path.name + ".damaged")
        while is_there(aside):
            number += 1
            aside = self.path.with_name(f"{self.path.name}.damaged-{number}")
        return aside


def _sound(handle: int, path: Path, length: int, step: int) -> Iterator[bytes]:
    """The whole lines of a damaged file that are rows of a step up to the checkpoint's, and come before its place."""
    place = last = 0
    for line in _whole_lines(handle, path):
        if place >= length:
            return
        try:
            found = _values(path, 0, line).get("step")
        except DamagedError:
            place += min(len(line), last)  # as long as a row, which it may have been
            continue
        place, last = place + len(line), len(line)
        if found is not None and is_count(found) and found <= step:
            yield line


def _whole_lines(handle: int, path: Path) -> Iterator[bytes]:
    """The lines that end, up to one that is too long to be one."""
    with suppress(DamagedError):
        yield from (line for line in _lines(handle, path) if line.endswith(b"\n"))
