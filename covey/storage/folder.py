"""A run folder: the only identifier of a run, and everything that it leaves on disk."""

import errno
import fcntl
import os
import platform
import re
import sys
import time
from contextlib import suppress
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from itertools import chain, count
from pathlib import Path
from typing import IO, Any

from covey.errors import CoveyError, require
from covey.plugins import allowed
from covey.storage.atomic import replace_text
from covey.storage.changes import Changes
from covey.storage.config import CHANGES, read_verified, write_config
from covey.storage.disk import exists, make_folder, open_to_append, read_error, refuse_links, sync_folder

RUNS = Path("runs")
"""The folder of the runs whose folder is not given."""
PACKAGES = ("covey", "jax", "jaxlib", "flax", "optax", "safetensors", "numpy")
LOCK_ATTEMPTS = 10
OPTIONAL_PACKAGES = ("brax", "gymnax", "playground", "mujoco", "mujoco-mjx")


@dataclass(frozen=True)
class RunFolder:
    """The paths of a run's files, and its configuration on disk.

    Args:
        path: The folder, which need not exist.

    Example:
        >>> folder = RunFolder(Path("runs/pendulum-sac-0"))
        >>> folder.metrics
        PosixPath('runs/pendulum-sac-0/metrics.jsonl')
        >>> folder.read_config()["algorithm"]
        'sac'
    """

    path: Path

    @property
    def config(self) -> Path:
        """The configuration with its digest."""
        return self.path / "config.json"

    @property
    def metrics(self) -> Path:
        """Every logged number (see `covey.storage.metrics`)."""
        return self.path / "metrics.jsonl"

    @property
    def episodes(self) -> Path:
        """Every evaluated episode."""
        return self.path / "evaluation" / "episodes.jsonl"

    @property
    def checkpoints(self) -> Path:
        """The checkpoints of the training and of the best policy (see `covey.storage.store`)."""
        return self.path / "checkpoints"

    @property
    def tensorboard(self) -> Path:
        """TensorBoard's event files."""
        return self.path / "tensorboard"

    @property
    def media(self) -> Path:
        """Figures and films."""
        return self.path / "media"

    @property
    def lineage(self) -> Path:
        """The generations of a population (see `covey.storage.lineage`)."""
        return self.path / "lineage.jsonl"

    @property
    def changes(self) -> Path:
        """The options that were changed when the run was resumed."""
        return self.path / "changes.jsonl"

    @property
    def init_from(self) -> Path:
        """The run that this one started from (see `covey.storage.transfer`)."""
        return self.path / "init_from.json"

    def shard(self, process: int) -> Path:
        """Returns the folder of the checkpoints of one process of a job."""
        return self.checkpoints / f"process-{process}" if process else self.checkpoints

    def island(self, number: int) -> "RunFolder":
        """Returns the run folder of an island, within this one."""
        return RunFolder(self.path / "islands" / str(number))

    @property
    def whole(self) -> "RunFolder | None":
        """The run folder that this is an island of, or None."""
        parent = self.path.absolute().parent
        run = RunFolder(parent.parent)
        return run if parent.name == "islands" and os.path.exists(run.config) else None

    def create(self, config: dict[str, Any]) -> None:
        """Creates the folder with its configuration, and `environment.txt`: the command, versions and devices.

        Args:
            config: The configuration as JSON values.

        Raises:
            CoveyError: The folder holds a run or other files, or can't be written.
        """
        require(
            not os.path.lexists(self.config),
            f"{self.path} already holds a run. Resume it with `covey resume {self.path}`, or give another `out`.",
        )
        require(
            not os.path.lexists(self.path) or (self.path.is_dir() and self._is_unused()),
            f"{self.path} exists and is not an empty folder. Give another `out`.",
        )
        with disk_errors(self.path):
            for folder in self._folders:
                make_folder(folder, parents=True)
            replace_text(self.path / "environment.txt", _environment())
            self.write_config(config)
            sync_folder(self.path.absolute().parent)

    @property
    def _folders(self) -> tuple[Path, ...]:
        """The folders that every run has."""
        return self.checkpoints, self.tensorboard, self.media, self.episodes.parent

    def _is_unused(self) -> bool:
        """Returns whether the folder is empty, or holds only what an interrupted `create` leaves."""
        made = {folder.name for folder in self._folders}
        made |= {"environment.txt", "environment.txt.partial", "config.json.partial"}
        return {p.name for p in self.path.iterdir()} <= made and not any(self.path.glob("*/*"))

    def write_config(self, config: dict[str, Any]) -> None:
        """Replaces the configuration: a reader sees the old one or the new one."""
        write_config(self.config, config, Changes(self.changes).count())

    def record_changes(self, step: int, changes: list[tuple[str, Any, Any]]) -> None:
        """Records fields of the configuration that change at a step: name, old value, new value."""
        Changes(self.changes).append([{"step": step, "name": n, "old": old, "new": new} for n, old, new in changes])

    def changed_since(self, step: int) -> set[str]:
        """Returns the fields of the configuration that changed at or after a step."""
        recorded = read_verified(self.config).get(CHANGES, 0)
        return {row["name"] for row in Changes(self.changes).rows(recorded) if row["step"] >= step}

    def has_config(self) -> bool:
        """Returns whether the folder holds a run."""
        try:
            return exists(self.config)
        except OSError as error:
            raise read_error(self.config, error) from error

    def read_config(self) -> dict[str, Any]:
        """Returns the configuration as JSON values. Raises a CoveyError if it was altered."""
        require(os.path.isdir(self.path), f"There is no run folder {str(self.path)[:500]}.")
        return read_verified(self.config)

    def lock(self, process: int = 0) -> IO[str]:
        """Locks the folder for one process of a job, until the returned file is closed.

        Raises:
            CoveyError: Another process trains in the folder.
        """
        with disk_errors(self.path):
            for folder in self._folders:
                refuse_links(folder / "file")
            file = os.fdopen(open_to_append(self.path / (f"lock-{process}" if process else "lock")), "r+")
            if not _locked(file):
                file.close()
                raise CoveyError(f"Another process is training in {self.path}. Wait for it, or stop it first.")
        return file


