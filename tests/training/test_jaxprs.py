"""What can be computed of a function in advance, and the rest in NumPy."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from covey.envs import make
from covey.training.collect import decide
from covey.training.in_numpy import MOST_PRODUCTS
from covey.training.jaxprs import Divided, divide
from covey.types import Mode
from tests.tasks import assert_same, small_trainer


def test_a_function_is_what_its_parts_compute():
    def function(key: jax.Array, late: Any) -> Any:
        noise = jax.jit(jax.random.normal, static_argnums=1)(key, (2,))
        return {"sum": late["x"] + noise, "early": noise * 3.0, "late": late["x"] * 2.0, "neither": jnp.ones(2)}

    key, late = jax.random.key(3), {"x": jnp.arange(2.0), "unused": jnp.zeros(3)}
    divided = divide(function, key, late)
    assert divided.used == {"x": True, "unused": False}
    arrays = divided.early(key)
    assert [x.shape for x in arrays] == [(2,), (2,)], "the noise, and three times as much of it"
    given = late | {"unused": None}
    assert_same(divided.late(arrays, given), function(key, late))
    assert divided.in_numpy
    assert_same(divided.in_numpy(jax.device_get(arrays), jax.device_get(given)), function(key, late))
    traced = str(jax.make_jaxpr(divided.late)(arrays, given))
    assert "random" not in traced and "erf_inv" not in traced, "noise is early"


def decisions(name: str, mode: Mode, envs: int = 2) -> tuple[Divided, Any, Any]:
    """The decisions of an agent in some environments, and its early and late arguments."""
    trainer = small_trainer(name, make("point-free"), envs=envs)
    hyper = trainer.initial_hyper
    member = jax.jit(trainer.init)(hyper, jax.random.key(0))
    world = member.world
    early = hyper, jax.random.split(jax.random.key(1), (3, envs))
    obs = jax.tree.map(lambda x: x + np.float32(0.3), world.obs)
    late = member.agent, world.memory, world.first, obs

    def function(early: Any, late: Any) -> Any:
        (hyper, keys), (agent, memory, first, obs) = early, late
        return decide(trainer.agent, agent, hyper, memory, first, obs, keys, mode)

    return divide(function, early, late), early, late


@pytest.mark.parametrize("mode", ["sample", "random"])
@pytest.mark.parametrize("name", ["td3", "sac", "taac-q"])
def test_agents_act_in_numpy(name: str, mode: Mode):
    """As they do in JAX, to the rounding of float32, for two steps of an episode."""
    divided, early, late = decisions(name, mode)
    assert divided.in_numpy
    arrays = jax.device_get(divided.early(early))
    own = jax.device_get(late)
    for _ in range(2):
        expected = jax.device_get(jax.jit(divided.late)(arrays, own))
        found = divided.in_numpy(arrays, own)
        assert jax.tree.structure(found) == jax.tree.structure(expected)
        for x, y in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
            assert x.dtype == y.dtype and x.shape == y.shape
            np.testing.assert_allclose(x, y, rtol=1e-4, atol=1e-5)
        own = own[0], expected.memory, np.zeros(2, bool), own[3]


def test_large_products_and_other_types_are_left_to_xla():
    weights = np.zeros((256, 256), np.float32)
    rows = MOST_PRODUCTS // weights.size

    def is_in_numpy(x: Any) -> bool:
        return divide(lambda early, late: late @ weights.astype(x.dtype), 1.0, x).in_numpy is not None

    assert is_in_numpy(np.zeros((rows, 256), np.float32))
    assert not is_in_numpy(np.zeros((rows + 1, 256), np.float32))
    assert not is_in_numpy(jnp.zeros((1, 256), jnp.bfloat16))
    assert divide(lambda early, late: jnp.sort(late), 1.0, np.zeros(3)).in_numpy is None


def test_other_agents_act_in_xla():
    """A skill agent gathers the columns of its descriptor, for which there is no rule."""
    assert decisions("dads", "sample")[0].in_numpy is None
