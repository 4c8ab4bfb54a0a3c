"""Reads JSON files with limits on their size and numbers, and computes digests of their values."""

import hashlib
import json
import math
from pathlib import Path
from typing import Any

from covey.storage.disk import DamagedError, read_all, reading

LIMIT = 2**24
"""The bytes of the longest document."""
LARGEST = 2**63
"""Integers in a document are smaller."""


def parse(data: bytes) -> Any:
    """Returns the values of a JSON text. Raises DamagedError with the reason if it is not one."""
    try:
        return json.loads(data.decode(), parse_int=_parse_int, parse_float=_parse_float)
    except RecursionError:
        raise DamagedError("it is nested too deeply") from None
    except ValueError as error:
        raise DamagedError(f"it is not valid JSON ({error})") from None


def read_document(path: Path, follow: bool = False) -> Any:
    """Returns the values in a JSON file. With `follow` it may be a symbolic link, because the user named it."""
    with reading(path, follow) as handle:
        return parse(read_all(handle, LIMIT, path))


def digest(values: dict[str, Any]) -> str:
    """Returns the SHA-256 of JSON values, independent of their formatting."""
    return hashlib.sha256(json.dumps(values, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def is_count(value: Any) -> bool:
    """Returns whether a value is an integer of at least 0."""
    return type(value) is int and value >= 0


def is_number(value: Any) -> bool:
    """Returns whether a value is a finite number."""
    return type(value) in (int, float) and math.isfinite(value)


def _parse_int(text: str) -> int:
    value = int(text) if len(text) < 32 else LARGEST
    if abs(value) >= LARGEST:
        raise ValueError(f"the number {text[:20]}... is too large")
    return value


def _parse_float(text: str) -> float:
    value = float(text)
    if math.isinf(value):
        raise ValueError(f"the number {text[:20]} is too large")
    return value
