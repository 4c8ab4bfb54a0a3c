"""Pictures as observations: what they show, their size and type, on the device and on the host."""

from functools import partial
from typing import Any

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from covey import envs
from covey.cli import main
from covey.envs.base import check_env
from covey.envs.builtin.canvas import ACCENT, PAPER
from covey.envs.builtin.cartpole_swingup import CartpoleState
from covey.envs.builtin.mountaincar import MountainCarState
from covey.envs.builtin.pendulum import PendulumState
from covey.envs.builtin.point import PointState
from covey.envs.builtin.pointmaze import PointMazeState
from covey.envs.builtin.raster import TARGET, Raster, paint
from covey.envs.builtin.reacher import ReacherState
from covey.envs.host.pixels import shrunk
from covey.envs.pixels import Pixels
from covey.errors import CoveyError
from covey.observation import Part

CAMERA = "gymnasium:tests.host_tasks:Camera"


def centre_of(picture: Any, colour: tuple[int, int, int]) -> np.ndarray:
    """Returns where the pixels of a colour are on average: (x, y) as shares of the picture, y upwards."""
    near = np.abs(np.asarray(picture).astype(int) - colour).sum(axis=-1) < 60
    assert near.any(), "the colour is not in the picture"
    y, x = np.nonzero(near)
    return np.array([(x.mean() + 0.5) / picture.shape[1], 1.0 - (y.mean() + 0.5) / picture.shape[0]])


