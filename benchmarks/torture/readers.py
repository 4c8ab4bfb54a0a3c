"""Commands that read a run while it trains and replaces its checkpoints many times per second."""

import time
from collections.abc import Iterator
from pathlib import Path

from benchmarks.torture.commands import start
from benchmarks.torture.world import ONE_LAYER, POINT, Trial, World, newest

LONG = ["evolve", "td3", *POINT, *ONE_LAYER, "--steps", "60000", "--evaluations", "60", "--members", "2"]
LONG += ["--pbt.bottom", "0.5", "--pbt.top", "0.5"]
READS = (["eval", "RUN", "--episodes", "2"], ["plot", "RUN"], ["replay", "RUN"], ["lineage", "RUN"])
SECONDS = 60.0


def trials(world: World) -> Iterator[list[Trial]]:
    """Yields one training run per step, with as many reads as possible during it."""
    while True:
        yield _beside(world)


def _beside(world: World) -> list[Trial]:
    out, found = world.path("read"), []
    training = start([*LONG, "--out", str(out)], world.path("log"))
    while not _has_two_generations(out) and training.poll() is None:
        time.sleep(0.05)
    while training.poll() is None and len(found) < 40:
        arguments = world.random.choice(READS)
        result = world.run([text.replace("RUN", str(out)) for text in arguments], SECONDS)
        fault = result.fault() or ("" if result.code == 0 else f"exit code {result.code}: {result.output[-300:]}")
        found.append(Trial("readers", arguments[0], f"{arguments[0]} during training", fault))
    training.wait(0.0)
    return found


def _has_two_generations(out: Path) -> bool:
    """Whether there is a policy to evaluate and a lineage to draw."""
    lineage = out / "lineage.jsonl"
    return newest(out, "best") >= 0 and lineage.exists() and '"generation": 2' in lineage.read_text()
