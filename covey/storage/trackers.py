"""Experiment trackers beside TensorBoard: Weights & Biases, Trackio, MLflow, and those that plugins register.

Each of the built-in ones has a process of its own (`covey.storage.tracker_process`). A tracker that fails is reported
once and left alone; the training continues.
"""

import hashlib
import json
import os
import queue
import secrets
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np

from covey.errors import CoveyError, require, unknown
from covey.install import install_command
from covey.storage import disk
from covey.storage.atomic import replace_text
from covey.storage.config import CHANGES, DIGEST
from covey.storage.disk import DamagedError
from covey.storage.documents import is_count, read_document
from covey.storage.folder import RunFolder

BUILT_IN = {"wandb": ("wandb",), "trackio": ("trackio",), "mlflow": ("mlflow", "sqlalchemy", "alembic")}
"""Names, which are those of the extras too, and the packages that each needs."""
NONE = "none"
"""The name that stands for no tracker."""
MOST_WAITING = 10_000
"""Logs that may wait for a tracker that is slower than the training."""
CLOSING = 30.0
"""Seconds to wait for a tracker at the end of the training."""

Factory = Callable[[RunFolder, range, int], Any]
Row = Mapping[str, Any]


@runtime_checkable
class TakesMedia(Protocol):
    """A sink that also takes pictures and films."""

    def media(self, files: Mapping[str, Path]) -> None:
        """Takes files by name, such as `curve`, when the run has ended."""
        ...


def require_trackers(names: Sequence[str], registered: Mapping[str, Factory]) -> None:
    """Raises a CoveyError if there is no such tracker, or if a package is missing that it needs.

    Args:
        names: The names of trackers.
        registered: Those that plugins have registered.
    """
    for name in names:
        if name in registered:
            continue
        if name not in BUILT_IN:
            hint = " A tracker of your own needs --plugin MODULE too."
            raise CoveyError(f"{unknown('tracker', name, [*BUILT_IN, *registered, NONE])}{hint} (`track`)")
        missing = [package for package in BUILT_IN[name] if find_spec(package) is None]
        require(
            not missing,
            f"`track` {name} needs {', '.join(missing)}. Install it:\n  {install_command(name)}\nOr continue without: "
            f"--track {NONE}.",
        )


class Trackers:
    """The trackers of a run. None of their failures reaches the training.

    Args:
        names: Their names.
        registered: Those that plugins have registered.
        folder: The run folder, whose `metrics.jsonl` has been cut at the checkpoint.
        members: The indices of the members that are logged here.
        step: The step from which the run resumes; 0 if it is new.
        report: Called with a sentence about a tracker.
    """

    def __init__(
        self,
        names: Sequence[str],
        registered: Mapping[str, Factory],
        folder: RunFolder,
        members: range,
        step: int,
        report: Callable[[str], None],
    ) -> None:
        self.report = report
        self.open: dict[str, Any] = {}
        for name in names:
            with self._guarded(name):
                make = registered.get(name) or (lambda *about, name=name: ProcessTracker(name, *about))
                self.open[name] = make(folder, members, step)

    def write(self, step: int, wall: float, values: Mapping[str, np.ndarray]) -> None:
        """Writes numbers to all trackers (see `covey.storage.metrics.Sink.write`)."""
        for name, tracker in list(self.open.items()):
            with self._guarded(name):
                tracker.write(step, wall, values)
                self._say(name, tracker)

    def close(self, media: Mapping[str, Path] | None = None) -> None:
        """Sends pictures and films by name, and closes all trackers."""
        for name, tracker in list(self.open.items()):
            with self._guarded(name):
                if media and isinstance(tracker, TakesMedia):
                    tracker.media(media)
        # All of them end their input before any is waited for.
        for name, tracker in list(self.open.items()):
            if isinstance(tracker, ProcessTracker):
                with self._guarded(name):
                    tracker.end()
        for name, tracker in list(self.open.items()):
            with self._guarded(name):
                tracker.close()
                self._say(name, tracker)
        self.open.clear()

    def _say(self, name: str, tracker: Any) -> None:
        if isinstance(tracker, ProcessTracker):
            while tracker.messages:
                self.report(f"{name}: {tracker.messages.pop(0)}")

    def _guarded(self, name: str) -> "_Guard":
        return _Guard(self, name)


