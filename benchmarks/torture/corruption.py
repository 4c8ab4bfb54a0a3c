"""Damages every file of a run in many ways, and reads it with every reader.

A reader must return the same data as before the damage, or raise an error with a message. A resumed run must end like
the undisturbed one, or report the damage.
"""

import hashlib
import json
import os
import random
import shutil
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.torture.commands import batch
from benchmarks.torture.world import KINDS, ROWS, Trial, World, difference, newest

SHORT_BATCH, BATCH = 60, 300
"""Damaged copies that one process reads, in campaigns of less than a minute and in longer ones."""
ITEM_SECONDS = 30.0
MEMORY = 6 * 2**30
KIND = "evolve"
UNREAD = ("tensorboard", "media", "environment.txt", "lock", "final.json")
"""Files that no reader opens: they are damaged for whole commands only."""


def trials(world: World) -> Iterator[list[Trial]]:
    """Yields batches of damaged copies for the readers, and after each batch some for whole commands."""
    while True:
        rich = _rich(world)
        yield _read(world, rich)
        for _ in range(4):
            yield [_commanded(world, rich)]


def _rich(world: World) -> Path:
    """Returns a finished run with every kind of file: a population, resumed with other options, its replay saved."""
    if "rich" not in world.references:
        out = world.copy(world.reference(KIND))
        for arguments in (["resume", str(out), "--steps", "1600"], ["replay", str(out)]):
            done = world.run(arguments)
            if done.code != 0:
                raise RuntimeError(f"covey {' '.join(arguments)} failed:\n{done.output}")
        world.keep("rich", out)
    return world.references["rich"]


# Ways to damage a file


def _bytes(change: Callable[[bytearray, random.Random], bytearray | None]) -> Callable[[Path, random.Random], None]:
    def damage(path: Path, random: random.Random) -> None:
        data = bytearray(path.read_bytes())
        path.write_bytes(change(data, random) or data)

    return damage


def _flip(data: bytearray, random: random.Random) -> None:
    if data:
        data[random.randrange(len(data))] ^= 1 << random.randrange(8)


def _scramble(data: bytearray, random: random.Random) -> None:
    start = random.randrange(len(data) + 1)
    data[start : start + 64] = random.randbytes(min(64, len(data) - start))


def _digit(data: bytearray, random: random.Random) -> None:
    places = [i for i, byte in enumerate(data[:100_000]) if chr(byte).isdigit()]
    if places:
        data[random.choice(places)] = ord(str(random.randrange(10)))


def _lines(change: Callable[[list[bytes], random.Random], Any]) -> Callable[[Path, random.Random], None]:
    def damage(path: Path, random: random.Random) -> None:
        lines = path.read_bytes().splitlines(keepends=True)
        if lines:
            change(lines, random)
        path.write_bytes(b"".join(lines))

    return damage


def _swap_lines(lines: list[bytes], random: random.Random) -> None:
    one, two = random.randrange(len(lines)), random.randrange(len(lines))
    lines[one], lines[two] = lines[two], lines[one]


def _json(change: Callable[[Any, random.Random], Any]) -> Callable[[Path, random.Random], None]:
    """Damages the structure of a JSON file, or of one line of a JSONL file."""

    def damage(path: Path, random: random.Random) -> None:
        lines = path.read_text().splitlines(keepends=True) if path.suffix == ".jsonl" else [path.read_text()]
        place = random.randrange(len(lines)) if lines else 0
        if lines:
            lines[place] = json.dumps(change(json.loads(lines[place]), random)) + "\n"
        path.write_text("".join(lines))

    return damage


STRANGE: tuple[Any, ...] = (None, -1, 0, 1e300, 10**400, True, "", "x", [], {}, [[[]]], float("nan"), float("inf"))


def _strange_value(value: Any, random: random.Random) -> Any:
    """Replaces, renames or removes a random part of a value."""
    if isinstance(value, dict) and value and random.random() < 0.85:
        name = random.choice(list(value))
        match random.randrange(5):
            case 0:
                return {key: each for key, each in value.items() if key != name}
            case 1:
                return {(key + "x" if key == name else key): each for key, each in value.items()}
            case _:
                return value | {name: _strange_value(value[name], random)}
    return random.choice(STRANGE)


def _replaced(make: Callable[[Path], None]) -> Callable[[Path, random.Random], None]:
    def damage(path: Path, _: random.Random) -> None:
        path.unlink()
        make(path)

    return damage


def _socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listening:
        here = Path.cwd()
        os.chdir(path.parent)  # the name of a socket has at most 107 bytes
        try:
            listening.bind(path.name)
        finally:
            os.chdir(here)


