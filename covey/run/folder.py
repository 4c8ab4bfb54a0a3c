"""A run folder: the only identifier of a run, and everything that it leaves on disk."""

import fcntl
import json
import os
import platform
import sys
from contextlib import suppress
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import IO, Any

from covey.errors import CoveyError, require
from covey.run.config import RunConfig, load_config, to_json

PACKAGES = ("covey", "jax", "jaxlib", "flax", "optax", "safetensors", "numpy")
OPTIONAL_PACKAGES = ("brax", "gymnax", "playground", "mujoco", "mujoco-mjx")


@dataclass(frozen=True)
class RunFolder:
    """Where each file of a run lies."""

    path: Path

    @property
    def config(self) -> Path:
        return self.path / "config.json"

    @property
    def metrics(self) -> Path:
        return self.path / "metrics.jsonl"

    @property
    def episodes(self) -> Path:
        return self.path / "evaluation" / "episodes.jsonl"

    @property
    def checkpoints(self) -> Path:
        return self.path / "checkpoints"

    def shard(self, process: int) -> Path:
        """Where a process of a job keeps the checkpoints of its own members."""
        return self.checkpoints / f"process-{process}" if process else self.checkpoints

    def island(self, number: int) -> "RunFolder":
        """Where an island keeps what it writes."""
        return RunFolder(self.path / "islands" / str(number))

    @property
    def whole(self) -> "RunFolder | None":
        """The run that this is an island of, if it is one."""
        around = self.path.absolute().parent
        run = RunFolder(around.parent)
        return run if around.name == "islands" and run.config.exists() else None

    @property
    def tensorboard(self) -> Path:
        return self.path / "tensorboard"

    @property
    def media(self) -> Path:
        return self.path / "media"

    @property
    def lineage(self) -> Path:
        return self.path / "lineage.jsonl"

    @property
    def changes(self) -> Path:
        return self.path / "changes.jsonl"

    def create(self, config: RunConfig[Any, Any]) -> None:
        """Makes the folder with its configuration and a note of versions, device and command."""
        require(
            not self.config.exists(),
            f"{self.path} already holds a run. Go on with it with `covey resume {self.path}`, or give another --out.",
        )
        require(
            not self.path.exists() or (self.path.is_dir() and self._unused()),
            f"{self.path} exists and is not an empty folder. Give another --out.",
        )
        with writing(self.path):
            for folder in (self.checkpoints, self.tensorboard, self.media, self.episodes.parent):
                folder.mkdir(parents=True, exist_ok=True)
            (self.path / "environment.txt").write_text(_environment())
            self.write_config(config)

    def _unused(self) -> bool:
        """Whether the folder holds nothing, or only what a `create` that a kill or a full disk cut short left."""
        made = {"checkpoints", "tensorboard", "media", "evaluation", "environment.txt", "config.json.partial"}
        return {p.name for p in self.path.iterdir()} <= made and not any(self.path.glob("*/*"))

    def write_config(self, config: RunConfig[Any, Any]) -> None:
        """Replaces the configuration in one step: a reader sees the old one or the new one."""
        replace_text(self.config, json.dumps(to_json(config), indent=2) + "\n")

    def record_change(self, step: int, name: str, old: Any, new: Any) -> None:
        with self.changes.open("a") as file:
            file.write(json.dumps({"step": step, "name": name, "old": old, "new": new}) + "\n")

    def changed_since(self, step: int) -> set[str]:
        """The fields of the configuration that a checkpoint of a step does not know yet as they are now."""
        lines = self.changes.read_text().splitlines() if self.changes.exists() else []
        changes = [json.loads(line) for line in lines if line.endswith("}")]
        return {change["name"] for change in changes if change["step"] >= step}

    def load_config(self) -> RunConfig[Any, Any]:
        require(self.path.is_dir(), f"There is no run folder {self.path}.")
        return load_config(self.config)

    def lock(self, process: int = 0) -> IO[str]:
        """Keeps others from training in this folder, as this process of a job, until the file is closed."""
        with writing(self.path):
            file = (self.path / (f"lock-{process}" if process else "lock")).open("w")
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            file.close()
            raise CoveyError(f"Another process is training in {self.path}. Wait for it, or stop it first.") from None
        return file


class writing:  # noqa: N801  (reads as a phrase: `with writing(path):`)
    """Turns a failure to write below a folder into an error that says what to do."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if isinstance(error, OSError):
            raise CoveyError(
                f"Can't write to {self.folder}: {error.strerror or error}. Free some space, or give a folder that can "
                f"be written with --out. What was saved before is kept: if the run had started, `covey resume "
                f"{self.folder}` goes on from its last checkpoint."
            ) from error


def replace_text(path: Path, text: str) -> None:
    """Writes a file so that it is there whole or not at all."""
    partial = path.with_suffix(path.suffix + ".partial")
    with partial.open("w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    partial.replace(path)


def new_folder(config: RunConfig[Any, Any], base: Path = Path("runs")) -> RunFolder:
    """The first free folder runs/ENV-AGENT-NUMBER."""
    stem = f"{config.env.replace(':', '-').replace('/', '-')}-{config.algorithm}"
    number = 0
    while (base / f"{stem}-{number}").exists():
        number += 1
    return RunFolder(base / f"{stem}-{number}")


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
    devices = ", ".join(f"{d.platform} {d.device_kind}" for d in jax.devices())
    return "\n".join([*lines, f"devices: {devices}", f"cores: {os.cpu_count()}"]) + "\n"
