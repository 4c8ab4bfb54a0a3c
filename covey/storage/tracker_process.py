"""The process of one experiment tracker: it reads a run's numbers from its standard input, and hands them over.

`covey.storage.trackers` starts it. A tracker in a process of its own can neither stop nor slow down the training,
prints nothing between its lines, and ends by itself once the training process is gone, even if that was killed.
"""

import json
import os
import re
import signal
import sys
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from fcntl import LOCK_EX, flock
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from covey.storage.atomic import replace_text
from covey.storage.disk import open_to_append

PROJECT = "covey"
"""The project or the experiment, unless an environment variable of the tracker names another."""
SAFE = 5.0
"""Seconds after which a tracker has surely written what it was given."""
LAST = 600
"""Seconds that the process may take to send the rest when the training is over."""
MLFLOW_BATCH = 1000
"""The metrics that MLflow takes at once."""


class Opening(NamedTuple):
    """The first line of the input.

    Args:
        tracker: The name of the tracker.
        folder: The folder of the trackers, in the run folder.
        group: The name of the run folder.
        ids: A stable identifier of each member.
        names: The name of each member's run.
        tags: Agent, environment and version.
        config: The configuration of the run.
    """

    tracker: str
    folder: str
    group: str
    ids: Sequence[str]
    names: Sequence[str]
    tags: Mapping[str, str]
    config: Mapping[str, Any]


class Tracker(Protocol):
    """A tracker with one run per member."""

    where: str
    """A sentence that says where the numbers are."""

    def write(self, step: int, values: Sequence[Mapping[str, float]]) -> None:
        """Logs the numbers of each member at an environment step."""
        ...

    def media(self, files: Mapping[str, str]) -> None:
        """Logs pictures and films by name, with the first member."""
        ...

    def close(self) -> None:
        """Ends the runs."""
        ...


class Wandb:
    """Weights & Biases. `step` is a column, because wandb refuses a step that it has seen."""

    def __init__(self, opening: Opening) -> None:
        import wandb  # pyright: ignore[reportMissingImports]

        self.wandb = wandb
        asked = os.environ.get("WANDB_MODE")
        mode = asked or ("online" if wandb.login(prompt=False) else "offline")
        try:
            self.runs = self._open(opening, mode)
        except Exception as error:
            if asked or mode == "offline":
                raise
            mode = f"offline, because the server can't be reached ({type(error).__name__})"
            self.runs = self._open(opening, "offline")
        self.where = f"{mode}. Upload with: wandb sync {opening.folder}/wandb/offline-run-*"
        if not mode.startswith("offline"):
            self.where = getattr(self.runs[0], "url", "") or mode

    def _open(self, opening: Opening, mode: str) -> list[Any]:
        silent = {"silent": True, "console": "off", "disable_git": True, "x_disable_stats": True}
        settings = self.wandb.Settings(**silent, init_timeout=30.0, x_transaction_log_flush_interval=1.0)
        common: dict[str, Any] = {
            "project": os.environ.get("WANDB_PROJECT", PROJECT),
            "group": opening.group,
            "tags": [f"{name}:{value}"[:64] for name, value in opening.tags.items()],
            "config": dict(opening.config),
            "dir": opening.folder,
            "mode": mode,
            "resume": "allow",
            "settings": settings,
            "reinit": "create_new",
            "allow_val_change": True,
        }
        runs = [self.wandb.init(id=i, name=n, **common) for i, n in zip(opening.ids, opening.names, strict=True)]
        for run in runs:
            run.define_metric("step")
            run.define_metric("*", step_metric="step")
        return runs

    def write(self, step: int, values: Sequence[Mapping[str, float]]) -> None:
        for run, own in zip(self.runs, values, strict=True):
            run.log({"step": step, **own})

    def media(self, files: Mapping[str, str]) -> None:
        kinds = {".png": self.wandb.Image, ".gif": self.wandb.Video, ".mp4": self.wandb.Video}
        found = {f"media/{name}": _media(kinds, Path(path)) for name, path in files.items()}
        self.runs[0].log(found)

    def close(self) -> None:
        for run in self.runs:
            run.finish()


