"""Every file call of the storage layer fails once with each error, without training.

The files of a small run are written with the functions that a real run uses, and read back. After a failure, everything
that was complete before it must be intact, and writing the same files again must succeed.
"""

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.torture.commands import batch
from benchmarks.torture.injection import ERRORS, Site, arm, sites_in
from benchmarks.torture.world import Trial, World

STEPS = (100, 200, 300, 400)
CHANGES = [("steps", 1000, 2000)]
ITEM_SECONDS = 60.0


def trials(world: World) -> Iterator[list[Trial]]:
    """Yields all sites with all errors: first the first call of each site, then the last one."""
    folder = world.path("storage")
    sites = _sites(world, folder)
    for last in (False, True):
        items = [(site, error, count - 1 if last else 0) for site, count in sites.items() for error in ERRORS]
        for start in range(0, len(items), 100):
            yield _failed(world, items[start : start + 100])


def _failed(world: World, items: list[tuple[Site, str, int]]) -> list[Trial]:
    """Writes the files once per item, in one process."""
    found: list[Trial] = []
    while items:
        todo = list(items)

        def work(report: Callable[[str], None], todo: list[tuple[Site, str, int]] = todo) -> None:
            for site, error, occurrence in todo:
                report(json.dumps(_outcome(world.path("storage"), site, error, occurrence)))

        done = batch(work, world.path("log"), ITEM_SECONDS)
        for (site, error, occurrence), line in zip(items, done.lines, strict=False):
            made, fault = json.loads(line)
            what = f"{error} in call {occurrence} of {site.function} on {site.pattern}"
            if made:
                found.append(Trial("storage", error, what, fault))
        items = items[len(done.lines) :]
        if items:
            site, error, _ = items.pop(0)
            found.append(Trial("storage", error, f"{error} in {site}", done.fault or "the process ended"))
    return found


def _outcome(folder: Path, site: Site, error: str, occurrence: int) -> tuple[bool, str]:
    """Returns whether the call was made, and what was wrong after its failure or ""."""
    log = folder.with_name(f"{folder.name}-calls")
    completed: list[str] = []
    arm(folder, site, occurrence, ERRORS[error], log)
    said = _guarded(lambda: _history(folder, completed))
    arm(folder, Site("", ""), -1, 0, log)
    made = any(line.startswith("FAILED") for line in log.read_text().splitlines())
    fault = said if said.startswith("traceback") else _kept(folder, completed)
    if not fault:
        shutil.rmtree(folder, ignore_errors=True)
        log.unlink()
    return made, fault


def _guarded(work: Callable[[], None]) -> str:
    """Returns the message that a user gets if the work fails, or ""."""
    from covey import CoveyError

    try:
        work()
    except CoveyError as error:
        return str(error) or "traceback: the error has no text"
    except Exception as error:
        return f"traceback: {type(error).__name__}: {error}"
    return ""


def _history(folder: Path, completed: list[str]) -> None:
    """Writes what a run writes, and reads it; `completed` is told of every part that a user could rely on."""
    from covey.run.config import default_config
    from covey.run.config_text import to_json
    from covey.storage.atomic import replace_output
    from covey.storage.folder import RunFolder, disk_errors
    from covey.storage.metrics import RunFiles
    from covey.storage.store import Writer

    run = RunFolder(folder)
    config = default_config("td3", seeds=2, pbt={"bottom": 0.5, "top": 0.5}, steps=2000).resolved()
    with disk_errors(folder):
        if not run.config.exists():
            run.create(to_json(config))
        completed.append("config")
        with run.lock():
            states, info = _resumed(run)
            files = RunFiles(run, range(2), info.get("step", 0), info, lineage=True, report=lambda text: None)
            writer = Writer(0.0)
            try:
                for step in [step for step in STEPS if step > info.get("step", 0)]:
                    _train(run, files, writer, step)
                    writer.finish()
                    completed.append(f"step {step}")
            finally:
                files.close()
        run.record_changes(400, CHANGES)
        run.write_config(to_json(config))
        completed.append("changes")
        replace_output(run.media / "curve.png", b"picture" * 100)
        _write_replay(folder / "replay.safetensors")
        completed.append("replay")
    assert states is not None
    _read(folder)


def _resumed(run: Any) -> tuple[Any, dict[str, Any]]:
    """Returns the store and the info of its newest checkpoint, as a resumed run reads it."""
    from covey.storage.store import Store

    states = Store(run.checkpoints, "step")
    info = states.read_newest(_no_damage)[1] if states.steps() else {}
    states.remove_after(info.get("step", -1))
    Store(run.checkpoints, "best", keep=1).remove_after(info.get("step", -1))
    return states, info