def _locked(file: IO[str]) -> bool:
    """Locks a file. Tries for a moment: a live page or a report may just be looking whether it is locked."""
    for _ in range(LOCK_ATTEMPTS):
        with suppress(BlockingIOError):
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        time.sleep(0.02)
    return False


class disk_errors:  # noqa: N801  (used as `with disk_errors(path):`)
    """Turns an OSError that is raised while writing below a folder into a CoveyError that names the remedy."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if not isinstance(error, OSError):
            return
        if error.errno in (errno.ENOENT, errno.ENOTDIR) and not os.path.isdir(self.folder) and error.filename:
            raise CoveyError(
                f"Can't write to {self.folder}: {error.filename} is gone or can't be created. If a run was deleted or "
                "moved while covey used it, restore it and resume it from there; otherwise give another `out`."
            ) from error
        raise CoveyError(
            f"Can't write to {str(self.folder)[:500]}: {error.strerror or error}. Free some space, or give a writable "
            "folder as `out`. What was saved before is kept: if the run had started, `covey resume "
            f"{str(self.folder)[:500]}` continues from its last checkpoint."
        ) from error


def is_folder_name(name: str) -> bool:
    """Returns whether a name that the user chose is safe as the name of a folder."""
    return re.fullmatch(r"[\w][\w .+=-]{0,99}", name) is not None


def new_folder(env: str, algorithm: str, name: str = "", is_population: bool = False) -> RunFolder:
    """Returns the first unused folder: runs/ENV-AGENT-NUMBER, with `-pbt` after the agent of a population.

    With a name it is runs/NAME, or runs/NAME-NUMBER if that is used; spaces become hyphens.
    """
    stem = (
        name.replace(" ", "-")
        or f"{env.replace(':', '-').replace('/', '-')}-{algorithm}{'-pbt' if is_population else ''}"
    )
    numbered = (f"{stem}-{number}" for number in count(1 if name else 0))
    candidates = chain([stem] if name else [], numbered)
    return RunFolder(next(RUNS / each for each in candidates if not os.path.lexists(RUNS / each)))


def _environment() -> str:
    import jax

    lines = [f"command: {' '.join(sys.argv)}", f"python: {platform.python_version()} on {platform.platform()}"]
    for package in PACKAGES:
        try:
            lines.append(f"{package}: {version(package)}")
        except PackageNotFoundError:
            lines.append(f"{package}: not installed as a package")
    for package in OPTIONAL_PACKAGES:
        with suppress(PackageNotFoundError):
            lines.append(f"{package}: {version(package)}")
    if allowed():
        lines.append(f"plugins: {' '.join(allowed())}")
    devices = ", ".join(f"{d.platform} {d.device_kind}" for d in jax.devices())
    return "\n".join([*lines, f"devices: {devices}", f"cores: {os.cpu_count()}"]) + "\n"
