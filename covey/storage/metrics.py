"""The numbers that a run logs: `metrics.jsonl`, which is always written, and other sinks such as TensorBoard."""

import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from covey.errors import CoveyError, require, unknown
from covey.storage.atomic import replace_text
from covey.storage.disk import DamagedError, read_error, remove
from covey.storage.documents import read_document
from covey.storage.extent import EMPTY
from covey.storage.folder import RunFolder
from covey.storage.history import FINISHED, RECOVERED, extents_of, read_history, record
from covey.storage.jsonl import Jsonl, Row

if TYPE_CHECKING:
    from covey.storage.trackers import Trackers

FAULT = "fault.json"
"""What was not finite and ended the training, until it is resumed."""
Metrics = dict[str, dict[str, list[float]]]
"""Every logged number: name -> columns `step`, `wall`, `member` and `value`."""


class Sink(Protocol):
    """A destination of the logged numbers, such as an experiment tracker. `register_sink` adds one.

    A sink is opened when training starts or resumes, and closed when it ends. An exception that it raises ends the
    training, so a sink that needs a network should handle its failures itself.

    Example:
        >>> class Printer:
        ...     def write(self, step, wall, values):
        ...         print(step, {name: float(value.mean()) for name, value in values.items()})
        ...
        ...     def close(self):
        ...         pass
    """

    def write(self, step: int, wall: float, values: Mapping[str, np.ndarray]) -> None:
        """Writes numbers.

        Args:
            step: The environment step.
            wall: Seconds of training so far, with those before the run was resumed.
            values: Arrays [P] by name, such as `eval/return`: a number of each member.
        """
        ...

    def close(self) -> None:
        """Writes what is buffered, and ends."""
        ...


SinkFactory = Callable[[RunFolder, range, int], Sink]


def _tensorboard(folder: RunFolder, members: range, step: int) -> Sink:
    from covey.storage.tensorboard import TensorBoard

    return TensorBoard(folder.tensorboard, members, step)


SINKS: dict[str, SinkFactory] = {"tensorboard": _tensorboard}
"""The sinks of every run."""
TRACKERS: dict[str, SinkFactory] = {}
"""Sinks of runs that ask for them by name."""


def register_sink(name: str, factory: SinkFactory, *, always: bool = True) -> None:
    """Adds a destination of the logged numbers. Every run that this process trains from now on writes to it.

    A plugin calls this when it is imported (`--plugin MODULE`).

    Args:
        name: Its name. A sink that has this name is replaced.
        factory: Called as `factory(folder, members, step)` when training starts or resumes, in the process that logs:
            the run folder, the indices of the members, and the step from which the run resumes (0 if it is new).
            Numbers of later steps that the sink already has are written again. With `engine="ray"` each island has
            its own sink, folder and members.
        always: With False it is a tracker: only runs with `--track NAME` (`track=[NAME]`) write to it. An exception of
            a tracker is reported once and does not end the training. If it has a method `media(files)`, that is called
            with the paths of curves and films by name at the end.

    Example:
        >>> covey.register_sink("printer", lambda folder, members, step: Printer())
    """
    (SINKS if always else TRACKERS)[name] = factory


def check_trackers(names: Sequence[str]) -> None:
    """Raises a CoveyError if there is no such tracker, or if it is not installed."""
    from covey.storage.trackers import require_trackers

    require_trackers(names, TRACKERS)


def finite(value: Any) -> float | None:
    """Returns a number for JSON, which has no NaN and no infinity: None in their place."""
    return float(value) if np.isfinite(value) else None


class MetricsFile:
    """The sink of `metrics.jsonl`: a row of step, wall, member, name and value for each number.

    Args:
        rows: The open file.
        first: The index of the first member.
    """

    def __init__(self, rows: Jsonl, first: int = 0) -> None:
        self.rows = rows
        self.first = first

    def write(self, step: int, wall: float, values: Mapping[str, np.ndarray]) -> None:
        """Writes a row for each member and name; a value that is not finite becomes null."""
        for name, column in values.items():
            for member, value in enumerate(np.asarray(column, np.float64), self.first):
                self.rows.row(step=step, wall=round(wall, 3), member=member, name=name, value=finite(value))
        self.rows.flush()

    def close(self) -> None:
        """Closes the file."""
        self.rows.close()


