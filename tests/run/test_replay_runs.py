"""Runs that start with the data of another."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import covey
from covey import envs
from covey.cli import main
from covey.envs.builtin.point import Point
from covey.run.session import Session
from covey.storage.replay_file import open_replay
from tests.cli.test_errors import LIMITED
from tests.runs import FLAGS, TINY, assert_same_run, last_arrays, rows, tiny

NORMALISED = TINY["agent"] | {"normalise": {"observations": True}}


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> covey.Run:
    """Two members of two environments, 1,200 steps each."""
    return tiny(tmp_path_factory.mktemp("source") / "run", seeds=2)


@pytest.fixture(scope="module")
def file(run, tmp_path_factory) -> Path:
    return run.save_replay(tmp_path_factory.mktemp("replay") / "replay.safetensors")


def replay_of(out: Path) -> np.ndarray:
    return last_arrays(out)["replay/data"]


def test_the_file_is_what_the_checkpoint_holds(run, file):
    found, stored = open_replay(file), replay_of(run.path)
    assert (found.members, found.rows, found.streams, found.step) == (2, 600, 2, 1200)
    assert (found.environment, found.algorithm) == ("point", "td3")
    arrays = load_file(file)
    np.testing.assert_array_equal(arrays["obs"], stored[..., :6])
    np.testing.assert_array_equal(arrays["reward"], stored[..., 8])


def test_a_ring_that_has_wrapped_is_saved_in_time_order(tmp_path: Path):
    """The same run with a large and a small replay: the small one's file is the end of the large one's."""
    options = {"hyper": {"actor_lr": 0.0, "critic_lr": 0.0}}
    small, large = tiny(tmp_path / "small", capacity=500, **options), tiny(tmp_path / "large", **options)
    a, b = load_file(small.save_replay()), load_file(large.save_replay())
    assert a["obs"].shape == (1, 250, 2, 6)
    for name in a:
        np.testing.assert_array_equal(a[name], b[name][:, -250:], err_msg=name)
    assert (small.path / "replay.safetensors").exists()


def test_the_command_line(run, file, tmp_path: Path, capsys):
    out = tmp_path / "new folder" / "data.safetensors"
    assert main(["replay", str(run.path), "--out", str(out)]) == 0
    said = capsys.readouterr().out
    assert "td3 on point, step 1,200: 1,200 steps of 2 members" in said and str(out) in said
    one, two = load_file(out), load_file(file)
    assert one.keys() == two.keys() and all(np.array_equal(one[name], two[name]) for name in one)
    folder = tmp_path / "run"
    assert main(["train", "td3", *FLAGS, "--warmup", "0", "--replay", str(out), "--out", str(folder)]) == 0
    assert "Loaded 1,200 of the 1,200 steps of each member" in capsys.readouterr().out
    saved = json.loads((folder / "config.json").read_text())
    assert saved["replay"] == str(out) and saved["capacity"] == 2400 and saved["warmup"] == 0
    assert replay_of(folder).shape[1] == 1200
    again = tiny(tmp_path / "python", warmup=0, replay=out)
    assert_same_run(folder, again.path)


def test_the_run_begins_with_the_data_and_follows_its_schedule(file, run, tmp_path: Path):
    """Loaded rows first, then as many of the run's own as without data, and the seam is marked."""
    new = tiny(tmp_path / "run", seeds=3, seed=5, replay=str(file), agent=NORMALISED)
    data, source = replay_of(new.path), replay_of(run.path)
    assert data.shape[:3] == (3, 1200, 2)
    for member, of in enumerate((0, 1, 0)):
        np.testing.assert_array_equal(data[member, :599], source[of, :599])
    assert np.all(data[:, 599, :, -1] == 1)
    evaluated = new.metrics()["eval/return"]
    assert sorted(set(evaluated["step"])) == [0, 400, 800, 1200]
    arrays = last_arrays(new.path)
    np.testing.assert_array_equal(arrays["members/agent/statistics/observations/rows"], [2400] * 3)
    mean = arrays["members/agent/statistics/observations/mean"]
    np.testing.assert_allclose(mean, data[..., :6].mean((1, 2)), atol=1e-3)


