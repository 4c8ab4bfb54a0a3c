"""Every optimiser against steps in NumPy and against optax's own; targets that move at every k-th update."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import optax.contrib
import pytest

import covey
from covey.errors import CoveyError
from covey.nn.optim import OPTIMISERS, Optimiser, Optimisers, every, target_age

RATES = (0.1, 0.02, 0.05)
OPTIONS = {
    "adam": Optimiser(beta1=0.8, beta2=0.95, epsilon=0.01),
    "adamw": Optimiser("adamw", weight_decay=0.3),
    "rmsprop": Optimiser("rmsprop", decay=0.7, epsilon=0.1, momentum=0.6),
    "sgd": Optimiser("sgd", momentum=0.6, weight_decay=0.3),
    "muon": Optimiser("muon", momentum=0.95),
}


def params_of() -> Any:
    """Two critics: kernels [2, 4, 3] and biases [2, 3]."""
    one, two = jax.random.normal(jax.random.key(0), (2, 2, 4, 3))
    return {"kernel": one, "bias": two[:, 0]}


def gradients_of() -> list[Any]:
    return [jax.tree.map(lambda x, i=i: jnp.cos(3.0 * x + i), params_of()) for i in range(3)]


def stepped(optimiser: Optimiser, rates: Any = RATES) -> tuple[Any, Any]:
    """The parameters after three steps, and the state."""
    params, step = params_of(), jax.jit(optimiser.step)
    state = optimiser.init(params)
    for gradient, rate in zip(gradients_of(), rates, strict=True):
        params, state = step(params, gradient, state, rate)
    return params, state


def by_hand(kind: str, options: Optimiser, name: str) -> np.ndarray:
    """Three steps of one leaf, from the formulas of the papers, in float64."""
    x = np.asarray(params_of()[name], np.float64)
    first, second = np.zeros_like(x), np.zeros_like(x)
    for t, (gradients, rate) in enumerate(zip(gradients_of(), RATES, strict=True), 1):
        g = np.asarray(gradients[name], np.float64)
        if kind in ("adam", "adamw"):
            first = options.beta1 * first + (1 - options.beta1) * g
            second = options.beta2 * second + (1 - options.beta2) * g**2
            root = np.sqrt(second / (1 - options.beta2**t)) + options.epsilon
            direction = first / (1 - options.beta1**t) / root
        elif kind == "rmsprop":
            second = options.decay * second + (1 - options.decay) * g**2
            first = options.momentum * first + g / (np.sqrt(second) + options.epsilon)
            direction = first
        else:
            first = options.momentum * first + g
            direction = first
        x = x - rate * (direction + (options.weight_decay * x if name == "kernel" else 0.0))
    return x


@pytest.mark.parametrize("kind", ["adam", "adamw", "rmsprop", "sgd"])
def test_steps_by_hand(kind: str):
    params, _ = stepped(OPTIONS[kind])
    for name in ("kernel", "bias"):
        np.testing.assert_allclose(params[name], by_hand(kind, OPTIONS[kind], name), rtol=2e-5, atol=1e-6)


THEIRS = {
    "adam": lambda rate: optax.adam(rate, 0.8, 0.95, 0.01),
    "adamw": lambda rate: optax.adamw(rate, weight_decay=0.3, mask={"kernel": True, "bias": False}),
    "rmsprop": lambda rate: optax.rmsprop(rate, 0.7, 0.1, eps_in_sqrt=False, momentum=0.6),
    "sgd": lambda rate: optax.chain(
        optax.trace(0.6), optax.add_decayed_weights(0.3, {"kernel": True, "bias": False}), optax.scale(-rate)
    ),
}


def theirs(optimiser: optax.GradientTransformation, params: Any, gradients: list[Any]) -> Any:
    state = optimiser.init(params)
    with jax.numpy_dtype_promotion("standard"):
        for gradient in gradients:
            updates, state = optimiser.update(gradient, state, params)
            params = optax.apply_updates(params, updates)
    return params


@pytest.mark.parametrize("kind", THEIRS)
def test_steps_of_optax(kind: str):
    params, _ = stepped(OPTIONS[kind], (0.05,) * 3)
    expected = theirs(THEIRS[kind](0.05), params_of(), gradients_of())
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6), params, expected)


def test_muon_orthogonalises_the_matrix_of_each_critic():
    """Each critic moves as if alone, and its biases by Adam with Nesterov's momentum."""
    params, _ = stepped(OPTIONS["muon"], (0.05,) * 3)
    for i in range(2):
        start, *gradients = (jax.tree.map(lambda x, i=i: x[i], tree) for tree in (params_of(), *gradients_of()))
        alone = theirs(optax.contrib.muon(0.05, consistent_rms=0.2), start, gradients)
        np.testing.assert_allclose(params["kernel"][i], alone["kernel"], rtol=1e-4, atol=1e-5)
    biases = theirs(optax.nadam(0.05), params_of()["bias"], [g["bias"] for g in gradients_of()])
    np.testing.assert_allclose(params["bias"], biases, rtol=1e-5, atol=1e-6)


