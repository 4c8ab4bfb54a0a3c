"""The best policy and the replay of a run, read from its checkpoints."""

import sys
from typing import NamedTuple

import numpy as np

from covey.errors import CoveyError, require
from covey.storage.checkpoint import require_fields
from covey.storage.disk import UnreadableError
from covey.storage.folder import RunFolder
from covey.storage.layout import REPLAY, WRITTEN, best_arrays
from covey.storage.store import Store


def require_checkpoint(folder: RunFolder, *stores: Store) -> None:
    """Raises an error if a run has no checkpoint yet."""
    require(
        any(store.steps() for store in stores),
        f"{folder.path} has no checkpoint yet. Wait for its first one, or resume it with `covey resume {folder.path}`.",
    )


def read_best(folder: RunFolder) -> dict[str, np.ndarray]:
    """Reads the arrays of the best policy (see `read_best_checkpoint`)."""
    return read_best_checkpoint(folder)[0]


def read_best_checkpoint(folder: RunFolder) -> tuple[dict[str, np.ndarray], int]:
    """Reads the best checkpoint or, if it is damaged or being replaced, the copy in the newest training checkpoint.

    Returns:
        The arrays of the best policy, and its step.
    """
    best = Store(folder.checkpoints, "best")
    states = Store(folder.checkpoints, "step")
    require_checkpoint(folder, best, states)
    try:
        arrays, info = best.read_newest(warn, set_aside=False)
        require_fields(info, "step")
        return arrays, info["step"]
    except UnreadableError:
        raise
    except CoveyError:
        arrays, info = states.read_newest(warn, set_aside=False)
    require_fields(info, "best")
    require(bool(info["best"]), f"No evaluation of {folder.path} was finite, so it has no best policy.")
    return best_arrays(arrays), info["best"]["step"]


class StoredReplay(NamedTuple):
    """The replay in a checkpoint: data [P, rows, N, width], rows written so far, and the step."""

    data: np.ndarray
    written: int
    step: int


def read_replay(folder: RunFolder) -> StoredReplay:
    """Reads the replay of the newest intact checkpoint."""
    states = Store(folder.checkpoints, "step")
    require_checkpoint(folder, states)
    arrays, info = states.read_newest(warn, set_aside=False)
    require_fields(info, "step")
    missing = {REPLAY, WRITTEN} - arrays.keys()
    require(not missing, f"The checkpoint of step {info['step']:,} holds no replay.")
    return StoredReplay(arrays[REPLAY], int(arrays[WRITTEN]), info["step"])


def warn(text: str) -> None:
    """Prints a warning."""
    print(text, file=sys.stderr)