class RunFiles:
    """The files that grow while a run trains: metrics, episodes, lineage, and the files of sinks.

    Args:
        folder: The run folder.
        members: The indices of the members that are logged here.
        step: The step of the checkpoint from which the run resumes; 0 if it is new.
        info: The info of that checkpoint, or empty. The files are cut where it says.
        writes: Only one process of a job writes; with False, every method does nothing.
        lineage: Whether the run has a lineage.
        report: Called with a sentence about a damaged file.
        sinks: Names of registered sinks; None for all.
        track: Names of trackers, which `end` closes.
    """

    def __init__(
        self,
        folder: RunFolder,
        members: range,
        step: int,
        info: Mapping[str, Any],
        *,
        writes: bool = True,
        lineage: bool = False,
        report: Callable[[str], None] = print,
        sinks: Sequence[str] | None = None,
        track: Sequence[str] = (),
    ) -> None:
        self.rows: dict[str, Jsonl] = {}
        self.sinks: list[Sink] = []
        self.trackers: Trackers | None = None
        if not writes:
            return
        names = list(SINKS) if sinks is None else list(sinks)
        for name in names:
            if name not in SINKS:
                raise unknown("sink", name, SINKS)
        self._finished = folder.path / FINISHED
        self._fault = folder.path / FAULT
        remove(self._finished)
        remove(self._fault)
        known = extents_of(folder.path, info)
        paths = [folder.metrics, folder.episodes, *([folder.lineage] if lineage else [])]
        self.rows = {path.stem: Jsonl(path, known.get(path.stem, EMPTY), report, step) for path in paths}
        if any(rows.recovered for rows in self.rows.values()):
            record(folder.path / RECOVERED, step, {name: rows.extent for name, rows in self.rows.items()})
        self.sinks.append(MetricsFile(self.rows["metrics"], members.start))
        try:
            for name in names:
                self.sinks.append(SINKS[name](folder, members, step))
            if track:
                self.trackers = _open_trackers(track, folder, members, step, report)
        except BaseException:
            self.close()
            raise

    def write(self, step: int, wall: float, values: Mapping[str, np.ndarray]) -> None:
        """Writes numbers to all sinks (see `Sink.write`)."""
        for sink in self.sinks:
            sink.write(step, wall, values)
        if self.trackers is not None:
            self.trackers.write(step, wall, values)

    def row(self, file: str, **values: Any) -> None:
        """Appends a row to `episodes` or `lineage`."""
        if file in self.rows:
            self.rows[file].row(**values)

    def flush(self) -> None:
        """Writes buffered rows to the files."""
        for rows in self.rows.values():
            rows.flush()

    def sync(self) -> dict[str, Any]:
        """Flushes everything to the disk. Returns the extents, as JSON, on which a checkpoint may then rely."""
        return {name: rows.sync().as_json() for name, rows in self.rows.items()}

    def finish(self, step: int) -> None:
        """Records the extents of a finished run, whose last rows follow its last checkpoint, that of `step`."""
        if self.rows:
            record(self._finished, step, {name: rows.sync() for name, rows in self.rows.items()})

    def end(self, media: Mapping[str, Path] | None = None) -> None:
        """Closes the trackers, with pictures and films by name. They outlive the files, because those come last."""
        if self.trackers is not None:
            self.trackers.close(media)

    def fault(self, quantity: str, member: int, step: int) -> None:
        """Records the first quantity that was not finite, which ends the training."""
        if self.rows:
            replace_text(self._fault, json.dumps({"quantity": quantity, "member": member, "step": step}) + "\n")

    def close(self) -> None:
        """Closes all files and sinks, but not the trackers."""
        for sink in self.sinks:
            sink.close()
        for rows in self.rows.values():
            rows.close()


def _open_trackers(names: Sequence[str], *about: Any) -> "Trackers":
    from covey.storage.trackers import Trackers

    return Trackers(names, TRACKERS, *about)


def read_fault(folder: RunFolder) -> tuple[str, int, int] | None:
    """Returns the quantity, the member and the step that ended a training because it was not finite; None if none did.

    Args:
        folder: The run folder.
    """
    path = folder.path / FAULT
    try:
        found = read_document(path)
        return str(found["quantity"]), int(found["member"]), int(found["step"])
    except (FileNotFoundError, DamagedError, KeyError, TypeError, ValueError):
        return None
    except OSError as error:
        raise read_error(path, error) from error


COLUMNS = ("step", "wall", "member", "value")
NUMBERS = (int, float, type(None))


def read_metrics(path: Path) -> Metrics:
    """Reads `metrics.jsonl`. An incomplete last line, which a kill may leave, is skipped.

    Args:
        path: The file, in a run folder.

    Returns:
        Columns by metric: `step`, `wall`, `member` and `value`, one entry for each row.

    Raises:
        CoveyError: The file does not exist or is damaged.

    Example:
        >>> read_metrics(Path("runs/pendulum-sac-0/metrics.jsonl"))["eval/return"]["value"][-1]
        -148.2
    """

    def columns(rows: Iterator[Row]) -> Metrics:
        found: Metrics = {}
        for number, values, line in rows:
            name = values.get("name")
            numbers = [values.get(column, "") for column in COLUMNS]
            if not isinstance(name, str) or not all(type(x) in NUMBERS for x in numbers):
                raise DamagedError(f"{path} is damaged: line {number}, {line[:80]!r}, is not a row of metrics.")
            own = found.setdefault(name, {column: [] for column in COLUMNS})
            for column, x in zip(COLUMNS, numbers, strict=True):
                own[column].append(float("nan") if x is None else x)
        return found

    return read_history(path, columns)


def read_run_metrics(folder: Path, metric: str) -> Metrics:
    """Reads the metrics of a run that must have logged `metric`.

    Args:
        folder: The run folder.
        metric: The name of a metric, such as `eval/return`.

    Raises:
        CoveyError: There is no such run or no such metric, or the file is damaged.
    """
    name = str(folder)[:500]
    require(os.path.isdir(folder), f"There is no run folder {name}.")
    path = folder / "metrics.jsonl"
    metrics = read_metrics(path) if os.path.lexists(path) or os.path.isdir(folder / "checkpoints") else {}
    if metric not in metrics:
        known = f"It has: {', '.join(sorted(metrics))}." if metrics else "Has it been trained?"
        raise CoveyError(f"{name} has no metric {metric!r}. {known}")
    return metrics
