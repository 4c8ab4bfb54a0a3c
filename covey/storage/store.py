"""Checkpoints: whole or absent, verified when read, written beside the training, and never code.

A checkpoint is a folder with `arrays.safetensors` (raw numbers and a JSON header), `info.json` (counters, and how long
the run's other files were at that moment) and `manifest.json` (the SHA-256 of the two). It is written under a
temporary name and renamed when it is complete.
"""

import errno
import re
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from covey.errors import CoveyError, require
from covey.storage import checkpoint
from covey.storage.atomic import PARTIAL, DamagedError, is_there, names_in, remove, rename, sync_folder, unreadable
from covey.storage.checkpoint import Checkpoint

KEEP = 2
DAMAGED = ".damaged"
ATTEMPTS = 100
"""How often a reader begins anew where a trainer replaces the checkpoints that it reads."""
Say = Callable[[str], None]


@dataclass(frozen=True)
class Store:
    """The checkpoints of one kind in a folder: PREFIX_STEP, newest last."""

    folder: Path
    prefix: str
    keep: int = KEEP

    def write(self, step: int, arrays: dict[str, np.ndarray], info: dict[str, Any]) -> None:
        """Adds a checkpoint and removes those that are no longer kept. Blocks."""
        final = self._path(step)
        if is_there(final):
            return
        checkpoint.write(final, arrays, info)
        for old in self.steps()[: -self.keep]:
            self._remove(old)

    def steps(self) -> list[int]:
        """The steps of the complete checkpoints, in order."""
        pattern = re.compile(rf"{self.prefix}_([0-9]{{10}}|[1-9][0-9]{{10,17}})")
        try:
            found = [pattern.fullmatch(name) for name in names_in(self.folder)]
        except OSError as error:
            raise unreadable(self.folder, error) from error
        return sorted(int(match[1]) for match in found if match)

    def read_newest(self, say: Callable[[str], None], set_aside: bool = True) -> Checkpoint:
        """The newest checkpoint that is intact. A damaged one is named, set aside, and the one before is read.

        Only the process that trains may set aside. For another, a checkpoint that was just replaced is no fault: it
        looks again. One that can't be read is an error, because it may be intact.
        """

        def tell(step: int, fault: str) -> None:
            aside = self._set_aside(self._path(step)) if set_aside else ""
            say(f"Checkpoint {self._path(step)} is damaged ({fault}).{aside}")

        found = self._newest(checkpoint.load, tell)
        if found is not None:
            return found
        raise CoveyError(
            f"{self.folder} holds no intact checkpoint ({self.prefix}), so there is nothing to resume from. "
            "Start the run again, or restore the folder from a copy."
        )

    def newest_info(self) -> dict[str, Any] | None:
        """What the newest checkpoint whose `info.json` is intact says, without reading its arrays; None before one."""
        return self._newest(checkpoint.load_info, lambda step, fault: None)

    def _newest(self, load: Callable[[Path], Any], damaged: Callable[[int, str], None]) -> Any:
        """What `load` returns for the newest checkpoint that is not damaged; None if there is none."""
        for _ in range(ATTEMPTS):
            for step in reversed(self.steps()):
                found = self._tried(step, load)
                if found is None:  # replaced meanwhile
                    break
                if not isinstance(found, str):
                    return found
                damaged(step, found)
            else:
                return None
        return None

    def _tried(self, step: int, load: Callable[[Path], Any]) -> Any:
        """What `load` returns, a text that says what is damaged, or None where the checkpoint is gone meanwhile."""
        path = self._path(step)
        try:
            return load(path)
        except (DamagedError, OSError) as error:
            if self._is_gone(path):
                return None
            if isinstance(error, OSError):
                raise unreadable(path, error) from error
            return str(error).removesuffix(".")

    def _is_gone(self, path: Path) -> bool:
        try:
            return not is_there(path)
        except OSError as error:
            raise unreadable(path, error) from error

    def arrays_file(self, step: int) -> Path:
        return self._path(step) / checkpoint.ARRAYS

    def info(self, step: int) -> dict[str, Any]:
        """What a checkpoint says beside its arrays; an error where it is not intact."""
        found = self._tried(step, checkpoint.load_info)
        require(isinstance(found, dict), f"Checkpoint {self._path(step)} is damaged ({found or 'it is gone'}).")
        return found

    def keep_only(self, steps: list[int]) -> None:
        """Removes the checkpoints of all other steps, and what an interrupted write left."""
        for step in set(self.steps()) - set(steps):
            self._remove(step)
        self.remove_after(max(steps, default=-1))

    def is_intact(self, step: int, say: Callable[[str], None]) -> bool:
        """Whether there is a checkpoint of a step, and it is intact; a damaged one is named and set aside."""
        fault = self._tried(step, checkpoint.verify)
        if fault:
            say(f"Checkpoint {self._path(step)} is damaged ({fault}).{self._set_aside(self._path(step))}")
        return fault == ""

    def read(self, step: int) -> Checkpoint:
        """The checkpoint of a step; an error where it is not intact."""
        found = self._tried(step, checkpoint.load)
        require(isinstance(found, tuple), f"Checkpoint {self._path(step)} is damaged ({found or 'it is gone'}).")
        return found

    def _set_aside(self, path: Path) -> str:
        aside = path.with_name(path.name + DAMAGED)
        remove(aside)
        rename(path, aside)
        sync_folder(self.folder)
        return f" Set aside as {aside.name}; going back to the one before."

    def remove_after(self, step: int) -> None:
        """Removes checkpoints later than a step and what an interrupted write left."""
        for late in [s for s in self.steps() if s > step]:
            self._remove(late)
        for name in names_in(self.folder):
            if name.startswith(f"{self.prefix}_") and name.endswith(PARTIAL):
                remove(self.folder / name)

    def _remove(self, step: int) -> None:
        """Takes its name away first: a removal cut short leaves no checkpoint that looks damaged."""
        gone = self._path(step).with_name(self._path(step).name + PARTIAL)
        remove(gone)
        rename(self._path(step), gone)
        remove(gone)

    def _path(self, step: int) -> Path:
        return self.folder / f"{self.prefix}_{step:010d}"


