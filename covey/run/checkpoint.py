"""Checkpoints: whole or absent, verified when read, written beside the training, and never code.

A checkpoint is a folder with `arrays.safetensors` (raw numbers and a JSON header), `info.json` (counters, and how long
the run's other files were at that moment) and `manifest.json` (the SHA-256 of every file). It is written under a
temporary name and renamed when it is complete.
"""

import hashlib
import json
import os
import shutil
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file

from covey.errors import CoveyError, require
from covey.run.folder import replace_text

KEEP = 2
PARTIAL, DAMAGED = ".partial", ".damaged"
Say = Callable[[str], None]


def snapshot(tree: Any) -> dict[str, np.ndarray]:
    """A host copy of every array, by its path. A copy, because the next program reuses the buffers."""
    leaves, _ = jax.tree.flatten_with_path(tree)
    return {jax.tree_util.keystr(path): np.array(_raw(leaf)) for path, leaf in leaves}


def restore(template: Any, arrays: dict[str, np.ndarray]) -> Any:
    """The arrays in the shape of a template of ShapeDtypeStructs; an error where they don't fit it."""
    leaves, structure = jax.tree.flatten_with_path(template)
    names = [jax.tree_util.keystr(path) for path, _ in leaves]
    wrong = sorted(set(names) ^ set(arrays))
    require(not wrong, f"The checkpoint is of another program: it differs in {', '.join(wrong[:3])}.")
    return jax.tree.unflatten(
        structure, [_typed(n, leaf, arrays[n]) for n, (_, leaf) in zip(names, leaves, strict=True)]
    )


def _raw(leaf: Any) -> Any:
    return jax.random.key_data(leaf) if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key) else leaf


def _typed(name: str, like: Any, array: np.ndarray) -> Any:
    if jnp.issubdtype(like.dtype, jax.dtypes.prng_key):
        return jax.random.wrap_key_data(jnp.asarray(array))
    fits = array.shape == like.shape and array.dtype == like.dtype
    require(fits, f"The checkpoint is of another program: {name} is {array.dtype}{list(array.shape)} in it, "
            f"and should be {like.dtype}{list(like.shape)}.")  # fmt: skip
    return jnp.asarray(array)


@dataclass(frozen=True)
class Store:
    """The checkpoints of one kind in a folder: PREFIX_STEP, newest last."""

    folder: Path
    prefix: str
    keep: int = KEEP

    def write(self, step: int, arrays: dict[str, np.ndarray], info: dict[str, Any]) -> None:
        """Adds a checkpoint and removes those that are no longer kept. Blocks."""
        final = self._path(step)
        if final.exists():
            return
        partial = final.with_name(final.name + PARTIAL)
        shutil.rmtree(partial, ignore_errors=True)
        try:
            partial.mkdir(parents=True)
            save_file(arrays, partial / "arrays.safetensors")
            (partial / "info.json").write_text(json.dumps(info))
            replace_text(partial / "manifest.json", json.dumps(_digests(partial)))
            partial.rename(final)
        except BaseException:
            # On a full disk, the half that was written is space that the user needs.
            shutil.rmtree(partial, ignore_errors=True)
            raise
        _sync(self.folder)
        for old in self.steps()[: -self.keep]:
            self._remove(old)

    def steps(self) -> list[int]:
        """The steps of the complete checkpoints, in order."""
        names = [p.name.removeprefix(f"{self.prefix}_") for p in self.folder.glob(f"{self.prefix}_*")]
        return sorted(int(n) for n in names if n.isdigit())

    def read_newest(
        self, say: Callable[[str], None], set_aside: bool = True
    ) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        """The newest checkpoint that is intact. A damaged one is named, set aside, and the one before is read.

        Only the process that trains may set aside: to another, a checkpoint that is just being removed looks damaged.
        """
        for step in reversed(self.steps()):
            path = self._path(step)
            fault = _fault(path)
            if fault is None:
                return self._read(path)
            say(f"Checkpoint {path} is damaged ({fault}).{self._set_aside(path) if set_aside else ''}")
        raise CoveyError(
            f"{self.folder} holds no intact checkpoint ({self.prefix}), so there is nothing to go on from. "
            "Start the run again, or restore the folder from a copy."
        )

    def is_intact(self, step: int, say: Say) -> bool:
        """Whether there is a checkpoint of a step, and it is intact; a damaged one is named and set aside."""
        path = self._path(step)
        fault = _fault(path) if path.exists() else None
        if fault:
            say(f"Checkpoint {path} is damaged ({fault}).{self._set_aside(path)}")
        return path.exists()

    def arrays_file(self, step: int) -> Path:
        return self._path(step) / "arrays.safetensors"

    def info(self, step: int) -> dict[str, Any]:
        """What a checkpoint that is known to be intact says beside its arrays."""
        return json.loads((self._path(step) / "info.json").read_text())

    def keep_only(self, steps: list[int]) -> None:
        """Removes the checkpoints of all other steps, and what an interrupted write left."""
        for step in set(self.steps()) - set(steps):
            self._remove(step)
        self.remove_after(max(steps, default=-1))

    def read(self, step: int) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        """A checkpoint that is known to be intact."""
        return self._read(self._path(step))

    def _set_aside(self, path: Path) -> str:
        aside = path.with_name(path.name + DAMAGED)
        shutil.rmtree(aside, ignore_errors=True)
        path.rename(aside)
        return f" Set aside as {aside.name}; going back to the one before."

    def remove_after(self, step: int) -> None:
        """Removes checkpoints later than a step and what an interrupted write left."""
        for late in [s for s in self.steps() if s > step]:
            self._remove(late)
        for partial in self.folder.glob(f"{self.prefix}_*{PARTIAL}"):
            shutil.rmtree(partial)

    def _remove(self, step: int) -> None:
        """Takes its name away first: a removal cut short leaves no checkpoint that looks damaged."""
        gone = self._path(step).with_name(self._path(step).name + PARTIAL)
        shutil.rmtree(gone, ignore_errors=True)
        self._path(step).rename(gone)
        shutil.rmtree(gone)

    def _path(self, step: int) -> Path:
        return self.folder / f"{self.prefix}_{step:010d}"

    def _read(self, path: Path) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        return load_file(path / "arrays.safetensors"), json.loads((path / "info.json").read_text())


def _digests(folder: Path) -> dict[str, str]:
    files = sorted(p for p in folder.rglob("*") if p.is_file() and not p.name.startswith("manifest.json"))
    found = {}
    for path in files:
        with path.open("rb") as file:
            found[str(path.relative_to(folder))] = hashlib.file_digest(file, "sha256").hexdigest()
            os.fsync(file.fileno())
    return found


def _fault(folder: Path) -> str | None:
    """What is wrong with a checkpoint, or None."""
    try:
        expected = json.loads((folder / "manifest.json").read_text())
        found = _digests(folder)
    except (OSError, ValueError) as error:
        return f"its manifest can't be read: {error}"
    if not isinstance(expected, dict):
        return "its manifest is not one of covey's"
    missing = sorted(set(expected) - set(found))
    changed = sorted(name for name in found if found[name] != expected.get(name))
    if missing:
        return f"{missing[0]} is missing"
    return f"{changed[0]} has changed" if changed else None


def _sync(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


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
        if isinstance(error, OSError | SafetensorError):
            raise CoveyError(
                f"A checkpoint could not be written: {error}. Free some space; the checkpoints before it are kept, and "
                "`covey resume` goes on from the newest."
            ) from error
        raise error
