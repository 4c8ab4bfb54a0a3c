"""Pendulum and MountainCar are Gymnasium's, step by step."""

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from covey.envs.builtin.mountaincar import MountainCar, MountainCarState
from covey.envs.builtin.pendulum import Pendulum, PendulumState

PAIRS = [(Pendulum(), "Pendulum-v1"), (MountainCar(), "MountainCarContinuous-v0")]
IDS = ["pendulum", "mountaincar"]
KEY = jax.random.key(0)
TOLERANCE = 1e-5


def same(outcome, theirs):
    obs, reward, terminated, _, _ = theirs
    np.testing.assert_allclose(outcome.obs, obs, rtol=0, atol=TOLERANCE)
    np.testing.assert_allclose(outcome.reward, reward, rtol=0, atol=TOLERANCE)
    assert bool(outcome.terminated) == terminated


def test_pendulum_steps():
    """Both start each step in the same state: the pendulum is chaotic, so that float32 and Gymnasium's float64
    would diverge within an episode even if the equations are exact."""
    env, gym, rng = Pendulum(), gymnasium.make("Pendulum-v1").unwrapped, np.random.default_rng(0)
    gym.reset(seed=0)
    step, visited = jax.jit(env.step), []
    for t in range(1000):
        if t % env.spec.episode_length == 0:
            state, _ = env.reset(jax.random.key(t))
        gym.state = np.array([state.angle, state.velocity], np.float64)
        # Half of the actions at random, half pumping energy, so that the pendulum also turns over and the speed limit
        # bites; some lie outside the box, where Gymnasium limits them.
        pump = 1.0 if state.velocity > 0 else -1.0
        action = rng.uniform(-1.3, 1.3, 1) if (t // 50) % 2 else np.array([pump])
        action = action.astype(np.float32)
        state, outcome = step(state, jnp.asarray(action), KEY)
        same(outcome, gym.step(2.0 * action))
        visited.append([state.angle, state.velocity])
    angles, velocities = np.abs(np.array(visited)).T
    assert angles.max() > 3.0 and angles.min() < 0.3 and velocities.max() == 8.0
    assert angles.max() <= np.float32(np.pi)


def test_mountaincar_episodes():
    """Whole episodes without a correction: Gymnasium keeps this state in float32 as well."""
    env, gym, rng = MountainCar(), gymnasium.make("MountainCarContinuous-v0").unwrapped, np.random.default_rng(0)
    gym.reset(seed=0)
    step, arrivals, episode = jax.jit(env.step), 0, 0
    state, _ = env.reset(jax.random.key(0))
    gym.state = np.array(state, np.float64)
    for t in range(1, 1001):
        # Pumping episodes arrive at the goal; random ones don't.
        noise = rng.uniform(-1.2, 1.2, 1)
        action = (noise if episode % 2 else 0.9 * np.sign([state.velocity + 1e-9]) + 0.2 * noise).astype(np.float32)
        state, outcome = step(state, jnp.asarray(action), KEY)
        same(outcome, gym.step(action))
        arrivals += bool(outcome.terminated)
        if outcome.terminated or t % 200 == 0:
            episode += 1
            state, _ = env.reset(jax.random.key(episode))
            gym.state = np.array(state, np.float64)
    assert arrivals >= 2 and episode >= 5


@pytest.mark.parametrize("position", [-1.2, -1.19, -1.15])
def test_mountaincar_left_wall(position):
    """The wall stops the car, and only in its direction."""
    env, gym = MountainCar(), gymnasium.make("MountainCarContinuous-v0").unwrapped
    gym.reset(seed=0)
    for velocity in (-0.07, 0.0, 0.03):
        state = MountainCarState(jnp.float32(position), jnp.float32(velocity))
        gym.state = np.array(state)
        same(env.step(state, jnp.array([-1.0]), KEY)[1], gym.step(np.array([-1.0], np.float32)))


@pytest.mark.parametrize(("env", "name"), PAIRS, ids=IDS)
def test_starts(env, name):
    """The starts have Gymnasium's distribution: Kolmogorov-Smirnov on each coordinate, at a level of 0.1%."""
    count = 4000
    _, ours = jax.vmap(env.reset)(jax.random.split(jax.random.key(1), count))
    gym = gymnasium.make(name).unwrapped
    theirs = np.stack([gym.reset(seed=0 if i == 0 else None)[0] for i in range(count)])
    assert ours.shape == theirs.shape
    for a, b in zip(np.asarray(ours).T, theirs.T, strict=True):
        grid = np.sort(np.concatenate([a, b]))
        cdf_a, cdf_b = (np.searchsorted(np.sort(x), grid, side="right") / count for x in (a, b))
        assert np.abs(cdf_a - cdf_b).max() < 1.95 * np.sqrt(2 / count)
        assert np.abs([a.min() - b.min(), a.max() - b.max()]).max() < 0.02


@pytest.mark.parametrize(("env", "name"), PAIRS, ids=IDS)
def test_spec(env, name):
    gym = gymnasium.make(name)
    assert env.spec.episode_length == gymnasium.spec(name).max_episode_steps
    assert (env.spec.obs_size, env.spec.action_size) == (gym.observation_space.shape[0], gym.action_space.shape[0])
    np.testing.assert_array_equal(env.spec.action_low, gym.action_space.low)
    np.testing.assert_array_equal(env.spec.action_high, gym.action_space.high)


def test_pendulum_wraps_both_ways():
    """At the bottom the angle stays in [-pi, pi], and the observation changes smoothly."""
    env = Pendulum()
    for sign in (1.0, -1.0):
        state = PendulumState(jnp.float32(sign * 3.1), jnp.float32(sign * 4.0))
        after, outcome = env.step(state, jnp.zeros(1), KEY)
        assert np.sign(after.angle) == -sign
        np.testing.assert_allclose(outcome.obs[0], np.cos(3.1 + 0.05 * abs(float(after.velocity))), atol=1e-6)
