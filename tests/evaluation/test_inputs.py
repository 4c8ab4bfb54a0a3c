"""Observations that a program gives to a policy, and the parts that a policy uses."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from covey.agent import Decision
from covey.errors import CoveyError
from covey.evaluation import TrainedPolicy, q_values
from covey.evaluation.used import used_parts, with_zeros
from covey.inputs import Inputs
from covey.observation import Observation, Part
from covey.types import EnvSpec

PARTS = {"camera": Part((4, 3, 1), "uint8", stack=2), "privileged": Part((3,)), "speed": Part((2,))}
FORM = Observation.of(PARTS)
SPEC = EnvSpec(PARTS, 1, 10, (-2.0,), (2.0,))
IMAGES = np.random.default_rng(0).integers(0, 256, (5, 4, 3, 2)).astype(np.uint8)
SPEEDS = np.random.default_rng(1).normal(size=(5, 2)).astype(np.float32)


@jax.custom_vjp
def halved(x: jax.Array, y: jax.Array) -> jax.Array:
    return 0.5 * x


halved.defvjp(lambda x, y: (halved(x, y), None), lambda _, g: (0.5 * g, g))


@pytest.mark.parametrize(
    ("function", "used"),
    [
        (lambda obs: obs["speed"].sum(), ("speed",)),
        (lambda obs: jax.jit(lambda o: (o["speed"], o["privileged"]))(obs)[0], ("speed",)),
        (jax.jit(lambda obs: obs["speed"] + 0.0 * obs["privileged"][:2]), ("privileged", "speed")),
        (lambda obs: halved(obs["speed"], obs["privileged"]), ("speed",)),
        (lambda obs: jax.nn.relu(jax.checkpoint(lambda o: o["camera"].mean())(obs)), ("camera",)),
        (lambda obs: jnp.ones(3), ("camera", "privileged", "speed")),
    ],
)
def test_used_parts(function: Any, used: tuple[str, ...]):
    assert used_parts(function, FORM) == used


def test_parts_that_are_not_used_are_zeros():
    found = with_zeros(FORM, {"speed": jnp.ones(2)})
    assert {name: (x.shape, str(x.dtype)) for name, x in found.items()} == {
        "camera": ((4, 3, 2), "uint8"),
        "privileged": ((3,), "float32"),
        "speed": ((2,), "float32"),
    }
    assert float(found["speed"].sum()) == 2.0 and not np.any(found["privileged"])


def test_any_leading_axes():
    inputs = Inputs.of(FORM, ("camera", "speed"), any_rows=True)
    values, rows = inputs.read({"camera": np.zeros((2, 7, 4, 3, 2), np.uint8), "speed": np.zeros((2, 7, 2))})
    assert rows == (2, 7) and [str(x.dtype) for x in values] == ["uint8", "float32"]
    with pytest.raises(CoveyError, match=r"shape \(..., 4, 3, 2\), not \(4, 3, 1\)"):
        inputs.read({"camera": np.zeros((4, 3, 1), np.uint8), "speed": np.zeros(2)})


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 3e38])
def test_infinities_and_nan(value: float):
    """An infinity and numbers whose squares are infinite are not NaN."""
    obs = np.array([1.0, value, -value], np.float32)
    for finite, allowed in ((False, not np.isnan(value)), (True, bool(np.isfinite(value)))):
        inputs = Inputs.of(Observation.of(3), finite=finite)
        if allowed:
            np.testing.assert_array_equal(inputs.read(obs)[0][0], obs)
        else:
            with pytest.raises(CoveyError, match="holds NaN"):
                inputs.read(obs)


def test_an_empty_batch():
    with pytest.raises(CoveyError, match=r"`obs` must have shape \(3,\), or a batch \(N, 3\), not \(0, 3\)"):
        Inputs.of(Observation.of(3)).read(np.zeros((0, 3)))


class Asymmetric:
    """A policy that sees the camera and the speed; its critic sees the privileged part and the speed."""

    def begin(self, state: Any, hyper: Any, key: Any) -> Any:
        return ()

    def act(self, state: Any, hyper: Any, memory: Any, obs: Any, key: Any, mode: Any) -> Decision:
        seen = obs["camera"].astype(jnp.float32).mean() / 255.0 + state * obs["speed"].sum()
        return Decision(jnp.tanh(seen)[None], (), {})

    def q_values(self, state: Any, hyper: Any, memory: Any, obs: Any, action: Any, target: bool) -> Any:
        value = obs["privileged"].sum() + 10.0 * obs["speed"].sum() + 100.0 * action[0]
        return jnp.stack([value, -value])


def test_a_policy_acts_without_the_critics_part():
    policy = TrainedPolicy(Asymmetric(), SPEC, 0.5, ())
    expected = 2.0 * np.tanh(IMAGES.mean((1, 2, 3)) / 255.0 + 0.5 * SPEEDS.sum(1))
    np.testing.assert_allclose(policy({"camera": IMAGES, "speed": SPEEDS})[:, 0], expected, rtol=1e-5)
    policy.reset()
    np.testing.assert_allclose(policy({"camera": IMAGES[0], "speed": SPEEDS[0]}), expected[:1], rtol=1e-5)


def test_values_without_the_actors_part():
    agent: Any = Asymmetric()
    privileged = np.random.default_rng(2).normal(size=(5, 3)).astype(np.float32)
    action = np.array([[1.0]], np.float32)  # half of the range

    def ask(obs: Any) -> np.ndarray:
        return q_values(agent, agent, SPEC, 0.5, (), obs, action, False)

    expected = privileged.sum(1) + 10.0 * SPEEDS.sum(1) + 50.0
    found = ask({"privileged": privileged, "speed": SPEEDS})
    assert found.shape == (2, 5)
    np.testing.assert_allclose(found, [expected, -expected], rtol=1e-5)
    np.testing.assert_array_equal(ask({"camera": IMAGES, "privileged": privileged, "speed": SPEEDS}), found)
    assert ask({"privileged": privileged[:1], "speed": SPEEDS[:1]}).shape == (2, 1)
    with pytest.raises(CoveyError, match="lacks the part 'privileged'"):
        ask({"camera": IMAGES, "speed": SPEEDS})
    with pytest.raises(CoveyError, match=r"`obs` .* and `action` .* do not belong together"):
        q_values(agent, agent, SPEC, 0.5, (), {"privileged": privileged, "speed": SPEEDS}, np.zeros((3, 1)), False)
