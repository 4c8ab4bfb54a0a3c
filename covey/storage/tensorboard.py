"""TensorBoard's event files, one folder per member if there are several."""

import os
import socket
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from covey.nn.diagnostics import bin_edges
from covey.storage import disk


class TensorBoard:
    """A sink (see `covey.storage.metrics.Sink`) that writes event files.

    Args:
        folder: The folder of the event files.
        members: The indices of the members.
        step: The step from which the run resumes; 0 if it is new. TensorBoard drops the later events, because the
            resumed run writes them again.
    """

    def __init__(self, folder: Path, members: range, step: int) -> None:
        from tensorboard.compat.proto.event_pb2 import Event, SessionLog  # pyright: ignore[reportAttributeAccessIssue]

        disk.make_folder(folder)
        folders = [folder] if len(members) == 1 else [folder / f"member-{i}" for i in members]
        self._files = [_EventFile(each) for each in folders]
        log = SessionLog(status=SessionLog.START)
        for file in self._files:
            file.add(Event(wall_time=time.time(), step=step and step + 1, session_log=log))

    def write(self, step: int, wall: float, values: Mapping[str, np.ndarray]) -> None:
        """Writes named values [P]. Values `NAME[0]`, `NAME[1]`, ... become the histogram NAME."""
        from tensorboard.compat.proto.event_pb2 import Event  # pyright: ignore[reportAttributeAccessIssue]
        from tensorboard.compat.proto.summary_pb2 import Summary  # pyright: ignore[reportAttributeAccessIssue]

        now = time.time()
        bins = {name: name.partition("[")[0] for name in values if name.endswith("]")}
        for member, file in enumerate(self._files):
            own = {name: float(value[member]) for name, value in values.items()}
            tags = [Summary.Value(tag=name, simple_value=value) for name, value in own.items() if name not in bins]
            for histogram in dict.fromkeys(bins.values()):
                shares = [own[name] for name, target in bins.items() if target == histogram]
                tags.append(Summary.Value(tag=histogram, histo=_histogram(histogram, shares)))
            file.add(Event(wall_time=now, step=step, summary=Summary(value=tags)))

    def close(self) -> None:
        """Closes the files."""
        for file in self._files:
            file.close()


class _EventFile:
    """One event file.

    TensorBoard's own writer is not used: it follows links, and if it fails, its thread prints a traceback.
    """

    def __init__(self, folder: Path) -> None:
        from tensorboard.compat.proto.event_pb2 import Event  # pyright: ignore[reportAttributeAccessIssue]
        from tensorboard.summary.writer.record_writer import RecordWriter

        disk.make_folder(folder)
        stem = f"events.out.tfevents.{int(time.time()):010d}.{socket.gethostname()}.{os.getpid()}"
        number = 0
        while disk.exists(folder / f"{stem}.{number}"):
            number += 1
        self._handle = disk.create(folder / f"{stem}.{number}")
        self._records = RecordWriter(self)
        self.add(Event(wall_time=time.time(), file_version="brain.Event:2"))

    def add(self, event: Any) -> None:
        """Appends an event."""
        self._records.write(event.SerializeToString())

    def write(self, data: bytes) -> None:
        """Appends bytes; called by RecordWriter."""
        disk.write_all(self._handle, data)

    def close(self) -> None:
        """Closes the file."""
        disk.close(self._handle)


def _histogram(name: str, shares: list[float]) -> Any:
    """Returns the histogram of a metric."""
    from tensorboard.compat.proto.summary_pb2 import HistogramProto  # pyright: ignore[reportAttributeAccessIssue]

    low, *limits = bin_edges(name, len(shares))
    return HistogramProto(min=low, max=limits[-1], num=sum(shares), bucket_limit=limits, bucket=shares)