@pytest.mark.parametrize("size", [32, 64])
def test_shapes_are_where_they_should_be(size: int):
    """The covered area of a disc, a line and a rectangle, and their places."""
    raster = Raster(size, (-1.0, 0.0), (1.0, 2.0))
    disc = raster.disc((0.5, 1.0), 0.2)
    assert float(disc.sum()) / size**2 == pytest.approx(np.pi * 0.2**2, rel=0.02)
    line = raster.line((-0.5, 0.5), (0.5, 0.5), 0.05)
    assert float(line.sum()) / size**2 == pytest.approx(0.5 * 0.1 + np.pi * 0.05**2, rel=0.05)
    box = raster.rectangle((-0.53, 0.27), (0.31, 1.1))
    assert float(box.sum()) / size**2 == pytest.approx((0.84 / 2) * (0.83 / 2), rel=1e-4)
    below = raster.below(jnp.full(size, 0.5))
    assert float(below.sum()) / size**2 == pytest.approx(0.25, rel=1e-4)
    picture = paint(raster.empty(), [(disc, (255, 0, 0)), (box * 0.0, (0, 0, 0))])
    assert picture.dtype == jnp.uint8 and picture[size // 2, round(0.75 * size)].tolist() == [255, 0, 0]
    assert picture[0, 0].tolist() == list(PAPER)


STATES = {
    "pendulum": (PendulumState(0.0, 0.0), PendulumState(1.0, 0.0), PendulumState(-1.0, 0.0)),
    "cartpole-swingup": (
        CartpoleState(0.0, 0.0, 3.1, 0.0),
        CartpoleState(0.2, 0.0, 3.1, 0.0),
        CartpoleState(0.0, 0.0, 0.2, 0.0),
    ),
    "mountaincar": (MountainCarState(-0.5, 0.0), MountainCarState(-0.52, 0.0), MountainCarState(0.4, 0.0)),
    "point": tuple(
        PointState(jnp.array(p), jnp.zeros(2), jnp.array(g))
        for p, g in (((0.0, 0.0), (5.0, 5.0)), ((0.1, 0.0), (5.0, 5.0)), ((0.0, 0.0), (5.0, 5.2)))
    ),
    "point-free": tuple(
        PointState(jnp.array(p), jnp.zeros(2), jnp.zeros(2)) for p in ((0.0, 0.0), (0.1, 0.0), (9.9, -9.9))
    ),
    "pointmaze": tuple(PointMazeState(jnp.array(p), jnp.zeros(2)) for p in ((-8.0, -7.0), (-7.9, -7.0), (8.0, 8.0))),
    "reacher": tuple(
        ReacherState(jnp.array(a), jnp.zeros(2), jnp.array(g))
        for a, g in (((0.0, 0.5), (0.5, 0.5)), ((0.05, 0.45), (0.5, 0.5)), ((0.0, 0.5), (0.5, 0.55)))
    ),
}
"""States that differ, some of them by little."""


@pytest.mark.parametrize("name", envs.names())
def test_every_built_in_environment_draws_itself(name: str):
    """Different states differ at 32 x 32; all shapes are drawn the same alone, mapped and compiled."""
    env = envs.make(name)
    states = [jax.tree.map(partial(jnp.asarray, dtype=jnp.float32), state) for state in STATES[name]]
    alone = [env.pixels(state, 32) for state in states]
    assert all(x.shape == (32, 32, 3) and x.dtype == jnp.uint8 for x in alone)
    for i, j in ((0, 1), (0, 2), (1, 2)):
        difference = np.abs(np.asarray(alone[i]).astype(int) - np.asarray(alone[j]))
        assert difference.max() >= 15 and (difference > 4).sum() >= 6, (name, i, j)
    together = jax.jit(jax.vmap(lambda state: env.pixels(state, 32)))(jax.tree.map(lambda *x: jnp.stack(x), *states))
    assert np.abs(np.asarray(together).astype(int) - np.stack(alone)).max() <= 1, "rounding"


@pytest.mark.parametrize("size", [32, 64])
@pytest.mark.parametrize("angle", [0.0, 0.7, 2.0, -2.5])
def test_the_tip_of_the_pendulum_is_where_its_angle_says(size: int, angle: float):
    picture = envs.make("pendulum").pixels(PendulumState(jnp.float32(angle), jnp.float32(0.0)), size)
    # The picture shows [-1.25, 1.25] in both directions.
    expected = (np.array([-np.sin(angle), np.cos(angle)]) + 1.25) / 2.5
    np.testing.assert_allclose(centre_of(picture, ACCENT), expected, atol=0.4 / size)


@pytest.mark.parametrize("name", ["point", "reacher"])
def test_agent_and_goal_have_their_own_colours_and_places(name: str):
    env = envs.make(name)
    if name == "point":
        state: Any = PointState(jnp.array([-4.0, 7.0]), jnp.zeros(2), jnp.array([6.0, -2.0]))
        edge, agent = 11.0, np.array([-4.0, 7.0])
    else:
        state = ReacherState(jnp.array([2.0, 0.4]), jnp.zeros(2), jnp.array([0.4, -0.5]))
        edge, agent = 1.1, np.asarray(env.descriptor(state))
    picture = env.pixels(state, 64)
    np.testing.assert_allclose(centre_of(picture, ACCENT), (agent + edge) / (2 * edge), atol=0.01)
    np.testing.assert_allclose(centre_of(picture, TARGET), (np.asarray(state.goal) + edge) / (2 * edge), atol=0.01)


def test_the_car_and_the_cart_move_with_their_positions():
    car = [
        centre_of(envs.make("mountaincar").pixels(MountainCarState(*map(jnp.float32, (x, 0))), 64), ACCENT)
        for x in (-1.0, -0.5)
    ]
    assert car[1][0] - car[0][0] == pytest.approx(0.5 / 2.02, abs=0.06) and car[1][1] < car[0][1] - 0.1
    poles = []
    for position, angle in ((-1.0, 0.0), (1.0, 0.0), (1.0, np.pi)):
        state = CartpoleState(*map(jnp.float32, (position, 0.0, angle, 0.0)))
        poles.append(centre_of(envs.make("cartpole-swingup").pixels(state, 64), ACCENT))
    width = 2 * 1.04 * 2.8
    assert poles[1][0] - poles[0][0] == pytest.approx(2.0 / width, abs=0.01)
    assert poles[1][1] - poles[2][1] == pytest.approx(1.0 / 2.4, abs=0.05), "up, and hanging down"


@pytest.mark.parametrize("name", envs.names())
def test_the_option_replaces_the_observation(name: str):
    """By a picture with 3 frames, of the state that `step` returns; rewards and states are as before."""
    plain, env = envs.make(name), envs.make(name, pixels=32, episode_length=20)
    check_env(env)
    assert env.spec.observation.parts == {"obs": Part((32, 32, 3), "uint8", stack=3)} and env.spec.observation.is_array
    assert env.spec.episode_length == 20 and env.spec.action_size == plain.spec.action_size
    key, action = jax.random.key(1), jnp.full(plain.spec.action_size, 0.7)
    state, obs = env.reset(key)
    inner, _ = plain.reset(key)
    first = plain.pixels(inner, 32)
    np.testing.assert_array_equal(obs, jnp.concatenate([first] * 3, axis=-1))
    state, outcome = env.step(state, action, key)
    inner, expected = plain.step(inner, action, key)
    np.testing.assert_array_equal(outcome.obs, jnp.concatenate([first, first, plain.pixels(inner, 32)], axis=-1))
    np.testing.assert_array_equal(outcome.reward, expected.reward)
    np.testing.assert_array_equal(env.frame(jax.device_get(state)), plain.frame(jax.device_get(inner)))
    if plain.spec.descriptor:
        np.testing.assert_array_equal(env.descriptor(state), plain.descriptor(inner))
        assert env.spec.descriptor.coordinates == ()


def test_the_own_observation_beside_the_picture():
    env = envs.make("pendulum", pixels=32, pixels_beside=True, stack=1)
    assert env == Pixels(envs.make("pendulum"), 32, beside=True)
    assert env.spec.observation.parts == {"obs": Part((3,)), "pixels": Part((32, 32, 3), "uint8")}
    state, obs = env.reset(jax.random.key(0))
    np.testing.assert_array_equal(obs["obs"], envs.make("pendulum").reset(jax.random.key(0))[1])
    np.testing.assert_array_equal(obs["pixels"], envs.make("pendulum").pixels(state, 32))


def test_pictures_of_a_host_environment():
    """Averaged down to the size, whatever their own; its own observation beside them keeps its parts."""
    env = envs.make(CAMERA, pixels=16)
    assert env.spec.observation.parts == {"obs": Part((16, 16, 3), "uint8", stack=3)} and not env.unsaved
    batch = env.open(2)
    batch.reset(np.array([4, 5], np.uint32))
    found = batch.step(np.zeros((2, 1))).obs
    assert found.dtype == np.uint8 and found.shape == (2, 16, 16, 9)
    assert (found[:, :, :8, 6:] == 10).all() and not found[:, :, 8:].any() and not found[..., :6].any()
    beside = envs.make(CAMERA, pixels=16, pixels_beside=True, stack=1)
    assert beside.spec.observation.parts == {"obs": Part((20, 16, 3), "uint8"), "pixels": Part((16, 16, 3), "uint8")}


@pytest.mark.parametrize("workers", [0, 1])
def test_a_restored_state_draws_the_same_pictures(workers: int):
    env = envs.make(CAMERA, pixels=16)
    one, other = env.open(2, workers), env.open(2)
    try:
        one.reset(np.array([4, 5], np.uint32))
        other.reset(np.array([6, 7], np.uint32))
        one.step(np.zeros((2, 1)))
        other.load(one.save())
        for _ in range(9):
            np.testing.assert_equal(tuple(one.step(np.zeros((2, 1)))), tuple(other.step(np.zeros((2, 1)))))
    finally:
        one.close()


def test_films_show_the_whole_picture():
    """Small pictures are enlarged."""
    batch = envs.make(CAMERA, pixels=16).open(1, draws=True)
    batch.reset(np.array([4], np.uint32))
    batch.step(np.zeros((1, 1)))
    assert batch.frame(0).shape == (240, 480, 3) and (batch.frame(0)[:, :240] == 10).all()


def test_pictures_are_averaged_down():
    picture = np.random.default_rng(0).integers(0, 256, (12, 8, 3), np.uint8)
    expected = picture.reshape(4, 3, 4, 2, 3).mean(axis=(1, 3))
    assert np.abs(shrunk(picture, 4) - expected).max() <= 1.0
    np.testing.assert_array_equal(shrunk(picture[:8], 8), picture[:8])


def can_draw() -> bool:
    try:
        envs.make("gymnasium:Reacher-v5", pixels=32)
    except CoveyError:
        return False
    return True


@pytest.mark.skipif(not can_draw(), reason="MuJoCo can't render here")
def test_several_environments_of_mujoco_do_not_mix_their_pictures():
    """Gymnasium would go on drawing in the context of the environment that was opened or closed last."""
    env = envs.make("gymnasium:Reacher-v5", pixels=32, stack=1)
    seeds = np.array([1, 2], np.uint32)
    alone = []
    for seed in seeds:
        batch = env.open(1)
        alone.append(batch.reset(seed[None])[0])
        batch.close()
    assert (alone[0] != alone[1]).any()
    closed, batch = env.open(1), env.open(2)
    closed.reset(seeds[:1])
    np.testing.assert_array_equal(batch.reset(seeds), alone)
    closed.close()
    batch.restart(seeds)
    np.testing.assert_array_equal(batch.step(np.zeros((2, 2))).obs, alone)
    moved = batch.step(np.ones((2, 2))).obs
    assert all((moved[i] != alone[i]).any() for i in (0, 1))
    batch.close()


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("pendulum", {"pixels": 4}, "`env_pixels` must be the width and height of the picture, from 8 to 1024"),
        ("pendulum", {"pixels": -1}, "from 8 to 1024 pixels, not -1"),
        ("pendulum", {"pixels_beside": True}, "`env_pixels_beside` needs a picture"),
        ("gymnax:Pendulum-v1", {"pixels": 32}, r"Gymnax can't be drawn in JAX: it has no method pixels"),
        ("gymnasium:tests.host_tasks:Arm", {"pixels": 32}, "`env_pixels`: .*Arm can't be drawn: NotImplementedError"),
        ("gymnasium:tests.host_tasks:Drift", {"pixels": 32}, "can't be drawn"),
    ],
)
def test_environments_that_can_not_be_drawn(name: str, options: dict[str, Any], message: str):
    with pytest.raises(CoveyError, match=message):
        envs.make(name, **options)


