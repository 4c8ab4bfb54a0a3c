"""wandb, trackio and mlflow without a network, read back number by number; `make test-trackers` installs them."""

import json
import math
import os
import signal
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from covey.run.config import default_config
from covey.run.config_text import to_json
from covey.storage.folder import RunFolder
from covey.storage.metrics import RunFiles
from covey.storage.tracker_process import mlflow_name
from tests.runs import TINY

PACKAGES = ("wandb", "trackio", "mlflow")
pytestmark = [
    pytest.mark.skipif(not all(map(find_spec, PACKAGES)), reason="`make test-trackers` installs the trackers"),
    pytest.mark.filterwarnings("default"),  # the packages have their own
]
Numbers = dict[tuple[int, int, str], list[float]]
"""Member, step and metric; every value that was logged for them, in order."""
BLOCK = 32768
KILLED = """
import os, signal, sys, covey
from tests.runs import TINY

saved = []

def kill(event):
    if saved and event.step > saved[0]:
        os.kill(os.getpid(), signal.SIGKILL)

callback = covey.Callback(on_checkpoint=lambda event: saved.append(event.step), on_log=kill)
options = TINY | {"seeds": 2, "checkpoint_minutes": 0, "evaluations": 6}
covey.train("td3", out=sys.argv[1], quiet=True, callbacks=[callback], track=sys.argv[2:], **options)
"""
RESUMED = "import sys, covey; covey.resume(sys.argv[1], quiet=True)"