def test_the_warm_up_is_the_same_with_data(file, tmp_path: Path):
    """What a run collects at random does not depend on what it was given."""
    options = {"steps": 500, "evaluations": 1}
    one, two = tiny(tmp_path / "with", replay=file, **options), tiny(tmp_path / "without", **options)
    np.testing.assert_array_equal(replay_of(one.path)[:, 600:800], replay_of(two.path)[:, :200])


def test_updates_use_the_loaded_rows(file, tmp_path: Path):
    """Two files that differ in their rewards alone: without a warm-up the first updates draw from them."""
    arrays = load_file(file)
    arrays["reward"] = arrays["reward"] + 100.0
    rich = tmp_path / "rich.safetensors"
    save_file(arrays, rich, {"format": "covey replay", "version": "1", "step": "0"})
    options = {"warmup": 0, "steps": 300, "evaluations": 3, "agent": TINY["agent"] | {"batch_size": 64}}
    losses = []
    for name, path in (("plain", file), ("rich", rich)):
        run = tiny(tmp_path / name, replay=path, **options)
        losses.append(run.metrics()["agent/critic_loss"]["value"][0])
    assert losses[1] > 100 * losses[0], losses


def test_learning_from_data_alone(tmp_path: Path):
    """Random data of another run, hardly any steps of its own: the policy is better than the untrained one."""
    source = tiny(tmp_path / "source", steps=4100, warmup=4000, envs=1, evaluations=1)
    agent = {"networks": {"actor": {"hidden": [64]}, "critic": {"hidden": [64]}}, "batch_size": 64}
    hyper = {"actor_lr": 1e-3, "critic_lr": 1e-3}
    options = {"steps": 300, "updates_per_step": 10.0, "agent": agent, "hyper": hyper, "envs": 1, "episodes": 20}
    run = tiny(tmp_path / "run", warmup=0, replay=source.save_replay(), **options)
    returns = run.metrics()["eval/return"]["value"]
    assert max(returns[1:]) > returns[0] + 10, returns


def test_resume_is_exact_and_needs_no_file(file, tmp_path: Path, monkeypatch):
    """Also where the ring is full of loaded data from the start."""
    options = {"seeds": 2, "warmup": 0, "capacity": 900, "agent": NORMALISED}
    own = tmp_path / "replay.safetensors"
    shutil.copy(file, own)
    whole = tiny(tmp_path / "whole", replay=own, **options).path
    half = tmp_path / "half"

    def stop(session: Session) -> None:
        session.stopping.asked = session.block >= 6
        session._stop_if_asked()

    with monkeypatch.context() as patch:
        patch.setattr(Session, "_save_if_due", stop)
        with pytest.raises(KeyboardInterrupt):
            tiny(half, replay=own, **options)
    own.unlink()
    assert 0 < json.loads(next(half.glob("checkpoints/step_*/info.json")).read_text())["step"] < 1200
    assert main(["resume", str(half)]) == 0
    for path in (whole, half):  # the same run: its configuration names the same file
        assert json.loads((path / "config.json").read_text())["replay"] == str(own)
    assert_same_run(whole, half)
    assert covey.load(half).evaluate(episodes=2).episodes.returns.shape == (2,)
    assert main(["resume", str(half), "--steps", "1400"]) == 0
    assert covey.load(half).save_replay().exists()


