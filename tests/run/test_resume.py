"""Resume is exact: killed at arbitrary moments, a run ends as one that was left alone."""

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

import covey
from covey.cli import main
from covey.run.session import Session
from covey.storage.store import Store
from tests.runs import FLAGS, TINY, assert_same_run, last_arrays, rows, tiny


@pytest.fixture(scope="module")
def reference(tmp_path_factory) -> Path:
    """A run of two members that nobody disturbed."""
    return tiny(tmp_path_factory.mktemp("reference") / "run", seeds=2).path


@pytest.fixture(scope="module")
def long_reference(tmp_path_factory) -> Path:
    """The same for some seconds, long enough to be killed in the middle."""
    return tiny(tmp_path_factory.mktemp("long") / "run", seeds=2, steps=LONG).path


LONG = 60_000


@contextmanager
def process(arguments: list[str]) -> Iterator[subprocess.Popen]:
    command = [sys.executable, "-m", "covey", *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as started:
        yield started


def newest(out: Path) -> int:
    return max(Store(out / "checkpoints", "step").steps(), default=0)


@pytest.mark.slow
def test_killed_again_and_again(long_reference: Path, tmp_path: Path):
    """kill -9 at random moments after new checkpoints, so that each process resumes in the middle of the run."""
    out = tmp_path / "run"
    options = ["--seeds", "2", "--steps", str(LONG), "--checkpoint-minutes", "0", "--out", str(out)]
    command, moments, killed_at = ["train", "td3", *FLAGS, *options], random.Random(0), [0]
    for _ in range(4):
        with process(command) as running:
            while newest(out) <= killed_at[-1] and running.poll() is None:
                time.sleep(0.01)
            time.sleep(moments.uniform(0.0, 0.15))
            running.send_signal(signal.SIGKILL)
            assert running.wait() == -signal.SIGKILL
        command = ["resume", str(out)]
        killed_at.append(newest(out))
        if killed_at[-1] == LONG:
            break
    assert len({step for step in killed_at if 0 < step < LONG}) >= 2, killed_at
    assert main(command) == 0
    assert_same_run(long_reference, out)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGHUP])
def test_a_signal_saves_and_says_how_to_go_on(number: signal.Signals, long_reference: Path, tmp_path: Path):
    """SIGHUP, of a terminal that was closed, without a word."""
    out = tmp_path / "run"
    with process(["train", "td3", *FLAGS, "--seeds", "2", "--steps", str(LONG), "--out", str(out)]) as running:
        assert running.stdout is not None
        for line in running.stdout:
            if line.startswith(f"step {LONG // 3:>10,}"):
                break
        running.send_signal(number)
        output, _ = running.communicate()
    assert running.returncode == 130
    assert "Traceback" not in output
    (saved,) = Store(out / "checkpoints", "step").steps()
    assert LONG // 3 <= saved < LONG
    said = f"Saved at step {saved:,}. Resume with: covey resume {out}"
    assert (said in output) == (number == signal.SIGINT)
    assert main(["resume", str(out)]) == 0
    assert_same_run(long_reference, out)


def test_training_is_the_same_however_often_it_is_evaluated_or_saved(reference: Path, tmp_path: Path):
    other = tiny(tmp_path / "run", seeds=2, evaluations=5, episodes=2, checkpoint_minutes=0.0).path
    one, two = last_arrays(reference), last_arrays(other)
    for name in one:
        if "tally" not in name and not name.startswith("best/"):
            np.testing.assert_array_equal(one[name], two[name], err_msg=name)


def test_the_same_command_goes_on_with_an_unfinished_run(tmp_path: Path):
    out = tmp_path / "run"
    tiny(out)
    before = rows(out / "metrics.jsonl")
    tiny(out)
    assert rows(out / "metrics.jsonl") == before


def test_a_finished_run_says_so_and_computes_nothing(reference: Path, tmp_path: Path, monkeypatch, capsys):
    out = tmp_path / "run"
    shutil.copytree(reference, out)

    def fail(*_: object, **__: object) -> None:
        raise AssertionError("a finished run builds no program")

    with monkeypatch.context() as patch:
        patch.setattr("covey.launch.build", fail)
        for arguments in (["resume", str(out)], ["resume", str(out), "--steps", "1200"]):
            assert main(arguments) == 0
            said = " ".join(capsys.readouterr().out.split())
            assert f"{out} is finished: it has made its 1,200 steps." in said
            assert f"Train longer with: covey resume {out}" in said and said.endswith("--steps 2400")
        assert tiny(out, seeds=2).path == out
        assert covey.resume(out, quiet=True).config.steps == 1200
        # With something missing or damaged, or another option, there is work to do.
        for damage in ("evaluation/final.json", "metrics.jsonl"):
            kept = (out / damage).read_bytes()
            (out / damage).write_bytes(kept.replace(b"1", b"2", 1))
            with pytest.raises(AssertionError, match="builds no program"):
                main(["resume", str(out)])
            (out / damage).write_bytes(kept)
        with pytest.raises(AssertionError, match="builds no program"):
            main(["resume", str(out), "--steps", "2000"])
        assert main(["resume", str(out)]) == 0
    assert_same_run(reference, out)


