"""Networks, optimiser, Polyak and running statistics against NumPy."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import covey
from covey.agents.td3 import TD3, TD3Config, TD3Hyper
from covey.errors import CoveyError
from covey.nn.networks import apply, apply_ensemble, init, init_ensemble
from covey.nn.normalise import init_stats, normalise, update_stats
from covey.nn.optim import Optimiser, polyak
from covey.nn.parts import TORSOS, Networks, Torso
from covey.types import EnvSpec

SPEC = EnvSpec(3, 2, 10, (-1.0, -1.0), (1.0, 1.0))


def test_mlp_is_the_matrix_formula():
    module = Torso(hidden=(5, 4)).module()
    params = init(module, jax.random.key(0), jnp.zeros(3))
    x = np.random.default_rng(0).normal(size=3).astype(np.float32)
    expected = x
    for layer in ("Dense_0", "Dense_1"):
        expected = np.maximum(expected @ np.asarray(params[layer]["kernel"]) + np.asarray(params[layer]["bias"]), 0)
    np.testing.assert_allclose(apply(module, params, jnp.asarray(x)), expected, rtol=1e-5)


@pytest.mark.parametrize("weights", ["lecun", "uniform"])
def test_what_layers_start_with(weights: str):
    """Encoder, torso and head: deviations of 1/sqrt(inputs), or a uniform draw within that, of deviation 1/sqrt(3)."""
    networks = Networks(Torso(hidden=(300,)), Torso(hidden=(300,)), Torso(hidden=(200,)), weights=weights)
    wide = EnvSpec(100, 50, 10, (-1.0,) * 50, (1.0,) * 50)
    actor = init(networks.actor_module(wide), jax.random.key(0), jnp.zeros(100))
    critic = init(networks.critic_module(wide), jax.random.key(1), jnp.zeros(100), jnp.zeros(50))
    for params, sizes in ((actor, (100, 200, 300)), (critic, (100, 250, 300))):
        layers = [params[part]["Dense_0"] for part in ("encoder", "torso", "head")]
        for layer, inputs in zip(layers, sizes, strict=True):
            kernel = np.asarray(layer["kernel"]) * np.sqrt(inputs)
            assert kernel.shape[0] == inputs and not np.asarray(layer["bias"]).any()
            assert (np.abs(kernel).max() <= 1) == (weights == "uniform")
            assert abs(np.std(kernel) - (1 if weights == "lecun" else 3**-0.5)) < 0.08


def test_an_unknown_start_of_weights():
    with pytest.raises(CoveyError, match=r"'unifrom'.*'uniform'"):
        Networks(weights="unifrom")  # type: ignore[arg-type]


def test_an_ensemble_is_its_members():
    module = Networks(critic=Torso(hidden=(8,))).critic_module(SPEC)
    obs, action = jnp.ones((6, 3)), jnp.ones((6, 2))
    params, statistics = init_ensemble(module, 4, jax.random.key(0), obs[0], action[0])
    together = apply_ensemble(module, params, statistics, None, obs, action)
    for i in range(4):
        alone = apply(module, jax.tree.map(lambda x, i=i: x[i], params), obs, action)
        np.testing.assert_allclose(together[i], alone, rtol=1e-6)
    assert len({float(v) for v in together[:, 0]}) == 4, "members must be initialised independently"


def test_the_slope_of_q_in_the_action_depends_on_the_state():
    """An action that joins after the last hidden layer would give every state the same slope."""
    critic = Networks(critic=Torso(hidden=(16,))).critic_module(SPEC)
    params = init(critic, jax.random.key(0), jnp.zeros(3), jnp.zeros(2))
    slope = jax.vmap(jax.grad(lambda a, s: apply(critic, params, s, a)), in_axes=(None, 0))
    slopes = slope(jnp.zeros(2), jax.random.normal(jax.random.key(1), (6, 3)))
    assert float(jnp.std(slopes, axis=0).min()) > 1e-3


@pytest.mark.parametrize("share", [False, True])
def test_encoders(share: bool):
    networks = Networks(Torso(hidden=(8,)), Torso(hidden=(8,)), Torso(hidden=(4,)), share)
    encoder = init(networks.encoder_module(SPEC), jax.random.key(0), jnp.zeros(3))
    features = apply(networks.encoder_module(SPEC), encoder, jnp.ones(3))
    assert features.shape == ((4,) if share else (3,))
    actor = init(networks.actor_module(SPEC), jax.random.key(1), features)
    assert ("encoder" in actor) == (not share)
    action = apply(networks.actor_module(SPEC), actor, features)
    assert action.shape == (2,) and bool(jnp.all(jnp.abs(action) <= 1))


def test_any_flax_module_can_be_the_torso():
    @covey.register_torso("doubler")
    class Doubler(nn.Module):
        hidden: tuple[int, ...]

        def __call__(self, x):
            return 2.0 * x

    try:
        module = Torso(kind="doubler").module()
        assert float(apply(module, init(module, jax.random.key(0), jnp.ones(1)), jnp.ones(1))[0]) == 2.0
    finally:
        del TORSOS["doubler"]


@pytest.mark.parametrize("share", [False, True])
def test_an_encoder_may_have_no_options(share: bool):
    """A picture [2, 2] in each observation, through a convolution with no field of its own: 3 numbers of 1."""

    @covey.register_torso("conv")
    class Conv(nn.Module):
        @nn.compact
        def __call__(self, x):
            picture = x.reshape(*x.shape[:-1], 2, 2, 1)
            return nn.Conv(3, (2, 2), padding="VALID")(picture).reshape(*x.shape[:-1], 3)

    try:
        networks = Networks(Torso(hidden=(8,)), Torso(hidden=(8,)), Torso("conv", hidden=()), share)
        spec = EnvSpec(4, 1, 9, (-1.0,), (1.0,))
        agent = TD3(TD3Config(networks, batch_size=8), spec)
        state = agent.init(TD3Hyper(), jax.random.key(0))
        kernel = (state.critic.online.encoder if share else state.actor["encoder"])["Conv_0"]["kernel"]
        assert kernel.shape[-3:] == (2, 1, 3)
        action = agent.act(state, TD3Hyper(), (), jnp.ones(4), jax.random.key(1), "greedy").action
        assert action.shape == (1,) and bool(jnp.isfinite(action).all())
        assert Torso("conv", hidden=(64,)).module() == Torso("conv", hidden=()).module(), "a preset may set `hidden`"
        with pytest.raises(CoveyError, match="'conv' has no option 'norm'"):
            Torso("conv", hidden=(), norm="layer").module()
    finally:
        del TORSOS["conv"]


def test_mistyped_parts():
    with pytest.raises(CoveyError, match="Did you mean 'relu'"):
        Torso(activation="rleu")
    with pytest.raises(CoveyError, match="--plugin"):
        Torso(kind="resnet").module()
    with pytest.raises(CoveyError, match="encoder"):
        Networks(share_encoder=True)
    with pytest.raises(CoveyError, match="not a flax"):
        covey.register_torso("x")(int)


def test_orthogonal_weights():
    """Q Q^T or Q^T Q is the identity, whichever is smaller, in each layer of each critic; biases are 0."""
    networks = Networks(Torso(hidden=(8,)), Torso(hidden=(8, 3)), weights="orthogonal")
    actor = init(networks.actor_module(SPEC), jax.random.key(0), jnp.ones(3))
    critics, _ = init_ensemble(networks.critic_module(SPEC), 2, jax.random.key(1), jnp.ones(3), jnp.ones(2))
    kernels = 0
    for path, leaf in jax.tree.flatten_with_path((actor, critics))[0]:
        for x in np.asarray(leaf) if leaf.ndim == 3 else [np.asarray(leaf)]:
            if path[-1].key != "kernel":
                assert not x.any()
                continue
            kernels += 1
            product = x @ x.T if x.shape[0] < x.shape[1] else x.T @ x
            np.testing.assert_allclose(product, np.eye(len(product)), atol=1e-5)
    assert kernels == 2 + 2 * 3
    first = critics["torso"]["Dense_0"]["kernel"]
    assert float(jnp.abs(first[0] - first[1]).max()) > 0.1, "each critic is drawn from its own key"


def test_adam_with_a_traced_rate_is_optax_adam():
    params, gradient = {"w": jnp.array([1.0, -2.0])}, {"w": jnp.array([0.3, 0.5])}
    ours, state = params, Optimiser().init(params)
    theirs, reference = params, optax.adam(0.01)
    their_state = reference.init(params)
    for _ in range(5):
        ours, state = jax.jit(Optimiser().step)(ours, gradient, state, 0.01)
        with jax.numpy_dtype_promotion("standard"):
            updates, their_state = reference.update(gradient, their_state)
        theirs = optax.apply_updates(theirs, updates)
    np.testing.assert_allclose(ours["w"], theirs["w"], rtol=1e-6)


def test_polyak():
    moved = polyak({"w": jnp.array([0.0, 10.0])}, {"w": jnp.array([1.0, 20.0])}, 0.1)
    np.testing.assert_allclose(moved["w"], [0.1, 11.0], rtol=1e-6)


def test_running_statistics_are_those_of_the_whole_stream():
    random = np.random.default_rng(0)
    rows = (random.normal(size=(40, 3, 2)) * [1.0, 50.0] + [100.0, -3.0]).astype(np.float32)
    keep = random.random((40, 3)) < 0.7
    rows[~keep] = np.nan
    stats = init_stats(2)
    for chunk in range(0, 40, 8):
        stats = update_stats(stats, jnp.asarray(rows[chunk : chunk + 8]), jnp.asarray(keep[chunk : chunk + 8]))
    kept = rows[keep]
    assert float(stats.rows) == len(kept)
    np.testing.assert_allclose(stats.mean, kept.mean(0), rtol=1e-5)
    np.testing.assert_allclose(stats.squares / stats.rows, kept.var(0), rtol=1e-4)
    normal = normalise(stats, jnp.asarray(kept))
    np.testing.assert_allclose(normal, np.clip((kept - kept.mean(0)) / kept.std(0), -10, 10), atol=1e-3)
    assert float(normalise(stats, jnp.full((1, 2), 1e9)).max()) == 10.0


def test_nothing_known_normalises_to_itself():
    np.testing.assert_allclose(normalise(init_stats(2), jnp.array([[3.0, -2.0]])), [[3.0, -2.0]], rtol=1e-5)
