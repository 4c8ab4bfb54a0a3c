"""What a tracker costs the training: `python -m benchmarks.trackers --minutes 5`, after `make test-trackers`.

Runs without a tracker and with each take turns, in random order. On a machine that does other work too, compare the CPU
time per step rather than the speed.
"""

import random
import resource
import shutil
import statistics
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import tyro

import covey
from covey.storage.trackers import BUILT_IN, Trackers

WARMUP = 1_200
"""The step from which on time is taken."""


class Cost(NamedTuple):
    """Steps per second, CPU microseconds per step, CPU microseconds of the training thread per log, CPU seconds of the
    tracker's process."""

    speed: float
    cpu: float
    thread: float
    process: float


@dataclass(frozen=True)
class Options:
    """Measures what trackers cost."""

    minutes: float = 5.0
    """How long to measure."""
    steps: int = 12_000
    """Steps of each run."""


class _Timed(Trackers):
    """Trackers that add up the CPU time of the thread that writes to them."""

    seconds: list[float] = []  # noqa: RUF012

    def write(self, step: int, wall: float, values: Mapping[str, np.ndarray]) -> None:
        start = time.thread_time()
        super().write(step, wall, values)
        self.seconds.append(time.thread_time() - start)


def measure(track: list[str], steps: int, out: Path) -> Cost:
    """Trains a run and returns what it cost."""
    shutil.rmtree(out, ignore_errors=True)
    _Timed.seconds.clear()
    marks: list[tuple[int, float, float]] = []

    def log(event: covey.Event) -> None:
        if event.step >= WARMUP:
            marks.append((event.step, time.monotonic(), time.process_time()))

    before = _children()
    options: Any = {"steps": steps, "hidden": [64, 64], "track": track, "checkpoint_minutes": 60.0}
    covey.train("td3", env="pendulum", out=out, quiet=True, callbacks=[covey.Callback(on_log=log)], **options)
    first, last = marks[0], marks[-1]
    count = last[0] - first[0]
    thread = 1e6 * statistics.mean(_Timed.seconds or [0.0])
    return Cost(count / (last[1] - first[1]), 1e6 * (last[2] - first[2]) / count, thread, _children() - before)


def _children() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def main(options: Options) -> None:
    """Prints the medians."""
    import covey.storage.trackers

    covey.storage.trackers.Trackers = _Timed
    arms = [[], *([name] for name in BUILT_IN)]
    found: dict[str, list[Cost]] = {}
    end = time.monotonic() + 60 * options.minutes
    with tempfile.TemporaryDirectory() as folder:
        measure([], options.steps, Path(folder) / "run")  # compiles
        while time.monotonic() < end:
            for track in random.sample(arms, len(arms)):
                cost = measure(track, options.steps, Path(folder) / "run")
                found.setdefault("".join(track) or "none", []).append(cost)
    print(f"{'tracker':<8}  runs  steps/s  CPU us/step  CPU us/log in the training thread  CPU s of its process")
    for name, costs in found.items():
        speed, cpu, thread, process = (statistics.median(column) for column in zip(*costs, strict=True))
        print(f"{name:<8}  {len(costs):>4}  {speed:>7,.0f}  {cpu:>11.1f}  {thread:>33.0f}  {process:>20.1f}")


if __name__ == "__main__":
    main(tyro.cli(Options))