def test_longer_and_with_another_learning_rate(tmp_path: Path, capsys):
    out = tmp_path / "run"
    tiny(out)
    assert main(["resume", str(out), "--steps", "2000", "--hyper.actor-lr", "1e-5"]) == 0
    run = covey.load(out)
    assert run.config.steps == 2000 and run.config.capacity == 1200
    changes = rows(out / "changes.jsonl")
    assert {c["name"]: (c["old"], c["new"]) for c in changes} == {
        "steps": (1200, 2000),
        "hyper.actor_lr": ("0.003", "1e-05"),
    }
    used = run.metrics()["hyper/actor_lr"]
    by_step = dict(zip(used["step"], used["value"], strict=True))
    assert by_step[1200] == pytest.approx(3e-3) and by_step[2000] == pytest.approx(1e-5)
    assert max(run.metrics()["eval/return"]["step"]) == 2000


def test_a_change_survives_a_kill_before_the_next_checkpoint(tmp_path: Path, monkeypatch):
    """The checkpoint still holds the old value; the change is written down beside it."""
    out = tmp_path / "run"
    tiny(out)

    def die(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("covey.run.session.Session._train", die)
        assert main(["resume", str(out), "--steps", "2000", "--hyper.actor-lr", "1e-5"]) == 130
    assert main(["resume", str(out)]) == 0
    used = covey.load(out).metrics()["hyper/actor_lr"]
    assert used["value"][-1] == pytest.approx(1e-5) and used["step"][-1] == 2000


def test_a_longer_run_says_that_its_replay_is_short(tmp_path: Path, capsys):
    out = tmp_path / "run"
    tiny(out)
    capsys.readouterr()
    assert main(["resume", str(out), "--steps", "1600"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "newest 1,200 of 1,600 steps. To keep more, resume with --capacity 1600." in said
    assert "Resuming from step 1,200. The replay holds 1,200 of 1,200 steps." in said
    assert said.index("memory in MiB: about ") < said.index("Resuming")
    assert main(["resume", str(out), "--steps", "2000", "--capacity", "2000"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "To keep more" not in said and "The replay holds 1,200 of 2,000 steps." in said
    assert covey.load(out).config.capacity == 2000
    assert main(["resume", str(out), "--capacity", "0"]) == 0
    assert covey.load(out).config.capacity == 2000
    assert main(["resume", str(out), "--capacity", "1200"]) == 1
    assert "can grow within a run, but not shrink" in capsys.readouterr().err


ON_HOST = {"env": "gymnasium:Pendulum-v1", "steps": 600, "warmup": 200, "capacity": 300}


@pytest.mark.parametrize("where", ["compiled", "host"])
def test_a_replay_grows_and_the_run_resumes_exactly(where: str, tmp_path: Path, monkeypatch):
    """A full ring, made larger: killed before and after the next checkpoint, the run ends as one that was not.

    With noise that is held across checkpoints.
    """
    out, undisturbed = tmp_path / "run", tmp_path / "undisturbed"
    options = {"seeds": 2, "capacity": 600} if where == "compiled" else ON_HOST
    old = tiny(out, **options, agent=TINY["agent"] | {"noise_hold": 8})
    assert {"noise", "left"} <= {name.split("/")[-1] for name in last_arrays(out) if "memory" in name}
    before, saved = last_arrays(out)["replay/data"], load_file(old.save_replay(tmp_path / "before.safetensors"))
    kept, written = old.config.capacity // 2, old.config.steps // 2
    shutil.copytree(out, undisturbed)
    steps, capacity = ("2000", "1400") if where == "compiled" else ("1000", "700")
    larger = ["--steps", steps, "--capacity", capacity, "--checkpoint-minutes", "0"]
    assert main(["resume", str(undisturbed), *larger]) == 0
    after = last_arrays(undisturbed)
    new = (int(steps) - old.config.steps) // 2
    assert after["replay/data"].shape[1] == after["replay/written"] == kept + new
    np.testing.assert_array_equal(after["replay/data"][:, :kept], np.roll(before, -(written % kept), axis=1))

    def die(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("covey.run.session.Session._train", die)
        assert main(["resume", str(out), *larger]) == 130
    assert newest(out) == old.config.steps
    same = load_file(covey.load(out).save_replay(tmp_path / "after.safetensors"))
    for name in saved:  # the configuration is the larger one already, the checkpoint still that of the smaller ring
        np.testing.assert_array_equal(saved[name], same[name], err_msg=name)
    evaluate = Session._evaluate_and_tune

    def die_after_a_checkpoint(session: Session, *how: Any) -> None:
        session.writer.finish()
        die() if newest(out) > old.config.steps else evaluate(session, *how)

    with monkeypatch.context() as patch:
        patch.setattr(Session, "_evaluate_and_tune", die_after_a_checkpoint)
        assert main(["resume", str(out)]) == 130
    assert old.config.steps < newest(out) < int(steps)
    assert main(["resume", str(out)]) == 0
    assert_same_run(undisturbed, out)
    assert [c["name"] for c in rows(out / "changes.jsonl")] == ["steps", "capacity", "checkpoint_minutes"]


def test_tensorboard_has_every_step_once_after_a_restart(tmp_path: Path, monkeypatch):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    out = tmp_path / "run"

    def die(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("covey.run.session.Session._save_if_due", die)
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
    assert json.loads((reference / "config.json").read_text())["members"] == 2
    assert os.listdir(reference / "media")
