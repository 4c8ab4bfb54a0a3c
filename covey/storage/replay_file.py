"""Replay files: the data of a run, with which another run can start.

A replay file is a safetensors file of float32 arrays [members, rows, streams, ...] in time order: obs, action, reward,
terminated, last (see `Record`) and extras.NAME. An observation of several parts has the arrays obs.PART. Images are
uint8, and of stacked frames only the newest is there, as a flat row. Its metadata hold the version of the format, the
environment, the algorithm, the step, and the SHA-256 of the file, computed with zeros in the place of the digest
itself.
"""

import hashlib
import os
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from covey.errors import CoveyError, require
from covey.replay import Replay, Stored, in_time_order
from covey.storage.atomic import replacing
from covey.storage.disk import DamagedError, make_folder, read_chunks, reading, write_all, write_at
from covey.storage.tensors import NAMES, Header, Tensor, empty, encode, fill, read_head, read_header

FORMAT = "covey replay"
VERSION = "1"
OBS, ACTION = "obs", "action"
SCALARS = ("reward", "terminated", "last")
REMEDY = "Save it again with `covey replay RUN`."
DIGEST = "sha256"
BLANK = "0" * 64
"""Stands in the place of the digest while it is computed."""
METADATA = {"format", "version", "environment", "algorithm", "step", DIGEST}
ROUNDING = 1e-3
"""The tolerance of the limits [-1, 1] of actions."""


