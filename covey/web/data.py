"""Reads a run folder as JSON values, for the page that shows it. Nothing here builds a program or trains."""

import math
import os
from base64 import b64encode
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from covey import agents
from covey.errors import CoveyError
from covey.run.config import default_config
from covey.run.config_text import flat, to_json
from covey.storage import disk
from covey.storage.changes import Changes
from covey.storage.config import CHANGES, DIGEST
from covey.storage.disk import DamagedError
from covey.storage.finished import read_final
from covey.storage.folder import RunFolder
from covey.storage.history import read_history
from covey.storage.lineage import read_lineage
from covey.storage.listing import is_training
from covey.storage.metrics import read_metrics
from covey.storage.store import Store
from covey.web.words import summary

T = TypeVar("T")
Rows = list[list[Any]]
"""The rows of a metric: step, member, value, wall."""
MOST_ROWS = 35_000
"""Rows of all metrics together: more would make the page larger than 5 MB."""
MOST_LINEAGE = 4_000
"""Rows of the lineage. With more than a quarter of them, the hyper-parameters of each are left out."""
MOST_FILM = 1_500_000
MOST_PICTURES = 600_000
"""Bytes of all pictures together."""
MOST_TEXT = 100_000
EVOLVED = 8
"""Members of a population by default."""
FILMS = {"policy.mp4": "video/mp4", "policy.gif": "image/gif"}
"""Films of the best policy, in the order of preference."""
PICTURES = ("skills.png", "episode.png", "plan.png")
"""Pictures that the page shows. It draws curves and the lineage itself."""


def run_data(folder: Path, most_rows: int = MOST_ROWS) -> dict[str, Any]:
    """Returns what a run folder holds, as JSON values.

    Args:
        folder: The run folder. The run may be running, finished, or stopped at any time, on any machine.
        most_rows: The most rows of metrics. If there are more, steps are left out evenly, and `notes` says so.

    Returns:
        The values by name: `curves` has the rows [step, member, value, wall] of each metric, and `notes` what could not
        be read or was left out.

    Raises:
        CoveyError: There is no run in the folder, or its configuration or its metrics are damaged.

    Example:
        >>> run_data(Path("runs/pendulum-td3-0"))["state"]
        'finished'
    """
    place = RunFolder(Path(folder))
    config = {name: value for name, value in place.read_config().items() if name not in (DIGEST, CHANGES)}
    notes: list[str] = []
    metric = curve_of(config["algorithm"])
    every = _curves(place)
    run = _about(place, config) | {"curve": metric, "notes": notes, "doctor": []}
    run |= _environment(place, notes) | _progress(run, every)
    run |= {
        "differs": differs(config),
        "changes": _unless(lambda: Changes(place.changes).rows(), [], notes),
        "checkpoints": _checkpoints(place, notes),
        "lineage": _lineage(place, notes),
        "hyper": _newest(every, "hyper/"),
        "skills": _newest(every, "skills/"),
        "curves": thinned(every, metric, most_rows, notes),
        "media": _pictures(place, notes),
    }
    run["episodes"] = _films(place, run["best_step"], notes)
    return run | {"summary": summary(run)}


def curve_of(algorithm: str) -> str:
    """Returns the metric of an agent's learning curve; for an agent of a plugin that is not imported, the return."""
    known = agents.REGISTRY.get(algorithm)
    return known.curve if known else "eval/return"


def _about(place: RunFolder, config: dict[str, Any]) -> dict[str, Any]:
    """Returns the values that follow from the configuration, and how far the run is."""
    name = os.path.basename(os.path.abspath(place.path))
    steps = config.get("steps", 0)
    final = _unless(lambda: read_final(place, steps), None, [])
    bests = _unless(lambda: Store(place.checkpoints, "best").steps(), [], [])
    return {
        "name": config.get("name") or name,
        "path": name,
        "agent": config["algorithm"],
        "env": config.get("env", ""),
        "steps": steps,
        "seed": config.get("seed", 0),
        "members": config.get("members", 1),
        "population": config.get("pbt") is not None,
        "state": "finished" if final else "running" if is_training(place) else "stopped",
        "final": final,
        "best_step": bests[-1] if bests else None,
        "config": config,
    }


