"""The contract, for every registered environment; and the dynamics and rewards of each built-in one."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from covey import envs
from covey.envs import ENVS
from covey.envs.builtin.cartpole_swingup import CartpoleState, CartpoleSwingup
from covey.envs.builtin.point import Point
from covey.envs.builtin.pointmaze import Box, PointMaze, PointMazeState
from covey.envs.builtin.reacher import Reacher, ReacherState
from covey.errors import CoveyError

KEY = jax.random.key(0)
every = pytest.mark.parametrize("name", list(ENVS))


def rollout(env, actions, key=KEY):
    """States, outcomes and descriptors [T, N, ...] of N environments under actions [T, N, A]."""

    def advance(state, action):
        state, outcome = jax.vmap(env.step, in_axes=(0, 0, None))(state, action, KEY)
        return state, (state, outcome, jax.vmap(env.descriptor)(state))

    def run(actions):
        state, _ = jax.vmap(env.reset)(jax.random.split(key, actions.shape[1]))
        return jax.lax.scan(advance, state, actions)[1]

    return jax.tree.map(np.asarray, jax.jit(run)(actions))


def left_alone(env, state, steps=2000):
    """Returns the states [steps, ...] without any action."""

    def advance(state, _):
        state, _ = env.step(state, jnp.zeros(env.spec.action_size), KEY)
        return state, state

    states = jax.jit(lambda state: jax.lax.scan(advance, state, None, length=steps)[1])(state)
    return jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), states)


def directions(count, steps):
    """A constant action at full speed for each of `count` directions: [steps, count, 2]."""
    turn = 2 * np.pi * np.arange(count) / count
    action = np.stack([np.cos(turn), np.sin(turn)], -1)
    action /= np.abs(action).max(-1, keepdims=True)
    return np.broadcast_to(action.astype(np.float32), (steps, count, 2))


def random_actions(env, steps=300, count=8, hold=10):
    """Actions of full size, each held for a while, so that the environment is moved to its limits."""
    size = (steps // hold, count, env.spec.action_size)
    return np.repeat(np.sign(np.random.default_rng(0).uniform(-1, 1, size)).astype(np.float32), hold, axis=0)


@every
def test_shapes_and_dtypes(name):
    env = envs.make(name)
    state, obs = env.reset(KEY)
    after, outcome = env.step(state, jnp.zeros(env.spec.action_size), KEY)
    assert all(leaf.dtype == jnp.float32 for leaf in (*state, *after, obs, outcome.obs, outcome.reward))
    assert jax.tree.map(jnp.shape, after) == jax.tree.map(jnp.shape, state)
    assert obs.shape == outcome.obs.shape == (env.spec.obs_size,)
    assert outcome.reward.shape == (len(env.spec.rewards),) * bool(env.spec.rewards)
    assert outcome.terminated.shape == () and outcome.terminated.dtype == jnp.bool_
    assert env.descriptor(state).shape == (env.spec.descriptor.size,)
    assert env.descriptor(state).dtype == jnp.float32


@every
def test_spec_is_consistent(name):
    spec = envs.make(name).spec
    assert len(spec.action_low) == len(spec.action_high) == spec.action_size
    assert len(spec.descriptor.low) == len(spec.descriptor.high) == spec.descriptor.size
    assert all(low < high for low, high in zip(spec.action_low, spec.action_high, strict=True))
    assert all(low < high for low, high in zip(spec.descriptor.low, spec.descriptor.high, strict=True))
    assert 10 <= spec.frames_per_second <= 60 and hash(spec) == hash(envs.make(name).spec)


@every
@pytest.mark.parametrize("hold", [1, 10])
def test_random_steps_stay_finite_and_in_bounds(name, hold):
    env = envs.make(name)
    states, outcomes, descriptors = rollout(env, random_actions(env, hold=hold))
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves((states, outcomes)))
    assert np.abs(outcomes.obs).max() <= 8.0
    assert (descriptors >= np.array(env.spec.descriptor.low) - 1e-5).all()
    assert (descriptors <= np.array(env.spec.descriptor.high) + 1e-5).all()
    assert np.ptp(np.asarray(descriptors), axis=(0, 1)).min() > 0.1


@every
def test_same_key_same_episode(name):
    env = envs.make(name)
    first, second = (rollout(env, random_actions(env, steps=50)) for _ in range(2))
    assert all((a == b).all() for a, b in zip(jax.tree.leaves(first), jax.tree.leaves(second), strict=True))


@every
def test_different_keys_different_starts(name):
    _, obs = jax.vmap(envs.make(name).reset)(jax.random.split(KEY, 16))
    assert len(np.unique(np.asarray(obs), axis=0)) == 16


@every
def test_equal_by_value(name):
    env, twin = envs.make(name), envs.make(name)
    assert env == twin and hash(env) == hash(twin) and env is not twin
    first = next(f.name for f in dataclasses.fields(env) if f.type is float)
    assert dataclasses.replace(env, **{first: 1.5 * getattr(env, first)}) != env


@pytest.mark.parametrize("name", [n for n in ENVS if n != "mountaincar"])
def test_step_and_reset_observe_the_same(name):
    """With dt = 0, a step observes the same as the reset. (MountainCar has no dt: see its parity.)"""
    env = envs.make(name)
    state, obs = env.reset(KEY)
    _, outcome = dataclasses.replace(env, dt=0.0).step(state, jnp.zeros(env.spec.action_size), KEY)
    np.testing.assert_allclose(outcome.obs, obs, atol=1e-6)


@every
def test_actions_outside_the_box_are_clipped(name):
    env = envs.make(name)
    state, _ = env.reset(KEY)
    inside, _ = env.step(state, jnp.ones(env.spec.action_size), KEY)
    outside, _ = env.step(state, jnp.full(env.spec.action_size, 7.0), KEY)
    assert all((a == b).all() for a, b in zip(inside, outside, strict=True))


@every
def test_frames(name):
    env = envs.make(name)
    states, _, _ = rollout(env, random_actions(env, steps=30))
    early, late = (env.frame(jax.tree.map(lambda leaf, t=t: leaf[t, 0], states)) for t in (0, 25))
    assert early.dtype == np.uint8 and early.ndim == 3 and early.shape[2] == 3
    assert 150 <= early.shape[0] <= 320 and 240 <= early.shape[1] <= 320
    assert early.shape[0] % 2 == early.shape[1] % 2 == 0  # Video encoders ask for even sizes.
    assert early.shape == late.shape and 20 < (early != late).any(-1).sum() < 0.2 * early[..., 0].size
    assert len(np.unique(early.reshape(-1, 3), axis=0)) > 10  # Smooth edges.


def test_cartpole_starts_down():
    states, obs = jax.vmap(CartpoleSwingup().reset)(jax.random.split(KEY, 100))
    assert (obs[:, 2] < -0.99).all() and (np.abs(states.position) <= 0.05).all()


def test_cartpole_reward():
    env = CartpoleSwingup()
    _, outcomes, _ = rollout(env, random_actions(env))
    assert (outcomes.reward >= 0).all() and (outcomes.reward <= 1).all() and outcomes.reward.max() > 0.3
    upright, down = (CartpoleState(*map(jnp.float32, (0.0, 0.0, angle, 0.0))) for angle in (0.0, np.pi))
    assert env.step(upright, jnp.zeros(1), KEY)[1].reward > 0.999
    assert env.step(down, jnp.zeros(1), KEY)[1].reward < 0.001
    # Upright with full control: 4/5 of it; upright 2 m off the middle or at 5 rad/s: 11/20 of it.
    wide = dataclasses.replace(env, rail=9.0, dt=0.0)
    for position, spin, action, expected in [(0.0, 0.0, 1.0, 0.8), (2.0, 0.0, 0.0, 0.55), (0.0, 5.0, 0.0, 0.55)]:
        state = CartpoleState(*map(jnp.float32, (position, 0.0, 0.0, spin)))
        np.testing.assert_allclose(wide.step(state, jnp.array([action]), KEY)[1].reward, expected, rtol=1e-5)


def test_cartpole_stops_at_the_end_of_the_rail():
    env = CartpoleSwingup()
    states, outcomes, _ = rollout(env, np.ones((200, 1, 1), np.float32))
    assert states.position[-1, 0] == np.float32(env.rail) and states.velocity[-1, 0] == 0.0
    assert not outcomes.terminated.any()


def test_cartpole_conserves_energy():
    """Without force, and in small steps, the pole swings with constant energy."""
    env = dataclasses.replace(CartpoleSwingup(), dt=0.001)
    state = CartpoleState(*map(jnp.float32, (0.0, 0.0, 1.0, 0.0)))
    x, v, a, w = left_alone(env, state)
    middle_x, middle_y = v + 0.5 * w * np.cos(a), -0.5 * w * np.sin(a)
    kinetic = 0.5 * v**2 + 0.05 * (middle_x**2 + middle_y**2) + 0.5 * (0.1 / 12) * w**2
    energy = kinetic + 0.1 * 9.81 * 0.5 * np.cos(a)
    assert np.ptp(energy) < 0.01 * np.ptp(kinetic) and np.ptp(np.cos(a)) > 1.5 and np.abs(x).max() < 1.8


def test_reacher_kinematics():
    env = Reacher()
    for angles, tip in [((0, 0), (1, 0)), ((90, 0), (0, 1)), ((0, 90), (0.5, 0.5)), ((90, 180), (0, 0))]:
        state = ReacherState(jnp.deg2rad(jnp.array(angles, jnp.float32)), jnp.zeros(2), jnp.array([0.3, 0.4]))
        np.testing.assert_allclose(env.descriptor(state), tip, atol=1e-6)
        _, outcome = dataclasses.replace(env, dt=0.0).step(state, jnp.array([1.0, -0.5]), KEY)
        np.testing.assert_allclose(outcome.obs[8:], np.array([0.3, 0.4]) - tip, atol=1e-6)
        distance = np.hypot(0.3 - tip[0], 0.4 - tip[1])
        np.testing.assert_allclose(outcome.reward, [distance, 1.25], atol=1e-6)
        np.testing.assert_allclose(env.spec.reward(outcome.reward), -distance - 0.01 * 1.25, atol=1e-6)


def test_reacher_goals_are_in_reach():
    states, _ = jax.vmap(Reacher().reset)(jax.random.split(KEY, 1000))
    radius = np.linalg.norm(states.goal, axis=-1)
    assert radius.min() >= 0.2 and radius.max() <= 0.95 and np.abs(states.goal.mean(0)).max() < 0.06
    np.testing.assert_allclose((radius**2).mean(), (0.2**2 + 0.95**2) / 2, atol=0.03)


def test_reacher_conserves_energy():
    """Without damping and torque, and in small steps, the kinetic energy of the two masses is constant."""
    env = dataclasses.replace(Reacher(), dt=0.001, damping=0.0)
    state = ReacherState(jnp.array([0.3, 1.0]), jnp.array([1.0, 3.0]), jnp.zeros(2))
    angles, velocities, _ = left_alone(env, state)
    (first, second), bend = velocities.T, np.cos(angles[:, 1])
    elbow, relative = 0.5 * first, 0.5 * (first + second)
    energy = 0.5 * elbow**2 + 0.5 * (elbow**2 + relative**2 + 2 * elbow * relative * bend)
    assert np.ptp(energy) < 0.01 * energy[0] and np.ptp(bend) > 0.7


def test_point_reaches_every_edge_and_stops_there():
    env = Point()
    states, _, _ = rollout(env, directions(4, env.spec.episode_length))
    ends = np.asarray(states.position[-1])
    np.testing.assert_allclose(np.abs(ends).max(-1), env.arena)
    assert (np.abs(states.velocity[-1]) < 1e-5).all()


def test_point_reward_is_distance_to_the_goal():
    env = Point()
    states, outcomes, _ = rollout(env, random_actions(env, steps=50))
    distance = np.linalg.norm(states.goal - states.position, axis=-1)
    np.testing.assert_allclose(outcomes.reward, -distance / 10, atol=1e-6)
    np.testing.assert_allclose(outcomes.obs[..., 4:], (states.goal - states.position) / 10, atol=1e-6)


def test_point_without_goal_has_no_reward():
    env = envs.make("point-free")
    _, outcomes, _ = rollout(env, random_actions(env))
    assert env.spec.obs_size == 4 and (outcomes.reward == 0).all() and not outcomes.terminated.any()


def in_a_wall(env, points):
    """Returns whether a point [..., 2] lies strictly inside some wall."""
    x, y = points[..., 0], points[..., 1]
    boxes = np.array(env.walls, np.float32)
    boxes[np.abs(boxes) >= env.arena] *= 2  # A wall that reaches the arena's edge leaves no way around it.
    return np.any([(a < x) & (x < c) & (b < y) & (y < d) for a, b, c, d in boxes], axis=0)


@pytest.mark.parametrize("max_speed", [5.0, 1000.0])
@pytest.mark.parametrize("policy", ["random", "directions"])
def test_pointmaze_walls_hold(policy, max_speed):
    """No step enters or crosses a wall: neither leg of a move (along x, then along y) has a point inside one."""
    walls = (Box(-10.0, -1.0, 3.0, 1.0), Box(5.0, -4.0, 5.001, 10.0), Box(-4.0, -9.0, -3.999, -2.0))
    for env in (PointMaze(max_speed=max_speed), PointMaze(walls=walls, max_speed=max_speed)):
        actions = random_actions(env, count=64) if policy == "random" else directions(16, 200)
        states, _, _ = rollout(env, actions)
        position = np.asarray(states.position, np.float64)
        before, after = position[:-1], position[1:]
        corner = np.stack([after[..., 0], before[..., 1]], -1)
        for along in np.linspace(0, 1, 41):
            assert not in_a_wall(env, before + along * (corner - before)).any()
            assert not in_a_wall(env, corner + along * (after - corner)).any()
        assert (np.abs(position) <= env.arena).all()


@pytest.mark.parametrize("max_speed", [5.0, 1000.0])
def test_pointmaze_closed_room(max_speed):
    """A wall across the whole arena, however thin, is never passed."""
    env = PointMaze(walls=(Box(-10.0, 0.0, 10.0, 1e-3),), max_speed=max_speed)
    for actions in (random_actions(env, count=64), directions(16, 200)):
        states, outcomes, _ = rollout(env, actions)
        assert states.position[..., 1].max() == 0.0 and not outcomes.terminated.any()


def test_pointmaze_slides_along_a_wall():
    """Pressed against the wall's underside, the point still moves sideways, off its end, and up."""
    env = PointMaze()
    states, _, _ = rollout(env, np.ones((100, 1, 2), np.float32))
    position = np.asarray(states.position[:, 0])
    assert (position[:, 1] == -1.0).any() and (position[-1] == 10.0).all()


