"""The best policy and the replay of a run, read from its checkpoints."""

import sys
from pathlib import Path
from typing import NamedTuple

import numpy as np

from covey.errors import CoveyError, require
from covey.replay import Replay, Stored
from covey.storage.checkpoint import Checkpoint, require_fields
from covey.storage.disk import UnreadableError
from covey.storage.folder import RunFolder
from covey.storage.layout import REPLAY, WRITTEN, best_arrays, stored_replay
from covey.storage.replay_file import write_replay
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
    """The replay in a checkpoint: its records [P, rows, N, ...], rows written so far, and the step."""

    data: Stored
    written: int
    step: int


def read_replay(folder: RunFolder) -> StoredReplay:
    """Reads the replay of the newest intact checkpoint."""
    arrays, info = read_members(folder)
    missing = {REPLAY, WRITTEN} - arrays.keys()
    require(not missing, f"The checkpoint of step {info['step']:,} holds no replay.")
    return StoredReplay(Stored(*stored_replay(arrays)), int(arrays[WRITTEN]), info["step"])


def save_replay(folder: RunFolder, file: Path, layout: Replay, *, environment: str, algorithm: str) -> None:
    """Writes the replay of the newest intact checkpoint to a replay file.

    Args:
        folder: The run folder.
        file: The file.
        layout: The layout of the replay.
        environment: The environment of the data.
        algorithm: The algorithm that collected them.
    """
    data, written, step = read_replay(folder)
    write_replay(file, layout, data, written, environment=environment, algorithm=algorithm, step=step)


def read_members(folder: RunFolder) -> Checkpoint:
    """Reads the newest intact training checkpoint, which holds every member. Changes nothing on the disk."""
    states = Store(folder.checkpoints, "step")
    require_checkpoint(folder, states)
    arrays, info = states.read_newest(warn, set_aside=False)
    require_fields(info, "step")
    return arrays, info


def warn(text: str) -> None:
    """Prints a warning."""
    print(text, file=sys.stderr)