def _environment(place: RunFolder, notes: list[str]) -> dict[str, Any]:
    """Returns the command, the versions and the time of creation, from `environment.txt`."""
    path = place.path / "environment.txt"
    text = _unless(lambda: _read(path, MOST_TEXT).decode(errors="replace"), "", notes)
    lines = dict(line.split(": ", 1) for line in text.splitlines() if ": " in line)
    command = lines.pop("command", "")
    program, _, arguments = command.partition(" ")
    started = _unless(lambda: path.stat().st_mtime, None, [])
    return {"command": f"{_program(program)} {arguments}".strip(), "versions": lines, "started": started}


def _program(path: str) -> str:
    """Returns the name of a program without its folder, which is of no use elsewhere."""
    return "python -m covey" if path.endswith("covey/__main__.py") else os.path.basename(path)


def differs(config: dict[str, Any]) -> dict[str, list[Any]]:
    """Returns the options of a configuration that differ from the agent's defaults: [default, value] by name."""
    population = {"pbt": {}, "members": EVOLVED} if config.get("pbt") else {}
    lengths = {name: config[name] for name in ("steps", "evaluations") if name in config}
    try:
        plain = default_config(config["algorithm"], **population)
        # Other options are derived from the lengths, such as the capacity of the replay.
        default = flat(to_json(default_config(config["algorithm"], **population, **lengths).resolved()))
    except CoveyError:
        return {}  # an agent of a plugin that is not imported
    default |= {"steps": plain.steps, "evaluations": plain.evaluations}
    return {name: [default.get(name), x] for name, x in flat(config).items() if default.get(name) != x}