class Trackio:
    """Trackio: a database per project in TRACKIO_DIR, which is in the run folder unless it is set."""

    def __init__(self, opening: Opening) -> None:
        os.environ.setdefault("TRACKIO_DIR", str(Path(opening.folder) / "trackio"))
        from contextvars import Context

        import trackio  # pyright: ignore[reportMissingImports]

        self.trackio = trackio
        project = os.environ.get("TRACKIO_PROJECT", PROJECT)
        common = {"project": project, "group": opening.group, "resume": "allow", "embed": False}
        config = {**opening.config, "tags": dict(opening.tags)}
        # `init` ends the run that it has opened before in the same context.
        self.runs = [
            Context().run(
                lambda name=name: trackio.init(
                    name=name, config=config, auto_log_gpu=False, auto_log_cpu=False, **common
                )
            )
            for name in (f"{name} {own[:8]}" for name, own in zip(opening.names, opening.ids, strict=True))
        ]
        folder = os.environ["TRACKIO_DIR"]
        self.where = f"{folder}. Show it with: TRACKIO_DIR={folder} trackio show --project {project}"

    def write(self, step: int, values: Sequence[Mapping[str, float]]) -> None:
        for run, own in zip(self.runs, values, strict=True):
            run.log(dict(own), step=step)

    def media(self, files: Mapping[str, str]) -> None:
        kinds = {".png": self.trackio.Image, ".gif": self.trackio.Video, ".mp4": self.trackio.Video}
        self.runs[0].log({f"media/{name}": _media(kinds, Path(path)) for name, path in files.items()})

    def close(self) -> None:
        for run in self.runs:
            run.finish()


class Mlflow:
    """MLflow: a database in the run folder, unless MLFLOW_TRACKING_URI names a server or another one."""

    def __init__(self, opening: Opening) -> None:
        os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "3")
        os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", "30")
        from mlflow.tracking import MlflowClient  # pyright: ignore[reportMissingImports]

        given = os.environ.get("MLFLOW_TRACKING_URI")
        folder = Path(opening.folder) / "mlflow"
        if not given:
            folder.mkdir(exist_ok=True)
        uri = given or f"sqlite:///{folder}/mlflow.db"
        self.client = MlflowClient(tracking_uri=uri)
        name = os.environ.get("MLFLOW_EXPERIMENT_NAME", PROJECT)
        found = self.client.get_experiment_by_name(name)
        place = {} if given else {"artifact_location": (folder / "artifacts").as_uri()}
        self.experiment = found.experiment_id if found else self.client.create_experiment(name, **place)
        self.runs = [self._run(opening, i, n) for i, n in zip(opening.ids, opening.names, strict=True)]
        self.where = f"{uri}. Show it with: mlflow ui --backend-store-uri {uri}"

    def _run(self, opening: Opening, own: str, name: str) -> str:
        """Returns the run of a member, found by a tag, because MLflow chooses the identifier of a new run."""
        found = self.client.search_runs([self.experiment], f"tags.`covey.id` = '{own}'", max_results=1)
        params = {key: str(value)[:6000] for key, value in _flat(opening.config).items()}
        if found:
            run = found[0].info.run_id
            old = found[0].data.params
            changed = {key: value for key, value in params.items() if old.get(key, value) != value}
            for key, value in changed.items():  # a parameter can't change
                self.client.set_tag(run, f"changed.{key}", value)
            self.client.update_run(run, status="RUNNING")
            return run
        tags = {**opening.tags, "group": opening.group, "covey.id": own}
        run = self.client.create_run(self.experiment, tags=tags, run_name=name).info.run_id
        for key, value in params.items():
            self.client.log_param(run, key, value)
        return run

    def write(self, step: int, values: Sequence[Mapping[str, float]]) -> None:
        from mlflow.entities import Metric  # pyright: ignore[reportMissingImports]

        now = int(1000 * time.time())
        for run, own in zip(self.runs, values, strict=True):
            metrics = [Metric(mlflow_name(name), value, now, step) for name, value in own.items()]
            for start in range(0, len(metrics), MLFLOW_BATCH):
                self.client.log_batch(run, metrics=metrics[start : start + MLFLOW_BATCH])

    def media(self, files: Mapping[str, str]) -> None:
        for path in files.values():
            self.client.log_artifact(self.runs[0], path, "media")

    def close(self) -> None:
        for run in self.runs:
            self.client.set_terminated(run)