def test_a_run_stopped_before_its_first_checkpoint_loads_the_file_again(file, tmp_path: Path, monkeypatch, capsys):
    out, own = tmp_path / "run", tmp_path / "replay.safetensors"
    shutil.copy(file, own)
    flags = ["train", "td3", *FLAGS, "--warmup", "0", "--replay", str(own), "--out", str(out)]

    def die(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("covey.run.session.Session._save_if_due", die)
        assert main(flags) == 130
    own.rename(tmp_path / "away")
    assert main(["resume", str(out)]) == 1
    assert f"There is no replay file {own}" in capsys.readouterr().err
    (tmp_path / "away").rename(own)
    monkeypatch.chdir(tmp_path)
    assert main(flags) == 0
    assert_same_run(out, tiny(tmp_path / "whole", warmup=0, replay=Path("replay.safetensors")).path)


def test_data_of_another_environment_whose_sizes_fit(file, tmp_path: Path, capsys):
    covey.register_env("twin", Point)
    try:
        flags = [f if f != "point" else "twin" for f in FLAGS]
        assert main(["train", "td3", *flags, "--replay", str(file), "--out", str(tmp_path / "run")]) == 0
    finally:
        del envs.ENVS["twin"]
    assert "Note: these data are from point, and this run trains on twin." in capsys.readouterr().out


WRONG = {
    "other sizes": (["--env", "pendulum", "--replay", "REPLAY"], "observations of 6 numbers (point), and those of"),
    "no such file": (["--replay", "nowhere"], "There is no replay file"),
    "a folder": (["--replay", "."], "is a folder"),
    "not a replay": (["--replay", "FILE"], "can't be read as a replay file"),
    "no warm-up without data": (["--warmup", "0"], "--warmup must be positive, not 0"),
    "a negative warm-up": (["--warmup", "-1", "--replay", "REPLAY"], "--warmup must be positive, not -1"),
    "a window longer than the data": (
        ["--warmup", "0", "--replay", "REPLAY", "--agent.n-step", "700", "--capacity", "2e4"],
        "holds 600 steps of each of 2 environments, but the first update draws windows of 700, which needs 701. "
        "Raise --warmup to at least 202",
    ),
    "a capacity below a window": (
        ["--replay", "REPLAY", "--agent.n-step", "8", "--capacity", "8"],
        "Raise --capacity to at least 18",
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_input(case: str, file, tmp_path: Path, capsys, monkeypatch):
    """Told before anything is made."""
    more, message = WRONG[case]
    monkeypatch.chdir(tmp_path)
    (tmp_path / "FILE").write_text("something else")
    more = [str(file) if m == "REPLAY" else m for m in more]
    assert main(["train", "td3", *FLAGS, *more, "--out", str(tmp_path / "run")]) == 1
    said = " ".join(capsys.readouterr().err.split())
    assert message in said and "Traceback" not in said
    assert [p.name for p in tmp_path.iterdir()] == ["FILE"], "nothing is left behind"


def test_the_data_of_a_run_can_not_change(run, file, capsys):
    assert main(["resume", str(run.path), "--replay", str(file)]) == 1
    assert "that can't change within a run" in capsys.readouterr().err


def test_a_run_without_an_intact_checkpoint(run, tmp_path: Path, capsys):
    assert main(["replay", str(tmp_path / "nowhere")]) == 1
    assert "no run folder" in capsys.readouterr().err
    copy = tmp_path / "run"
    shutil.copytree(run.path, copy)
    for arrays in copy.glob("checkpoints/step_*/arrays.safetensors"):
        arrays.write_bytes(arrays.read_bytes()[:-1])
    assert main(["replay", str(copy)]) == 1
    assert "no intact checkpoint" in capsys.readouterr().err
    shutil.rmtree(copy / "checkpoints")
    assert main(["replay", str(copy)]) == 1
    assert "has no checkpoint yet" in capsys.readouterr().err
    assert not list(copy.glob("replay*"))


def test_a_full_disk(run, tmp_path: Path):
    out = tmp_path / "here" / "replay.safetensors"
    code = [sys.executable, "-c", LIMITED.format(size=20_000), "replay", str(run.path), "--out", str(out)]
    stopped = subprocess.run(code, capture_output=True, text=True, check=False)
    assert stopped.returncode == 1 and "Free some space" in stopped.stderr and "Traceback" not in stopped.stderr
    assert not list(out.parent.iterdir()), "no half file"
    assert main(["replay", str(run.path), "--out", str(run.path / "config.json" / "x")]) == 1
    assert rows(run.path / "metrics.jsonl")