def _curves(place: RunFolder) -> dict[str, Rows]:
    """Returns all rows by metric. If a step was logged twice, the later row counts."""
    if not os.path.lexists(place.metrics) and not Store(place.checkpoints, "step").steps():
        return {}
    found = {}
    for name, columns in read_metrics(place.metrics).items():
        rows = zip(*(columns[column] for column in ("step", "member", "value", "wall")), strict=True)
        newest = {(step, member): [step, member, _finite(value), _finite(wall)] for step, member, value, wall in rows}
        found[name] = [newest[key] for key in sorted(newest)]
    return found


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def thinned(curves: dict[str, Rows], first: str, most: int, notes: list[str]) -> dict[str, Rows]:
    """Returns curves with at most `most` rows.

    Steps are left out at even distances, never the last one. If that is not enough, whole metrics are.

    Args:
        curves: Rows by metric.
        first: The metric that is kept before all others.
        most: The most rows of all metrics together.
        notes: Gets a sentence if something is left out.
    """
    stride = -(-sum(map(len, curves.values())) // most)
    if stride <= 1:
        return curves
    found: dict[str, Rows] = {}
    left = most
    order = sorted(curves, key=lambda name: (not name.startswith(first), not name.startswith("eval/"), name))
    for name in order:
        steps = sorted({row[0] for row in curves[name]})
        kept = set(steps[::-1][:: max(1, min(stride, len(steps) // 50))])
        rows = [row for row in curves[name] if row[0] in kept]
        if len(rows) <= left:
            found[name] = rows
            left -= len(rows)
    gone = sorted(set(curves) - set(found))
    notes.append(f"Some steps of long curves are left out here; metrics.jsonl has all {len(curves)} metrics in full.")
    if gone:
        notes.append(f"Left out because the page would be too large: {', '.join(gone)}.")
    return {name: found[name] for name in curves if name in found}


def _progress(run: dict[str, Any], curves: dict[str, Rows]) -> dict[str, Any]:
    """Returns the step, the seconds, and the speed of all members over the last quarter of the logged steps."""
    walls: dict[int, float] = {}
    for rows in curves.values():
        walls |= {step: wall for step, _, _, wall in rows if wall is not None}
    steps = sorted(walls)
    step = steps[-1] if steps else 0
    since = steps[len(steps) * 3 // 4 - 1] if len(steps) > 1 else step
    seconds = walls[step] - walls[since] if steps else 0.0
    speed = (step - since) / seconds if seconds > 0 else None
    left = 0.0 if run["state"] == "finished" else max(0, run["steps"] - step) / speed if speed else None
    total = speed and speed * run["members"]
    return {"step": step, "seconds": walls.get(step, 0.0), "steps_per_second": total, "seconds_left": left}


def _newest(curves: dict[str, Rows], prefix: str) -> dict[str, list[Any]]:
    """Returns the newest value of each member, by the names of the metrics that begin with a prefix."""
    found: dict[str, list[Any]] = {}
    for name, rows in curves.items():
        if name.startswith(prefix):
            newest = {member: value for _, member, value, _ in rows}
            found[name.removeprefix(prefix)] = [newest[member] for member in sorted(newest)]
    return found


def _checkpoints(place: RunFolder, notes: list[str]) -> list[dict[str, Any]]:
    """Returns kind, step, seconds of training and bytes of each checkpoint; a damaged one has no seconds."""
    found: list[dict[str, Any]] = []
    for kind in ("step", "best"):
        store = Store(place.checkpoints, kind)
        for step in _unless(store.steps, [], notes):
            info = _unless(lambda: store.info(step), {}, notes)  # noqa: B023  (called at once)
            size = sum(_unless(lambda each=each: each.stat().st_size, 0, []) for each in store.path(step).glob("*"))
            found.append({"kind": kind, "step": step, "seconds": info.get("wall"), "bytes": size})
    return found


def _lineage(place: RunFolder, notes: list[str]) -> list[dict[str, Any]]:
    """Returns the rows of `lineage.jsonl`, those of the newest generations if there are too many."""
    if not os.path.lexists(place.lineage):
        return []

    def read() -> list[dict[str, Any]]:
        read_lineage(place.lineage)  # verifies it
        return read_history(place.lineage, lambda rows: [row.values for row in rows])

    rows = _unless(read, [], notes)
    if len(rows) > MOST_LINEAGE:
        notes.append(f"The lineage has {len(rows):,} rows; the newest {MOST_LINEAGE:,} are drawn.")
    if len(rows) > MOST_LINEAGE // 4:
        rows = [{name: value for name, value in row.items() if name != "hyper"} for row in rows]
    return rows[-MOST_LINEAGE:]


def _films(place: RunFolder, step: int | None, notes: list[str]) -> list[dict[str, Any]]:
    """Returns the film of the best policy, if there is one that is not too large."""
    reasons: list[str] = []
    for name, kind in FILMS.items():
        path = place.media / name
        if os.path.lexists(path) and (film := _uri(path, kind, MOST_FILM, reasons)):
            return [{"step": step, "return": None, "length": None, "video": film}]
    notes += reasons
    return []


def _pictures(place: RunFolder, notes: list[str]) -> dict[str, str]:
    found: dict[str, str] = {}
    for name in PICTURES:
        left = MOST_PICTURES - sum(len(uri) * 3 // 4 for uri in found.values())
        if os.path.lexists(place.media / name) and (uri := _uri(place.media / name, "image/png", left, notes)):
            found[name.removesuffix(".png")] = uri
    return found


def _uri(path: Path, kind: str, most: int, notes: list[str]) -> str:
    """Returns a file as a data URI; empty if it is too large or can't be read."""

    def read() -> str:
        if path.stat().st_size > most:
            raise CoveyError(f"media/{path.name} is left out: it has more than {max(most, 0) / 1e6:.1f} MB.")
        return f"data:{kind};base64,{b64encode(_read(path, most)).decode()}"

    return _unless(read, "", notes)


def _read(path: Path, most: int) -> bytes:
    with disk.reading(path) as handle:
        return disk.read_all(handle, most, path)


def _unless(read: Callable[[], T], default: T, notes: list[str]) -> T:
    """Returns what `read` returns, or a default and a note if a part of the run can't be read."""
    try:
        return read()
    except FileNotFoundError:
        return default
    except (CoveyError, DamagedError, OSError, ValueError) as error:
        notes.append(str(error)[:500])
        return default
