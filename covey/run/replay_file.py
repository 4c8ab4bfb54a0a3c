"""A replay as a file of its own: data that outlives its run, and that another can start with.

It is a safetensors file of float32 arrays [members, rows, streams, ...] in time order: obs, action, reward, terminated,
last (see `Record`) and extras.NAME. Its metadata name the version of the format, the environment, the algorithm and the
step.
"""

import os
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from covey.errors import CoveyError, require
from covey.replay import Replay, in_time_order

FORMAT, VERSION = "covey replay", "1"
VECTORS = ("obs", "action")
SCALARS = ("reward", "terminated", "last")
REMEDY = "Save it again with `covey replay RUN`."


class ReplayFile(NamedTuple):
    """What the header of a replay file says. `sizes`: the numbers that each array holds for a record."""

    path: Path
    members: int
    rows: int
    streams: int
    sizes: dict[str, int]
    environment: str
    algorithm: str
    step: int

    @property
    def steps(self) -> int:
        """Steps of each member."""
        return self.rows * self.streams

    def rows_for(self, replay: Replay, unroll: int, env: str) -> int:
        """The rows that a run's replay takes from here, whole collections only; an error where the data don't fit."""
        self._check(replay, env)
        rows = min(replay.rows, self.steps // replay.streams) // unroll * unroll
        require(
            rows > 0,
            f"{self.path} holds {self.steps} steps of each member, and one collection of {replay.streams} environments "
            f"has {unroll * replay.streams}. Give a replay with more steps, or lower --envs.",
        )
        return rows

    def read(self, replay: Replay, rows: int, members: int) -> np.ndarray:
        """The newest `rows` rows as the replay of a run holds them, [members, rows, N, width].

        Member i takes those of member i modulo the file's.
        """
        newest = min(self.rows, -(-rows * replay.streams // self.streams))
        mine = slice(0, min(members, self.members)), slice(self.rows - newest, self.rows)
        with _reading(self.path), safe_open(self.path, framework="numpy") as file:
            parts = [file.get_slice(name)[mine] for name in replay.columns]
        parts = [x[..., None] if name in SCALARS else x for name, x in zip(replay.columns, parts, strict=True)]
        data = np.concatenate(parts, axis=-1)
        require(bool(np.isfinite(data).all()), f"{self.path} holds values that are not finite (NaN or infinite).")
        return arranged(data, replay, rows)[np.arange(members) % data.shape[0]]

    def _check(self, replay: Replay, env: str) -> None:
        for name, what, size in (("obs", "observations", replay.obs_size), ("action", "actions", replay.action_size)):
            require(
                self.sizes[name] == size,
                f"{self.path} holds {what} of {self.sizes[name]} numbers ({self.environment}), and those of {env} have "
                f"{size}. Give a replay of {env}.",
            )
        own = {name: n for name, n in self.sizes.items() if name not in (*VECTORS, *SCALARS)}
        stored = {name.removeprefix("extras."): n for name, n in own.items()}
        require(
            stored == dict(replay.extras),
            f"With every step {self.path} holds {_listed(stored)} ({self.algorithm}), and this agent stores "
            f"{_listed(dict(replay.extras))}. Give a replay of an agent that stores the same.",
        )


def arranged(data: np.ndarray, replay: Replay, rows: int) -> np.ndarray:
    """The newest records of [P, R, streams, width] as [P, rows, N, width], for a replay of N streams; changes `data`.

    The newest record of every stream is marked `last`: what a run writes next does not follow it. If the number of
    streams is another, they are joined end to end and cut into N pieces, each of which ends so too.
    """
    _close(data, replay)
    if data.shape[2] == replay.streams:
        return data[:, -rows:]
    members, width = data.shape[0], data.shape[-1]
    joined = data.swapaxes(1, 2).reshape(members, -1, width)[:, -rows * replay.streams :]
    pieces = joined.reshape(members, replay.streams, rows, width).swapaxes(1, 2)
    _close(pieces, replay)
    return pieces


def _close(data: np.ndarray, replay: Replay) -> None:
    """Makes the newest record of every stream the final observation of an episode, with nothing after it."""
    for name, value in (("reward", 0.0), ("terminated", 0.0), ("last", 1.0)):
        data[:, -1, :, replay.columns[name]] = value


def write_replay(path: Path, replay: Replay, data: np.ndarray, written: int, **about: Any) -> None:
    """Writes the filled part of a ring [P, rows, N, width] in time order, whole or not at all."""
    fits = data.shape[2:] == (replay.streams, replay.width)
    require(fits, "The replay in the checkpoint is of another program than config.json says.")
    ordered = in_time_order(data, written)
    arrays = {name: np.ascontiguousarray(ordered[..., place]) for name, place in replay.columns.items()}
    arrays |= {name: arrays[name][..., 0] for name in SCALARS}
    texts = {"format": FORMAT, "version": VERSION} | {name: str(value) for name, value in about.items()}
    partial = path.with_name(path.name + ".partial")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        save_file(arrays, partial, texts)
        with partial.open("rb") as file:
            os.fsync(file.fileno())
        partial.replace(path)
    except (OSError, SafetensorError) as error:
        why = error.strerror or error if isinstance(error, OSError) else error
        raise CoveyError(
            f"The replay can't be written to {path}: {why}. Free some space, or give another file with --out."
        ) from error
    finally:
        if partial.is_file():  # on a full disk, the half that was written is space that the user needs
            partial.unlink()


def open_replay(path: Path) -> ReplayFile:
    """The header of a replay file; an error where it is none."""
    with _reading(path), safe_open(path, framework="numpy") as file:
        about = file.metadata() or {}
        slices = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118  (not a dictionary)
        shapes = {name: tuple(x.get_shape()) for name, x in slices.items()}
        kinds = {name: x.get_dtype() for name, x in slices.items()}
    require(about.get("format") == FORMAT, f"{path} is no replay file of covey's. `covey replay RUN` makes one.")
    require(
        about.get("version") == VERSION,
        f"{path} is a replay file of version {about.get('version')}, and this covey reads version {VERSION}. {REMEDY}",
    )
    missing = sorted({*VECTORS, *SCALARS} - shapes.keys())
    require(not missing, f"{path} is damaged: {', '.join(missing)} is missing. {REMEDY}")
    members, rows, streams = leading = (*shapes["obs"], 0, 0, 0)[:3]
    for name, shape in shapes.items():
        fits = shape[:3] == leading and len(shape) == (3 if name in SCALARS else 4) and 0 not in shape
        require(
            fits and kinds[name] == "F32",
            f"{path} is damaged: {name} is {kinds[name]}{list(shape)} where obs is {kinds['obs']}"
            f"{list(shapes['obs'])}. {REMEDY}",
        )
    sizes = {name: 1 if name in SCALARS else shape[3] for name, shape in shapes.items()}
    environment, algorithm = (about.get(name, "unknown") for name in ("environment", "algorithm"))
    step = about.get("step", "")
    require(step.isdigit(), f"{path} is damaged: its step is {step!r}. {REMEDY}")
    return ReplayFile(path, members, rows, streams, sizes, environment, algorithm, int(step))


class _reading:  # noqa: N801  (reads as a phrase: `with _reading(path):`)
    """Turns a failure to read a replay file into an error that says what to do."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if isinstance(error, FileNotFoundError):
            raise CoveyError(f"There is no replay file {self.path}. `covey replay RUN` makes one.") from error
        if isinstance(error, OSError) and self.path.is_dir():
            raise CoveyError(
                f"{self.path} is a folder. `covey replay {self.path}` saves the replay of a run."
            ) from error
        if isinstance(error, OSError | SafetensorError):
            raise CoveyError(
                f"{self.path} can't be read as a replay file: {error}. `covey replay RUN` makes one."
            ) from error


def _listed(extras: dict[str, int]) -> str:
    return ", ".join(f"{name} ({size})" for name, size in sorted(extras.items())) or "nothing of the agent's own"
