"""The checkpoints of a run: complete or absent, verified when read, and written while the training continues."""

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
from covey.storage import checkpoint, disk
from covey.storage.checkpoint import Checkpoint
from covey.storage.disk import PARTIAL, DamagedError, read_error

KEEP = 2
"""Checkpoints that are kept of each kind."""
DAMAGED = ".damaged"
"""The ending of a checkpoint that was found to be damaged."""
ATTEMPTS = 100
"""Attempts of a reader while a trainer replaces the checkpoints."""
Report = Callable[[str], None]
"""Called with a sentence about a damaged file."""


@dataclass(frozen=True)
class Store:
    """The checkpoints of one kind in a folder, each in a folder KIND_STEP.

    Args:
        folder: The folder; created by the first `write`.
        kind: `"step"` for checkpoints of the training, `"best"` for the best policy.
        keep: How many of the newest are kept.

    Example:
        >>> store = Store(Path("runs/pendulum-sac-0/checkpoints"), "step")
        >>> arrays, info = store.read_newest(print, set_aside=False)
        >>> info["step"], arrays["members/agent/actor/head/Dense_0/bias"].shape
    """

    folder: Path
    kind: str
    keep: int = KEEP

    def write(self, step: int, arrays: dict[str, np.ndarray], info: dict[str, Any]) -> None:
        """Adds a checkpoint and removes the oldest ones. Returns when it is on the disk.

        Args:
            step: The environment step. If there is a checkpoint of it, nothing is written.
            arrays: Arrays by name (see `covey.storage.layout`).
            info: JSON values (see `covey.storage.checkpoint.INFO_FIELDS`).
        """
        final = self.path(step)
        if disk.exists(final):
            return
        checkpoint.write(final, arrays, info)
        for old in self.steps()[: -self.keep]:
            self._remove(old)

    def steps(self) -> list[int]:
        """Returns the steps of the complete checkpoints, in ascending order."""
        pattern = re.compile(rf"{self.kind}_([0-9]{{10}}|[1-9][0-9]{{10,17}})")
        try:
            found = [pattern.fullmatch(name) for name in disk.list_folder(self.folder)]
        except OSError as error:
            raise read_error(self.folder, error) from error
        return sorted(int(match[1]) for match in found if match)

    def read_newest(self, report: Report, set_aside: bool = True) -> Checkpoint:
        """Reads the newest checkpoint that is intact.

        Args:
            report: Called with a sentence about each damaged checkpoint.
            set_aside: Renames damaged checkpoints to `*.damaged`. Only the process that trains may do that.

        Returns:
            Arrays by name, and the values of `info.json`.

        Raises:
            UnreadableError: The newest can't be read. It may be intact, so no older one is read instead.
            CoveyError: None is intact, or the newest has another format.
        """

        def report_damage(step: int, fault: str) -> None:
            renamed = self._set_aside(self.path(step)) if set_aside else ""
            report(f"Checkpoint {self.path(step)} is damaged ({fault}).{renamed}")

        found = self._load_newest(checkpoint.load, report_damage)
        if found is not None:
            return found
        raise CoveyError(
            f"{self.folder} holds no intact checkpoint ({self.kind}), so there is nothing to resume from. "
            "Start the run again, or restore the folder from a copy."
        )

    def newest_info(self) -> dict[str, Any] | None:
        """Reads the newest intact `info.json`, without the arrays. Returns None if there is no checkpoint."""
        return self._load_newest(checkpoint.load_info, lambda step, fault: None)

    def read(self, step: int) -> Checkpoint:
        """Reads the checkpoint of a step. Raises a CoveyError if it is not intact."""
        found = self._load(step, checkpoint.load)
        require(isinstance(found, tuple), f"Checkpoint {self.path(step)} is damaged ({found or 'it is gone'}).")
        return found

    def info(self, step: int) -> dict[str, Any]:
        """Reads `info.json` of the checkpoint of a step. Raises a CoveyError if it is not intact."""
        found = self._load(step, checkpoint.load_info)
        require(isinstance(found, dict), f"Checkpoint {self.path(step)} is damaged ({found or 'it is gone'}).")
        return found

    def is_intact(self, step: int, report: Report) -> bool:
        """Verifies the checkpoint of a step. A damaged one is reported and renamed."""

        def verify(path: Path) -> bool:
            checkpoint.verify(path)
            return True

        found = self._load(step, verify)
        if isinstance(found, str):
            report(f"Checkpoint {self.path(step)} is damaged ({found}).{self._set_aside(self.path(step))}")
        return found is True

    def arrays_file(self, step: int) -> Path:
        """Returns the path of the arrays of a step."""
        return self.path(step) / checkpoint.ARRAYS

    def keep_only(self, steps: list[int]) -> None:
        """Removes the checkpoints of all other steps, and incomplete ones."""
        for step in set(self.steps()) - set(steps):
            self._remove(step)
        self.remove_after(max(steps, default=-1))

    def remove_after(self, step: int) -> None:
        """Removes the checkpoints of later steps, and incomplete ones."""
        for late in [s for s in self.steps() if s > step]:
            self._remove(late)
        for name in disk.list_folder(self.folder):
            if name.startswith(f"{self.kind}_") and name.endswith(PARTIAL):
                disk.remove(self.folder / name)

    def _load_newest(self, load: Callable[[Path], Any], damaged: Callable[[int, str], None]) -> Any:
        """Returns the result of `load` for the newest checkpoint that is not damaged; None if there is none."""
        for _ in range(ATTEMPTS):
            for step in reversed(self.steps()):
                found = self._load(step, load)
                if found is None:  # a trainer has replaced it: list the steps again
                    break
                if not isinstance(found, str):
                    return found
                damaged(step, found)
            else:
                return None
        return None

    def _load(self, step: int, load: Callable[[Path], Any]) -> Any:
        """Returns the result of `load`, a text that says what is damaged, or None if the checkpoint is gone."""
        path = self.path(step)
        try:
            return load(path)
        except (DamagedError, OSError) as error:
            if self._is_gone(path):
                return None
            if isinstance(error, OSError):
                raise read_error(path, error) from error
            return str(error).removesuffix(".")

    def _is_gone(self, path: Path) -> bool:
        try:
            return not disk.exists(path)
        except OSError as error:
            raise read_error(path, error) from error

    def _set_aside(self, path: Path) -> str:
        """Renames a damaged checkpoint. Returns a sentence about it."""
        renamed = path.with_name(path.name + DAMAGED)
        disk.remove(renamed)
        disk.rename(path, renamed)
        disk.sync_folder(self.folder)
        return f" It was renamed to {renamed.name}; the newest intact copy is used."

    def _remove(self, step: int) -> None:
        """Removes a checkpoint. Renames it first, so that an interrupted removal leaves none that looks damaged."""
        gone = disk.partial_path(self.path(step))
        disk.remove(gone)
        disk.rename(self.path(step), gone)
        disk.remove(gone)

    def path(self, step: int) -> Path:
        """Returns the folder of a checkpoint."""
        return self.folder / f"{self.kind}_{step:010d}"


