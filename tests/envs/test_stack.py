"""Stacked frames: the first frame is repeated at the start of an episode, and frames never cross its end."""

from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from covey import envs
from covey.cli import main
from covey.envs.base import Outcome, check_env
from covey.envs.stack import Stacked, StackedHost
from covey.errors import CoveyError
from covey.observation import Part
from covey.types import EnvSpec

CAMERA = "gymnasium:tests.host_tasks:Camera"
SEEDS = np.array([4, 5, 6], np.uint32)


@dataclass(frozen=True)
class Clock:
    """An image of 2 channels that shows the time and its double, and a vector."""

    @property
    def spec(self) -> EnvSpec:
        parts = {"picture": Part((4, 3, 2), "uint8"), "time": Part((1,))}
        return EnvSpec(parts, 1, 10, (-1.0,), (1.0,))

    def reset(self, key: Any) -> Any:
        time = jax.random.randint(key, (), 0, 20)
        return time, self._obs(time)

    def step(self, state: Any, action: Any, key: Any) -> Any:
        return state + 1, Outcome(self._obs(state + 1), jnp.zeros(()), jnp.zeros((), bool))

    def descriptor(self, state: Any) -> Any:
        return jnp.zeros(0)

    def frame(self, state: Any) -> np.ndarray:
        return np.full((2, 2, 3), state, np.uint8)

    def _obs(self, time: Any) -> Any:
        picture = jnp.broadcast_to(jnp.stack([time, 2 * time]), (4, 3, 2)).astype(jnp.uint8)
        return {"picture": picture, "time": time.astype(jnp.float32)[None]}


def test_frames_of_a_compiled_environment():
    """Oldest first; vectors are not stacked."""
    env = Stacked(Clock(), 3)
    check_env(env)
    assert env.spec.observation.parts == {"picture": Part((4, 3, 2), "uint8", stack=3), "time": Part((1,))}
    state, obs = jax.vmap(env.reset)(jax.random.split(jax.random.key(0), 5))
    start = np.asarray(obs["time"])[:, 0]
    assert obs["picture"].shape == (5, 4, 3, 6) and obs["picture"].dtype == jnp.uint8
    for times in ([0, 0, 0], [0, 0, 1], [0, 1, 2], [1, 2, 3]):
        shown = np.stack([(start + t) * factor for t in times for factor in (1, 2)], axis=1)
        np.testing.assert_array_equal(obs["picture"][:, 2, 1], shown)
        state, outcome = jax.jit(jax.vmap(env.step))(state, jnp.zeros((5, 1)), jax.random.split(jax.random.key(1), 5))
        obs = outcome.obs
    np.testing.assert_array_equal(obs["time"][:, 0], start + 4)


def test_the_picture_for_films_is_that_of_the_environment_inside():
    env = Stacked(Clock(), 2)
    state, obs = env.reset(jax.random.key(0))
    assert (env.frame(state) == int(obs["time"][0])).all()


def expected_frames(batch: Any, steps: int) -> list[np.ndarray]:
    """Returns the observations of a batch without stacks, with 3 frames stacked here, step by step."""
    obs = batch.reset(SEEDS)
    history = [[row] * 3 for row in obs]
    found = [np.stack([np.concatenate(rows, axis=-1) for rows in history])]
    ended = np.zeros(len(obs), bool)
    for _ in range(steps):
        step = batch.step(np.zeros((len(obs), 1)))
        history = [[x] * 3 if over else [*rows[1:], x] for rows, x, over in zip(history, step.obs, ended, strict=True)]
        found.append(np.stack([np.concatenate(rows, axis=-1) for rows in history]))
        ended = step.terminated | step.truncated
    return found


@pytest.mark.parametrize("workers", [0, 2])
def test_frames_of_a_host_environment(workers: int):
    """Over several ends of episodes, terminated and truncated, each environment at another time."""
    expected = expected_frames(envs.make(CAMERA).open(3), 20)
    env = envs.make(CAMERA, stack=3)
    assert env.spec.observation.parts == {"obs": Part((20, 16, 3), "uint8", stack=3)}
    batch = env.open(3, workers)
    try:
        found = [batch.reset(SEEDS), *(batch.step(np.zeros((3, 1))).obs for _ in range(20))]
        batch.restart(SEEDS)
        again = batch.step(np.zeros((3, 1))).obs
    finally:
        batch.close()
    assert found[0].shape == (3, 20, 16, 9) and found[0].dtype == np.uint8
    np.testing.assert_array_equal(np.stack(found), np.stack(expected))
    np.testing.assert_array_equal(again, expected[0])
    steps = np.stack(found)[:, :, 0, 0, 1::3]
    assert (np.diff(steps[:3, :, -1], axis=0) == 1).all() and (steps[:, :, -1] == 0).sum() > 6, "several episodes"


@pytest.mark.parametrize("workers", [0, 2])
def test_a_restored_state_has_its_frames(workers: int):
    """After any number of steps, also between two episodes; and in other environments than the saved ones."""
    env = envs.make("gymnasium:tests.host_tasks:Senses", stack=2)
    assert set(env.spec.observation.parts["camera"].shown) == {20, 16, 6}
    one, other = env.open(3, workers), env.open(3)
    try:
        one.reset(SEEDS)
        for _ in range(8):
            other.reset(SEEDS + 7)
            states = one.save()
            assert states.shape == (3, env.state_size) and states.dtype == np.uint8
            other.load(states)
            ahead = [one.step(np.zeros((3, 1))), *(one.step(np.zeros((3, 1))) for _ in range(7))]
            for expected in ahead:
                np.testing.assert_equal(tuple(other.step(np.zeros((3, 1)))), tuple(expected))
            one.load(states)
            one.step(np.zeros((3, 1)))
    finally:
        one.close()


def test_a_restarted_worker_starts_with_its_first_frame_repeated():
    batch = envs.make(CAMERA, stack=3).open(2, workers=2)
    try:
        batch.reset(SEEDS[:2])
        batch.step(np.zeros((2, 1)))
        batch.batch._workers[0].process.kill()  # type: ignore[attr-defined]
        found = batch.step(np.zeros((2, 1)))
        assert found.broken.tolist() == [True, False]
        assert found.obs[:, 0, 0, 1::3].tolist() == [[0, 0, 0], [0, 1, 2]]
    finally:
        batch.close()


def test_states_that_can_not_be_saved():
    """An environment without saved states has none with stacks either."""
    env = StackedHost(replace(envs.make(CAMERA), state_size=0, unsaved="hidden"), 3)
    assert (env.state_size, env.unsaved) == (0, "hidden")


@pytest.mark.parametrize("name", ["pendulum", "gymnasium:Pendulum-v1"])
def test_an_environment_without_images_is_an_error(name: str, capsys: pytest.CaptureFixture[str]):
    with pytest.raises(CoveyError, match=r"`env_stack` 2: the observation has no images, but: 3 numbers"):
        envs.make(name, stack=2)
    assert envs.make(name, stack=1).spec.observation.is_vector
    assert main(["train", "td3", "--env", name, "--env-stack", "2"]) == 1
    assert "--env-stack 2: the observation has no images" in capsys.readouterr().err


def test_images_are_stacked_once():
    with pytest.raises(CoveyError, match="'picture' has 2 frames already"):
        Stacked(Stacked(Clock(), 2), 2)
    with pytest.raises(CoveyError, match="`env_stack` must be at least 1 frame, not -1"):
        envs.make("pendulum", pixels=32, stack=-1)
