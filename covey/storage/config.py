"""`config.json` of a run: its values and their digest, so that a flipped bit is noticed."""

import json
from pathlib import Path
from typing import Any

from covey.errors import CoveyError, require
from covey.storage import documents
from covey.storage.atomic import replace_text
from covey.storage.disk import DamagedError

DIGEST = "digest"
"""The key of the SHA-256 of all other values."""
CHANGES = "changes"
"""The key of the number of lines of `changes.jsonl`."""


def read_config(path: Path, follow: bool = False) -> dict[str, Any]:
    """Returns the values in a file. With `follow` it may be a symbolic link, because the user named it."""
    try:
        data = documents.read_document(path, follow)
    except FileNotFoundError:
        raise CoveyError(f"There is no configuration {path}. A run folder has one, called config.json.") from None
    except OSError as error:
        raise CoveyError(f"{path} can't be read as a configuration: {error.strerror or error}.") from None
    except DamagedError as error:
        raise CoveyError(f"{path} can't be read as a configuration: {str(error).removesuffix('.')}.") from None
    require(isinstance(data, dict) and isinstance(data.get("algorithm"), str), f"{path} names no algorithm.")
    return data


def read_verified(path: Path) -> dict[str, Any]:
    """Returns the values in the file of a run. Raises a CoveyError if it has a digest and they don't match it."""
    values = read_config(path)
    rest = {name: value for name, value in values.items() if name != DIGEST}
    require(
        values.get(DIGEST) in (None, documents.digest(rest)),
        f"{path} was edited or damaged: its values don't match its digest. Restore it from a copy or, to accept the "
        f'values as they are, delete the line "{DIGEST}".',
    )
    changes = values.get(CHANGES, 0)
    require(documents.is_count(changes), f"{path}: {CHANGES} must be a number, not {str(changes)[:80]!r}.")
    return values


def write_config(path: Path, config: dict[str, Any], changes: int) -> None:
    """Replaces the file: a reader sees the old values or the new ones.

    Args:
        path: The file.
        config: The values, as JSON.
        changes: The number of lines of `changes.jsonl`.
    """
    values = config | ({CHANGES: changes} if changes else {})
    replace_text(path, json.dumps({DIGEST: documents.digest(values)} | values, indent=2) + "\n")
