"""Lists the runs in a folder with little reading: the configuration, and the end of `metrics.jsonl`."""

import fcntl
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from covey.errors import CoveyError, require
from covey.storage import disk
from covey.storage.documents import read_document
from covey.storage.folder import RunFolder
from covey.storage.store import Store

TAIL = 2**16
"""Bytes of the end of `metrics.jsonl` that are read first, for each member."""
MOST_TAIL = 2**26
DEEPEST = 3
"""How many folders below the given one runs are looked for."""
RETURN, INFORMATION = "eval/return", "skills/information"


@dataclass(frozen=True)
class RunSummary:
    """A run as `covey runs` lists it.

    Args:
        path: Its folder.
        state: `running`, `finished`, `stopped` or `damaged`.
        agent: The agent.
        env: The environment.
        members: The number of members.
        step: The newest step: the last that was logged or, if the run has stopped, that of its last checkpoint.
        steps: The steps of the run.
        value: The last evaluation: the mean return of one member or of all seeds, the best of a population; of skills
            without a reward, their information.
        low: The lower end of its 95 % interval, or None.
        high: The upper end.
        metric: The name of `value`.
        steps_per_second: The speed of all members together, by the newest rows.
        changed: When the run was last written to, in seconds since 1970.
        fault: What is damaged.
    """

    path: str
    state: str = "damaged"
    agent: str = ""
    env: str = ""
    members: int = 1
    step: int = 0
    steps: int = 0
    value: float | None = None
    low: float | None = None
    high: float | None = None
    metric: str = ""
    steps_per_second: float | None = None
    changed: float = 0.0
    fault: str = ""

    def as_json(self) -> dict[str, Any]:
        """Returns JSON values by name."""
        return asdict(self)


def list_runs(folder: Path) -> list[RunSummary]:
    """Returns the runs in a folder and in folders within it, the newest first. A damaged run is listed as such.

    Args:
        folder: A folder of runs, or a run folder.

    Raises:
        CoveyError: There is no such folder.

    Example:
        >>> [run.state for run in list_runs(Path("runs"))]
        ['running', 'finished']
    """
    require(os.path.isdir(folder), f"There is no folder {str(folder)[:500]}. `covey train` creates runs/.")
    return sorted((summary(path) for path in _found(folder, DEEPEST)), key=lambda run: run.changed, reverse=True)


def _found(folder: Path, depth: int) -> Iterator[Path]:
    """Yields the run folders in a folder; what is within a run belongs to it."""
    names: list[str] = []
    with suppress(OSError):
        names = disk.list_folder(folder)
    if {"config.json", "metrics.jsonl", "checkpoints"} & set(names):
        yield folder
    elif depth:
        for name in names:
            path = folder / name
            if not name.startswith(".") and os.path.isdir(path) and not os.path.islink(path):
                yield from _found(path, depth - 1)


def summary(path: Path) -> RunSummary:
    """Returns what is known about the run in a folder; never an error.

    Args:
        path: The run folder.
    """
    folder = RunFolder(path)
    known = RunSummary(str(path), changed=_changed(folder))
    try:
        config = folder.read_config()
        known = replace(
            known,
            agent=str(config["algorithm"]),
            env=str(config.get("env", "")),
            members=max(1, int(config.get("members", 1))),
            steps=int(config["steps"]),
        )
        known = _with_metrics(known, folder.metrics, config.get("pbt") is not None)
        return _with_state(known, folder)
    except (CoveyError, OSError, KeyError, TypeError, ValueError, RecursionError) as error:
        fault = (
            str(error) if isinstance(error, CoveyError | OSError) else f"{folder.path} has values that are not valid."
        )
        return replace(known, state="damaged", fault=fault)


def _changed(folder: RunFolder) -> float:
    for path in (folder.metrics, folder.config, folder.path):
        with suppress(OSError):
            return os.stat(path).st_mtime
    return 0.0


def is_training(folder: RunFolder) -> bool:
    """Returns whether a process trains in a run folder, on this machine or on one that shares its disk."""
    try:
        with disk.reading(folder.path / "lock") as handle:
            # Not held for longer than this call, so that a training that starts meanwhile is not refused.
            fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except (OSError, CoveyError):
        return False
    return False


