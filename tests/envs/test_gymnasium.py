"""The adapter to Gymnasium: the same stream as Gymnasium's own vector environments, exact states, early errors."""

import re
from functools import partial

import gymnasium
import numpy as np
import pytest

from covey import envs
from covey.cli import main
from covey.envs.host.batch import LocalBatch
from covey.envs.host.state import load_env, save_env
from covey.envs.host.workers import WorkerBatch
from covey.errors import CoveyError
from covey.install import install_command

TASKS = "gymnasium:tests.host_tasks"


def actions(env: envs.HostEnv, steps: int, count: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).uniform(-1, 1, (steps, count, env.spec.action_size)).astype(np.float32)


def stream(batch, steps: np.ndarray) -> list[np.ndarray]:
    """Returns all results of a batch, stacked over time."""
    return [np.stack(x) for x in zip(*(batch.step(a) for a in steps), strict=True)]


@pytest.mark.parametrize("name", ["Pendulum-v1", "InvertedPendulum-v5"])
def test_the_stream_is_that_of_gymnasiums_vector_environment(name: str):
    """Seeds, next-step resets, true final observations, ends and time limits; and its episode statistics agree."""
    env, seeds, steps = envs.make(f"gymnasium:{name}"), np.array([5, 6], np.uint32), 450
    taken = actions(env, steps, 2)
    batch, theirs = env.open(2), gymnasium.make_vec(name, 2, vectorization_mode="sync")
    theirs = gymnasium.wrappers.vector.RecordEpisodeStatistics(theirs)
    np.testing.assert_array_equal(batch.reset(seeds), theirs.reset(seed=[5, 6])[0].astype(np.float32))
    low, high = np.asarray(env.spec.action_low), np.asarray(env.spec.action_high)
    episodes, total, clock = 0, np.zeros(2), np.zeros(2, int)
    ended = np.zeros(2, bool)
    for action in taken:
        ours = batch.step(action)
        scaled = (low + (action.astype(np.float64) + 1) / 2 * (high - low)).astype(np.float32)
        obs, reward, terminated, truncated, info = theirs.step(scaled)
        np.testing.assert_array_equal(ours.obs, obs.astype(np.float32))
        np.testing.assert_allclose(ours.reward, reward, rtol=1e-6)
        np.testing.assert_array_equal(ours.terminated, terminated)
        np.testing.assert_array_equal(ours.truncated, truncated)
        total, clock = np.where(ended, 0, total + ours.reward), np.where(ended, 0, clock + 1)
        ended = ours.terminated | ours.truncated
        episodes += ended.sum()
        if ended.any():
            np.testing.assert_allclose(info["episode"]["r"][ended], total[ended], rtol=1e-4)
            np.testing.assert_array_equal(info["episode"]["l"][ended], clock[ended])
    assert episodes == theirs.episode_count >= 4
    batch.close(), theirs.close()


@pytest.mark.parametrize(
    "name", ["Pendulum-v1", "MountainCarContinuous-v0", "HalfCheetah-v5", "Ant-v5", "Humanoid-v5", "Pusher-v5"]
)
def test_a_restored_state_continues_bit_for_bit(name: str):
    """In other environments than the saved ones, and across later resets too."""
    env = envs.make(f"gymnasium:{name}")
    one, other, taken = env.open(2), env.open(2), actions(env, 150, 2)
    one.reset(np.array([1, 2], np.uint32))
    other.reset(np.array([3, 4], np.uint32))
    stream(one, taken[:40])
    stream(other, taken[:3])
    states = one.save()
    assert states.dtype == np.uint8 and states.shape == (2, env.state_size) and not env.unsaved
    other.load(states)
    for a, b in zip(stream(one, taken[40:]), stream(other, taken[40:]), strict=True):
        np.testing.assert_array_equal(a, b)


def test_a_state_between_two_episodes_is_saved_too():
    env = envs.make(f"{TASKS}:Counted")
    one, other, none = env.open(1), env.open(1), np.zeros((1, 1))
    one.reset(np.array([0], np.uint32))
    while not any((step := one.step(none)).terminated | step.truncated):
        pass
    other.load(one.save())
    first, second = one.step(none), other.step(none)
    assert first.obs[0, 1] == second.obs[0, 1] == 0 and first.reward[0] == second.reward[0] == 0
    np.testing.assert_array_equal(first.obs, second.obs)


def test_values_of_every_kind_keep_their_type():
    """NumPy's numbers, nested lists and tuples, generators, and numbers that are not finite."""
    env = gymnasium.make("Pendulum-v1")
    env.reset(seed=1)
    kept = {
        "number": np.float32(0.1),
        "scalar": np.array(2.5),
        "nested": {"a": [1, (2.5, None)], "b": np.arange(6).reshape(2, 3)[:, ::2]},
        "limits": (float("inf"), -0.0),
        "own": np.random.default_rng(3),
    }
    for name, value in kept.items():
        setattr(env.unwrapped, name, value)
    state, drawn = save_env(env), kept["own"].random(3)
    other = gymnasium.make("Pendulum-v1")
    other.reset(seed=2)
    load_env(other, state)
    found = vars(other.unwrapped)
    assert type(found["number"]) is np.float32 and found["number"] == kept["number"]
    assert found["scalar"].shape == () and found["scalar"] == 2.5
    assert found["nested"]["a"] == kept["nested"]["a"] and found["limits"] == kept["limits"]
    np.testing.assert_array_equal(found["nested"]["b"], kept["nested"]["b"])
    np.testing.assert_array_equal(found["own"].random(3), drawn)


