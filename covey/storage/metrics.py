"""Where numbers go: a line of JSON each, and TensorBoard."""

import os
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from covey.storage.atomic import DamagedError, close, create, is_there, make_folder, remove, write_all
from covey.storage.folder import RunFolder
from covey.storage.history import FINISHED, RECOVERED, places_of, read_history, record
from covey.storage.jsonl import START, Jsonl, Row


class Sink(Protocol):
    def write(self, step: int, wall: float, values: Mapping[str, np.ndarray]) -> None:
        """Takes named values [P] at an environment step, `wall` seconds into the run."""
        ...

    def close(self) -> None: ...


def finite(value: Any) -> float | None:
    """A number for JSON, which has no NaN and no infinity."""
    return float(value) if np.isfinite(value) else None


class MetricsFile:
    """`metrics.jsonl`: step, wall seconds, member, name, value. A value that is not finite is written as null."""

    def __init__(self, rows: Jsonl, first: int = 0) -> None:
        """`first` is the number of the first member."""
        self.rows, self.first = rows, first

    def write(self, step: int, wall: float, values: Mapping[str, np.ndarray]) -> None:
        for name, of_members in values.items():
            for member, value in enumerate(np.asarray(of_members, np.float64), self.first):
                self.rows.row(step=step, wall=round(wall, 3), member=member, name=name, value=finite(value))
        self.rows.flush()

    def close(self) -> None:
        self.rows.close()


class _Events:
    """One event file. TensorBoard's own writer follows links, and fails in a thread that prints its traceback."""

    def __init__(self, folder: Path) -> None:
        from tensorboard.compat.proto.event_pb2 import Event  # pyright: ignore[reportAttributeAccessIssue]
        from tensorboard.summary.writer.record_writer import RecordWriter

        make_folder(folder)
        stem = f"events.out.tfevents.{int(time.time()):010d}.{socket.gethostname()}.{os.getpid()}"
        number = 0
        while is_there(folder / f"{stem}.{number}"):
            number += 1
        self._handle = create(folder / f"{stem}.{number}")
        self._records = RecordWriter(self)
        self.add(Event(wall_time=time.time(), file_version="brain.Event:2"))

    def add(self, event: Any) -> None:
        self._records.write(event.SerializeToString())

    def write(self, data: bytes) -> None:
        """What RecordWriter calls."""
        write_all(self._handle, data)

    def close(self) -> None:
        close(self._handle)


class TensorBoard:
    """Event files, one folder per member where there are several."""

    def __init__(self, folder: Path, members: range, from_step: int) -> None:
        """Tells readers to forget events after `from_step`, or all if it is 0: a resumed run writes them again."""
        from tensorboard.compat.proto.event_pb2 import Event, SessionLog  # pyright: ignore[reportAttributeAccessIssue]

        make_folder(folder)
        names = [folder] if len(members) == 1 else [folder / f"member-{i}" for i in members]
        self.writers = [_Events(name) for name in names]
        log = SessionLog(status=SessionLog.START)
        for writer in self.writers:
            writer.add(Event(wall_time=time.time(), step=from_step and from_step + 1, session_log=log))

    def write(self, step: int, wall: float, values: Mapping[str, np.ndarray]) -> None:
        from tensorboard.compat.proto.event_pb2 import Event  # pyright: ignore[reportAttributeAccessIssue]
        from tensorboard.compat.proto.summary_pb2 import Summary  # pyright: ignore[reportAttributeAccessIssue]

        now = time.time()
        bins = {name: name.partition("[")[0] for name in values if name.endswith("]")}
        for member, writer in enumerate(self.writers):
            of = {name: float(value[member]) for name, value in values.items()}
            tags = [Summary.Value(tag=name, simple_value=value) for name, value in of.items() if name not in bins]
            for histogram in dict.fromkeys(bins.values()):
                shares = [of[name] for name, of_which in bins.items() if of_which == histogram]
                tags.append(Summary.Value(tag=histogram, histo=_histogram(shares)))
            writer.add(Event(wall_time=now, step=step, summary=Summary(value=tags)))

    def close(self) -> None:
        for writer in self.writers:
            writer.close()


