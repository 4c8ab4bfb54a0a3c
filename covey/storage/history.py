"""Reads the files that grow while a run trains, verified against its newest checkpoint."""

import json
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

from covey.errors import CoveyError, require
from covey.storage.atomic import replace_text
from covey.storage.disk import DamagedError, read_error
from covey.storage.documents import read_document
from covey.storage.extent import Extent, as_extent
from covey.storage.jsonl import Row, read_rows
from covey.storage.store import Store

T = TypeVar("T")
ATTEMPTS = 3
"""Attempts to read a file that a trainer may change meanwhile."""
PAUSE = 0.1
"""Seconds between two attempts."""
RECOVERED = "recovered.json"
"""Extents of files that were recovered after the newest checkpoint."""
FINISHED = "finished.json"
"""Extents of the files of a finished run. Its last rows follow its last checkpoint, so that a run that is resumed with
more steps drops them."""


def read_history(path: Path, build: Callable[[Iterator[Row]], T]) -> T:
    """Reads a file of JSON lines of a run folder.

    Args:
        path: The file: `metrics.jsonl`, `lineage.jsonl` or `evaluation/episodes.jsonl`.
        build: Makes the result from the rows. It may raise DamagedError.

    Returns:
        The result of `build`.

    Raises:
        CoveyError: The file is damaged or missing.
    """
    folder = path.parent.parent if path.name == "episodes.jsonl" else path.parent
    fault = remedy = ""
    for attempt in range(ATTEMPTS):
        known = known_extents(folder).get(path.stem)
        try:
            return build(read_rows(path, known))
        except FileNotFoundError:
            require(known is not None, f"{path} does not exist. Has the run been trained?")
            fault = f"{path} is missing"
            remedy = f"Restore it from a copy: `covey resume {folder}` starts a new one."
        except DamagedError as error:
            fault = str(error).removesuffix(".")
            remedy = f"Restore it from a copy, or let `covey resume {folder}` rename it and keep its valid rows."
        except OSError as error:
            raise read_error(path, error) from error
        if attempt and known == known_extents(folder).get(path.stem):
            break
        time.sleep(PAUSE)  # a run that has just been resumed truncates its files and removes checkpoints
    raise CoveyError(f"{fault}. {remedy}")


def known_extents(folder: Path) -> dict[str, Extent]:
    """Returns the verified parts of a run's growing files, from its newest checkpoint and, if finished, the run."""
    info = Store(folder / "checkpoints", "step").newest_info()
    return extents_of(folder, info) | _recorded(folder / FINISHED, info) if info else {}


def extents_of(folder: Path, info: Mapping[str, Any]) -> dict[str, Extent]:
    """Returns the extents in the info of a checkpoint, or those of files that were recovered after it."""
    found = {name: as_extent(value) for name, value in info.get("files", {}).items()}
    return {name: extent for name, extent in found.items() if extent} | _recorded(folder / RECOVERED, info)


def record(path: Path, step: int, extents: Mapping[str, Extent]) -> None:
    """Records extents that differ from those in the checkpoint of a step, until there is a newer checkpoint."""
    files = {name: extent.as_json() for name, extent in extents.items()}
    replace_text(path, json.dumps({"step": step, "files": files}) + "\n")


def _recorded(path: Path, info: Mapping[str, Any]) -> dict[str, Extent]:
    """Returns the extents that a file records for the checkpoint with this info; none if there is no such file."""
    try:
        found = read_document(path)
        if not isinstance(found, dict) or found.get("step") != info.get("step"):
            return {}
        extents = {name: as_extent(value) for name, value in found["files"].items()}
    except (FileNotFoundError, DamagedError, KeyError, AttributeError):
        return {}  # the files then match the checkpoint, or are recovered again
    except OSError as error:
        raise read_error(path, error) from error
    return {name: extent for name, extent in extents.items() if extent}
