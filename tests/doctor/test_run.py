"""The doctor on a run folder: trained, training, damaged, without checkpoints."""

import json
import shutil
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import covey
from covey.cli import main
from covey.doctor.examine import records_of
from covey.evaluation.probe import gradients, probe
from covey.replay import Record, Replay, Stored
from covey.run.policy import load_member
from covey.storage.metrics import FAULT
from tests.runs import tiny


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> covey.Run:
    """A run that does not explore."""
    return tiny(tmp_path_factory.mktemp("doctor") / "run", hyper={"exploration_noise": 0.0})


@pytest.fixture
def copy(run: covey.Run, tmp_path: Path) -> Path:
    return shutil.copytree(run.path, tmp_path / "copy")


def test_the_doctor_finds_the_cause(run: covey.Run, capsys):
    found = run.doctor()
    assert main(["doctor", str(run.path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == found.as_json()
    assert found.findings[0].rule == "explores_nothing" and "deviation of 0" in found.findings[0].evidence
    assert (found.step, found.steps, found.left_out) == (1200, 1200, ())
    assert str(found).startswith("serious: exploration covers nothing")


def test_networks_are_examined_as_the_run_evaluates_them(run: covey.Run):
    """Values and actions are those of the public functions; a unit with a bias of -1000 is dead."""
    program, state, hyper = run.best
    obs = np.random.default_rng(0).normal(size=(20, 6)).astype(np.float32)
    action = np.random.default_rng(1).uniform(-1, 1, size=(20, 2)).astype(np.float32)
    before = probe(program.agent, state, hyper, obs, action)
    np.testing.assert_allclose(before.values, run.q_values(obs, program.spec.to_box(action)), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(program.spec.to_box(before.greedy), run.policy()(obs), rtol=1e-4, atol=1e-4)
    assert before.spread.tolist() == [0.0, 0.0]
    torso = state.actor["torso"]["Dense_0"]
    kernel, bias = torso["kernel"], torso["bias"]
    hidden = np.maximum(obs @ np.asarray(kernel) + np.asarray(bias), 0.0)
    dead = np.mean(hidden.max(axis=0) == 0)
    assert np.isclose(before.units["actor"].dead, dead) and np.isclose(
        before.units["actor"].largest, hidden.max(), 1e-3
    )
    alive = np.flatnonzero(hidden.max(axis=0))[:4]
    changed = jax.tree.map(lambda x: x, state.actor)
    changed["torso"]["Dense_0"] = {"kernel": kernel, "bias": bias.at[alive].set(-1000.0)}
    after = probe(program.agent, state._replace(actor=changed), hyper, obs, action)
    assert np.isclose(after.units["actor"].dead, dead + 4 / 16) and after.units["critic"] == before.units["critic"]


def test_gradients_are_those_of_the_optimisers_second_moments(run: covey.Run):
    """Adam's nu is a running mean of the squared gradient, so the root of its sum is the norm."""
    state = load_member(run.folder, run.best.program, 0).state
    found = gradients(state)
    assert set(found) == {"actor_optimiser", "critic.optimiser"}
    squares = sum(np.asarray(x, np.float64).sum() for x in jax.tree.leaves(state.actor_optimiser.nu))
    assert np.isclose(found["actor_optimiser"], np.sqrt(squares)) and squares > 0


def test_returns_stop_at_terminations_and_at_the_ends_of_episodes():
    """By hand, discount 0.5 and scale 2: one environment, an episode that terminates and one that is cut off."""
    layout = Replay(rows=6, streams=1, observation=2, action_size=1)
    reward = np.array([1.0, 1.0, 9.0, 1.0, 1.0, 1.0])
    terminated = np.array([0.0, 1.0, 0.0, 0.0, 0.0, 0.0])
    last = np.array([0.0, 0.0, 1.0, 0.0, 0.0, 0.0])
    record = Record(np.zeros((6, 1, 2)), np.zeros((6, 1, 1)), reward[:, None], terminated[:, None], last[:, None], {})
    rows = np.asarray(layout.add(layout.init(), jax.tree.map(jnp.asarray, record)).data)[0]
    found = records_of(layout, Stored(rows, {}), ["obs"], discount=0.5, scale=2.0)
    assert found.returns.tolist() == [3.0, 2.0, 3.5, 3.0, 2.0]
    assert found.reward.tolist() == [1.0] * 5 and found.obs.shape == (5, 2)


def test_a_run_that_trains_can_be_examined(run: covey.Run, capsys):
    with run.folder.lock():
        assert main(["doctor", str(run.path)]) == 0
    printed = capsys.readouterr().out
    assert printed.startswith("td3 on point, step 1,200 of 1,200\nserious: exploration covers nothing")


def test_a_run_without_checkpoints_is_examined_by_its_metrics(copy: Path):
    shutil.rmtree(copy / "checkpoints")
    found = covey.load(copy).doctor()
    assert "explores_nothing" not in [each.rule for each in found.findings]
    (left_out,) = found.left_out
    assert left_out.startswith("networks and replay.") and "has no checkpoint yet" in left_out


def test_a_damaged_checkpoint_is_left_out_and_named(copy: Path, capsys):
    for file in copy.glob("checkpoints/step_*/*"):
        file.write_bytes(b"damaged")
    (left_out,) = covey.load(copy).doctor().left_out
    assert left_out.startswith("networks and replay.")


def test_bad_input_is_refused_with_one_sentence(copy: Path, tmp_path: Path, capsys):
    assert main(["doctor", str(tmp_path / "nope")]) == 1
    assert f"There is no run folder {tmp_path / 'nope'}." in capsys.readouterr().err
    metrics = copy / "metrics.jsonl"
    metrics.write_text(metrics.read_text().replace("{", "[", 1))
    assert main(["doctor", str(copy)]) == 1
    assert "metrics.jsonl is damaged" in capsys.readouterr().err


def test_a_training_that_ended_with_nan_says_where(copy: Path):
    shutil.rmtree(copy / "checkpoints")
    (copy / FAULT).write_text(json.dumps({"quantity": "reward", "member": 0, "step": 640}))
    found = covey.load(copy).doctor().findings
    assert found[0].rule == "environment_not_finite"
    assert "gave member 0 a NaN or infinite reward at step 640" in found[0].evidence
    (copy / FAULT).write_text("{")
    assert "environment_not_finite" not in [each.rule for each in covey.load(copy).doctor().findings]
