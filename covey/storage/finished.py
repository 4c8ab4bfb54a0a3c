"""Tells whether a run is finished, so that resuming it has nothing to do."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from covey.errors import CoveyError
from covey.storage.atomic import replace_text
from covey.storage.config import DIGEST
from covey.storage.disk import DamagedError
from covey.storage.documents import digest, read_document
from covey.storage.folder import RunFolder
from covey.storage.history import read_history
from covey.storage.layout import not_finite
from covey.storage.store import Store

STEPS = "steps"
"""The key of the length of the run that was evaluated."""


def write_final(folder: RunFolder, steps: int, evaluation: dict[str, Any]) -> None:
    """Writes `final.json`, the last file of a run: the evaluation of its best policy after `steps` steps."""
    values = {STEPS: steps} | evaluation
    replace_text(_final(folder), json.dumps({DIGEST: digest(values)} | values, indent=2) + "\n")


def is_finished(folder: RunFolder, steps: int, islands: int, report: Callable[[str], None]) -> bool:
    """Returns whether a run has made all its steps and its final evaluation, and nothing of it is damaged.

    Args:
        folder: The run folder, which must be locked: damaged checkpoints are renamed.
        steps: The steps of its configuration.
        islands: The number of its islands.
        report: Called with a sentence about each damaged checkpoint.
    """
    folders = [folder] if islands == 1 else [folder.island(number) for number in range(islands)]
    try:
        if read_final(folder, steps) is None or not all(_has_checkpoints(each, steps, report) for each in folders):
            return False
        folder.changed_since(steps)
        for path in (folder.metrics, folder.episodes, *([folder.lineage] if folder.lineage.exists() else [])):
            read_history(path, lambda rows: sum(1 for _ in rows))
    except CoveyError:
        return False  # resuming it reports what is wrong
    return True


def _final(folder: RunFolder) -> Path:
    return folder.episodes.parent / "final.json"


def read_final(folder: RunFolder, steps: int) -> dict[str, Any] | None:
    """Returns the evaluation of the best policy after `steps` steps; None if there is none, or it is damaged."""
    try:
        values = read_document(_final(folder))
    except (OSError, DamagedError):
        return None
    known = values.pop(DIGEST, None) if isinstance(values, dict) else None
    return values if known is not None and known == digest(values) and values.get(STEPS) == steps else None


def _has_checkpoints(folder: RunFolder, steps: int, report: Callable[[str], None]) -> bool:
    """Returns whether the checkpoints of the last step, of all processes, and of the best policy are intact."""
    states = Store(folder.checkpoints, "step")
    bests = Store(folder.checkpoints, "best")
    last = max(states.steps(), default=-1)
    if last < steps or not bests.steps():
        return False
    shards = [Store(folder.shard(i), "step") for i in range(states.info(last).get("processes", 1))]
    best, _ = bests.read(bests.steps()[-1])
    return all(shard.is_intact(last, report) for shard in shards) and not not_finite(best)
