"""Random invalid arguments: each must give a usage error or an error message, or a run that stops when asked to."""

import contextlib
import io
import json
import os
import random
import re
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.torture.commands import batch, start
from benchmarks.torture.world import ONE_LAYER, POINT, Trial, World

BATCH = 40
ITEM_SECONDS = 60.0
MEMORY = 12 * 2**30
LETS_RUN, ENDS_WITHIN = 12.0, 40.0
"""Seconds after which a run with accepted arguments is asked to stop, and within which it must then end."""

NUMBERS = (
    "0",
    "-1",
    "1",
    "2",
    "-0.0",
    "0.5",
    "1.5",
    "1e9",
    "1e12",
    "1e30",
    "1e400",
    "nan",
    "inf",
    "-inf",
    "2147483647",
)
NUMBERS += ("2147483648", "4294967296", "18446744073709551616", "9" * 400, "1_000", "0x10", "1e-300", "٣", "1,5")
TEXTS = ("", " ", "abc", "None", "True", "false", "[1, 2]", "{}", "--", "-", "a" * 5000, "\N{SNOWMAN}", "%s%n", "$HOME")
TEXTS += ("linear:0.3:0.05", "linear:1:nan", "linear:1:2:0", "cosine:1", "exponential:0:1", "linear:1:2:1e400")
TEXTS += (
    "1e-4:1e-3",
    "1e-3:1e-4",
    "0:1:log",
    "off",
    "1:2:3:4",
    "td3",
    "point",
    "gymnasium:",
    "gymnasium:x:y",
    ":",
    "a:b:c",
)
PATHS = (".", "..", "/", "/dev/null", "/dev/full", "/dev/zero", "/proc/self/mem", "no/such/file", "a/" * 2000, "~")
AGENTS = ("td3", "sac", "taac", "taac-l", "taac-q", "diayn", "dads", "TD3", "ppo", "", "--help")
READING = ("eval", "plot", "skills", "plan", "lineage", "replay", "video", "resume")
OTHERS = ("envs", "agents", "presets", "check-env", "--version", "help", "nonsense", "")


def trials(world: World) -> Iterator[list[Trial]]:
    """Yields batches of commands that stop before the training; after each batch, one command really runs."""
    while True:
        run = world.reference("td3")
        flags = _flags(world)
        commands = [_command(world.random, flags, run, world.path("out")) for _ in range(BATCH)]
        yield _dry(world, commands)
        really = ("train", "train", "evolve", *READING)
        yield [_really(world, _command(world.random, flags, world.copy(run), world.path("out"), really))]


def _dry(world: World, commands: list[list[str]]) -> list[Trial]:
    """Runs commands without the training."""
    found: list[Trial] = []
    while commands:
        todo = list(commands)

        def work(report: Any, todo: list[list[str]] = todo) -> None:
            _leave_out_training()
            os.chdir(world.path("folder").parent)
            for command in todo:
                report(json.dumps(_outcome(command)))

        done = batch(work, world.path("log"), ITEM_SECONDS, MEMORY)
        for command, line in zip(commands, done.lines, strict=False):
            kind, fault = json.loads(line)
            found.append(Trial("arguments", kind, _shown(command), fault))
        commands = commands[len(done.lines) :]
        if commands:
            found.append(Trial("arguments", "refused", _shown(commands[0]), done.fault or "the process ended"))
            commands = commands[1:]
    return found


def _outcome(command: list[str]) -> tuple[str, str]:
    """Runs a command; returns the outcome (accepted, usage or refused), and the fault or ""."""
    from covey.cli import main

    out, err = io.StringIO(), io.StringIO()
    code: Any = None
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = main(command)
    except SystemExit as end:
        code = end.code
    except BaseException as error:
        return "refused", f"traceback: {type(error).__name__}: {str(error)[:200]}"
    kind = {0: "accepted", 1: "refused", 2: "usage"}.get(code, "refused")
    said = (out.getvalue() + err.getvalue()).strip()
    if code not in (0, 1, 2):
        return kind, f"exit code {code}"
    if "Traceback" in said:
        return kind, f"traceback: {said[-200:]}"
    return kind, "" if said or code == 0 else "no message"


def _leave_out_training() -> None:
    """Stops a command where the training, or another long computation, would begin."""
    import covey.launch
    from covey.run.run import Run

    def accepted(*_: Any, **__: Any) -> Any:
        raise SystemExit(0)

    covey.launch._train = accepted
    for name in ("evaluate", "plot_skills", "plan", "random_plans", "video"):
        setattr(Run, name, accepted)


def _really(world: World, command: list[str]) -> Trial:
    """Runs a command that may really train: it must end by itself, or soon after SIGTERM."""
    running = start(command, world.path("log"), folder=world.path("folder").parent, memory=MEMORY)
    since = time.monotonic()
    while running.poll() is None and time.monotonic() - since < LETS_RUN:
        time.sleep(0.05)
    asked = running.poll() is None
    running.send(signal.SIGTERM)
    running.since = time.monotonic()
    result = running.wait(ENDS_WITHIN)
    fault = result.fault(killed=asked and result.code == -signal.SIGTERM)
    return Trial("arguments", "really run", _shown(command), f"{fault}: {result.output[-300:]}" if fault else "")


def _flags(world: World) -> list[str]:
    """Returns the options of the training commands, from their help."""
    found: set[str] = set()
    for command in (["train", "td3", "--help"], ["train", "dads", "--help"], ["evolve", "sac", "--help"]):
        found |= set(re.findall(r"--[a-z][a-z0-9.-]*[a-z0-9]", world.run(command).output))
    return sorted(found - {"--help", "--coordinator", "--processes", "--process", "--ray-address"})


def _command(random: random.Random, flags: list[str], run: Path, out: Path, verbs: tuple[str, ...] = ()) -> list[str]:
    """Returns a command that is usually invalid."""
    verb = random.choice(verbs or ("train", "train", "train", "evolve", *READING, *OTHERS))
    if verb in ("train", "evolve"):
        agent = random.choice(AGENTS) if random.random() < 0.2 else "td3"
        base = [verb, agent, *POINT, *ONE_LAYER, "--out", str(out)]
    elif verb in READING:
        base = [verb, str(run)]
    else:
        base = [verb]
    for _ in range(random.randint(1, 3)):
        base = _spoiled(random, base, flags)
    return base


def _spoiled(random: random.Random, command: list[str], flags: list[str]) -> list[str]:
    flag = random.choice([*flags, "--episodes", "--steps", "--seed", "--out", "--goal", "--random", "--metric"])
    value = random.choice((random.choice(NUMBERS), random.choice(TEXTS), random.choice(PATHS)))
    place = random.randrange(1, len(command) + 1)
    match random.randrange(8):
        case 0:
            return [*command[:place], value, *command[place:]]
        case 1:
            return command[: place - 1] + command[place:] or [""]
        case 2:
            return [*command, flag[: random.randint(3, len(flag))] + random.choice("abcxyz"), value]
        case 3:
            return [*command, flag]
        case 4:
            return [*command, f"{flag}={value}"]
        case _:
            return [*command, flag, value]


def _shown(command: list[str]) -> str:
    text = " ".join(
        ["covey", *(repr(each) if not each.isascii() or " " in each or not each else each for each in command)]
    )
    return text if len(text) < 400 else f"{text[:400]}..."