@pytest.fixture(autouse=True)
def offline(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No account and no settings of the user's; a proxy that does not exist shows whoever asks for a network."""
    for name in list(os.environ):
        if name.startswith(("WANDB_", "TRACKIO_", "MLFLOW_", "HF_")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    for name in ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")


def wandb_records(file: Path) -> Iterator[Any]:
    """The records of an offline file: LevelDB's log format, whose records are messages of wandb's own protocol."""
    from wandb.proto import wandb_internal_pb2

    data = file.read_bytes()
    at, parts = 7, b""  # after the header
    while at + 7 <= len(data):
        if BLOCK - at % BLOCK < 7:
            at += BLOCK - at % BLOCK
            continue
        length, kind = int.from_bytes(data[at + 4 : at + 6], "little"), data[at + 6]
        if kind == 0:
            return
        parts += data[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):  # whole, or the last part
            record = wandb_internal_pb2.Record()
            record.ParseFromString(parts)
            parts = b""
            yield record


def read_wandb(folder: Path, ids: list[str]) -> tuple[Numbers, list[Any]]:
    found: Numbers = defaultdict(list)
    runs = []
    for file in sorted(folder.glob("trackers/wandb/offline-run-*/*.wandb"), key=lambda f: f.parent.name):
        member = ids.index(file.stem.removeprefix("run-"))
        for record in wandb_records(file):
            if record.HasField("run"):
                runs.append(record.run)
            if not record.HasField("history"):
                continue
            row = {"/".join(i.nested_key) or i.key: json.loads(i.value_json) for i in record.history.item}
            for name, value in row.items():
                if name != "step" and name[0] != "_" and not name.startswith("media/"):
                    found[member, row["step"], name].append(float(value))
    return found, runs


def read_trackio(folder: Path, names: list[str]) -> Numbers:
    """With trackio's own reader, in a process whose TRACKIO_DIR is the run's."""
    code = """
import json, sys
from trackio.sqlite_storage import SQLiteStorage
runs = {run["name"]: run for run in SQLiteStorage.get_run_records("covey")}
assert len(runs) == len(SQLiteStorage.get_run_records("covey"))
logs = [SQLiteStorage.get_logs("covey", name, run_id=runs[name]["id"]) for name in sys.argv[1:]]
print(json.dumps([[{k: v for k, v in row.items() if k != "timestamp"} for row in rows] for rows in logs], default=str))
"""
    environment = {**os.environ, "TRACKIO_DIR": str(folder / "trackers/trackio")}
    command = [sys.executable, "-c", code, *names]
    printed = subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout
    found: Numbers = defaultdict(list)
    for member, rows in enumerate(json.loads(printed.splitlines()[-1])):
        for row in rows:
            for name, value in row.items():
                if name != "step" and not name.startswith("media/"):
                    found[member, row["step"], name].append(math.nan if value is None else float(value))
    return found


def read_mlflow(folder: Path, ids: list[str]) -> tuple[Numbers, list[Any]]:
    from mlflow.tracking import MlflowClient

    client = MlflowClient(tracking_uri=f"sqlite:///{folder}/trackers/mlflow/mlflow.db")
    experiment = client.get_experiment_by_name("covey")
    assert experiment is not None
    runs = client.search_runs([experiment.experiment_id])
    found: Numbers = defaultdict(list)
    for run in runs:
        for name in run.data.metrics:
            for each in sorted(client.get_metric_history(run.info.run_id, name), key=lambda m: m.timestamp):
                found[ids.index(run.data.tags["covey.id"]), each.step, name].append(each.value)
    return found, runs


def logged(folder: Path) -> dict[tuple[int, int, str], float]:
    """The rows of metrics.jsonl."""
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return {(r["member"], r["step"], r["name"]): math.nan if r["value"] is None else r["value"] for r in rows}


def assert_equal(found: Numbers, expected: dict[tuple[int, int, str], float]) -> None:
    """The same keys and, of values that were logged twice, the later one, all equal to the bit."""
    assert found.keys() == expected.keys()
    keys = list(expected)
    np.testing.assert_array_equal([found[key][-1] for key in keys], [expected[key] for key in keys])


def identities(folder: Path, members: int) -> tuple[list[str], list[str]]:
    """The ids and the names that trackio has, of the members."""
    import hashlib

    own = json.loads((folder / "trackers/id.json").read_text())["id"]
    ids = [hashlib.sha256(f"{own}/{member}".encode()).hexdigest()[:16] for member in range(members)]
    names = [f"{folder.name}/{member}" if members > 1 else folder.name for member in range(members)]
    return ids, [f"{name} {own[:8]}" for name, own in zip(names, ids, strict=True)]


def test_a_run_that_is_killed_and_resumed(tmp_path: Path):
    """All three have every number of metrics.jsonl in one run per member, and some of them twice."""
    folder = tmp_path / "run"
    killed = subprocess.run([sys.executable, "-c", KILLED, str(folder), *PACKAGES], check=False)
    assert killed.returncode == -signal.SIGKILL
    subprocess.run([sys.executable, "-c", RESUMED, str(folder)], check=True)
    expected = logged(folder)
    ids, names = identities(folder, 2)
    assert max(step for _, step, _ in expected) == TINY["steps"] and len(expected) > 500

    found, runs = read_wandb(folder, ids)
    assert_equal(found, expected)
    assert any(len(values) > 1 for values in found.values()), "nothing was logged twice"
    assert {run.run_id for run in runs} == set(ids) and {run.run_group for run in runs} == {"run"}
    assert {"agent:td3", "environment:point"} <= set(runs[0].tags)
    assert {i.key: json.loads(i.value_json) for i in runs[0].config.update}["steps"] == TINY["steps"]
    assert len(list(folder.glob("trackers/wandb/*/files/media/images/**/curve*.png"))) == 1
    assert len(list(folder.glob("trackers/wandb/*/files/media/videos/**/policy*.gif"))) == 1

    assert_equal(read_trackio(folder, names), expected)
    assert list(folder.glob("trackers/trackio/media/**/*.gif"))

    found, runs = read_mlflow(folder, ids)
    assert_equal(found, {(member, step, mlflow_name(name)): x for (member, step, name), x in expected.items()})
    assert len(runs) == 2 and {run.info.status for run in runs} == {"FINISHED"}
    assert runs[0].data.params["agent.batch_size"] == "8" and runs[0].data.tags["agent"] == "td3"
    assert list(folder.glob("trackers/mlflow/artifacts/**/policy.gif"))


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    found = RunFolder(tmp_path / "run")
    found.create(to_json(default_config("td3", seeds=2).resolved()))
    return found


VALUES = {"eval/return": [0.1, 1e-30], "agent/q[0]": [np.nan, np.inf], "agent/q[1]": [1 / 3, -1e300]}


def test_a_tracker_that_is_added_later_gets_everything(folder: RunFolder):
    """Values that are not finite, brackets in names, and rows from before the tracker was on."""
    spoken: list[str] = []
    previous: dict[str, Any] = {}
    for step, track in ((100, ()), (200, PACKAGES)):
        info = {"files": previous, "step": step - 100} if previous else {}
        files = RunFiles(folder, range(2), step - 100, info, track=track, report=spoken.append)
        files.write(step, 0.5, {name: np.array(column) for name, column in VALUES.items()})
        previous = files.sync()
        files.close()
        files.end()
    assert len(spoken) == 3 and not any("failed" in text for text in spoken), spoken
    expected = logged(folder.path)
    ids, names = identities(folder.path, 2)
    assert_equal(read_wandb(folder.path, ids)[0], expected)
    assert_equal(read_trackio(folder.path, names), expected)
    found, runs = read_mlflow(folder.path, ids)
    assert_equal(found, {(member, step, mlflow_name(name)): x for (member, step, name), x in expected.items()})
    assert len(runs) == 2


def test_a_server_that_is_gone_warns_once(folder: RunFolder, monkeypatch):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    spoken: list[str] = []
    files = RunFiles(folder, range(1), 0, {}, track=["mlflow"], report=spoken.append)
    files.write(10, 0.5, {"eval/return": np.ones(1)})
    files.close()
    files.end()
    (warning,) = spoken
    assert warning.startswith("Warning: the tracker mlflow failed: ") and warning.endswith("continues without it.")
    assert logged(folder.path) == {(0, 10, "eval/return"): 1.0}
