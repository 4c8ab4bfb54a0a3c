"""Environments that return invalid values, raise, exit, crash or hang: covey names them, and loses no checkpoint."""

import re
import signal
import time
from collections.abc import Iterator
from pathlib import Path

from benchmarks.torture.commands import Result, start
from benchmarks.torture.world import ONE_LAYER, SIZE, Trial, World, newest

MODULE = "benchmarks.torture.environments"
SHORT = ["--steps", "800", "--warmup", "200", *SIZE, *ONE_LAYER]
HANGS_AFTER, ENDS_WITHIN = 10.0, 30.0
"""Seconds that a hanging environment may hang, and within which a signal must then end the run."""


def trials(world: World) -> Iterator[list[Trial]]:
    """Yields every faulty environment, without and with worker processes; then the unusual but correct ones."""
    from benchmarks.torture.environments import FAULTS, ODD

    while True:
        for workers in (0, 2):
            for name in world.random.sample(list(FAULTS), len(FAULTS)):
                yield [_faulty(world, name, FAULTS[name], workers)]
        for name, kind in ODD.items():
            result = world.run(_arguments(world.path("odd"), kind, 0))
            fault = result.fault() or ("" if result.code == 0 else f"refused: {result.output[-300:]}")
            yield [Trial("faulty", "unusual but right", name, fault)]


def _arguments(out: Path, kind: type, workers: int) -> list[str]:
    env = ["--env", f"gymnasium:{MODULE}:{kind.__name__}", "--workers", str(workers)]
    return ["train", "td3", *env, *SHORT, "--out", str(out)]


def _faulty(world: World, name: str, kind: type, workers: int) -> Trial:
    out = world.path("faulty")
    what = f"{name}, {workers} workers"
    running = start(_arguments(out, kind, workers), world.path("log"))
    hangs = "hang" in name
    since = time.monotonic()
    limit = HANGS_AFTER if hangs and not workers else 150.0
    while running.poll() is None and time.monotonic() - since < limit:
        time.sleep(0.02)
    if running.poll() is None and hangs:
        running.send(signal.SIGTERM)
    running.since = time.monotonic()
    result = running.wait(ENDS_WITHIN)
    fault = _fault(result, name, kind, workers) or _lost(out)
    return Trial(
        "faulty", "workers" if workers else "in process", what, f"{fault}: {result.output[-400:]}" if fault else ""
    )


def _fault(result: Result, name: str, kind: type, workers: int) -> str:
    """Returns what is wrong with the end of a run with a faulty environment, or ""."""
    says, ends = getattr(kind, "says", ""), getattr(kind, "ends", False)
    if ends and not workers:  # it ends the process, or waits for a signal
        return "hang" if result.hung else ""
    named = kind.__name__ in result.output
    fault = result.fault(traceback_of="failed:")
    if fault or (workers and result.code == 0):  # workers are restarted
        return fault
    if result.code != 1:
        return f"exit code {result.code}"
    if not named:
        return "the environment is not named"
    return "" if workers or re.search(says, result.output) else f"it does not say {says!r}"


def _lost(out: Path) -> str:
    """Returns the error if the newest checkpoint can't be read, or ""."""
    if newest(out) < 0:
        return ""
    from covey.storage.store import Store

    said: list[str] = []
    Store(out / "checkpoints", "step").read_newest(said.append, set_aside=False)
    return said[0] if said else ""