def test_pointmaze_goal():
    """Moving right, up, and left again reaches the goal in time: the episode ends there with the bonus."""
    env = PointMaze()
    legs = [((1, 0), 25), ((0, 1), 25), ((-1, 0), 40)]
    actions = np.concatenate([np.tile(np.float32(action), (steps, 1, 1)) for action, steps in legs])
    start = PointMazeState(jnp.array([-7.0, -6.0]), jnp.zeros(2))
    state, outcomes, step = start, [], jax.jit(env.step)
    for action in actions:
        state, outcome = step(state, jnp.asarray(action[0]), KEY)
        outcomes.append(outcome)
        if outcome.terminated:
            break
    assert outcomes[-1].terminated and not any(o.terminated for o in outcomes[:-1])
    assert 49 < outcomes[-1].reward <= 50 and all(o.reward < 0 for o in outcomes[:-1])
    assert np.hypot(*(np.asarray(state.position) - env.goal)) < env.goal_radius
    assert len(outcomes) < env.spec.episode_length / 2


def test_pointmaze_refuses_a_start_or_goal_in_a_wall():
    with pytest.raises(CoveyError, match="start"):
        PointMaze(start=Box(-2.0, -2.0, 0.0, 0.0))
    with pytest.raises(CoveyError, match="goal"):
        PointMaze(goal=(0.0, 0.0))


def test_pointmaze_walls_that_meet():
    """An L of two overlapping walls holds at its inner corner; one of two that only touch is refused."""
    floor, post = Box(-10.0, 0.0, 3.5, 1.0), Box(3.0, 0.0, 4.0, 8.0)
    with pytest.raises(CoveyError, match="slip between"):
        PointMaze(walls=(floor._replace(x_high=3.0), post))
    env, state = PointMaze(walls=(floor, post)), PointMazeState(jnp.array([0.0, 4.0]), jnp.zeros(2))
    for action in ([1.0, 0.0], [0.0, -1.0]):
        for _ in range(20):
            state, _ = env.step(state, jnp.array(action), KEY)
    np.testing.assert_array_equal(state.position, [3.0, 1.0])