class _Guard:
    """Reports an exception of a tracker, and drops the tracker."""

    def __init__(self, trackers: Trackers, name: str) -> None:
        self.trackers = trackers
        self.name = name

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> bool:
        if not isinstance(error, Exception):
            return False
        self.trackers.open.pop(self.name, None)
        text = str(error).removesuffix(".") or type(error).__name__
        self.trackers.report(f"Warning: the tracker {self.name} failed: {text}. Training continues without it.")
        return True


class ProcessTracker:
    """A built-in tracker, in a process of its own. A thread sends what `write` is given.

    Args:
        name: Its name.
        folder: The run folder.
        members: The indices of the members.
        step: The step from which the run resumes. Rows of `metrics.jsonl` that the tracker does not have are sent
            first: all of them if the tracker is new to the run.
    """

    def __init__(self, name: str, folder: RunFolder, members: range, step: int) -> None:
        self.name = name
        self.folder = folder.path / "trackers"
        self.members = members
        self.messages: list[str] = []
        self._error = ""
        disk.make_folder(self.folder)
        opening = _opening(name, folder, self.folder, members)
        missed = _missed(folder.metrics, self._sent_step(), members)
        log = disk.open_to_append(self.folder / f"{name}.log")
        try:
            self.process = subprocess.Popen(
                [sys.executable, "-P", "-m", "covey.storage.tracker_process"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                start_new_session=True,  # a Ctrl-C in the terminal is for the training
                env=_environment(),
            )
        finally:
            disk.close(log)
        self._queue: queue.Queue[Any] = queue.Queue(MOST_WAITING)
        threads = (self._send, (opening, missed)), (self._listen, ())
        self._threads = [threading.Thread(target=work, args=about, daemon=True) for work, about in threads]
        for thread in self._threads:
            thread.start()

    def _sent_step(self) -> int:
        """Returns the step up to which the tracker has everything; -1 if it has nothing."""
        try:
            found = read_document(self.folder / f"{self.name}.json")
        except (OSError, DamagedError):
            return -1
        step = found.get("step") if isinstance(found, dict) else None
        return step if isinstance(step, int) and is_count(step) else -1

    def write(self, step: int, wall: float, values: Mapping[str, np.ndarray]) -> None:
        """Queues numbers. Raises a CoveyError if the process has failed."""
        require(not self._error, self._error)
        try:
            self._queue.put_nowait((step, {name: np.array(column, np.float64) for name, column in values.items()}))
        except queue.Full:
            raise CoveyError(f"it is {MOST_WAITING:,} logs behind") from None

    def media(self, files: Mapping[str, Path]) -> None:
        """Queues pictures and films by name."""
        self._queue.put({"media": {name: str(path.absolute()) for name, path in files.items()}}, timeout=CLOSING)

    def end(self) -> None:
        """Ends the input of the process."""
        self._queue.put(None, timeout=CLOSING)

    def close(self) -> None:
        """Waits until the process has sent everything, but not for long. Call `end` first."""
        try:
            self.process.wait(CLOSING)
        except subprocess.TimeoutExpired:
            self.messages.append("it is still sending, and continues in the background for up to 10 minutes")
            return
        for thread in self._threads:
            thread.join(CLOSING)
        require(not self._error, self._error)

    def _send(self, opening: Mapping[str, Any], missed: Iterator[Row]) -> None:
        """Sends everything to the process: the thread of the sender."""
        pipe = self.process.stdin
        assert pipe is not None
        try:
            with pipe:
                pipe.write(json.dumps(opening) + "\n")
                for row in missed:
                    pipe.write(json.dumps(row) + "\n")
                pipe.flush()
                while (row := self._queue.get()) is not None:
                    row = row if isinstance(row, dict) else _by_member(*row)
                    pipe.write(json.dumps(row) + "\n")
                    pipe.flush()
        except (OSError, CoveyError) as error:
            self.process.wait()
            with suppress(IndexError):
                self._threads[1].join(CLOSING)
            self._error = self._error or f"its process ended ({error}); see {self.folder / self.name}.log"

    def _listen(self) -> None:
        """Takes the messages of the process: the thread of the listener."""
        pipe = self.process.stdout
        assert pipe is not None
        with pipe:
            for line in pipe:
                message = json.loads(line)
                self.messages += [message["say"]] if "say" in message else []
                self._error = message.get("error", self._error)


def _environment() -> dict[str, str]:
    """Returns the environment of a tracker's process, which must find this covey."""
    here = str(Path(__file__).resolve().parents[2])
    others = os.environ.get("PYTHONPATH")
    return {**os.environ, "PYTHONPATH": os.pathsep.join([here, *([others] if others else [])])}


class _Tags(NamedTuple):
    agent: str
    environment: str
    version: str


def _opening(name: str, folder: RunFolder, trackers: Path, members: range) -> dict[str, Any]:
    """Returns the first line of a tracker's input (see `covey.storage.tracker_process.Opening`)."""
    config = {key: value for key, value in folder.read_config().items() if key not in (DIGEST, CHANGES)}
    own = _identity(trackers / "id.json")
    group = (folder.whole or folder).path.absolute().name
    several = config.get("members", 1) > 1
    try:
        covey = version("covey")
    except PackageNotFoundError:
        covey = "source"
    return {
        "tracker": name,
        "folder": str(trackers.absolute()),
        "group": group,
        "ids": [hashlib.sha256(f"{own}/{member}".encode()).hexdigest()[:16] for member in members],
        "names": [f"{group}/{member}" if several else group for member in members],
        "tags": _Tags(config["algorithm"], config.get("env", ""), covey)._asdict(),
        "config": config,
    }


def _identity(file: Path) -> str:
    """Returns the identity of a run for trackers: made once, kept in its folder, and moved with it."""
    try:
        found = read_document(file)
    except FileNotFoundError:
        found = {"id": secrets.token_hex(16)}
        replace_text(file, json.dumps(found) + "\n")
    identity = found.get("id") if isinstance(found, dict) else None
    if not isinstance(identity, str) or not identity:
        raise DamagedError(f"{file} is damaged: it has no id. Delete it to start new tracker runs.")
    return identity


def _by_member(step: int, values: Mapping[str, np.ndarray]) -> Row:
    """Returns a row with a dictionary of numbers for each member; infinities are NaN, as in `metrics.jsonl`."""
    names = list(values)
    table = np.stack([values[name] for name in names], axis=1)
    table[~np.isfinite(table)] = np.nan
    return {"step": step, "values": [dict(zip(names, row, strict=True)) for row in table.tolist()]}


def _missed(file: Path, sent: int, members: range) -> Iterator[Row]:
    """Yields the rows of `metrics.jsonl` after step `sent`, as it is now; rows that are appended later are left out."""
    size = os.path.getsize(file) if os.path.exists(file) else 0
    return _read_missed(file, size, sent, members) if size else iter(())


def _read_missed(file: Path, size: int, sent: int, members: range) -> Iterator[Row]:
    step = -1
    values: list[dict[str, float]] = []
    with disk.reading(file) as handle, os.fdopen(os.dup(handle), "rb") as lines:
        while lines.tell() < size:
            row = json.loads(lines.readline())
            if row["step"] <= sent or row["member"] not in members:
                continue
            if row["step"] != step:
                if values:
                    yield {"step": step, "values": values}
                step, values = row["step"], [{} for _ in members]
            value = row["value"]
            values[members.index(row["member"])][row["name"]] = float("nan") if value is None else value
    if values:
        yield {"step": step, "values": values}
