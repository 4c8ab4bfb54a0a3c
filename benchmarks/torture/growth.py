"""Checks that memory and file descriptors of a run that trains, evaluates and saves do not grow."""

import os
import time
from collections.abc import Iterator
from pathlib import Path

from benchmarks.torture.commands import start
from benchmarks.torture.world import HOST, ONE_LAYER, POINT, Trial, World, newest

LOOPS = {
    "device loop": ["train", "td3", *POINT, *ONE_LAYER, "--steps", "100000000", "--evaluations", "20000"],
    "host loop": ["train", "td3", *HOST, *ONE_LAYER, "--steps", "100000000", "--evaluations", "20000"],
}
MOST_GROWTH = 1.15
"""The allowed ratio of resident memory in the last quarter to the second. The allocator alone varies by up to 13 %."""


def trials(world: World) -> Iterator[list[Trial]]:
    """Yields one trial per loop, each a twelfth of the campaign's time."""
    for name, arguments in LOOPS.items():
        yield [_grown(world, name, arguments, max(30.0, 60.0 * world.minutes / 12.0))]


def _grown(world: World, name: str, arguments: list[str], seconds: float) -> Trial:
    out = world.path("growth")
    extra = ["--capacity", "2000", "--out", str(out)]
    training = start([*arguments, *extra], world.path("log"))
    while newest(out) < 0 and training.poll() is None:
        time.sleep(0.1)
    since, memory, files = time.monotonic(), [], []
    while training.poll() is None and time.monotonic() - since < seconds:
        memory.append(_resident(training.pid))
        files.append(len(os.listdir(f"/proc/{training.pid}/fd")))
        time.sleep(0.25)
    over = training.poll() is not None
    step = newest(out)
    output = training.wait(0.0).output
    if over:
        return Trial("growth", name, name, f"it ended: {output[-300:]}")
    quarter = len(memory) // 4
    early, late = (sorted(part)[len(part) // 2] for part in (memory[quarter : 2 * quarter], memory[-quarter:]))
    more = max(files[-quarter:]) - max(files[quarter : 2 * quarter])
    what = f"{name}: {step:,} steps, {early / 1e6:.0f} MB, then {late / 1e6:.0f} MB, {files[-1]} descriptors"
    fault = f"memory grew: {what}" if late > MOST_GROWTH * early else ""
    return Trial("growth", name, what, fault or (f"{more} more descriptors" if more > 2 else ""))


def _resident(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