ANYWHERE: dict[str, Callable[[Path, random.Random], Any]] = {
    "flip": _bytes(_flip),
    "scramble": _bytes(_scramble),
    "digit": _bytes(_digit),
    "truncate": _bytes(lambda data, random: data[: random.randrange(len(data) + 1)]),
    "append": _bytes(lambda data, random: data + random.randbytes(random.randint(1, 50))),
    "empty": lambda path, _: path.write_bytes(b""),
    "delete": lambda path, _: path.unlink(),
    "zeros": _bytes(lambda data, _: bytearray(len(data))),
    "not UTF-8": _bytes(lambda data, random: data[: random.randrange(len(data) + 1)] + b"\xff\xfe" + data),
    "deep": lambda path, _: path.write_text("[" * 100_000 + "]" * 100_000),
    "huge number": lambda path, _: path.write_text('{"step": ' + "9" * 10_000 + "}\n"),
    "folder": _replaced(Path.mkdir),
    "FIFO": _replaced(os.mkfifo),
    "socket": _replaced(_socket),
    "loop": _replaced(lambda path: path.symlink_to(path.name)),
    "/dev/zero": _replaced(lambda path: path.symlink_to("/dev/zero")),
    "/dev/full": _replaced(lambda path: path.symlink_to("/dev/full")),
    "no permission": lambda path, _: path.chmod(0),
}
IN_JSON = {"strange value": _json(_strange_value)}
IN_ROWS = {
    "line removed": _lines(lambda lines, random: lines.pop(random.randrange(len(lines)))),
    "line twice": _lines(lambda lines, random: lines.insert(random.randrange(len(lines)), random.choice(lines))),
    "lines swapped": _lines(_swap_lines),
}


def _tensor_values(path: Path, random: random.Random) -> None:
    """Changes an array to something that covey never writes, and updates the manifest."""
    from safetensors import safe_open
    from safetensors.numpy import load_file, save_file

    with safe_open(path, framework="numpy") as file:
        metadata = file.metadata()
    tensors = load_file(path)
    name = random.choice([name for name, array in tensors.items() if array.size])
    match random.randrange(5):
        case 0:
            del tensors[name]
        case 1:
            tensors[name] = tensors[name].astype(np.float64)
        case 2:
            tensors[name] = np.concatenate([tensors[name].ravel(), tensors[name].ravel()])
        case 3:
            tensors["unknown"] = np.zeros(3, np.float32)
        case _:
            array = tensors[name].copy().ravel()
            array[random.randrange(array.size)] = np.nan if array.dtype.kind == "f" else array.max()
            tensors[name] = array.reshape(tensors[name].shape)
    save_file(tensors, path, metadata)
    seal(path.parent)


def seal(folder: Path) -> None:
    """Updates the manifest of a checkpoint to its files, as an attacker would."""
    manifest = folder / "manifest.json"
    if manifest.is_file():
        names = json.loads(manifest.read_text())
        digests = {name: hashlib.sha256((folder / name).read_bytes()).hexdigest() for name in names}
        manifest.write_text(json.dumps(digests))


def _sealed_info(path: Path, random: random.Random) -> None:
    _json(_strange_value)(path, random)
    seal(path.parent)


FORGED = "forged: "
"""The prefix of the description of damage with a matching manifest. Readers can't detect it if the values are valid,
but it must not cause a traceback, a hang or exhausted memory."""


def damage(folder: Path, path: Path, random: random.Random) -> str:
    """Damages a file in a random way; returns a description."""
    ways = dict(ANYWHERE)
    if path.suffix in (".json", ".jsonl"):
        ways |= IN_JSON
    if path.suffix == ".jsonl":
        ways |= IN_ROWS
    if path.suffix == ".safetensors":
        ways |= {"strange tensors": _tensor_values}
    if path.name == "info.json":
        ways |= {"sealed": _sealed_info}
    name = random.choice(list(ways))
    ways[name](path, random)
    forged = FORGED if name in ("strange tensors", "sealed") and "checkpoints" in path.parts else ""
    return f"{forged}{name} in {_kind(folder, path)}"


def _kind(folder: Path, path: Path) -> str:
    parts = path.relative_to(folder).parts
    return "/".join("".join("N" if c.isdigit() else c for c in part).replace("NNNNNNNNNN", "N") for part in parts)


# Readers


def _state(prefix: str) -> Callable[[Path, Callable[[str], None]], Any]:
    def read(folder: Path, say: Callable[[str], None]) -> Any:
        from covey.storage.store import Store

        found, info = Store(folder / "checkpoints", prefix).read_newest(say, set_aside=False)
        return {name: array.tobytes() for name, array in found.items()}, info

    return read


def _metrics(folder: Path, say: Callable[[str], None]) -> Any:
    import covey

    return repr(covey.load(folder).metrics())


