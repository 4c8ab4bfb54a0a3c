"""File calls that fail: every call of a command below its run folder fails once with each error.

A call site is a function of the C library and a pattern of paths. The first call of each site fails, and then random
later ones. The command must print an error message, and the run, resumed on a healthy disk, must equal the undisturbed
one.
"""

import ctypes
import errno
import os
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from benchmarks.torture.world import KINDS, Trial, World, difference

ERRORS = {"EIO": errno.EIO, "ENOSPC": errno.ENOSPC, "EACCES": errno.EACCES, "short": 0}
TRAIN = "train"


class Site(NamedTuple):
    """A call site: the function, and a pattern of paths below the run folder."""

    function: str
    pattern: str


def is_loaded() -> bool:
    """Returns whether this process was started with the shim."""
    return hasattr(ctypes.CDLL(None), "torture_arm")


def trials(world: World) -> Iterator[list[Trial]]:
    """Yields all sites of all commands with all errors, in random order; then random ones with later calls."""
    commands = {name: _sites(world, name) for name in COMMANDS}
    first = [(name, site, error, 0) for name, sites in commands.items() for site in sites for error in ERRORS]
    world.random.shuffle(first)
    for name, site, error, occurrence in first:
        yield failed(world, name, site, error, occurrence)
    while True:
        name = world.random.choice(list(COMMANDS))
        site, count = world.random.choice(list(commands[name].items()))
        occurrence = world.random.randrange(count)
        yield failed(world, name, site, world.random.choice(list(ERRORS)), occurrence)


COMMANDS: dict[str, list[str]] = {
    TRAIN: [],
    "resume": ["resume", "RUN", "--steps", "1600"],
    "eval": ["eval", "RUN", "--episodes", "4"],
    "plot": ["plot", "RUN"],
    "lineage": ["lineage", "RUN"],
    "replay": ["replay", "RUN"],
    "video": ["video", "RUN", "--out", "RUN/media/film.gif"],
}
READS = ("eval", "plot", "lineage", "replay", "video")
KIND = "evolve"


def failed(world: World, name: str, site: Site, error: str, occurrence: int) -> list[Trial]:
    """Runs a command in which one call fails. Returns no trial if the call was not made."""
    out, arguments = _prepared(world, name)
    log = world.path("calls")
    result = world.run(arguments, before=lambda: arm(out, site, occurrence, ERRORS[error], log))
    if "FAILED" not in log.read_text():
        return []
    what = f"{name}: {error} in call {occurrence} of {site.function} on {site.pattern}"
    fault = result.fault() or _consequence(world, name, out)
    return [Trial("injection", error, what, f"{fault}: {result.output[-300:]}" if fault else "")]


def _consequence(world: World, name: str, out: Path) -> str:
    """Repeats the command on a healthy disk; returns how the run differs from an undisturbed one, or ""."""
    reference = world.reference(KIND)
    if name in READS:
        damaged = [p.name for p in out.rglob("*.damaged")]
        return f"{damaged[0]} was set aside by a reader" if damaged else difference(reference, out)
    arguments = [*KINDS[KIND], "--out", str(out)] if name == TRAIN else COMMANDS[name]
    again = world.run([text.replace("RUN", str(out)) for text in arguments])
    if again.code != 0:
        return f"afterwards, exit code {again.code}: {again.output[-300:]}"
    return difference(reference if name == TRAIN else _longer(world), out)


def _longer(world: World) -> Path:
    """Returns the undisturbed run, resumed to more steps."""
    if "longer" not in world.references:
        out = world.copy(world.reference(KIND))
        done = world.run([text.replace("RUN", str(out)) for text in COMMANDS["resume"]])
        if done.code != 0:
            raise RuntimeError(f"The undisturbed resume failed:\n{done.output}")
        world.keep("longer", out)
    return world.references["longer"]


def _prepared(world: World, name: str) -> tuple[Path, list[str]]:
    """Returns a run folder for a command, and its arguments."""
    if name == TRAIN:
        out = world.path("injected")
        return out, [*KINDS[KIND], "--out", str(out)]
    out = world.copy(world.reference(KIND))
    return out, [text.replace("RUN", str(out)) for text in COMMANDS[name]]


def arm(out: Path, site: Site, occurrence: int, error: int, log: Path) -> None:
    """Makes one later call of this process below a folder fail, and logs all of them."""
    file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
    ctypes.CDLL(None).torture_arm(
        str(out).encode(), site.function.encode(), site.pattern.encode(), ctypes.c_long(occurrence), error, file
    )


def _sites(world: World, name: str) -> dict[Site, int]:
    """Returns the call sites of a command, and the number of calls of each."""
    out, arguments = _prepared(world, name)
    log = world.path("calls")
    world.run(arguments, before=lambda: arm(out, Site("", ""), -1, 0, log))
    return sites_in(log)


def sites_in(log: Path) -> dict[Site, int]:
    """Returns the call sites in the shim's log, and the number of calls of each."""
    calls = (line.partition(" ") for line in log.read_text().splitlines())
    return dict(Counter(Site(function, pattern(path)) for function, _, path in calls))


def pattern(path: str) -> str:
    """Returns a pattern for a path, in which numbers and random names match any."""
    path = re.sub(r"events\.out\.tfevents\..*", "events.out.tfevents.*", path)
    path = re.sub(r"\.tmp[A-Za-z0-9_]{6,}", ".tmp*", path)
    return re.sub(r"\d+", "*", path)
