"""Where numbers go: a line of JSON each, and TensorBoard."""

import json
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from covey.errors import CoveyError


class Sink(Protocol):
    def write(self, step: int, wall: float, values: Mapping[str, np.ndarray]) -> None:
        """Takes named values [P] at an environment step, `wall` seconds into the run."""
        ...

    def close(self) -> None: ...


class Jsonl:
    """Rows appended to a file and flushed as they come. `position` is where a checkpoint stands in it."""

    def __init__(self, path: Path, position: int = 0) -> None:
        """Opens the file and forgets what was written after `position`: a resumed run writes it again."""
        self.file = path.open("ab")
        if os.fstat(self.file.fileno()).st_size > position:
            self.file.truncate(position)
        self.file.seek(0, os.SEEK_END)

    @property
    def position(self) -> int:
        return self.file.tell()

    def row(self, **values: Any) -> None:
        self.file.write((json.dumps(values) + "\n").encode())

    def flush(self) -> None:
        self.file.flush()

    def sync(self) -> int:
        """Brings everything to the disk; returns the position, which a checkpoint may then rely on."""
        self.file.flush()
        os.fsync(self.file.fileno())
        return self.position

    def close(self) -> None:
        self.file.close()


def finite(value: Any) -> float | None:
    """A number for JSON, which has no NaN and no infinity."""
    return float(value) if np.isfinite(value) else None


class MetricsFile:
    """`metrics.jsonl`: step, wall seconds, member, name, value. A value that is not finite is written as null."""

    def __init__(self, path: Path, position: int = 0, first: int = 0) -> None:
        """`first` is the number of the first member."""
        self.rows, self.first = Jsonl(path, position), first

    def write(self, step: int, wall: float, values: Mapping[str, np.ndarray]) -> None:
        for name, of_members in values.items():
            for member, value in enumerate(np.asarray(of_members, np.float64), self.first):
                self.rows.row(step=step, wall=round(wall, 3), member=member, name=name, value=finite(value))
        self.rows.flush()

    def close(self) -> None:
        self.rows.close()


class TensorBoard:
    """Event files, one folder per member where there are several."""

    def __init__(self, folder: Path, members: range, from_step: int) -> None:
        """Tells readers to forget events after `from_step`, or all if it is 0: a resumed run writes them again."""
        from tensorboard.compat.proto.event_pb2 import Event, SessionLog  # pyright: ignore[reportAttributeAccessIssue]
        from tensorboard.summary.writer.event_file_writer import EventFileWriter

        names = [folder] if len(members) == 1 else [folder / f"member-{i}" for i in members]
        self.writers = [EventFileWriter(str(name)) for name in names]
        log = SessionLog(status=SessionLog.START)
        for writer in self.writers:
            writer.add_event(Event(wall_time=time.time(), step=from_step and from_step + 1, session_log=log))

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
            writer.add_event(Event(wall_time=now, step=step, summary=Summary(value=tags)))
            writer.flush()

    def close(self) -> None:
        for writer in self.writers:
            writer.close()


def _histogram(shares: list[float]) -> Any:
    """The shares of equal bins of [0, 1], as TensorBoard draws them."""
    from tensorboard.compat.proto.summary_pb2 import HistogramProto  # pyright: ignore[reportAttributeAccessIssue]

    limits = [(i + 1) / len(shares) for i in range(len(shares))]
    return HistogramProto(min=0.0, max=1.0, num=sum(shares), bucket_limit=limits, bucket=shares)


def read_metrics(path: Path) -> dict[str, dict[str, list[float]]]:
    """`metrics.jsonl` as columns: name -> step, wall, member, value. A last line cut short by a kill is left out."""
    columns: dict[str, dict[str, list[float]]] = {}
    with path.open() as file:
        for line in file:
            if not line.endswith("\n"):
                break
            try:
                row = json.loads(line)
                column = columns.setdefault(row["name"], {"step": [], "wall": [], "member": [], "value": []})
                for name, values in column.items():
                    values.append(float("nan") if row[name] is None else row[name])
            except (ValueError, KeyError, TypeError):
                raise CoveyError(f"{path} is damaged: {line.strip()[:80]!r} is no row of metrics.") from None
    return columns
