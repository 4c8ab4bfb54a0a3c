"""`EnvSpec.to_box`: actions in [-1, 1] fill the environment's box, exactly at its ends."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from covey.types import EnvSpec


def spec(low: tuple[float, ...], high: tuple[float, ...]) -> EnvSpec:
    return EnvSpec(observation=1, action_size=len(low), episode_length=1, action_low=low, action_high=high)


def test_the_ends_and_the_middle():
    box = spec((0.0, -5.0), (1.0, 10.0))
    actions = np.array([[-1.0, -1.0], [0.0, 0.0], [1.0, 1.0], [3.0, -3.0]])
    expected = np.array([[0.0, -5.0], [0.5, 2.5], [1.0, 10.0], [1.0, -5.0]], np.float32)
    found = box.to_box(actions)
    assert found.dtype == np.float32
    np.testing.assert_array_equal(found, expected)
    compiled = jax.jit(jax.vmap(box.to_box))(jnp.asarray(actions, jnp.float32))
    assert isinstance(compiled, jax.Array)
    np.testing.assert_array_equal(compiled, expected)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_nothing_leaves_the_box(dtype: type):
    """Rounding could carry the ends of an uneven box beyond its limits."""
    random = np.random.default_rng(0)
    low = random.uniform(-30.0, 1.0, 200).astype(dtype)
    high = low + random.uniform(0.1, 30.0, 200).astype(dtype)
    box = spec(tuple(map(float, low)), tuple(map(float, high)))
    for action in (np.full(200, -1.0), np.full(200, 1.0), random.uniform(-1.0, 1.0, 200)):
        found = box.to_box(action, dtype)
        assert found.dtype == dtype and np.all((low <= found) & (found <= high))