def mlflow_name(metric: str) -> str:
    """Returns the name of a metric as MLflow allows it: `agent/q[3]` is `agent/q.3` there."""
    return re.sub(r"[^\w\-. :/]", "_", re.sub(r"\[(\w+)\]", r".\1", metric))


def _media(kinds: Mapping[str, Callable[..., Any]], path: Path) -> Any:
    """Returns a file as a tracker's own type."""
    more = {"format": path.suffix[1:]} if path.suffix in (".gif", ".mp4") else {}
    return kinds[path.suffix](str(path), **more)


def _flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in values.items():
        if isinstance(value, dict):
            found |= _flat(value, f"{prefix}{name}.")
        else:
            found[f"{prefix}{name}"] = value
    return found


TRACKERS: dict[str, Callable[[Opening], Tracker]] = {"wandb": Wandb, "trackio": Trackio, "mlflow": Mlflow}


class _Progress:
    """Records in `NAME.json` up to which step a tracker has everything, so that a resumed run can send the rest."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self.recent: deque[tuple[float, int]] = deque()
        self.step = -1

    def sent(self, step: int) -> None:
        """Takes a step; steps that are safe by now are recorded."""
        now = time.monotonic()
        self.recent.append((now, step))
        safe = self.step
        while self.recent and self.recent[0][0] <= now - SAFE:
            safe = self.recent.popleft()[1]
        self._record(safe)

    def closed(self) -> None:
        """Records the last step."""
        self._record(self.recent[-1][1] if self.recent else self.step)

    def _record(self, step: int) -> None:
        if step != self.step:
            self.step = step
            replace_text(self.file, json.dumps({"step": step}) + "\n")


def serve(source: Any, answer: Callable[[str, str], None]) -> None:
    """Hands over the lines of a file until it ends.

    Args:
        source: The lines: an `Opening`, then rows `{"step", "values"}` and `{"media"}`.
        answer: Called with `say` and a sentence.
    """
    opening = Opening(**json.loads(source.readline()))
    with os.fdopen(open_to_append(Path(opening.folder) / f"{opening.tracker}.lock")) as lock:
        flock(lock, LOCK_EX)  # the process of a run that was killed may still be writing
        tracker = TRACKERS[opening.tracker](opening)
        answer("say", tracker.where)
        progress = _Progress(Path(opening.folder) / f"{opening.tracker}.json")
        for line in source:
            if not line.endswith("\n"):  # the training process was killed while it wrote this line
                break
            row = json.loads(line)
            if "media" in row:
                tracker.media(row["media"])
            else:
                tracker.write(row["step"], row["values"])
                progress.sent(row["step"])
        signal.alarm(LAST)
        tracker.close()
        progress.closed()


def main() -> int:
    """Serves the standard input. Messages go to the standard output, and what libraries print to the standard error."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the training, which then ends the input
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)

    def answer(kind: str, text: str) -> None:
        try:
            print(json.dumps({kind: text}), file=out, flush=True)
        except BrokenPipeError:
            return  # nobody listens any more

    try:
        serve(sys.stdin, answer)
    except Exception as error:
        import traceback

        traceback.print_exc()
        answer("error", f"{type(error).__name__}: {str(error).strip()[:300]}")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