def test_a_step_of_muon_has_equal_singular_values():
    """Newton-Schulz leaves them within about 0.7 and 1.2; Adam's would differ by far more."""
    kernel = jnp.diag(jnp.array([1.0, 0.1, 0.03]))[None] * jnp.ones((2, 1, 1))
    optimiser = OPTIONS["muon"]
    moved, _ = optimiser.step({"kernel": 0 * kernel}, {"kernel": kernel}, optimiser.init({"kernel": kernel}), 1.0)
    found = np.linalg.svd(np.asarray(moved["kernel"]), compute_uv=False) / (0.2 * np.sqrt(3))
    assert found.min() > 0.6 and found.max() < 1.3


@pytest.mark.parametrize("kind", OPTIONS)
def test_members_with_their_own_rates_are_members_alone(kind: str):
    """As PBT needs it: the learning rate is traced and mapped, and a state keeps its shapes and types."""
    optimiser = OPTIONS[kind]
    rates = jnp.array([0.01, 0.1])
    params, gradient = params_of(), gradients_of()[0]
    start = optimiser.init(params)
    together, _ = jax.vmap(lambda rate: optimiser.step(params, gradient, start, rate))(rates)
    for i, rate in enumerate((0.01, 0.1)):
        alone, after = optimiser.step(params, gradient, start, rate)
        jax.tree.map(lambda a, b, i=i: np.testing.assert_allclose(a[i], b, rtol=1e-5), together, alone)
        assert jax.tree.map(lambda x: (x.shape, x.dtype), after) == jax.tree.map(lambda x: (x.shape, x.dtype), start)


def test_a_bare_number_can_be_optimised_by_each():
    for optimiser in (Optimiser(), OPTIONS["rmsprop"], Optimiser("sgd"), OPTIONS["muon"]):
        moved, _ = optimiser.step(jnp.zeros(()), jnp.ones(()), optimiser.init(jnp.zeros(())), 0.1)
        assert float(moved) < 0


def test_an_optimiser_of_your_own(monkeypatch):
    monkeypatch.setattr("covey.nn.optim.OPTIMISERS", dict(OPTIMISERS))
    covey.register_optimiser("lion", lambda options: optax.scale_by_lion(options.beta1, 0.99))
    params, _ = stepped(Optimiser("lion", beta1=0.8, momentum=0.3), (0.05,) * 3)
    expected = theirs(optax.lion(0.05, 0.8, 0.99, weight_decay=0.0), params_of(), gradients_of())
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5), params, expected)
    with pytest.raises(CoveyError, match="already an optimiser called 'adam'"):
        covey.register_optimiser("adam", lambda options: optax.identity())


def test_an_unknown_optimiser_names_the_known_ones():
    with pytest.raises(CoveyError, match=r"There are: adam, adamw, muon, rmsprop, sgd\. .*--plugin"):
        Optimiser("lbfgs").init({})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"weight_decay": 0.1}, "`weight_decay` 0.1 needs another `kind`: adamw"),
        ({"kind": "adamw"}, "adamw needs a `weight_decay`"),
        ({"kind": "muon"}, "muon needs a `momentum`"),
        ({"momentum": 0.9}, "`momentum` is not an option of adam, which has beta1, beta2, epsilon"),
        ({"kind": "sgd", "epsilon": 0.1}, "`epsilon` is not an option of sgd"),
        ({"beta2": 1.0}, "`beta2` must lie in"),
        ({"epsilon": 0.0}, "`epsilon` must be positive"),
    ],
)
def test_options_that_do_not_fit(options: dict[str, Any], message: str):
    with pytest.raises(CoveyError, match=message):
        Optimiser(**options)


def test_a_temperature_does_not_decay():
    with pytest.raises(CoveyError, match="a temperature is not a weight"):
        Optimisers(temperature=Optimiser("sgd", weight_decay=0.1))
    with pytest.raises(CoveyError, match="TD3 has no temperature"):
        covey.TD3Config(optimisers=Optimisers(temperature=Optimiser("sgd")))


def test_every_third_update():
    age, shares = target_age(3), []
    for _ in range(7):
        age, tau = every(3, age, 0.1)
        shares.append(float(tau))
    np.testing.assert_allclose(shares, [0, 0, 0.1, 0, 0, 0.1, 0], rtol=1e-6)
    assert target_age(1) == () and every(1, (), 0.1) == ((), 0.1)
