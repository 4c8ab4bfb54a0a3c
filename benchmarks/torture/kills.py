"""Signals at random moments, over every agent and both loops; the resumed run must equal the undisturbed one."""

import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from benchmarks.torture.commands import Started, start
from benchmarks.torture.world import KINDS, TRAINING_SECONDS, Trial, World, difference, newest

GENTLE = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
GENTLE_SECONDS = 60.0
"""A generous limit for ending after a signal: it may have to compile first, on a busy machine."""


def trials(world: World) -> Iterator[list[Trial]]:
    """Disturbed runs: one trial per signal, and one per finished run."""
    while True:
        for kind in world.random.sample(list(KINDS), len(KINDS)):
            yield disturbed(world, kind)


def disturbed(world: World, kind: str) -> list[Trial]:
    """A run that is disturbed two to eight times, and then runs to its end."""
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
    """Sends the signal and waits for the end; what was wrong with it."""
    running.send(number)
    if number == signal.SIGKILL:
        return running.wait(TRAINING_SECONDS).fault(killed=True)
    running.since = time.monotonic()
    result = running.wait(GENTLE_SECONDS)
    return result.fault(killed=result.code == -number)  # before it has begun to listen, a signal simply ends it


def _moment(world: World, kind: str, out: Path) -> tuple[Callable[[], bool], str]:
    """A random moment to disturb a run: after a time, while a checkpoint is written, or soon after one."""
    choice, after = world.random.randrange(3), newest(out)
    if choice == 0:
        delay = world.random.uniform(0.0, 1.1 * world.seconds[kind])
        end = time.monotonic() + delay
        return (lambda: time.monotonic() > end), f"after {delay:.2f} s"
    if choice == 1:
        checkpoints = out / "checkpoints"
        return (lambda: newest(out) > after and any(checkpoints.glob("*.partial"))), f"while writing, after {after}"
    delay, seen = world.random.uniform(0.0, 0.2), [0.0]

    def soon() -> bool:
        if not seen[0] and newest(out) > after:
            seen[0] = time.monotonic()
        return bool(seen[0]) and time.monotonic() > seen[0] + delay

    return soon, f"{delay:.3f} s after a checkpoint later than {after}"