def test_loading_a_state_runs_no_code():
    """A state is a safetensors text: a pickle in its place is refused."""
    import pickle

    env = envs.make(f"{TASKS}:Counted")
    batch = env.open(1)
    states, evil = np.zeros((1, env.state_size), np.uint8), pickle.dumps(print)
    states[0, : 5 + len(evil)] = list(b"\x01" + len(evil).to_bytes(4, "little") + evil)
    with pytest.raises(CoveyError, match="failed"):
        batch.load(states)


def test_attributes_that_can_not_be_saved_are_named():
    env = envs.make(f"{TASKS}:Opaque")
    assert env.state_size == 0 and "Opaque.hidden is a builtins.range_iterator" in env.unsaved


def test_dictionaries_become_parts_and_actions_fill_their_box():
    env = envs.make(f"{TASKS}:Nested")
    sizes = {name: part.size for name, part in env.spec.observation.parts.items()}
    assert (sizes, env.spec.action_size) == ({"a": 4, "m": 3, "z": 1}, 2)
    assert (env.spec.action_low, env.spec.action_high) == ((0.0, -5.0), (1.0, 10.0))
    batch = env.open(1)
    obs = batch.reset(np.array([0], np.uint32))
    for name, values in {"a": [0.1, 0.2, 0.3, 0.4], "m": [0, 1, 0], "z": [0.9]}.items():
        assert obs[name].dtype == np.float32
        np.testing.assert_allclose(obs[name], [values], rtol=1e-6)
    for action, expected in (((-1, 1), [[0.0], [10.0]]), ((0, 0), [[0.5], [2.5]])):
        batch.step(np.array([action], np.float32))
        assert batch.envs[0].taken == expected  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("gymnasium:Hoper-v5", "no Gymnasium environment called 'Hoper-v5'. Did you mean 'Hopper-v5'"),
        ("gymnasum:Hopper-v5", "no library of environments called 'gymnasum'. Did you mean 'gymnasium'"),
        ("gymnasium:CartPole-v1", r"the actions Discrete\(2\).*continuous version"),
        (f"{TASKS}:Discrete", "act in a box of real numbers"),
        (f"{TASKS}:Boundless", "without finite limits"),
        ("gymnasium:tests.no_module:X", "'tests.no_module' can't be imported: ModuleNotFoundError"),
        (f"{TASKS}:Missing", "'tests.host_tasks' has no gymnasium.Env called 'Missing'"),
    ],
)
def test_wrong_names_and_spaces_are_early_errors(name: str, message: str):
    with pytest.raises(CoveyError, match=message):
        envs.make(name)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["diayn", "--env", "gymnasium:Pendulum-v1"], "no state descriptor"),
        (["td3", "--env", "gymnasium:Pendulum-v1", "--workers", "3"], "--workers 3 is more than the 1 environments"),
        (["td3", "--env", "pendulum", "--workers", "1"], "--workers is for host environments"),
    ],
)
def test_options_that_do_not_fit_are_early_errors(arguments: list[str], message: str, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["train", *arguments]) == 1
    assert message in capsys.readouterr().err and not list(tmp_path.iterdir())


def test_a_missing_package_names_the_extra(monkeypatch):
    monkeypatch.setattr("covey.envs.host.gymnasium.find_spec", lambda name: None)

    def fails(**_: object) -> None:
        raise ImportError("No module named 'mujoco'", name="mujoco")

    monkeypatch.setattr("gymnasium.make", lambda *_, **__: fails())
    with pytest.raises(CoveyError, match=re.escape(install_command("mujoco"))):
        envs.make("gymnasium:Hopper-v5")


@pytest.mark.parametrize("how", ["die", "hang"])
def test_a_failed_worker_is_restarted(how: str, monkeypatch):
    """Its episode is broken, and the other worker's episode is not affected."""
    monkeypatch.setenv("COVEY_TEST_FAILURE", how)
    env = envs.make(f"{TASKS}:Failing")
    make = partial(LocalBatch, env.factory, env.spec, env.state_size, env.name)
    batch, calm = WorkerBatch(make, 2, 2, env.name, patience=2.0), make(2)
    seeds, broken = np.array([1, 2], np.uint32), []
    try:
        np.testing.assert_array_equal(batch.reset(seeds), calm.reset(seeds))
        monkeypatch.setenv("COVEY_TEST_FAILURE", "")
        for t in range(30):
            found, expected = batch.step(np.zeros((2, 1))), calm.step(np.zeros((2, 1)))
            for i in (0, 1) if not found.broken.any() and not broken else (1,):
                for a, b in zip(found, expected, strict=True):
                    np.testing.assert_array_equal(a[i], b[i])
            if found.broken[0]:
                broken.append(t)
                assert found.obs[0, 1] == 0 and found.reward[0] == 0
    finally:
        batch.close()
    assert len(broken) == 1


def test_a_worker_that_fails_repeatedly_ends_the_run_with_its_traceback(monkeypatch):
    monkeypatch.setenv("COVEY_TEST_FAILURE", "raise")
    env = envs.make(f"{TASKS}:Hopeless")
    batch = env.open(1, workers=1)
    try:
        batch.reset(np.array([1], np.uint32))
        with pytest.raises(CoveyError, match=r"failed 3 times in a row(.|\n)*ValueError: the arm fell off"):
            for _ in range(60):
                batch.step(np.zeros((1, 1)))
    finally:
        batch.close()


def test_an_error_of_the_environment_keeps_its_traceback(monkeypatch):
    monkeypatch.setenv("COVEY_TEST_FAILURE", "raise")
    batch = envs.make(f"{TASKS}:Hopeless").open(1)
    batch.reset(np.array([1], np.uint32))
    with pytest.raises(CoveyError, match=r"gymnasium:tests.host_tasks:Hopeless failed:(.|\n)*the arm fell off"):
        for _ in range(20):
            batch.step(np.zeros((1, 1)))