class Writer:
    """Writes one checkpoint at a time in a thread, and limits what checkpoints cost.

    The cost is the whole time from snapshot to rename, as if the training stood still meanwhile, because on a busy
    machine the thread takes its share of the cores. A checkpoint is due when `interval` seconds have passed and its
    expected cost, with that of all before it, is at most SHARE of the time so far.

    Args:
        interval: Seconds between checkpoints; 0 saves at every opportunity, whatever it costs.

    Example:
        >>> writer = Writer(interval=60.0)
        >>> if writer.due(size):
        ...     since = time.monotonic()
        ...     arrays = snapshot(tree)
        ...     writer.start(lambda: store.write(step, arrays, info), since, size)
        >>> writer.finish()
    """

    SHARE = 0.03

    def __init__(self, interval: float) -> None:
        self.interval = interval
        self.seconds = 0.0
        self.written = 0
        self._fixed = 0.2
        self._per_byte = 1 / 200e6
        self._began = time.monotonic()
        self._last = self._began
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None

    @property
    def elapsed(self) -> float:
        """Seconds since the writer was made."""
        return time.monotonic() - self._began

    @property
    def is_idle(self) -> bool:
        """Whether no write is under way."""
        return self._thread is None or not self._thread.is_alive()

    def cost(self) -> str:
        """Returns a sentence about the time that saving took."""
        share = 100 * self.seconds / max(self.elapsed, 1e-9)
        counted = "1 checkpoint" if self.written == 1 else f"{self.written} checkpoints"
        return f"{counted} took {self.seconds:.1f} s, {share:.1f} % of the time"

    def due(self, size: float) -> bool:
        """Returns whether the next checkpoint, of about `size` bytes, is due."""
        if self.interval == 0:
            return True
        if self._thread is not None and self._thread.is_alive():
            return False
        expected = self._fixed + self._per_byte * size
        within = self.seconds + expected <= self.SHARE * self.elapsed
        return within and time.monotonic() - self._last >= self.interval

    def start(self, write: Callable[[], None], since: float, size: int) -> None:
        """Calls `write` in a thread, after the write before it has ended.

        Args:
            write: Writes the checkpoint.
            since: The `time.monotonic()` at which its snapshot began.
            size: Its bytes, about.
        """
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
        """Waits for the current write; may be called from any thread."""
        thread = self._thread
        if thread is not None:
            thread.join()

    def finish(self) -> None:
        """Waits for the current write, and raises its error."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        self.check()

    def check(self) -> None:
        """Raises the error of a write that has failed, once."""
        error = self._error
        self._error = None
        if error is None:
            return
        if not isinstance(error, OSError):
            raise error
        if error.errno in (errno.ENOENT, errno.ENOTDIR):
            raise CoveyError(
                f"A checkpoint could not be written: {error.filename} is gone. The run folder was deleted or moved "
                "during the training."
            ) from error
        full = error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
        raise CoveyError(
            f"A checkpoint could not be written: {error.strerror or error}. "
            f"{'Free some space' if full else 'Check the disk and the permissions'}. "
            "The checkpoints before it are kept, and `covey resume` continues from the newest."
        ) from error
