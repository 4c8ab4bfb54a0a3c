"""Arrays in the format of safetensors.

The format: the length of the header (8 bytes), the header (JSON: name -> dtype, shape, offsets), the numbers. covey has
its own reader and writer because they tell errors of the disk from wrong content, and compute the digest in the same
pass.
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
from covey.storage.disk import CHUNK, DamagedError, file_size, read_into

MOST_HEADER = 10**8
"""The bytes of the longest header."""
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
    """The content of a file: arrays in the order of their bytes, metadata, and the offset of the first array."""

    tensors: dict[str, Tensor]
    metadata: dict[str, str]
    start: int


def encode(arrays: dict[str, np.ndarray], metadata: dict[str, str] | None = None) -> Iterator[memoryview]:
    """Yields the bytes of a file, in parts; the first part is the header."""
    # Larger numbers first, so that every array starts at a multiple of its item size.
    ordered = sorted(arrays.items(), key=lambda each: (-each[1].dtype.itemsize, each[0]))
    header: dict[str, Any] = {METADATA: metadata} if metadata else {}
    end = 0
    for name, array in ordered:
        start = end
        end += array.nbytes
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
    """Reads the header of an open file. Raises DamagedError with the reason if it does not describe this file."""
    length = file_size(handle)
    first = bytearray(8)
    read_into(handle, memoryview(first), 0)
    size = struct.unpack("<Q", first)[0]
    if size > min(MOST_HEADER, length - 8):
        raise DamagedError("its header is longer than the file")
    text = bytearray(size)
    read_into(handle, memoryview(text), 8)
    found = documents.parse(bytes(text))
    if not isinstance(found, dict):
        raise DamagedError("its header is not a JSON object")
    metadata = found.pop(METADATA, {})
    if not isinstance(metadata, dict) or not all(isinstance(text, str) for text in metadata.values()):
        raise DamagedError("its metadata are not texts")
    start = 8 + size
    tensors = {name: _tensor(name, entry, start) for name, entry in found.items()}
    tensors = dict(sorted(tensors.items(), key=lambda each: (each[1].offset, each[1].size)))
    end = start
    for name, tensor in tensors.items():
        if tensor.offset != end:
            raise DamagedError(f"{name} does not start where the array before it ends")
        end += tensor.size
    if end != length:
        raise DamagedError(f"it has {length:,} bytes, and its header says {end:,}")
    return Header(tensors, metadata, start)


def _tensor(name: str, entry: Any, start: int) -> Tensor:
    """Returns an entry of a header, checked."""
    try:
        kind, shape, (begin, end) = entry["dtype"], entry["shape"], entry["data_offsets"]
        counts = [begin, end, *shape]
    except (TypeError, KeyError, ValueError):
        raise DamagedError(f"the header's entry {name[:80]!r} is incomplete") from None
    if not isinstance(kind, str) or kind not in TYPES:
        raise DamagedError(f"{name[:80]} is of the unknown type {str(kind)[:20]!r}")
    if not all(documents.is_count(number) for number in counts):
        raise DamagedError(f"{name[:80]} has no valid shape and offsets")
    tensor = Tensor(TYPES[kind], tuple(shape), start + begin)
    if end - begin != tensor.size:
        raise DamagedError(f"{name[:80]} has {end - begin:,} bytes, and its shape needs {tensor.size:,}")
    return tensor


def read_arrays(handle: int) -> tuple[dict[str, np.ndarray], str]:
    """Reads all arrays of an open file in one pass. Returns them and the SHA-256 of the file."""
    header = read_header(handle)
    digest = hashlib.sha256(read_head(handle, header))
    arrays = {}
    for name, tensor in header.tensors.items():
        arrays[name] = empty(tensor)
        fill(handle, arrays[name], tensor.offset, digest.update)
    return arrays, digest.hexdigest()


def read_rows(handle: int, tensor: Tensor, start: int, stop: int) -> np.ndarray:
    """Reads rows `start` to `stop` (along the first axis) of an array of an open file."""
    row = tensor._replace(shape=tensor.shape[1:])
    return read_array(handle, Tensor(row.dtype, (stop - start, *row.shape), row.offset + start * row.size))


def read_array(handle: int, tensor: Tensor) -> np.ndarray:
    """Reads an array of an open file."""
    array = empty(tensor)
    fill(handle, array, tensor.offset)
    return array


def read_head(handle: int, header: Header) -> bytearray:
    """Reads the bytes before the first array."""
    head = bytearray(header.start)
    read_into(handle, memoryview(head), 0)
    return head


def fill(handle: int, array: np.ndarray, offset: int, also: Callable[[memoryview], None] | None = None) -> None:
    """Fills a contiguous array with the bytes of a file from an offset on; `also` is called with each part of them."""
    raw = _bytes(array)
    for start in range(0, len(raw), CHUNK):
        part = raw[start : start + CHUNK]
        read_into(handle, part, offset + start)
        if also:
            also(part)


def empty(tensor: Tensor) -> np.ndarray:
    """Allocates memory for an array. Raises a CoveyError if there is not enough."""
    try:
        return np.empty(tensor.shape, tensor.dtype)
    except (MemoryError, ValueError):
        raise CoveyError(f"An array of {tensor.size / 2**30:,.1f} GiB does not fit into memory.") from None


def _bytes(array: np.ndarray) -> memoryview:
    return array.reshape(-1).view(np.uint8).data
