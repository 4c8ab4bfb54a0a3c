"""One checkpoint: a folder with `arrays.safetensors`, `info.json` and `manifest.json`, which has their SHA-256."""

import hashlib
import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np

from covey.errors import require
from covey.storage.atomic import (
    PARTIAL,
    DamagedError,
    digest_of,
    make_folder,
    read_bytes,
    reading,
    remove,
    rename,
    sync_folder,
    write_new,
)
from covey.storage.documents import LIMIT, is_count, is_number, parse
from covey.storage.jsonl import as_place
from covey.storage.tensors import encode, read_arrays

FORMAT = 2
"""The version in `info.json`, of the layout of the arrays (`storage/layout.py`) and of the fields of `info.json`."""
ARRAYS, INFO, MANIFEST = "arrays.safetensors", "info.json", "manifest.json"

Checkpoint = tuple[dict[str, np.ndarray], dict[str, Any]]
"""Arrays by name, and the values of `info.json`."""


def write(folder: Path, arrays: dict[str, np.ndarray], info: dict[str, Any]) -> None:
    """Writes a checkpoint under a temporary name, brings it to the disk, and renames it."""
    partial = folder.with_name(folder.name + PARTIAL)
    make_folder(folder.parent)  # alone: a run folder that was deleted meanwhile is not made again
    remove(partial)
    try:
        make_folder(partial)
        digests = {ARRAYS: write_new(partial / ARRAYS, encode(arrays))}
        digests[INFO] = write_new(partial / INFO, [json.dumps({"format": FORMAT} | info).encode()])
        write_new(partial / MANIFEST, [json.dumps(digests).encode()])
        sync_folder(partial)
        rename(partial, folder)
    except BaseException:
        with suppress(OSError):
            remove(partial)  # on a full disk, the half that was written is space that the user needs
        raise
    sync_folder(folder.parent)


def load(folder: Path) -> Checkpoint:
    """Arrays and info of a checkpoint, verified. Damaged with the reason; an OSError where it can't be read."""
    with _opened(folder, INFO, ARRAYS) as (expected, info, arrays):
        found = _checked_info(folder, expected, info)
        try:
            values, digest = read_arrays(arrays)
        except DamagedError as error:
            raise DamagedError(f"{ARRAYS}: {error}") from None
        _check_digest(ARRAYS, expected, digest)
        return values, found


def load_info(folder: Path) -> dict[str, Any]:
    with _opened(folder, INFO) as (expected, info):
        return _checked_info(folder, expected, info)


def verify(folder: Path) -> str:
    """Reads every byte of a checkpoint. Empty, or DamagedError."""
    with _opened(folder, INFO, ARRAYS) as (expected, info, arrays):
        _checked_info(folder, expected, info)
        _check_digest(ARRAYS, expected, digest_of(arrays))
        return ""


@contextmanager
def _opened(folder: Path, *names: str) -> Iterator[tuple[Any, ...]]:
    """The manifest, and descriptors of files: all opened first, so that they can be read though they are replaced."""
    with ExitStack() as stack:
        handles = []
        for name in (MANIFEST, *names):
            try:
                handles.append(stack.enter_context(reading(folder / name)))
            except (FileNotFoundError, NotADirectoryError):
                raise DamagedError(f"{name} is missing") from None
        try:
            manifest = parse(read_bytes(handles[0], LIMIT, folder / MANIFEST))
        except DamagedError as error:
            raise DamagedError(f"its manifest can't be read: {error}") from None
        if not isinstance(manifest, dict):
            raise DamagedError("its manifest is not one of covey's")
        yield (manifest, *handles[1:])


def _check_digest(name: str, manifest: dict[str, Any], digest: str) -> None:
    if manifest.get(name) != digest:
        raise DamagedError(f"{name} has changed")


def _checked_info(folder: Path, manifest: dict[str, Any], handle: int) -> dict[str, Any]:
    data = read_bytes(handle, LIMIT, folder / INFO)
    _check_digest(INFO, manifest, hashlib.sha256(data).hexdigest())
    info = parse(data)
    if not isinstance(info, dict):
        raise DamagedError(f"{INFO} is no object")
    _check_format(folder, info.pop("format", 1))
    for name, fits in INFO_FIELDS.items():
        if name in info and not fits(info[name]):
            raise DamagedError(f"{name} in {INFO} is {str(info[name])[:80]!r}")
    return info


def _check_format(folder: Path, number: Any) -> None:
    """Raises a CoveyError if a checkpoint has a version that this covey does not read."""
    if not is_count(number):
        raise DamagedError(f"format in {INFO} is {str(number)[:80]!r}")
    older = "It was written by an earlier covey; train again, or use the covey that wrote it."
    remedy = older if number < FORMAT else "Install a newer covey."
    require(
        number == FORMAT, f"{folder} is a checkpoint of format {number}, and this covey reads format {FORMAT}. {remedy}"
    )


def _is_best(value: Any) -> bool:
    return value is None or (
        isinstance(value, dict)
        and value.keys() == {"value", "step"}
        and is_number(value["value"])
        and is_count(value["step"])
    )


INFO_FIELDS: dict[str, Callable[[Any], bool]] = {
    "step": is_count,
    "wall": is_number,
    "value": is_number,
    "best": _is_best,
    "files": lambda value: isinstance(value, dict) and all(as_place(place) for place in value.values()),
    "processes": lambda value: is_count(value) and value > 0,
}
"""What each field of `info.json` may be."""


def require_fields(info: dict[str, Any], *names: str) -> None:
    """Raises a CoveyError where a checkpoint does not say what is needed."""
    missing = [name for name in names if name not in info]
    require(not missing, f"The checkpoint was not written by covey: its {INFO} lacks {', '.join(missing)}.")
