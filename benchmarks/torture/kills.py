"""Signals at random moments, for every agent and both loops; the resumed run must equal the undisturbed one."""

import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from benchmarks.torture.commands import Started, start
from benchmarks.torture.world import KINDS, TRAINING_SECONDS, Trial, World, difference, newest

GENTLE = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
GENTLE_SECONDS = 60.0
"""The time limit for ending after a signal. It is generous, because a busy machine may have to finish compiling."""


def trials(world: World) -> Iterator[list[Trial]]:
    """Yields disturbed runs: one trial per signal, and one per finished run."""
    while True:
        for kind in world.random.sample(list(KINDS), len(KINDS)):
            yield disturbed(world, kind)


def disturbed(world: World, kind: str) -> list[Trial]:
    """Disturbs a run two to eight times, and then lets it finish."""
    random, found = world.random, []
    reference, out = world.reference(kind), world.path("killed")
    arguments = [*KINDS[kind], "--out", str(out)]
    for _ in range(random.randint(2, 8)):
        real = random.random() < 0.1
        number = signal.SIGKILL if random.random() < 0.75 else random.choice(GENTLE)
        moment, described = _moment(world, kind, out)
        running = start(arguments, world.path("log"), real=real)
        since = time.monotonic()
        while running.poll() is None and not moment() and time.monotonic() - since < TRAINING_SECONDS:
            time.sleep(0.002)
        over = running.poll() is not None
        fault = _ended(running, number)
        what = f"{kind}: {number.name} {described}"
        found.append(Trial("kills", "finished first" if over else number.name, what, fault))
        if over:
            break
        if (out / "config.json").exists() and random.random() < 0.5:
            arguments = ["resume", str(out)]
    done = world.run(arguments)
    fault = done.fault() or ("" if done.code == 0 else f"exit code {done.code}: {done.output[-300:]}")
    return [*found, Trial("kills", "resumed", f"{kind}: resumed to the end", fault or difference(reference, out))]


def _ended(running: Started, number: signal.Signals) -> str:
    """Sends the signal and waits for the end; returns what was wrong with it, or ""."""
    running.send(number)
    if number == signal.SIGKILL:
        return running.wait(TRAINING_SECONDS).fault(killed=True)
    running.since = time.monotonic()
    result = running.wait(GENTLE_SECONDS)
    return result.fault(killed=result.code == -number)  # before covey handles signals, they end the process


def _moment(world: World, kind: str, out: Path) -> tuple[Callable[[], bool], str]:
    """Chooses a moment to disturb a run: after a delay, while a checkpoint is written, or soon after one."""
    choice, after = world.random.randrange(3), newest(out)
    if choice == 0:
        delay = world.random.uniform(0.0, 1.1 * world.seconds[kind])
        end = time.monotonic() + delay
        return (lambda: time.monotonic() > end), f"after {delay:.2f} s"
    if choice == 1:
        checkpoints = out / "checkpoints"
        return (lambda: newest(out) > after and any(checkpoints.glob("*.partial"))), f"while writing, after {after}"
    delay = world.random.uniform(0.0, 0.2)
    found = [0.0]

    def soon() -> bool:
        if not found[0] and newest(out) > after:
            found[0] = time.monotonic()
        return bool(found[0]) and time.monotonic() > found[0] + delay

    return soon, f"{delay:.3f} s after a checkpoint later than {after}"
