"""The files that grow while a run goes on."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from covey.run.folder import RunFolder
from covey.run.history import FINISHED, RECOVERED, places_of, record
from covey.run.sinks import MetricsFile, Sink, TensorBoard
from covey.storage.atomic import remove
from covey.storage.jsonl import START, Jsonl


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
        if folder.load_config().pbt:
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
