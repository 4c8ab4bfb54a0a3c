"""Resume is exact: killed at arbitrary moments, a run ends as one that was left alone."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

import covey
from covey.cli import main
from tests.runs import FLAGS, assert_same_run, last_arrays, rows, tiny


@pytest.fixture(scope="module")
def reference(tmp_path_factory) -> Path:
    """A run that nobody disturbed, of five members in one program."""
    out = tmp_path_factory.mktemp("reference") / "run"
    return tiny(out, seeds=2).path


def start(arguments: list[str]) -> subprocess.Popen:
    return subprocess.Popen(
        [sys.executable, "-m", "covey", *arguments], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


def test_killed_again_and_again(reference: Path, tmp_path: Path):
    """kill -9 at random moments, from the compilation to the last picture, until the run gets through."""
    out = tmp_path / "run"
    moments = random.Random(0)
    command = ["train", "td3", *FLAGS, "--seeds", "2", "--checkpoint-minutes", "0", "--out", str(out)]
    kills = 0
    for _ in range(5):
        with start(command) as process:
            wait_for_work(process, out, moments)
            process.send_signal(signal.SIGKILL)
            kills += process.wait() == -signal.SIGKILL
        command = ["resume", str(out)]
    assert kills >= 4
    assert main(command) == 0
    assert_same_run(reference, out)


def wait_for_work(process: subprocess.Popen, out: Path, moments: random.Random) -> None:
    """Waits until the process trains (its programs are compiled), then a random moment more."""
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith("Compiling the evaluation"):
            break
    time.sleep(moments.uniform(0.0, 1.0))


def test_ctrl_c_saves_and_says_how_to_go_on(tmp_path: Path):
    out = tmp_path / "run"
    with start(["train", "td3", *FLAGS, "--seeds", "2", "--steps", "8000", "--out", str(out)]) as process:
        wait_for_work(process, out, random.Random(1))
        process.send_signal(signal.SIGINT)
        output, _ = process.communicate()
    assert process.returncode == 130
    assert f"covey resume {out}" in output
    assert "Traceback" not in output
    undisturbed = tiny(tmp_path / "undisturbed", seeds=2, steps=8_000).path
    assert main(["resume", str(out)]) == 0
    assert_same_run(undisturbed, out)


def test_training_is_the_same_however_often_it_is_evaluated_or_saved(reference: Path, tmp_path: Path):
    other = tiny(tmp_path / "run", seeds=2, evaluations=5, episodes=2, checkpoint_minutes=0.0).path
    one, two = last_arrays(reference), last_arrays(other)
    for name in one:
        if "tally" not in name and not name.startswith("best"):
            np.testing.assert_array_equal(one[name], two[name], err_msg=name)


def test_the_same_command_goes_on_with_an_unfinished_run(tmp_path: Path):
    out = tmp_path / "run"
    tiny(out)
    before = rows(out / "metrics.jsonl")
    tiny(out)
    assert rows(out / "metrics.jsonl") == before


def test_longer_and_with_another_learning_rate(tmp_path: Path, capsys):
    out = tmp_path / "run"
    tiny(out)
    assert main(["resume", str(out), "--steps", "2000", "--hyper.actor-lr", "1e-5"]) == 0
    run = covey.load(out)
    assert run.config.steps == 2000 and run.config.capacity == 1200
    changes = rows(out / "changes.jsonl")
    assert {c["name"]: (c["old"], c["new"]) for c in changes} == {
        "steps": (1200, 2000),
        "hyper.actor_lr": ("0.0003", "1e-05"),
    }
    used = run.metrics()["hyper/actor_lr"]
    by_step = dict(zip(used["step"], used["value"], strict=True))
    assert by_step[1200] == pytest.approx(3e-4) and by_step[2000] == pytest.approx(1e-5)
    assert max(run.metrics()["eval/return"]["step"]) == 2000


def test_a_change_survives_a_kill_before_the_next_checkpoint(tmp_path: Path, monkeypatch):
    """The checkpoint still holds the old value; the change is written down beside it."""
    out = tmp_path / "run"
    tiny(out)

    def die(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("covey.run.fit.Session._train", die)
        assert main(["resume", str(out), "--steps", "2000", "--hyper.actor-lr", "1e-5"]) == 130
    assert main(["resume", str(out)]) == 0
    used = covey.load(out).metrics()["hyper/actor_lr"]
    assert used["value"][-1] == pytest.approx(1e-5) and used["step"][-1] == 2000


def test_tensorboard_has_every_step_once_after_a_restart(tmp_path: Path, monkeypatch):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    out = tmp_path / "run"

    def die(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("covey.run.fit.Session._save_if_due", die)
        assert main(["train", "td3", *FLAGS, "--out", str(out)]) == 130
    assert not list((out / "checkpoints").iterdir())
    tiny(out)
    events = EventAccumulator(str(out / "tensorboard"))
    events.Reload()
    assert [e.step for e in events.Scalars("eval/return")] == [0, 400, 800, 1200]


def test_a_changed_shape_is_refused(tmp_path: Path, capsys):
    out = tmp_path / "run"
    tiny(out)
    before = (out / "config.json").read_text()
    assert main(["resume", str(out), "--agent.batch-size", "16"]) == 1
    assert "agent.batch_size is 8 there and 16 here" in capsys.readouterr().err
    assert main(["resume", str(out), "--steps", "800"]) == 1
    assert "already at step 1,200" in capsys.readouterr().err
    assert (out / "config.json").read_text() == before


def test_only_one_process_at_a_time(tmp_path: Path, capsys):
    out = tmp_path / "run"
    run = tiny(out)
    with run.folder.lock():
        assert main(["resume", str(out)]) == 1
    assert "Another process" in capsys.readouterr().err


def test_the_command_and_versions_are_written_down(reference: Path):
    text = (reference / "environment.txt").read_text()
    for word in ("command:", "jax: ", "devices: cpu", "covey: "):
        assert word in text
    assert json.loads((reference / "config.json").read_text())["seeds"] == 2
    assert os.listdir(reference / "media")
