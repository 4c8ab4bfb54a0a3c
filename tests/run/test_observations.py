"""Runs whose observations are images and dictionaries: resume, populations, replay files, export."""

from pathlib import Path

import numpy as np
import pytest

import covey
from covey import CoveyError
from covey.cli import main
from covey.storage.best import read_members

SMALL = {
    "env": "pendulum",
    "env_pixels": 16,
    "env_pixels_beside": True,
    "hidden": [8],
    "agent": {
        "batch_size": 4,
        "actor_observations": ["pixels"],
        "networks": {"image": {"channels": [4], "features": 5, "shift": 1}},
    },
    "warmup": 100,
    "capacity": 400,
    "evaluations": 1,
    "episodes": 2,
    "quiet": True,
}


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> covey.Run:
    return covey.train("sac", steps=400, seed=3, out=tmp_path_factory.mktemp("whole") / "run", **SMALL)


def same_checkpoint(one: covey.Run, two: covey.Run) -> None:
    first, second = read_members(one.folder)[0], read_members(two.folder)[0]
    assert first.keys() == second.keys() and "replay/frames/pixels" in first
    for name, x in first.items():
        np.testing.assert_array_equal(x, second[name], err_msg=name)


def test_resume_is_exact(whole: covey.Run, tmp_path: Path):
    part = covey.train("sac", steps=200, seed=3, out=tmp_path / "run", **SMALL)
    same_checkpoint(covey.resume(part.path, steps=400, quiet=True), whole)


def test_the_policy_needs_the_pixels_alone(whole: covey.Run, tmp_path: Path):
    picture = np.random.default_rng(0).integers(0, 256, (16, 16, 9), dtype=np.uint8)
    action = whole.policy()({"pixels": picture})
    assert action.shape == (1,) and np.isfinite(action).all()
    found = whole.export(tmp_path / "policy.npz")
    np.testing.assert_allclose(covey.load_policy(found.path)({"pixels": picture}), action, atol=1e-5)
    with pytest.raises(CoveyError, match="pixels"):
        whole.policy()({"pixel": picture})


def test_a_run_starts_with_the_replay_of_another(whole: covey.Run, tmp_path: Path):
    file = whole.save_replay(tmp_path / "replay.safetensors")
    options = SMALL | {"replay": file, "warmup": 0}
    run = covey.train("sac", steps=100, seed=4, out=tmp_path / "run", **options)
    loaded = read_members(run.folder)[0]["replay/frames/pixels"]
    before = read_members(whole.folder)[0]["replay/frames/pixels"]
    np.testing.assert_array_equal(loaded[:, 100:], before[:, 100:])  # the new steps are written over the oldest
    with pytest.raises(CoveyError, match=r"holds the observations obs.obs, obs.pixels .* pendulum has obs"):
        covey.train("sac", env="pendulum", steps=100, replay=file, warmup=0, out=tmp_path / "other", quiet=True)


def test_a_population_copies_images_with_its_replay(tmp_path: Path):
    run = covey.evolve(
        "sac",
        steps=400,
        members=4,
        seed=3,
        out=tmp_path / "run",
        evaluations=2,
        pbt={"replay": "copy"},
        **{name: value for name, value in SMALL.items() if name != "evaluations"},
    )
    frames = read_members(run.folder)[0]["replay/frames/pixels"]
    equal = [(i, j) for i in range(4) for j in range(i) if np.array_equal(frames[i, :150], frames[j, :150])]
    assert equal, "no member has the frames of another"


def test_the_replays_memory_is_printed(whole: covey.Run, tmp_path: Path, capsys):
    words = "train sac --env pendulum --env-pixels 16 --steps 200 --warmup 100 --hidden 8 --agent.batch-size 4"
    small = "--agent.networks.image.channels 4 --evaluations 1 --episodes 2 --capacity 1000"
    assert main([*words.split(), *small.split(), "--out", str(tmp_path / "run")]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "replay 1,000 steps of 0.784 kB" in said and "free; replay 1, networks 1, rest" in said


def test_the_doctor_examines_runs_with_images(whole: covey.Run, tmp_path: Path):
    assert not whole.doctor().left_out
    options = SMALL | {"env_pixels_beside": False, "agent": SMALL["agent"] | {"actor_observations": []}}
    run = covey.train("sac", steps=200, out=tmp_path / "run", **options)
    found = run.doctor()
    assert not found.left_out and "observation_scale" not in [each.rule for each in found.findings]


def test_too_large_a_replay_is_an_error_before_the_start(tmp_path: Path):
    with pytest.raises(CoveyError, match=r"for the replay.*Lower `capacity`"):
        covey.train("sac", env="pendulum", env_pixels=256, capacity=10_000_000, steps=2_000, out=tmp_path / "run")


def test_a_wrong_part_is_suggested(tmp_path: Path):
    agent = SMALL["agent"] | {"actor_observations": ["pixel"]}
    with pytest.raises(CoveyError, match=r"no part of the observation called 'pixel'.*pixels"):
        covey.train("sac", steps=400, out=tmp_path / "run", **(SMALL | {"agent": agent}))
