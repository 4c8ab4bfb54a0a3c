"""The files that grow while a run goes on."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from covey.run.folder import RunFolder
from covey.run.sinks import Jsonl, MetricsFile, Sink, TensorBoard


class Files:
    """Metrics, episodes, lineage and TensorBoard's events, open at the places where a checkpoint left them.

    `members` are the numbers of those they tell of. Of the processes of a job one writes; for the others (`writes`
    false) all this does nothing.
    """

    def __init__(self, folder: RunFolder, members: range, step: int, places: Mapping[str, int], writes: bool) -> None:
        self.rows: dict[str, Jsonl] = {}
        self.sinks: list[Sink] = []
        if not writes:
            return
        metrics = MetricsFile(folder.metrics, places.get("metrics", 0), members.start)
        self.rows = {"metrics": metrics.rows, "episodes": Jsonl(folder.episodes, places.get("episodes", 0))}
        if folder.load_config().pbt:
            self.rows["lineage"] = Jsonl(folder.lineage, places.get("lineage", 0))
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

    def sync(self) -> dict[str, int]:
        """Brings everything to the disk; returns the places, which a checkpoint may then rely on."""
        return {name: rows.sync() for name, rows in self.rows.items()}

    def close(self) -> None:
        for sink in self.sinks:
            sink.close()
        for rows in self.rows.values():
            rows.close()