def _no_damage(text: str) -> None:
    raise AssertionError(f"called damaged: {text}")


def _train(run: Any, files: Any, writer: Any, step: int) -> None:
    """Writes what a run writes between two checkpoints, and the checkpoint."""
    from covey.storage.store import Store

    values = np.array([step, -step], np.float64)
    files.write(step, float(step), {"eval/return": values, "eval/length": values})
    for member in range(2):
        files.row("episodes", step=step, member=member, returns=[1.0, 2.0])
        values = {"parent": member, "fitness": 1.0, "reason": "kept", "hyper": {"tau": 0.1}}
        files.row("lineage", generation=step // 100, step=step, member=member, **values)
    files.flush()
    best = {"value": float(step), "step": step}
    info = {"step": step, "wall": 1.0, "best": best, "files": files.sync(), "processes": 1}

    def write() -> None:
        Store(run.checkpoints, "best", keep=1).write(step, _arrays(step), best)
        Store(run.checkpoints, "step").write(step, _arrays(step), info)

    writer.start(write, 0.0, 1)


def _arrays(step: int) -> dict[str, np.ndarray]:
    return {"weights": np.full((50, 20), step, np.float32), "block": np.int32(step) * np.ones((), np.int32)}


def _write_replay(path: Path) -> None:
    from covey.replay import Stored
    from covey.storage.replay_file import write_replay

    replay = _replay()
    data = np.zeros((2, replay.rows, replay.streams, replay.width), np.float32)
    write_replay(path, replay, Stored(data, {}), replay.rows, environment="point", algorithm="td3", step=400)


def _replay() -> Any:
    from covey.replay import Replay

    return Replay(10, 2, 3, 1)


def _read(folder: Path) -> None:
    """Reads everything, as `eval`, `plot`, `lineage`, `resume` and `train --replay` do."""
    import covey
    from covey.storage.folder import RunFolder
    from covey.storage.lineage import read_lineage
    from covey.storage.replay_file import open_replay
    from covey.storage.store import Store

    run = covey.load(folder)
    assert run.metrics()["eval/return"]["value"] == [sign * step for step in STEPS for sign in (1, -1)]
    assert read_lineage(folder / "lineage.jsonl").steps.tolist() == list(STEPS)
    assert RunFolder(folder).changed_since(0) == {"steps"}
    for prefix in ("step", "best"):
        arrays, info = Store(folder / "checkpoints", prefix).read_newest(_no_damage, set_aside=False)
        assert info["step"] == STEPS[-1] and (arrays["weights"] == STEPS[-1]).all()
    file = open_replay(folder / "replay.safetensors")
    assert file.read(_replay(), file.rows, file.members).data.shape == (2, 10, 2, 7)


def _kept(folder: Path, completed: list[str]) -> str:
    """Checks after a failure that complete parts are intact, and that the rest can be written on a healthy disk."""
    from covey.storage.store import Store

    steps = [int(text.removeprefix("step ")) for text in completed if text.startswith("step ")]
    if steps:
        found: list[str] = []
        said = _guarded(lambda: found.append(str(_intact(Store(folder / "checkpoints", "step"), steps[-1]))))
        if said:
            return f"the checkpoint of step {steps[-1]} is lost: {said}"
    said = _guarded(lambda: _history(folder, []))
    if said:
        return f"afterwards: {said}"
    left = [p.name for p in folder.rglob("*") if p.name.endswith((".partial", ".damaged"))]
    return f"{left[0]} was left" if left else ""


def _intact(store: Any, least: int) -> int:
    arrays, info = store.read_newest(_no_damage, set_aside=False)
    assert info["step"] >= least and (arrays["weights"] == info["step"]).all()
    return info["step"]


def _sites(world: World, folder: Path) -> dict[Site, int]:
    """Returns the call sites, and the number of calls of each."""
    log = world.path("calls")

    def work(report: Callable[[str], None]) -> None:
        arm(folder, Site("", ""), -1, 0, log)
        said = _guarded(lambda: _history(folder, []))
        report(said)

    done = batch(work, world.path("log"), ITEM_SECONDS)
    if done.fault or done.lines != [""]:
        raise RuntimeError(f"The undisturbed history failed: {done}")
    return sites_in(log)