def _with_state(known: RunSummary, folder: RunFolder) -> RunSummary:
    if is_training(folder):
        return replace(known, state="running")
    final: Any = None
    with suppress(OSError, CoveyError):
        final = read_document(folder.episodes.parent / "final.json")
    if isinstance(final, dict) and final.get("steps") == known.steps:
        return replace(known, state="finished")
    saved = Store(folder.checkpoints, "step").steps()
    islands = [Store(folder.island(i).checkpoints, "step").steps() for i in range(known.members)] if not saved else []
    step = max([*saved, *(steps[-1] for steps in islands if steps)], default=0)
    return replace(known, state="stopped", step=step)


def _with_metrics(known: RunSummary, file: Path, is_population: bool) -> RunSummary:
    """Adds what the newest rows of a file say: step, evaluation and speed."""
    size = min(TAIL * known.members, MOST_TAIL)
    rows: list[dict[str, Any]] = []
    while not any(row["name"] == RETURN for row in rows):
        rows, is_whole = _tail(file, size)
        if is_whole or size >= MOST_TAIL:
            break
        size *= 8
    if not rows:
        return known
    first, last = rows[0], rows[-1]
    known = replace(known, step=last["step"])
    spent = last["wall"] - first["wall"]
    if spent > 0:
        known = replace(known, steps_per_second=known.members * (last["step"] - first["step"]) / spent)
    newest: dict[str, dict[int, float | None]] = {}
    evaluated = max((row["step"] for row in rows if row["name"] == RETURN), default=-1)
    for row in rows:
        if row["step"] == evaluated:
            newest.setdefault(row["name"], {})[row["member"]] = row["value"]
    return _with_value(known, newest, is_population)


def _with_value(known: RunSummary, newest: Mapping[str, Mapping[int, float | None]], is_population: bool) -> RunSummary:
    """Adds the last evaluation, from the numbers of each member by metric."""
    values = {name: [x for x in column.values() if x is not None] for name, column in newest.items()}
    returns = values.get(RETURN, [])
    skills = values.get(INFORMATION, [])
    if skills and not any(returns):
        return replace(known, metric=INFORMATION, value=float(np.mean(skills)))
    if not returns:
        return known
    if is_population:
        return replace(known, metric=RETURN, value=max(returns))
    if known.members == 1:
        low, high = (next(iter(values.get(f"{RETURN}_{end}", [])), None) for end in ("low", "high"))
        return replace(known, metric=RETURN, value=returns[0], low=low, high=high)
    centre = float(np.mean(returns))
    if len(returns) == 1:
        return replace(known, metric=RETURN, value=centre)
    from scipy.special import stdtrit  # as `covey.evaluation.stats.mean_interval`, which needs jax to be imported

    half = float(stdtrit(len(returns) - 1, 0.975)) * float(np.std(returns, ddof=1)) / len(returns) ** 0.5
    return replace(known, metric=RETURN, value=centre, low=centre - half, high=centre + half)


def _tail(file: Path, size: int) -> tuple[list[dict[str, Any]], bool]:
    """Returns the rows in the last bytes of a file, without incomplete lines, and whether that is the whole file."""
    try:
        with disk.reading(file) as handle:
            length = disk.file_size(handle)
            start = max(0, length - size)
            data = b""
            while part := disk.read_at(handle, disk.CHUNK, start + len(data)):
                data += part
    except FileNotFoundError:
        return [], True
    lines = data.split(b"\n")[1 if start else 0 : -1]
    # Parsing is most of the time: besides the first and the last, only rows of evaluations are needed.
    marks = (b'"eval/return', b'"skills/information')
    needed = [*lines[:1], *(line for line in lines[1:-1] if any(mark in line for mark in marks)), *lines[1:][-1:]]
    rows = [json.loads(line) for line in needed]
    wanted = {"step": int, "member": int, "name": str}
    for row in rows:
        fits = isinstance(row, dict) and all(isinstance(row.get(name), kind) for name, kind in wanted.items())
        require(fits and isinstance(row.get("wall"), int | float), f"{file} is damaged: a line is no row of metrics.")
    return rows, start == 0
