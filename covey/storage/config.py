"""`config.json` of a run: values with a digest of themselves, so that a changed bit can't change a run unseen."""

import json
from pathlib import Path
from typing import Any

from covey.errors import CoveyError, require
from covey.storage import documents
from covey.storage.atomic import DamagedError, replace_text

DIGEST, CHANGES = "digest", "changes"
"""What the file holds besides the configuration: the SHA-256 of all else, and how many lines `changes.jsonl` has."""


def read_config(path: Path, follow: bool = False) -> dict[str, Any]:
    """The values in a file. `follow`: the user named it, so that it may be a symbolic link."""
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
    """The values in a run's own file; an error where they don't fit its digest, if it has one."""
    values = read_config(path)
    rest = {name: value for name, value in values.items() if name != DIGEST}
    require(
        values.get(DIGEST) in (None, documents.digest(rest)),
        f"{path} was edited or damaged: its values don't fit its digest. Restore it from a copy or, to accept the "
        f'values as they are, delete the line "{DIGEST}".',
    )
    changes = values.get(CHANGES, 0)
    require(documents.is_count(changes), f"{path}: {CHANGES} must be a number, not {str(changes)[:80]!r}.")
    return values


def write_config(path: Path, config: dict[str, Any], changes: int) -> None:
    """Replaces the file in one step: a reader sees the old values or the new ones."""
    values = config | ({CHANGES: changes} if changes else {})
    replace_text(path, json.dumps({DIGEST: documents.digest(values)} | values, indent=2) + "\n")
