"""The files that grow while a run trains, read back and verified against what its newest checkpoint knows of them."""

import json
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

from covey.errors import CoveyError, require
from covey.storage.atomic import DamagedError, replace_text, unreadable
from covey.storage.documents import read_document
from covey.storage.jsonl import Place, Row, as_place, read_rows
from covey.storage.store import Store

T = TypeVar("T")
ATTEMPTS, PAUSE = 3, 0.1
"""How often, and with how many seconds between, a reader looks whether a file was changed by a trainer meanwhile."""
RECOVERED, FINISHED = "recovered.json", "finished.json"
"""Files that record how long the others are: after a recovery, and after the last rows of a run, which follow its last
checkpoint because a run that is resumed with more steps forgets them."""


def read_history(path: Path, build: Callable[[Iterator[Row]], T]) -> T:
    """What `build` makes of the rows of a file of a run; an error in one sentence where the file is damaged."""
    folder = path.parent.parent if path.name == "episodes.jsonl" else path.parent
    fault = remedy = ""
    for attempt in range(ATTEMPTS):
        known = known_places(folder).get(path.stem)
        try:
            return build(read_rows(path, known))
        except FileNotFoundError:
            require(known is not None, f"{path} does not exist. Has the run been trained?")
            fault, remedy = f"{path} is missing", f"Restore it from a copy: `covey resume {folder}` begins a new one."
        except DamagedError as error:
            fault = str(error).removesuffix(".")
            remedy = f"Restore it from a copy, or let `covey resume {folder}` set it aside and keep its sound rows."
        except OSError as error:
            raise unreadable(path, error) from error
        if attempt and known == known_places(folder).get(path.stem):
            break
        time.sleep(PAUSE)  # a run that was just resumed cuts its files and removes checkpoints
    raise CoveyError(f"{fault}. {remedy}")


def known_places(folder: Path) -> dict[str, Place]:
    """What is known of the files that grow: by the newest checkpoint of a run folder and, at its end, by the run."""
    info = Store(folder / "checkpoints", "step").newest_info()
    return places_of(folder, info) | _recorded(folder / FINISHED, info) if info else {}


def places_of(folder: Path, info: Mapping[str, Any]) -> dict[str, Place]:
    """The places that a checkpoint's info names, but for files that were recovered since it was written."""
    found = {name: as_place(value) for name, value in info.get("files", {}).items()}
    return {name: place for name, place in found.items() if place} | _recorded(folder / RECOVERED, info)


def record(path: Path, step: int, places: Mapping[str, Place]) -> None:
    """Writes down how long files are that were changed after the checkpoint of a step, until there is a newer one."""
    files = {name: place.as_json() for name, place in places.items()}
    replace_text(path, json.dumps({"step": step, "files": files}) + "\n")


def _recorded(path: Path, info: Mapping[str, Any]) -> dict[str, Place]:
    """The places that a file records for the checkpoint with this info; none where there is no such file."""
    try:
        found = read_document(path)
        if not isinstance(found, dict) or found.get("step") != info.get("step"):
            return {}
        places = {name: as_place(value) for name, value in found["files"].items()}
    except (FileNotFoundError, DamagedError, KeyError, AttributeError):
        return {}  # then the files are as the checkpoint knows them, or are recovered again
    except OSError as error:
        raise unreadable(path, error) from error
    return {name: place for name, place in places.items() if place}
