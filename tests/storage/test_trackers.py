"""Trackers without their packages: names, errors, failures, and the process, whose `wandb` is a fake."""

import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import covey
from covey.cli import main
from covey.errors import CoveyError
from covey.run.config import default_config
from covey.run.config_text import to_json
from covey.storage import trackers
from covey.storage.folder import RunFolder
from covey.storage.metrics import TRACKERS, RunFiles, check_trackers, register_sink
from covey.storage.tracker_process import mlflow_name
from tests.runs import TINY, tiny

FAKE = """
import json, os, time

def login(prompt):
    return bool(os.environ.get("WANDB_API_KEY"))

def Settings(**settings):
    return settings

class Run:
    def __init__(self, **about):
        self.about = about
        self.file = open(os.path.join(about["dir"], about["id"] + ".rows"), "a")
        print("noise of the library")
    def define_metric(self, *names, **more):
        pass
    def log(self, row):
        if "fail" in os.environ.get("FAKE", ""):
            raise OSError("No space left on device")
        self.file.write(json.dumps(row, default=str) + "\\n")
    def finish(self):
        time.sleep(60 if "hang" in os.environ.get("FAKE", "") else 0)
        self.file.close()

class Media:
    def __init__(self, path, format=""):
        self.path = path
    def __str__(self):
        return os.path.basename(self.path)

Image = Video = Media

def init(**about):
    if about["mode"] == "online" and "down" in os.environ.get("FAKE", ""):
        raise ConnectionError("no route")
    run = Run(**about)
    run.file.write(json.dumps({k: about[k] for k in ("name", "group", "tags", "mode", "config")}) + "\\n")
    return run
"""


class Collector:
    """A tracker of a plugin; it fails at the second write if it is told to."""

    opened: list["Collector"] = []  # noqa: RUF012

    def __init__(self, folder: RunFolder, members: range, step: int) -> None:
        self.calls: list[Any] = [step]
        Collector.opened.append(self)

    def write(self, step: int, wall: float, values: Any) -> None:
        self.calls.append(step)

    def media(self, files: dict[str, Path]) -> None:
        self.calls.append(sorted(files))

    def close(self) -> None:
        self.calls.append("closed")


@pytest.fixture
def collected(monkeypatch: pytest.MonkeyPatch) -> list[Collector]:
    monkeypatch.setattr("covey.storage.metrics.TRACKERS", dict(TRACKERS))
    monkeypatch.setattr(Collector, "opened", [])
    register_sink("mine", Collector, always=False)
    return Collector.opened


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    found = RunFolder(tmp_path / "run")
    found.create(to_json(default_config("td3", seeds=2).resolved()))
    return found


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A package called wandb, for the process of the tracker alone."""
    (tmp_path / "packages").mkdir()
    (tmp_path / "packages" / "wandb.py").write_text(FAKE)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "packages"))
    for name in ("WANDB_MODE", "WANDB_API_KEY", "WANDB_PROJECT"):
        monkeypatch.delenv(name, raising=False)


def log(folder: RunFolder, *steps: int, media: dict[str, Path] | None = None, since: int = 0) -> list[str]:
    """Logs two members at some steps with the tracker wandb. Returns what it says."""
    spoken: list[str] = []
    files = RunFiles(folder, range(2), since, {}, track=["wandb"], report=spoken.append)
    for step in steps:
        files.write(step, 0.5, {"eval/return": np.array([step / 3, np.nan])})
    files.close()
    files.end(media)
    return spoken


def rows(folder: RunFolder) -> list[list[dict[str, Any]]]:
    """What each member's fake run was given."""
    files = sorted(folder.path.glob("trackers/*.rows"))
    read = [[json.loads(line) for line in file.read_text().splitlines()] for file in files]
    return sorted(read, key=lambda found: found[0]["name"])


def test_a_tracker_of_a_plugin(collected: list[Collector], tmp_path: Path):
    """By name, in a new run, and in one that is resumed with another `track`, which is recorded."""
    run = tiny(tmp_path / "run", track=["mine"])
    (one,) = collected
    assert one.calls[:2] == [0, 0] and 1200 in one.calls
    assert one.calls[-2:] == [["curve", "episode", "policy"], "closed"], "media comes last"
    assert main(["resume", str(run.path), "--track", "none", "--steps", "1600"]) == 0
    assert len(collected) == 1 and covey.load(run.path).config.track == ()
    assert (run.path / "changes.jsonl").read_text().count('"track"') == 1
    assert tiny(run.path, steps=1600, capacity=1200, track=["mine"]).config.track == ("mine",), "it is the same run"
    assert collected[1].calls[0] == 1600 and covey.load(run.path).config.track == ("mine",)
    assert tiny(run.path, steps=1600, capacity=1200, track=["mine"]).path == run.path and len(collected) == 2