class ReplayFile(NamedTuple):
    """The header of a replay file (see `open_replay`).

    Attributes:
        path: The file.
        members: Members whose data it holds.
        rows: Rows of each member, in time order.
        streams: Environments of each member, one record of each per row.
        sizes: Numbers per record of each array.
        bytes_of: Names of the arrays of bytes (uint8).
        environment: The environment of the data.
        algorithm: The algorithm that collected them.
        step: The environment step at which they were saved.

    Example:
        >>> file = open_replay(Path("replay.safetensors"))
        >>> rows = file.rows_for(replay, unroll=1, env="pendulum")
        >>> data = file.read(replay, rows, members=8)
    """

    path: Path
    members: int
    rows: int
    streams: int
    sizes: dict[str, int]
    environment: str
    algorithm: str
    step: int
    bytes_of: tuple[str, ...] = ()

    @property
    def steps(self) -> int:
        """Environment steps of each member."""
        return self.rows * self.streams

    def rows_for(self, replay: Replay, unroll: int, env: str) -> int:
        """Returns the number of rows that a replay takes from this file, a multiple of `unroll`.

        Args:
            replay: The replay of the run that starts with the data.
            unroll: The rows that the run collects at once.
            env: The run's environment, for error messages.

        Raises:
            CoveyError: The data don't fit the replay, or are too few.
        """
        self._check(replay, env)
        rows = min(replay.rows, self.steps // replay.streams) // unroll * unroll
        require(
            rows > 0,
            f"{self.path} holds {self.steps} steps of each member, and one collection of {replay.streams} environments "
            f"has {unroll * replay.streams}. Give a replay with more steps, or lower `envs`.",
        )
        return rows

    def read(self, replay: Replay, rows: int, members: int) -> Stored:
        """Reads and verifies the newest rows.

        Args:
            replay: The replay of the run that starts with the data.
            rows: The number of rows (see `rows_for`).
            members: The members of the run. Member i takes the data of member i modulo the file's members.

        Returns:
            The records as the replay holds them, [members, rows, N, ...].

        Raises:
            CoveyError: The file is damaged, or holds values that are not allowed.
        """
        newest = min(self.rows, -(-rows * replay.streams // self.streams))
        chosen = (slice(0, min(members, self.members)), slice(self.rows - newest, self.rows))
        with _read_errors(self.path), reading(self.path, follow=True) as handle:
            header = read_header(handle)
            self._verify(handle, header)
            parts = {name: _read_part(handle, header.tensors[name], *chosen) for name in replay.columns}
            frames = {n: _read_part(handle, header.tensors[replay.column(n)], *chosen) for n in replay.frames}
        for name, values in (parts | frames).items():
            self._check_values(name, values)
        data = np.concatenate([x[..., None] if name in SCALARS else x for name, x in parts.items()], axis=-1)
        places = np.arange(members) % data.shape[0]
        stored = arrange(Stored(data, frames), replay, rows)
        return Stored(stored.data[places], {name: x[places] for name, x in stored.frames.items()})

    def _verify(self, handle: int, header: Header) -> None:
        """Raises an error if the file has changed since it was written, or since `open_replay`."""
        require(_parse_header(self.path, header) == self, f"{self.path} was replaced while it was read. Start again.")
        known = header.metadata.get(DIGEST)
        if known is None:  # not written by this covey
            return
        head = bytes(read_head(handle, header))
        digest = hashlib.sha256(head.replace(known.encode(), BLANK.encode(), 1))
        for part in read_chunks(handle, len(head)):
            digest.update(part)
        require(digest.hexdigest() == known, f"{self.path} is damaged: its content does not fit its digest. {REMEDY}")

    def _check_values(self, name: str, values: np.ndarray) -> None:
        low = float(values.min())
        high = float(values.max())
        finite = np.isfinite(low) and np.isfinite(high)
        require(bool(finite), f"{self.path} holds values of {name} that are not finite (NaN or infinite).")
        allowed = 1 + ROUNDING
        require(
            name != "action" or (low >= -allowed and high <= allowed),
            f"{self.path} holds actions from {low:g} to {high:g}. Scale them to [-1, 1].",
        )
        require(
            name not in ("terminated", "last") or bool(((values == 0) | (values == 1)).all()),
            f"{self.path} holds values of {name} other than 0 and 1.",
        )

    def _check(self, replay: Replay, env: str) -> None:
        expected = {replay.column(name): part for name, part in replay.observation.named}
        observed = {name: size for name, size in self.sizes.items() if name == OBS or name.startswith("obs.")}
        require(
            observed.keys() == expected.keys(),
            f"{self.path} holds the observations {', '.join(observed)} ({self.environment}), and {env} has "
            f"{', '.join(expected)}. Give a replay of {env}.",
        )
        sizes = [(name, "observations" if name == OBS else name, part.size) for name, part in expected.items()]
        for name, what, size in (*sizes, (ACTION, "actions", replay.action_size)):
            require(
                self.sizes[name] == size,
                f"{self.path} holds {what} of {self.sizes[name]} numbers ({self.environment}), and those of {env} have "
                f"{size}. Give a replay of {env}.",
            )
        images = tuple(sorted(name for name, part in expected.items() if part.dtype == "uint8"))
        require(
            images == self.bytes_of,
            f"{self.path} holds {', '.join(self.bytes_of) or 'no observation'} as bytes ({self.environment}), and "
            f"{env} has {', '.join(images) or 'none'}. Give a replay of {env}.",
        )
        own = {name: n for name, n in self.sizes.items() if name not in (*observed, ACTION, *SCALARS)}
        stored = {name.removeprefix("extras."): n for name, n in own.items()}
        require(
            stored == dict(replay.extras),
            f"With every step {self.path} holds {_list_extras(stored)} ({self.algorithm}), and this agent stores "
            f"{_list_extras(dict(replay.extras))}. Give a replay of an agent that stores the same.",
        )


def arrange(stored: Stored, replay: Replay, rows: int) -> Stored:
    """Returns the newest records of [P, R, streams, ...] as [P, rows, N, ...], for a replay of N streams.

    The newest record of every stream is marked `last`, because the next record that a run writes does not follow it. If
    the number of streams differs, the streams are joined end to end and cut into N pieces, each of which is marked too.
    Changes `stored`.
    """
    _mark_ends(stored.data, replay)

    def pieces(x: np.ndarray) -> np.ndarray:
        if x.shape[2] == replay.streams:
            return x[:, -rows:]
        members, width = x.shape[0], x.shape[-1]
        joined = x.swapaxes(1, 2).reshape(members, -1, width)[:, -rows * replay.streams :]
        return joined.reshape(members, replay.streams, rows, width).swapaxes(1, 2)

    data = pieces(stored.data)
    _mark_ends(data, replay)
    return Stored(data, {name: pieces(x) for name, x in stored.frames.items()})


def _mark_ends(data: np.ndarray, replay: Replay) -> None:
    """Makes the newest record of every stream the final observation of an episode."""
    for name, value in (("reward", 0.0), ("terminated", 0.0), ("last", 1.0)):
        data[:, -1, :, replay.columns[name]] = value


def write_replay(path: Path, replay: Replay, data: Stored, written: int, **about: Any) -> None:
    """Writes the filled part of a replay, in time order, and replaces a file that exists.

    Args:
        path: The file.
        replay: The geometry of the data.
        data: The ring [P, rows, N, ...].
        written: Rows written since the first step.
        **about: The metadata `environment`, `algorithm` and `step`.

    Raises:
        CoveyError: The data don't fit `replay`, or the file can't be written.

    Example:
        >>> write_replay(Path("replay.safetensors"), trainer.replay, population.replay.stored,
        ...              int(population.replay.written), environment="pendulum", algorithm="sac", step=20_000)
    """
    fits = data.data.shape[2:] == (replay.streams, replay.width) and data.frames.keys() == replay.frames.keys()
    require(fits, "The replay in the checkpoint does not match config.json.")
    ordered = in_time_order(np.asarray(data.data), written)
    arrays = {name: np.ascontiguousarray(ordered[..., columns]) for name, columns in replay.columns.items()}
    arrays |= {name: arrays[name][..., 0] for name in SCALARS}
    arrays |= {replay.column(name): in_time_order(np.asarray(x), written) for name, x in data.frames.items()}
    metadata = {"format": FORMAT, "version": VERSION} | {name: str(value) for name, value in about.items()}
    try:
        make_folder(path.parent, parents=True)
        with replacing(path) as handle:
            digest = hashlib.sha256()
            parts = encode(arrays, {DIGEST: BLANK} | metadata)
            head = bytes(next(parts))
            digest.update(head)
            write_all(handle, head)
            for part in parts:
                digest.update(part)
                write_all(handle, part)
            write_at(handle, digest.hexdigest().encode(), head.index(BLANK.encode()))
    except OSError as error:
        raise CoveyError(
            f"The replay can't be written to {path}: {error.strerror or error}. Free some space, or give another file "
            "as `out`."
        ) from error


def open_replay(path: Path) -> ReplayFile:
    """Reads the header of a replay file. Raises a CoveyError if the file is not one."""
    with _read_errors(path), reading(path, follow=True) as handle:
        header = read_header(handle)
    return _parse_header(path, header)


def _parse_header(path: Path, header: Header) -> ReplayFile:
    about = header.metadata
    shapes = {name: tensor.shape for name, tensor in header.tensors.items()}
    require(about.get("format") == FORMAT, f"{path} is not a replay file of covey. `covey replay RUN` makes one.")
    require(
        about.get("version") == VERSION,
        f"{path} is a replay file of version {about.get('version')}, and this covey reads version {VERSION}. {REMEDY}",
    )
    require(about.keys() <= METADATA, f"{path} is damaged: its metadata {sorted(about.keys() - METADATA)} are unknown.")
    observed = [name for name in shapes if name == OBS or name.startswith("obs.")]
    missing = sorted({*([] if observed else [OBS]), ACTION, *SCALARS} - shapes.keys())
    require(not missing, f"{path} is damaged: {', '.join(missing)} is missing. {REMEDY}")
    members, rows, streams = leading = (*shapes[ACTION], 0, 0, 0)[:3]
    for name, shape in shapes.items():
        fits = shape[:3] == leading and len(shape) == (3 if name in SCALARS else 4) and 0 not in shape
        kind = header.tensors[name].dtype
        require(
            fits and (kind == np.float32 or (kind == np.uint8 and name in observed)),
            f"{path} is damaged: {name} is {NAMES[kind]}{list(shape)} where action is "
            f"{NAMES[header.tensors[ACTION].dtype]}{list(shapes[ACTION])}. {REMEDY}",
        )
    images = tuple(sorted(name for name in observed if header.tensors[name].dtype == np.uint8))
    sizes = {name: 1 if name in SCALARS else shape[3] for name, shape in shapes.items()}
    environment, algorithm = (about.get(name, "unknown") for name in ("environment", "algorithm"))
    step = about.get("step", "")
    require(
        step.isascii() and step.isdigit() and len(step) < 20, f"{path} is damaged: its step is {step[:80]!r}. {REMEDY}"
    )
    return ReplayFile(path, members, rows, streams, sizes, environment, algorithm, int(step), images)


def _read_part(handle: int, tensor: Tensor, members: slice, rows: slice) -> np.ndarray:
    """Reads the part [members, rows, ...] of an array in a file, and nothing else."""
    shape = (members.stop - members.start, rows.stop - rows.start, *tensor.shape[2:])
    found = empty(tensor._replace(shape=shape))
    row = tensor.size // (tensor.shape[0] * tensor.shape[1])
    for member in range(members.start, members.stop):
        start = tensor.offset + (member * tensor.shape[1] + rows.start) * row
        fill(handle, found[member - members.start], start)
    return found


class _read_errors:  # noqa: N801  (used as `with _read_errors(path):`)
    """Turns a failure to read a replay file into a CoveyError that names the remedy."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if isinstance(error, FileNotFoundError):
            raise CoveyError(f"There is no replay file {self.path}. `covey replay RUN` makes one.") from error
        if isinstance(error, OSError | DamagedError) and os.path.isdir(self.path):
            raise CoveyError(
                f"{self.path} is a folder. `covey replay {self.path}` saves the replay of a run."
            ) from error
        if isinstance(error, OSError | DamagedError):
            why = (error.strerror if isinstance(error, OSError) else None) or str(error).removesuffix(".")
            raise CoveyError(
                f"{str(self.path)[:500]} can't be read as a replay file: {why}. `covey replay RUN` makes one."
            ) from error


def _list_extras(extras: dict[str, int]) -> str:
    return ", ".join(f"{name} ({size})" for name, size in sorted(extras.items())) or "no extras"
