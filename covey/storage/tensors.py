"""Arrays in the format of safetensors, through `atomic`: errors of the disk stay apart from content that is wrong.

The format: the length of the header (8 bytes), the header (JSON: name -> dtype, shape, place), the numbers.
"""

import hashlib
import json
import math
import struct
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np

from covey.errors import CoveyError
from covey.storage import documents
from covey.storage.atomic import CHUNK, DamagedError, read_into, size_of

MOST_HEADER = 10**8
METADATA = "__metadata__"
TYPES = {
    name: np.dtype(kind)
    for name, kind in {
        **{"F64": "<f8", "F32": "<f4", "F16": "<f2", "I64": "<i8", "I32": "<i4", "I16": "<i2", "I8": "|i1"},
        **{"U64": "<u8", "U32": "<u4", "U16": "<u2", "U8": "|u1", "BOOL": "|b1", "C64": "<c8"},
        **{"BF16": ml_dtypes.bfloat16, "F8_E4M3": ml_dtypes.float8_e4m3fn, "F8_E5M2": ml_dtypes.float8_e5m2},
    }.items()
}
NAMES = {kind: name for name, kind in TYPES.items()}


class Tensor(NamedTuple):
    """An array in a file; `offset` is that of its first byte."""

    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    offset: int

    @property
    def size(self) -> int:
        """Bytes."""
        return math.prod(self.shape) * self.dtype.itemsize


class Header(NamedTuple):
    """What a file holds: arrays in the order of their bytes, and texts."""

    tensors: dict[str, Tensor]
    texts: dict[str, str]
    start: int
    """The offset of the first array."""


def encode(arrays: dict[str, np.ndarray], texts: dict[str, str] | None = None) -> Iterator[memoryview]:
    """The bytes of a file, in parts."""
    # Larger numbers first: every array begins at a multiple of its own size.
    ordered = sorted(arrays.items(), key=lambda each: (-each[1].dtype.itemsize, each[0]))
    header: dict[str, Any] = {METADATA: texts} if texts else {}
    end = 0
    for name, array in ordered:
        start, end = end, end + array.nbytes
        kind = NAMES.get(array.dtype)
        if kind is None:
            raise CoveyError(f"{name} is of type {array.dtype}, which a checkpoint can't hold.")
        header[name] = {"dtype": kind, "shape": list(array.shape), "data_offsets": [start, end]}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    yield memoryview(struct.pack("<Q", len(text)) + text)
    for _, array in ordered:
        raw = _bytes(np.ascontiguousarray(array))
        for start in range(0, len(raw), CHUNK):
            yield raw[start : start + CHUNK]


def read_header(handle: int) -> Header:
    """The header of an open file. Damaged, with the reason, where it describes anything but this very file."""
    length = size_of(handle)
    first = bytearray(8)
    read_into(handle, memoryview(first), 0)
    size = struct.unpack("<Q", first)[0]
    if size > min(MOST_HEADER, length - 8):
        raise DamagedError("its header is longer than the file")
    text = bytearray(size)
    read_into(handle, memoryview(text), 8)
    found = documents.parse(bytes(text))
    if not isinstance(found, dict):
        raise DamagedError("its header is no object")
    texts = found.pop(METADATA, {})
    if not isinstance(texts, dict) or not all(isinstance(text, str) for text in texts.values()):
        raise DamagedError("its metadata are no texts")
    tensors = {name: _tensor(name, about, 8 + size) for name, about in found.items()}
    tensors = dict(sorted(tensors.items(), key=lambda each: (each[1].offset, each[1].size)))
    end = 8 + size
    for name, tensor in tensors.items():
        if tensor.offset != end:
            raise DamagedError(f"{name} does not begin where the array before it ends")
        end += tensor.size
    if end != length:
        raise DamagedError(f"it has {length:,} bytes, and its header says {end:,}")
    return Header(tensors, texts, 8 + size)


def fill(handle: int, array: np.ndarray, offset: int, seen: Callable[[memoryview], None] | None = None) -> None:
    """Fills a contiguous array with the bytes of a file from an offset on; `seen` is given them too, in parts."""
    raw = _bytes(array)
    for start in range(0, len(raw), CHUNK):
        part = raw[start : start + CHUNK]
        read_into(handle, part, offset + start)
        if seen:
            seen(part)


def read_arrays(handle: int) -> tuple[dict[str, np.ndarray], str]:
    """All arrays of an open file, and the SHA-256 of it, in one pass over the bytes."""
    header = read_header(handle)
    digest = hashlib.sha256(head_of(handle, header))
    arrays = {}
    for name, tensor in header.tensors.items():
        arrays[name] = empty(tensor)
        fill(handle, arrays[name], tensor.offset, digest.update)
    return arrays, digest.hexdigest()


def read_leading(handle: int, tensor: Tensor, start: int = 0, stop: int | None = None) -> np.ndarray:
    """An array of an open file, or rows `start` to `stop` of it, which lie together."""
    if stop is not None:
        row = tensor._replace(shape=tensor.shape[1:]).size
        tensor = Tensor(tensor.dtype, (stop - start, *tensor.shape[1:]), tensor.offset + start * row)
    array = empty(tensor)
    fill(handle, array, tensor.offset)
    return array


def head_of(handle: int, header: Header) -> bytearray:
    """The bytes before the first array."""
    head = bytearray(header.start)
    read_into(handle, memoryview(head), 0)
    return head


def empty(tensor: Tensor) -> np.ndarray:
    """Memory for an array; an error where there is not enough."""
    try:
        return np.empty(tensor.shape, tensor.dtype)
    except (MemoryError, ValueError):
        raise CoveyError(f"An array of {tensor.size / 2**30:,.1f} GiB does not fit into memory.") from None


def _tensor(name: str, about: Any, start: int) -> Tensor:
    """The entry of a header."""
    try:
        kind, shape, (begin, end) = about["dtype"], about["shape"], about["data_offsets"]
        counts = [begin, end, *shape]
    except (TypeError, KeyError, ValueError):
        raise DamagedError(f"the header's entry {name[:80]!r} is incomplete") from None
    if not isinstance(kind, str) or kind not in TYPES:
        raise DamagedError(f"{name[:80]} is of the unknown type {str(kind)[:20]!r}")
    if not all(documents.is_count(number) for number in counts):
        raise DamagedError(f"{name[:80]} has no valid shape and place")
    tensor = Tensor(TYPES[kind], tuple(shape), start + begin)
    if end - begin != tensor.size:
        raise DamagedError(f"{name[:80]} has {end - begin:,} bytes, and its shape needs {tensor.size:,}")
    return tensor


def _bytes(array: np.ndarray) -> memoryview:
    return array.reshape(-1).view(np.uint8).data