def _histogram(shares: list[float]) -> Any:
    """The shares of equal bins of [0, 1], as TensorBoard draws them."""
    from tensorboard.compat.proto.summary_pb2 import HistogramProto  # pyright: ignore[reportAttributeAccessIssue]

    limits = [(i + 1) / len(shares) for i in range(len(shares))]
    return HistogramProto(min=0.0, max=1.0, num=sum(shares), bucket_limit=limits, bucket=shares)


class Files:
    """Metrics, episodes, lineage and TensorBoard's events, open at the places where a checkpoint left them.

    `members` are the numbers of those they tell of. Of the processes of a job one writes; for the others (`writes`
    false) all this does nothing.
    """

    def __init__(
        self,
        folder: RunFolder,
        members: range,
        step: int,
        info: Mapping[str, Any],
        writes: bool,
        say: Callable[[str], None] = print,
        lineage: bool = False,
    ) -> None:
        """`info` is that of the checkpoint of a step, or empty. `say` is told of files that are damaged."""
        self.rows: dict[str, Jsonl] = {}
        self.sinks: list[Sink] = []
        if not writes:
            return
        self._finished = folder.path / FINISHED
        remove(self._finished)
        places = places_of(folder.path, info)

        def opened(path: Path) -> Jsonl:
            return Jsonl(path, places.get(path.stem, START), say, step)

        self.rows = {"metrics": opened(folder.metrics), "episodes": opened(folder.episodes)}
        if lineage:
            self.rows["lineage"] = opened(folder.lineage)
        if any(rows.recovered for rows in self.rows.values()):
            record(folder.path / RECOVERED, step, {name: rows.place for name, rows in self.rows.items()})
        metrics = MetricsFile(self.rows["metrics"], members.start)
        self.sinks = [metrics, TensorBoard(folder.tensorboard, members, step)]

    def write(self, step: int, wall: float, values: Mapping[str, np.ndarray]) -> None:
        """Named values [P] at an environment step, `wall` seconds into the run."""
        for sink in self.sinks:
            sink.write(step, wall, values)

    def row(self, file: str, **values: Any) -> None:
        """A line of `episodes` or `lineage`."""
        if file in self.rows:
            self.rows[file].row(**values)

    def flush(self) -> None:
        for rows in self.rows.values():
            rows.flush()

    def sync(self) -> dict[str, Any]:
        """Brings everything to the disk; returns the places, which a checkpoint may then rely on."""
        return {name: rows.sync().as_json() for name, rows in self.rows.items()}

    def finish(self, step: int) -> None:
        """Records how long the files are at the end of a run, whose last rows follow the checkpoint of a step."""
        if self.rows:
            record(self._finished, step, {name: rows.sync() for name, rows in self.rows.items()})

    def close(self) -> None:
        for sink in self.sinks:
            sink.close()
        for rows in self.rows.values():
            rows.close()


COLUMNS = ("step", "wall", "member", "value")


def read_metrics(path: Path) -> dict[str, dict[str, list[float]]]:
    """`metrics.jsonl` as columns: name -> step, wall, member, value. A last line cut short by a kill is left out."""

    def columns(rows: Iterator[Row]) -> dict[str, dict[str, list[float]]]:
        found: dict[str, dict[str, list[float]]] = {}
        for number, values, line in rows:
            name, numbers = values.get("name"), [values.get(column, "") for column in COLUMNS]
            if not isinstance(name, str) or not all(type(x) in NUMBERS for x in numbers):
                raise DamagedError(f"{path} is damaged: line {number}, {line[:80]!r}, is no row of metrics.")
            of = found.setdefault(name, {column: [] for column in COLUMNS})
            for column, x in zip(COLUMNS, numbers, strict=True):
                of[column].append(float("nan") if x is None else x)
        return found

    return read_history(path, columns)


NUMBERS = (int, float, type(None))
