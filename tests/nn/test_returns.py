"""n-step targets and losses of TD errors against sums written out by hand."""

import jax.numpy as jnp
import numpy as np
import pytest

from covey.nn.returns import mean_valid, n_step, td_loss
from covey.types import Step


def window(reward, terminated, valid) -> Step:
    """Windows whose observation at time t is t and whose successor is t + 1."""
    reward = jnp.asarray(reward, jnp.float32)
    time = jnp.broadcast_to(jnp.arange(reward.shape[1], dtype=jnp.float32)[None, :, None], (*reward.shape, 1))
    terminated, valid = jnp.asarray(terminated, jnp.float32), jnp.asarray(valid, jnp.float32)
    return Step(time, time * 0.1, reward, terminated, time + 1, valid, {})


def test_three_steps_with_every_kind_of_end():
    """A full window; a termination after two steps; a time limit after two; a start that closes an episode."""
    batch = window(
        reward=[[1, 2, 4], [1, 2, 99], [1, 2, 99], [99, 99, 99]],
        terminated=[[0, 0, 0], [0, 1, 0], [0, 0, 0], [0, 0, 0]],
        valid=[[1, 1, 1], [1, 1, 0], [1, 1, 0], [0, 0, 0]],
    )
    found = n_step(batch, 0.5)
    np.testing.assert_allclose(found.reward[:3], [1 + 1 + 1, 1 + 1, 1 + 1])
    np.testing.assert_allclose(found.discount[:3], [0.125, 0.0, 0.25])
    np.testing.assert_allclose(found.next_obs[:3, 0], [3, 2, 2])
    np.testing.assert_allclose(found.valid, [1, 1, 1, 0])
    np.testing.assert_allclose(found.obs[:, 0], 0)


def test_a_termination_in_the_last_step_of_the_window():
    found = n_step(window([[1, 2]], [[0, 1]], [[1, 1]]), 0.9)
    np.testing.assert_allclose(found.reward, [1 + 0.9 * 2], rtol=1e-6)
    np.testing.assert_allclose(found.discount, [0.0])


def test_one_step_is_the_plain_transition():
    found = n_step(window([[3], [3]], [[0], [1]], [[1], [1]]), 0.9)
    np.testing.assert_allclose(found.reward, [3, 3])
    np.testing.assert_allclose(found.discount, [0.9, 0.0])
    np.testing.assert_allclose(found.next_obs[:, 0], 1)


def test_what_lies_beyond_a_boundary_does_not_matter():
    """NaN times 0 is NaN, so the rows after an end must be left out, not multiplied away."""
    clean = n_step(window([[1, 2, 5]], [[0, 0, 0]], [[1, 1, 0]]), 0.5)
    dirty = n_step(window([[1, 2, np.nan]], [[0, 0, 0]], [[1, 1, 0]]), 0.5)
    np.testing.assert_array_equal(clean.reward, dirty.reward)
    assert float(mean_valid(jnp.array([2.0, jnp.nan]), jnp.array([1.0, 0.0]))) == 2.0
    assert float(mean_valid(jnp.array([jnp.nan]), jnp.array([0.0]))) == 0.0


@pytest.mark.parametrize(
    ("kind", "delta", "expected"),
    [
        ("squared", 1.0, [4.0, 0.25, 0.0, 0.25, 9.0]),
        ("absolute", 1.0, [2.0, 0.5, 0.0, 0.5, 3.0]),
        ("huber", 1.0, [1.5, 0.125, 0.0, 0.125, 2.5]),
        ("huber", 2.0, [2.0, 0.125, 0.0, 0.125, 4.0]),
    ],
)
def test_losses_of_td_errors(kind, delta: float, expected: list[float]):
    np.testing.assert_allclose(td_loss(kind, jnp.array([-2.0, -0.5, 0.0, 0.5, 3.0]), delta), expected, rtol=1e-6)