class Writer:
    """Writes one checkpoint at a time in a thread of its own, and keeps account of what it costs.

    The cost counted is the whole time from snapshot to rename, as if the training stood still meanwhile: on a busy
    machine the writing takes its share of the cores. A checkpoint is due when enough time has passed and its expected
    cost, with that of all before it, stays within SHARE of the time so far. An interval of 0 saves at every chance,
    whatever it costs.
    """

    SHARE = 0.03

    def __init__(self, interval: float) -> None:
        self.interval = interval
        self.seconds, self.written = 0.0, 0
        self._fixed, self._per_byte = 0.2, 1 / 200e6
        self._began = self._last = time.monotonic()
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None

    @property
    def elapsed(self) -> float:
        return time.monotonic() - self._began

    def cost(self) -> str:
        """What saving took, in words."""
        share = 100 * self.seconds / max(self.elapsed, 1e-9)
        return f"{self.written} checkpoint(s) took {self.seconds:.1f} s, {share:.1f} % of the time"

    def due(self, size: float) -> bool:
        """Whether it is time for the next checkpoint, of about `size` bytes."""
        if self.interval == 0:
            return True
        if self._thread is not None and self._thread.is_alive():
            return False
        expected = self._fixed + self._per_byte * size
        within = self.seconds + expected <= self.SHARE * self.elapsed
        return within and time.monotonic() - self._last >= self.interval

    def start(self, write: Callable[[], None], since: float, size: int) -> None:
        """Runs `write` beside the training; `since` is when its snapshot began, `size` its bytes."""
        self.finish()

        def work() -> None:
            try:
                write()
            except BaseException as error:
                self._error = error
            took = time.monotonic() - since
            self.seconds += took
            self.written += 1
            self._per_byte = max(self._per_byte, (took - self._fixed) / max(size, 1))
            self._last = time.monotonic()

        self._thread = threading.Thread(target=work, name="covey-checkpoint")
        self._thread.start()

    def wait(self) -> None:
        """Waits for the write under way, from any thread."""
        thread = self._thread
        if thread is not None:
            thread.join()

    def finish(self) -> None:
        """Waits for the write under way; raises what went wrong in it."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        self.check()

    def check(self) -> None:
        error, self._error = self._error, None
        if error is None:
            return
        if not isinstance(error, OSError):
            raise error
        if error.errno in (errno.ENOENT, errno.ENOTDIR):
            raise CoveyError(
                f"A checkpoint could not be written: {error.filename} is gone. The run folder was deleted or moved "
                "while it was trained in."
            ) from error
        full = error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
        raise CoveyError(
            f"A checkpoint could not be written: {error.strerror or error}. "
            f"{'Free some space' if full else 'Check the disk and the permissions'}. "
            "The checkpoints before it are kept, and `covey resume` continues from the newest."
        ) from error
