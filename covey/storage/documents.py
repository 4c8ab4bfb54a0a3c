"""JSON documents, read with a limit on everything, and with a digest of themselves where they must not change."""

import hashlib
import json
import math
from pathlib import Path
from typing import Any

from covey.storage.atomic import DamagedError, read_bytes, reading

LIMIT = 2**24
"""Bytes of the longest document."""
LARGEST = 2**63
"""Whole numbers in a document are smaller."""


def parse(data: bytes) -> Any:
    """The values of a JSON text. Damaged, with the reason, where it is none."""
    try:
        return json.loads(data.decode(), parse_int=_whole, parse_float=_number)
    except RecursionError:
        raise DamagedError("it is nested too deeply") from None
    except ValueError as error:
        raise DamagedError(f"it is not valid JSON ({error})") from None


def read_document(path: Path, follow: bool = False) -> Any:
    """The values in a JSON file. `follow`: the user named it, so that it may be a symbolic link."""
    with reading(path, follow) as handle:
        return parse(read_bytes(handle, LIMIT, path))


def digest(values: dict[str, Any]) -> str:
    """The SHA-256 of JSON values, whatever their layout as text."""
    return hashlib.sha256(json.dumps(values, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def is_count(value: Any) -> bool:
    """Whether a value is a whole number that is not negative."""
    return type(value) is int and value >= 0


def is_number(value: Any) -> bool:
    """Whether a value is a finite number."""
    return type(value) in (int, float) and math.isfinite(value)


def _whole(text: str) -> int:
    value = int(text) if len(text) < 32 else LARGEST
    if abs(value) >= LARGEST:
        raise ValueError(f"the number {text[:20]}... is too large")
    return value


def _number(text: str) -> float:
    value = float(text)
    if math.isinf(value):
        raise ValueError(f"the number {text[:20]} is too large")
    return value