def test_a_part_called_pixels_is_not_replaced():
    env = Pixels(envs.make("pendulum"), 32, beside=True)
    with pytest.raises(CoveyError, match="has an observation called 'pixels' already"):
        Pixels(env, 32, beside=True).spec  # noqa: B018


def test_check_env_takes_the_options(capsys: pytest.CaptureFixture[str]):
    assert main(["check-env", "pendulum", "--env-pixels", "32", "--env-pixels-beside", "--env-stack", "2"]) == 0
    said = capsys.readouterr().out
    assert "ok    observation obs: a vector of 3 numbers, used as it is" in said
    assert "ok    observation pixels: an image of 32 x 32 pixels with 3 channels, uint8, the newest 2 frames" in said
    assert main(["check-env", CAMERA, "--env-pixels", "16"]) == 0
    assert "ok    continues from a saved state" in capsys.readouterr().out
    assert main(["check-env", "gymnasium:tests.host_tasks:Arm", "--env-pixels", "16"]) == 1
    assert "--env-pixels: gymnasium:tests.host_tasks:Arm can't be drawn" in capsys.readouterr().err


def test_gymnasiums_environments_that_are_passed_as_objects():
    from tests.host_tasks import Camera

    name = envs.hold(lambda render_mode=None: gymnasium.wrappers.TimeLimit(Camera(render_mode), 4), "object:Mine")
    try:
        env = envs.make(name, pixels=16, stack=2)
        assert env.open(1).reset(np.zeros(1, np.uint32)).shape == (1, 16, 16, 6)
    finally:
        envs.release(name)
