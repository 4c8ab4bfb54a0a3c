"""Writes and reads one checkpoint: a folder with `arrays.safetensors`, `info.json` and `manifest.json`.

The manifest has the SHA-256 of the other two. `covey/storage/layout.py` says what the arrays are.
"""

import hashlib
import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np

from covey.errors import require
from covey.storage import disk
from covey.storage.disk import DamagedError
from covey.storage.documents import LIMIT, is_count, is_number, parse
from covey.storage.extent import as_extent
from covey.storage.tensors import encode, read_arrays

FORMAT = 2
"""The version in `info.json`, of its fields and of the names of the arrays."""
ARRAYS = "arrays.safetensors"
INFO = "info.json"
MANIFEST = "manifest.json"

Checkpoint = tuple[dict[str, np.ndarray], dict[str, Any]]
"""Arrays by name, and the values of `info.json`."""


def write(folder: Path, arrays: dict[str, np.ndarray], info: dict[str, Any]) -> None:
    """Writes a checkpoint under a temporary name, syncs it, and renames it."""
    partial = disk.partial_path(folder)
    disk.make_folder(folder.parent)  # not its parents: if the run folder was deleted, it stays deleted
    disk.remove(partial)
    try:
        disk.make_folder(partial)
        digests = {ARRAYS: disk.write_new(partial / ARRAYS, encode(arrays))}
        digests[INFO] = disk.write_new(partial / INFO, [json.dumps({"format": FORMAT} | info).encode()])
        disk.write_new(partial / MANIFEST, [json.dumps(digests).encode()])
        disk.sync_folder(partial)
        disk.rename(partial, folder)
    except BaseException:
        with suppress(OSError):
            disk.remove(partial)  # if the disk is full, the user needs the space
        raise
    disk.sync_folder(folder.parent)


def load(folder: Path) -> Checkpoint:
    """Reads and verifies a checkpoint.

    Raises:
        DamagedError: It is damaged; the message is the reason.
        OSError: It can't be read, and may be intact.
        CoveyError: It has another format.
    """
    with _opened(folder, INFO, ARRAYS) as (manifest, info, arrays):
        found = _read_info(folder, manifest, info)
        try:
            values, digest = read_arrays(arrays)
        except DamagedError as error:
            raise DamagedError(f"{ARRAYS}: {error}") from None
        _check_digest(ARRAYS, manifest, digest)
        return values, found


def load_info(folder: Path) -> dict[str, Any]:
    """Reads and verifies `info.json` alone, with the errors of `load`."""
    with _opened(folder, INFO) as (manifest, info):
        return _read_info(folder, manifest, info)


def verify(folder: Path) -> None:
    """Reads and verifies every byte of a checkpoint, with the errors of `load`."""
    with _opened(folder, INFO, ARRAYS) as (manifest, info, arrays):
        _read_info(folder, manifest, info)
        _check_digest(ARRAYS, manifest, disk.sha256_of(arrays))


@contextmanager
def _opened(folder: Path, *names: str) -> Iterator[tuple[Any, ...]]:
    """Yields the manifest and open files. All are opened first: the checkpoint may be removed while they are read."""
    with ExitStack() as stack:
        handles = []
        for name in (MANIFEST, *names):
            try:
                handles.append(stack.enter_context(disk.reading(folder / name)))
            except (FileNotFoundError, NotADirectoryError):
                raise DamagedError(f"{name} is missing") from None
        try:
            manifest = parse(disk.read_all(handles[0], LIMIT, folder / MANIFEST))
        except DamagedError as error:
            raise DamagedError(f"its manifest can't be read: {error}") from None
        if not isinstance(manifest, dict):
            raise DamagedError("its manifest is not one of covey's")
        yield (manifest, *handles[1:])


def _check_digest(name: str, manifest: dict[str, Any], digest: str) -> None:
    if manifest.get(name) != digest:
        raise DamagedError(f"{name} has changed")


def _read_info(folder: Path, manifest: dict[str, Any], handle: int) -> dict[str, Any]:
    data = disk.read_all(handle, LIMIT, folder / INFO)
    _check_digest(INFO, manifest, hashlib.sha256(data).hexdigest())
    info = parse(data)
    if not isinstance(info, dict):
        raise DamagedError(f"{INFO} is not a JSON object")
    _check_format(folder, info.pop("format", 1))
    for name, is_valid in INFO_FIELDS.items():
        if name in info and not is_valid(info[name]):
            raise DamagedError(f"{name} in {INFO} is {str(info[name])[:80]!r}")
    return info


def _check_format(folder: Path, number: Any) -> None:
    """Raises a CoveyError if this covey does not read the format."""
    if not is_count(number):
        raise DamagedError(f"format in {INFO} is {str(number)[:80]!r}")
    older = "It was written by an earlier covey; train again, or use the covey that wrote it."
    remedy = older if number < FORMAT else "Install a newer covey."
    require(number == FORMAT, f"{folder} has format {number}, and this covey reads format {FORMAT}. {remedy}")


def _is_best(value: Any) -> bool:
    if not isinstance(value, dict):
        return value is None
    return value.keys() == {"value", "step"} and is_number(value["value"]) and is_count(value["step"])


INFO_FIELDS: dict[str, Callable[[Any], bool]] = {
    "step": is_count,
    "wall": is_number,
    "value": is_number,
    "best": _is_best,
    "files": lambda value: isinstance(value, dict) and all(as_extent(extent) for extent in value.values()),
    "processes": lambda value: is_count(value) and value > 0,
}
"""Fields of `info.json`, and whether a value of each is valid."""


def require_fields(info: dict[str, Any], *names: str) -> None:
    """Raises a CoveyError if `info.json` lacks one of these fields."""
    missing = [name for name in names if name not in info]
    require(not missing, f"The checkpoint was not written by covey: its {INFO} lacks {', '.join(missing)}.")
