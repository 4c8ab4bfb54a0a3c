"""Jobs of two processes that are killed, stopped, started with different options, or whose port is in use."""

import signal
import socket
import time
from collections.abc import Iterator
from pathlib import Path

from benchmarks.torture.commands import Result, Started, start
from benchmarks.torture.world import ONE_LAYER, POINT, ROWS, TRAINING_SECONDS, Trial, World, newest, rows

EVOLVE = ["evolve", "td3", *POINT, *ONE_LAYER, "--steps", "6000", "--members", "4", "--population-axis", "map"]
EVOLVE += ["--pbt.bottom", "0.5", "--pbt.top", "0.25", "--devices", "1", "--evaluations", "15"]
END_SECONDS = 60.0
"""Seconds within which all processes of a job must end after one of them has."""
MISMATCHES = (["--seed", "5"], ["--steps", "8000"], ["--members", "8"], ["--hyper.actor-lr", "1e-5"])


def trials(world: World) -> Iterator[list[Trial]]:
    """Yields every kind of disturbance in turn."""
    while True:
        for number in (signal.SIGKILL, signal.SIGTERM, signal.SIGINT):
            yield [_disturbed(world, number, world.random.randrange(2))]
        yield [_stopped(world)]
        yield [_mismatched(world, world.random.choice(MISMATCHES))]
        yield [_port_taken(world)]
        yield [_incomplete(world)]


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


def _start(world: World, arguments: list[str], second: list[str] | None = None) -> list[Started]:
    """Starts the two processes of a job; `second` are the arguments of the second one if they differ."""
    where = ["--coordinator", f"127.0.0.1:{free_port()}", "--processes", "2", "--process"]
    each = (arguments, arguments if second is None else second)
    return [start([*given, *where, str(i)], world.path("log"), real=True) for i, given in enumerate(each)]


def _reference(world: World) -> Path:
    """Returns the run of the same population in one process."""
    if "job" not in world.references:
        out = world.path()
        done = world.run([*EVOLVE, "--out", str(out)])
        if done.code != 0:
            raise RuntimeError(f"The undisturbed population failed:\n{done.output}")
        world.keep("job", out)
    return world.references["job"]


def _until(out: Path, running: list[Started], step: int) -> None:
    """Waits for a checkpoint after a step, or for the end of a process."""
    since = time.monotonic()
    while newest(out) <= step and all(each.poll() is None for each in running):
        if time.monotonic() - since > TRAINING_SECONDS:
            return
        time.sleep(0.02)


def _both(running: list[Started], seconds: float) -> list[Result]:
    """Waits for both processes, at most `seconds` from now."""
    for each in running:
        each.since = time.monotonic()
    return [each.wait(seconds) for each in running]


def _disturbed(world: World, number: signal.Signals, victim: int) -> Trial:
    """Sends a signal to one process: both must end in time, and the resumed job must equal the run in one process."""
    reference, out = _reference(world), world.path("job")
    running = _start(world, [*EVOLVE, "--out", str(out)])
    _until(out, running, world.random.randrange(500, 3000))
    time.sleep(world.random.uniform(0, 0.3))
    running[victim].send(number)
    results = _both(running, END_SECONDS)
    fault = "; ".join(_said(r, i == victim, number) for i, r in enumerate(results) if _said(r, i == victim, number))
    what = f"{number.name} to process {victim}"
    if not fault:
        fault = _resumed(world, out, reference)
    return Trial("jobs", number.name, what, fault)


def _said(result: Result, is_victim: bool, number: signal.Signals) -> str:
    """Returns what is wrong with the end of a process, or "". After a SIGKILL, jax may abort the other process."""
    aborted = number == signal.SIGKILL and result.code in (-signal.SIGABRT, 1)
    if (is_victim and result.code == -number) or aborted:
        return "hang" if result.hung else ""
    return result.fault()


def _resumed(world: World, out: Path, reference: Path) -> str:
    """Resumes a job with two processes or one, and compares it with the undisturbed run."""
    if world.random.random() < 0.5:
        results = [world.run(["resume", str(out)])]
    else:
        results = _both(_start(world, ["resume", str(out)]), TRAINING_SECONDS)
    for result in results:
        if result.code != 0 or result.hung:
            return f"resumed, exit code {result.code}: {result.output[-400:]}"
    differing = [name for name in ROWS if rows(reference / name) != rows(out / name)]
    return f"{differing[0]} differs after resuming" if differing else ""


def _stopped(world: World) -> Trial:
    """Pauses a process for some seconds: the result must not change."""
    reference, out = _reference(world), world.path("job")
    running = _start(world, [*EVOLVE, "--out", str(out)])
    _until(out, running, world.random.randrange(500, 3000))
    victim = world.random.choice(running)
    victim.send(signal.SIGSTOP)
    time.sleep(world.random.uniform(0.5, 8.0))
    victim.send(signal.SIGCONT)
    results = _both(running, TRAINING_SECONDS)
    fault = next((f"exit code {r.code}: {r.output[-300:]}" for r in results if r.code != 0), "")
    differing = [name for name in ROWS if rows(reference / name) != rows(out / name)] if not fault else []
    return Trial("jobs", "SIGSTOP", "SIGSTOP, then SIGCONT", fault or (f"{differing[0]} differs" if differing else ""))


def _mismatched(world: World, options: list[str]) -> Trial:
    """Starts processes with different options: both must end in time, each with an error message."""
    out = ["--out", str(world.path("job"))]
    running = _start(world, [*EVOLVE, *out], [*EVOLVE, *out, *options])
    results = _both(running, END_SECONDS)
    fault = next((f for r in results if (f := r.fault() or ("" if r.code == 1 else f"exit code {r.code}"))), "")
    return Trial("jobs", "mismatched", f"process 1 with {' '.join(options)}", fault)


def _port_taken(world: World) -> Trial:
    """Starts a job whose port is in use: it must end with an error message."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        where = ["--coordinator", f"127.0.0.1:{taken.getsockname()[1]}", "--processes", "2", "--process", "0"]
        result = start([*EVOLVE, "--out", str(world.path("job")), *where], world.path("log"), real=True).wait(
            END_SECONDS
        )
    fault = result.fault() or ("" if result.code == 1 else f"exit code {result.code}: {result.output[-300:]}")
    return Trial("jobs", "port in use", "port in use", fault)


def _incomplete(world: World) -> Trial:
    """Starts only one process: it must say that it waits for the other, and end on Ctrl-C."""
    where = ["--coordinator", f"127.0.0.1:{free_port()}", "--processes", "2", "--process", "0"]
    running = start([*EVOLVE, "--out", str(world.path("job")), *where], world.path("log"), real=True)
    since = time.monotonic()
    while running.poll() is None and time.monotonic() - since < 30 and "ait" not in running.log.read_text():
        time.sleep(0.1)
    said = "ait" in running.log.read_text()
    running.send(signal.SIGINT)
    running.since = time.monotonic()
    result = running.wait(END_SECONDS)
    fault = "prints nothing while it waits for the other" if not said else result.fault(killed=result.code == -2)
    return Trial("jobs", "alone", "the other process never starts", fault)