def test_a_tracker_that_fails_warns_once(collected: list[Collector], folder: RunFolder, monkeypatch):
    def fail(*about: Any) -> None:
        raise ValueError("no network.")

    monkeypatch.setattr(Collector, "write", fail)
    spoken: list[str] = []
    files = RunFiles(folder, range(2), 0, {}, track=["mine"], report=spoken.append)
    for step in (1, 2):
        files.write(step, 0.5, {"eval/return": np.ones(2)})
    files.close()
    files.end()
    assert spoken == ["Warning: the tracker mine failed: no network. Training continues without it."]
    monkeypatch.setattr(Collector, "__init__", fail)
    RunFiles(folder, range(2), 0, {}, track=["mine"], report=spoken.append).close()
    assert len(spoken) == 2


def test_errors_name_the_remedy(monkeypatch, capsys, tmp_path: Path):
    with pytest.raises(CoveyError, match=r"no tracker called 'wandbb'. Did you mean 'wandb'.*--plugin MODULE"):
        check_trackers(["wandbb"])
    monkeypatch.setattr("covey.storage.trackers.find_spec", lambda name: None)
    with pytest.raises(CoveyError, match=r"`track` mlflow needs mlflow, sqlalchemy, alembic(.|\n)*pip install.*mlflow"):
        covey.train("td3", out=tmp_path / "run", quiet=True, track=["mlflow"], **TINY)
    assert main(["train", "td3", "--out", str(tmp_path / "run"), "--track", "mlflow", "wandb"]) == 1
    assert "--track mlflow needs" in capsys.readouterr().err
    assert not (tmp_path / "run").exists(), "before anything is created"
    check_trackers(())


def test_the_process_hands_over_every_number(fake: None, folder: RunFolder, tmp_path: Path):
    spoken = log(folder, 10, 20, media={"curve": tmp_path / "curve.png", "policy": tmp_path / "policy.gif"})
    assert len(spoken) == 1 and spoken[0].startswith("wandb: offline. Upload with: wandb sync ")
    one, two = rows(folder)
    assert one[0]["name"] == "run/0" and one[0]["group"] == "run" and one[0]["config"]["algorithm"] == "td3"
    assert one[0]["tags"][:2] == ["agent:td3", "environment:pendulum"]
    assert one[1:3] == [{"step": 10, "eval/return": 10 / 3}, {"step": 20, "eval/return": 20 / 3}]
    assert one[3] == {"media/curve": "curve.png", "media/policy": "policy.gif"}
    assert len(two) == 3 and np.isnan(two[1]["eval/return"])
    assert "noise of the library" in (folder.path / "trackers/wandb.log").read_text()
    assert json.loads((folder.path / "trackers/wandb.json").read_text()) == {"step": 20}


def test_a_resumed_run_keeps_its_id_and_sends_what_is_missing(fake: None, folder: RunFolder, tmp_path: Path):
    """Also if the folder was moved."""
    files = RunFiles(folder, range(2), 0, {}, report=print)
    for step in (10, 20):
        files.write(step, 0.5, {"eval/return": np.array([step, 1.0])})
    info = {"step": 20, "files": files.sync()}
    files.close()
    (tmp_path / "run").rename(tmp_path / "moved")
    moved = RunFolder(tmp_path / "moved")
    for step in (30, 40):
        files = RunFiles(moved, range(2), 20, info, track=["wandb"], report=print)
        files.write(step, 0.5, {"eval/return": np.array([step, 1.0])})
        files.close()
        files.end()
    one, _ = rows(moved)
    assert [row["step"] for row in one if "step" in row] == [10, 20, 30, 40], "the first two were sent once"


def test_a_process_that_fails_warns_once(fake: None, folder: RunFolder, monkeypatch):
    monkeypatch.setenv("FAKE", "fail")
    (warning,) = [text for text in log(folder, 10, 20) if text.startswith("Warning")]
    assert warning == (
        "Warning: the tracker wandb failed: OSError: No space left on device. Training continues without it."
    )


def test_a_process_that_hangs_is_left_alone(fake: None, folder: RunFolder, monkeypatch):
    monkeypatch.setenv("FAKE", "hang")
    monkeypatch.setattr(trackers, "CLOSING", 2.0)
    started: list[Any] = []
    real = trackers.subprocess.Popen
    monkeypatch.setattr(trackers.subprocess, "Popen", lambda *a, **k: started.append(real(*a, **k)) or started[-1])
    start = time.monotonic()
    assert any("still sending" in text for text in log(folder, 10))
    assert time.monotonic() - start < 10
    started[0].kill()
    started[0].wait()


def test_wandb_is_online_only_with_a_login_and_a_network(fake: None, folder: RunFolder, monkeypatch):
    monkeypatch.setenv("WANDB_API_KEY", "key")
    monkeypatch.setenv("FAKE", "down")
    (text,) = log(folder, 10)
    assert text.startswith("wandb: offline, because the server can't be reached (ConnectionError).")
    monkeypatch.setenv("FAKE", "")
    log(folder, 20)
    monkeypatch.setenv("WANDB_MODE", "offline")
    log(folder, 30)
    assert [row["mode"] for row in rows(folder)[0] if "mode" in row] == ["offline", "online", "offline"]


@pytest.mark.parametrize(("name", "allowed"), [("agent/q[3]", "agent/q.3"), ("eval/x y", "eval/x y"), ("a@b", "a_b")])
def test_names_that_mlflow_allows(name: str, allowed: str):
    assert mlflow_name(name) == allowed