def _config(folder: Path, say: Callable[[str], None]) -> Any:
    import covey

    return covey.load(folder).config


def _lineage(folder: Path, say: Callable[[str], None]) -> Any:
    from covey.storage.lineage import read_lineage

    return repr(read_lineage(folder / "lineage.jsonl"))


def _changes(folder: Path, say: Callable[[str], None]) -> Any:
    from covey.storage.folder import RunFolder

    return RunFolder(folder).changed_since(0)


def _replay(folder: Path, say: Callable[[str], None]) -> Any:
    from covey.replay import Replay
    from covey.storage.replay_file import open_replay

    file = open_replay(folder / "replay.safetensors")
    replay = Replay(file.rows, file.streams, file.sizes["obs"], file.sizes["action"])
    file.rows_for(replay, 1, file.environment)
    return file.read(replay, file.rows, file.members).data.tobytes()


READERS = {
    "config": _config,
    "metrics": _metrics,
    "lineage": _lineage,
    "changes": _changes,
    "step checkpoint": _state("step"),
    "best checkpoint": _state("best"),
    "replay": _replay,
}


def _files(folder: Path, unread: bool) -> list[Path]:
    every = [p for p in sorted(folder.rglob("*")) if p.is_file()]
    return [p for p in every if unread or not any(part in UNREAD for part in p.relative_to(folder).parts)]


def _read(world: World, rich: Path) -> list[Trial]:
    """Damages copies of a run and reads each with every reader, in one process."""
    seeds = [world.random.randrange(2**32) for _ in range(BATCH if world.minutes >= 1 else SHORT_BATCH)]
    found: list[Trial] = []
    while seeds:
        todo = list(seeds)

        def work(report: Any, todo: list[int] = todo) -> None:
            right = {name: read(rich, lambda _: None) for name, read in READERS.items()}
            for seed in todo:
                copy = world.copy(rich)
                random_ = random.Random(seed)
                what = damage(copy, random_.choice(_files(copy, unread=False)), random_)
                fault = _readers_fault(copy, None if what.startswith(FORGED) else right)
                report(json.dumps([f"{what} (seed {seed})", fault]))
                _remove(copy)

        done = batch(work, world.path("log"), ITEM_SECONDS, MEMORY)
        for line in done.lines:
            what, fault = json.loads(line)
            found.append(Trial("corruption", "read", what, fault))
        seeds = seeds[len(done.lines) :]
        if seeds:
            found.append(Trial("corruption", "read", f"seed {seeds[0]}", done.fault or "the process ended"))
            seeds = seeds[1:]
    return found


def _readers_fault(folder: Path, right: dict[str, Any] | None) -> str:
    """Returns the fault of the first reader that silently returns other data than `right`, or raises no CoveyError."""
    from covey import CoveyError

    for name, read in READERS.items():
        said: list[str] = []
        try:
            value = read(folder, said.append)
        except CoveyError:
            continue
        except Exception as error:
            return f"{name}: traceback: {type(error).__name__}: {str(error)[:200]}"
        if right and value != right[name] and not said:
            return f"{name}: wrong data"
    return ""


def _remove(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)


# Whole commands


def _commanded(world: World, rich: Path) -> Trial:
    """Runs a command on a damaged run: it must fail with a message, report the damage, or end normally."""
    folder, seed = world.copy(rich), world.random.randrange(2**32)
    seeded = random.Random(seed)
    what = damage(folder, seeded.choice(_files(folder, unread=True)), seeded)
    name = seeded.choice(("resume", "eval", "plot", "train"))
    out = world.path("trained")
    start_from = ["--replay", str(folder / "replay.safetensors"), "--out", str(out)]
    arguments = [*KINDS["td3"], "--seeds", "4", *start_from] if name == "train" else [name, str(folder)]
    if name == "eval":
        arguments += ["--episodes", "4"]
    result = world.run(arguments)
    fault = result.fault()
    if not fault and name == "resume" and result.code == 0 and not what.startswith(FORGED):
        fault = _resumed_fault(rich, folder, result.output)
    what = f"covey {name}: {what} (seed {seed})"
    return Trial("corruption", "commands", what, f"{fault}: {result.output[-300:]}" if fault else "")


def _resumed_fault(rich: Path, folder: Path, output: str) -> str:
    """Checks a finished run that was resumed: the arrays are the same, and rows differ only if damage was reported."""
    said = any(word in output for word in ("damaged", "altered", "missing", "shorter", "set aside"))
    if said and newest(folder) == newest(rich):
        return difference(rich, folder, files=())
    files = () if said else (*ROWS, "evaluation/final.json")
    return difference(rich, folder, files=files)
