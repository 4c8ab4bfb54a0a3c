"""The parts of the recipes SimBa, FlashSAC and XQC, each formula against NumPy."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from covey.agents.sac import SAC, SACConfig, SACHyper
from covey.agents.taac import TAACConfig
from covey.agents.td3 import TD3Config
from covey.errors import CoveyError
from covey.nn.critics import Critics, Ensemble
from covey.nn.histogram import Categorical
from covey.nn.networks import TanhNormalHead, apply, apply_learning, init_both
from covey.nn.normalise import Normalise
from covey.nn.optim import Optimiser, Optimisers
from covey.nn.parts import Networks, Torso
from covey.nn.returns import Transition, n_step
from covey.types import Step
from tests.reference import SPEC, batch_of

KEY = jax.random.key(0)


def float64(tree: Any) -> Any:
    return jax.tree.map(lambda x: np.asarray(x, np.float64), tree)


def shaken(params: Any) -> Any:
    """Parameters without the ones and zeros of a start, which would hide a scale or a bias."""
    leaves, structure = jax.tree.flatten(params)
    numbers = np.random.default_rng(0)
    return structure.unflatten([x + 0.3 * numbers.normal(size=x.shape).astype(np.float32) for x in leaves])


def relu(x: np.ndarray) -> np.ndarray:
    return np.maximum(x, 0.0)


def affine(layer: dict[str, np.ndarray], x: np.ndarray) -> np.ndarray:
    return x @ layer["kernel"] + layer.get("bias", 0.0)


def layer_norm(layer: dict[str, np.ndarray], x: np.ndarray) -> np.ndarray:
    x = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-6)
    return x * layer["scale"] + layer["bias"]


def batch_norm(layer: dict[str, Any], x: np.ndarray, epsilon: float) -> np.ndarray:
    layer = layer["BatchNorm_0"]
    return (x - x.mean(0)) / np.sqrt(x.var(0) + epsilon) * layer["scale"] + layer["bias"]


def simba_of(p: dict[str, Any], x: np.ndarray) -> np.ndarray:
    h = affine(p["Dense_0"], x)
    h = h + affine(p["Dense_2"], relu(affine(p["Dense_1"], layer_norm(p["LayerNorm_0"], h))))
    h = h + affine(p["Dense_4"], relu(affine(p["Dense_3"], layer_norm(p["LayerNorm_1"], h))))
    return layer_norm(p["LayerNorm_2"], h)


def flash_of(p: dict[str, Any], x: np.ndarray) -> np.ndarray:
    bn = partial(batch_norm, epsilon=1e-5)
    h = affine(p["Dense_0"], bn(p["BatchNorm_0"], x))
    for i in range(1, len([name for name in p if name.startswith("Dense")]), 2):
        inner = relu(bn(p[f"BatchNorm_{i}"], affine(p[f"Dense_{i}"], h)))
        h = h + relu(bn(p[f"BatchNorm_{i + 1}"], affine(p[f"Dense_{i + 1}"], inner)))
    return h / np.sqrt((h**2).mean(-1, keepdims=True) + 1e-6) * p["RMSNorm_0"]["scale"]


def xqc_of(p: dict[str, Any], x: np.ndarray) -> np.ndarray:
    h = batch_norm(p["BatchNorm_0"], x, 1e-3)
    for i in range(2):
        h = relu(batch_norm(p[f"BatchNorm_{i + 1}"], affine(p[f"Dense_{i}"], h), 1e-3))
    return h


@pytest.mark.parametrize(("kind", "reference"), [("simba", simba_of), ("flash", flash_of), ("xqc", xqc_of)])
def test_torsos(kind: str, reference: Any):
    x = np.random.default_rng(1).normal(1.0, 3.0, (7, 3)).astype(np.float32)
    torso = Torso(kind=kind, hidden=(4, 4)).module("orthogonal")
    params, statistics = init_both(torso, KEY, x[0])
    assert bool(statistics) == Torso(kind=kind, hidden=(4, 4)).has_statistics == (kind != "simba")
    params = shaken(params)
    learning, statistics = apply_learning(torso, params, statistics, x)
    np.testing.assert_allclose(learning, reference(float64(params), float64(x)), rtol=1e-4, atol=1e-4)
    acting = partial(apply, torso, params, statistics=statistics)
    np.testing.assert_allclose(acting(x)[:2], acting(x[:2]), rtol=1e-4, atol=1e-5)  # no row depends on another
    if kind != "simba":
        running = statistics["BatchNorm_0"]["BatchNorm_0"]
        np.testing.assert_allclose(running["mean"], 0.01 * x.mean(0), rtol=1e-4)
        np.testing.assert_allclose(running["var"], 0.99 + 0.01 * x.var(0), rtol=1e-4)


def test_c51_moves_and_projects_the_distribution():
    support = Categorical(-2.0, 2.0, 9)
    atoms = np.linspace(-2.0, 2.0, 9)
    numbers = np.random.default_rng(0)
    p = numbers.dirichlet(np.ones(9), 5)
    reward = np.array([0.0, 0.3, -0.71, 1.4, 9.0])
    discount = np.array([1.0, 0.9, 0.99, 0.0, 0.9])
    expected = np.zeros((5, 9))
    for row in range(5):
        for i in range(9):
            place = (np.clip(reward[row] + discount[row] * atoms[i], -2.0, 2.0) + 2.0) / 0.5
            low = int(np.floor(place))
            expected[row, low] += p[row, i] * (1.0 - (place - low))
            if place > low:
                expected[row, low + 1] += p[row, i] * (place - low)
    inputs = [jnp.asarray(x, jnp.float32) for x in (p, reward, discount)]
    found = support.project(*inputs)
    np.testing.assert_allclose(found, expected, atol=1e-5)
    np.testing.assert_allclose(support.mean(found)[:2], [p[0] @ atoms, 0.3 + 0.9 * p[1] @ atoms], atol=0.05)
    logits = numbers.normal(size=(2, 5, 9))
    log = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    loss = support.cross_entropy(jnp.asarray(logits, jnp.float32), found)
    np.testing.assert_allclose(loss, -(expected[None] * log).sum(-1), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(support.value(jnp.asarray(logits, jnp.float32)), np.exp(log) @ atoms, atol=1e-5)


def xqc_critics(**options: Any) -> Ensemble:
    """XQC's critics, of one layer."""
    networks = Networks(actor=Torso(hidden=(8,)), critic=Torso(kind="xqc", hidden=(4, 4)), weights="orthogonal")
    critics = Critics(bins=9, distribution="c51", low=-2.0, high=2.0, batch_targets=True, **options)
    return Ensemble(critics, networks, Optimiser(unit_norm="weights"), SPEC)


def transitions() -> Transition:
    return n_step(batch_of(SAC(SACConfig(batch_size=16), SPEC), 0), 0.9)._replace(valid=jnp.ones(16))


@pytest.mark.parametrize("combine", ["min", "mean"])
def test_targets_of_critics_with_batch_normalisation(combine: Any):
    """Target critics see (s, a) and (s', a') as one batch. C51 takes the distribution with the smaller mean."""
    critics, data = xqc_critics(combine=combine), transitions()
    state, other = (critics.init(jax.random.key(seed)) for seed in (0, 1))
    state = state._replace(target=other.online)
    found = critics.target(state, data, -data.action, KEY)
    both = np.concatenate(
        [np.concatenate([data.obs, data.action], -1), np.concatenate([data.next_obs, -data.action], -1)]
    )
    logits = []
    for i in range(2):
        p = float64(jax.tree.map(lambda x, i=i: x[i], other.online.ensemble))
        logits.append(affine(p["head"]["Dense_0"], xqc_of(p["torso"], both.astype(np.float64)))[16:])
    p = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
    atoms = np.linspace(-2.0, 2.0, 9)
    chosen = p.mean(0) if combine == "mean" else p[np.argmin(p @ atoms, 0), np.arange(16)]
    expected = Categorical(-2.0, 2.0, 9).project(jnp.asarray(chosen, jnp.float32), data.reward, data.discount)
    np.testing.assert_allclose(found, expected, atol=1e-4)


def test_an_update_of_c51_critics():
    critics, data = xqc_critics(), transitions()
    state = critics.init(KEY)
    after, metrics = jax.jit(critics.update)(state, data, -data.action, 1e-2, KEY)
    assert float(metrics["beyond_limits"]) >= 0.0 and np.isfinite(float(metrics["explained_variance"]))
    head = after.online.ensemble["head"]["Dense_0"]
    norms = (head["kernel"] ** 2).sum(1) + head["bias"] ** 2
    np.testing.assert_allclose(norms, np.ones((2, 9)), rtol=1e-5)
    old, new = (s.statistics["torso"]["BatchNorm_1"]["BatchNorm_0"]["var"] for s in (state, after))
    assert not np.allclose(old, new)
    moved = critics.update_targets(after, 0.5).target
    kernels = [x.ensemble["head"]["Dense_0"]["kernel"] for x in (state.online, after.online, moved)]
    np.testing.assert_allclose(kernels[2], 0.5 * (kernels[0] + kernels[1]), rtol=1e-5)


@pytest.mark.parametrize("kind", ["weights", "layers"])
def test_unit_norm(kind: Any):
    params = shaken(
        {
            "dense": {"kernel": jnp.ones((2, 3, 4)), "bias": jnp.ones((2, 4))},
            "norm": {"scale": jnp.ones((2, 5)), "bias": jnp.zeros((2, 5))},
            "rms": {"scale": jnp.ones((2, 5))},
        }
    )
    found = Optimiser(unit_norm=kind).project(params)
    before, after = float64(params), float64(found)
    length = np.sqrt((before["dense"]["kernel"] ** 2).sum(1) + (before["dense"]["bias"] ** 2) * (kind == "weights"))
    np.testing.assert_allclose(after["dense"]["kernel"], before["dense"]["kernel"] / length[:, None], rtol=1e-5)
    np.testing.assert_allclose(
        after["dense"]["bias"], before["dense"]["bias"] / (length if kind == "weights" else 1.0), rtol=1e-5
    )
    if kind == "weights":
        np.testing.assert_array_equal(after["norm"]["scale"], before["norm"]["scale"])
    else:
        np.testing.assert_allclose(sum((x**2).sum(-1) for x in after["norm"].values()), 5.0, rtol=1e-5)
        np.testing.assert_allclose((after["rms"]["scale"] ** 2).sum(-1), 5.0, rtol=1e-5)
    stepped, _ = Optimiser(kind="sgd", unit_norm=kind).step(found, params, (), 0.1)
    layer = float64(stepped["dense"])
    norms = (layer["kernel"] ** 2).sum(1) + (layer["bias"] ** 2) * (kind == "weights")
    np.testing.assert_allclose(norms, np.ones((2, 4)), rtol=1e-5)
    assert Optimiser().project(params) is params


def test_rewards_are_bounded_by_the_largest_return():
    normalise = Normalise(rewards=True, reward_bound=2.0)
    numbers = np.random.default_rng(0)
    reward = numbers.normal(size=(6, 1)).astype(np.float32)
    reward[4] = 50.0
    valid = np.array([1, 1, 0, 1, 1, 1], np.float32)[:, None]
    zeros = jnp.zeros((6, 1, 3))
    rollout = Step(zeros, zeros, jnp.asarray(reward), jnp.zeros((6, 1)), zeros, jnp.asarray(valid), {})
    statistics = normalise.observe(normalise.init(3), rollout, 0.9)
    running, returns = 0.0, []
    for r, v in zip(reward[:, 0], valid[:, 0], strict=True):
        running = 0.9 * running + r if v else 0.0
        returns += [running] * bool(v)
    expected = max(np.sqrt(np.var(returns) + 1e-6), np.abs(returns).max() / 2.0)
    assert expected > np.std(returns)
    np.testing.assert_allclose(normalise.reward_scale(statistics), expected, rtol=1e-5)
    np.testing.assert_allclose(
        normalise.batch(statistics, rollout, 3.0).reward, 3.0 * reward / expected, rtol=1e-5, atol=1e-6
    )
    quiet = normalise.observe(normalise.init(3), rollout._replace(reward=jnp.zeros((6, 1))), 0.9)
    assert normalise.reward_scale(quiet) > 0.0


def test_limits_of_the_standard_deviation():
    features = jnp.linspace(-30.0, 30.0, 12).reshape(4, 3)
    for bound in ("clip", "tanh"):
        head = TanhNormalHead(2, log_std=(-5.0, 1.0), log_std_bound=bound)
        params, _ = init_both(head, KEY, features)
        raw = affine(float64(params)["Dense_0"], float64(features))[:, 2:]
        expected = np.clip(raw, -5.0, 1.0) if bound == "clip" else -5.0 + 3.0 * (1.0 + np.tanh(raw))
        np.testing.assert_allclose(apply(head, params, features).log_std, expected, rtol=1e-4, atol=1e-4)


def flash_sac() -> SAC:
    torso = Torso(kind="flash", hidden=(4,))
    sphere = Optimiser(unit_norm="layers")
    config = SACConfig(
        networks=Networks(torso, torso, actor_head="tanh_normal", weights="orthogonal", log_std_bound="tanh"),
        critics=Critics(bins=11, distribution="c51", low=-5.0, high=5.0, batch_targets=True),
        optimisers=Optimisers(actor=sphere, critic=sphere),
        normalise=Normalise(rewards=True, reward_bound=5.0),
        batch_size=16,
        policy_delay=2,
    )
    return SAC(config, SPEC)


def test_an_actor_with_batch_normalisation():
    """The actor learns with the statistics of s and s' and acts with the running ones. Invalid rows do not count."""
    sac = flash_sac()
    state = sac.init(SACHyper(), KEY)
    data = transitions()._replace(valid=jnp.ones(16).at[5].set(0.0))
    policy, statistics = sac._learning_policy(state, state.actor, data, data.obs)
    running = statistics["torso"]["BatchNorm_0"]["BatchNorm_0"]["mean"]
    rows = np.where(np.asarray(data.valid) > 0, np.arange(16), 0)
    both = np.concatenate([data.obs[rows], data.next_obs[rows]])
    np.testing.assert_allclose(running, 0.01 * both.mean(0), rtol=1e-4, atol=1e-6)
    features = flash_of(float64(state.actor["torso"]), float64(both))[:16]
    mean = affine(float64(state.actor["head"]["Dense_0"]), features)[:, :2]
    np.testing.assert_allclose(policy.mean, mean, rtol=1e-3, atol=1e-4)
    nan = data._replace(obs=data.obs.at[5].set(jnp.nan), next_obs=data.next_obs.at[5].set(jnp.nan))
    again, _ = sac._learning_policy(state, state.actor, nan, nan.obs)
    np.testing.assert_array_equal(again.mean, policy.mean)


def test_one_update_moves_every_part():
    sac = flash_sac()
    state = sac.init(SACHyper(), KEY)
    after, metrics = jax.jit(sac.update)(state, SACHyper(), batch_of(sac, 0), KEY)
    assert all(np.isfinite(x).all() for x in jax.tree.leaves((after, metrics)))
    for name in ("actor", "actor_statistics"):
        old, new = (jax.tree.leaves(getattr(s, name)) for s in (state, after))
        assert old and not all(np.allclose(a, b) for a, b in zip(old, new, strict=True))
    kernel = after.actor["torso"]["Dense_1"]["kernel"]
    np.testing.assert_allclose((kernel**2).sum(0), np.ones(kernel.shape[1]), rtol=1e-5)


@pytest.mark.parametrize(
    ("wrong", "text"),
    [
        (lambda: Torso(kind="simba", hidden=(8, 4)), "equal"),
        (lambda: Torso(kind="flash", hidden=()), "equal"),
        (lambda: Torso(kind="xqc", norm="layer").module(), "no option 'norm'"),
        (lambda: Critics(distribution="c51"), "bins"),
        (lambda: Critics(bins=9, distribution="c52"), "Did you mean 'c51'"),  # type: ignore[arg-type]
        (lambda: Ensemble(Critics(batch_targets=True), Networks(), Optimiser(), SPEC), "batch normalisation"),
        (lambda: Optimiser(unit_norm="all"), "unit norm"),  # type: ignore[arg-type]
        (lambda: Optimisers(temperature=Optimiser(unit_norm="weights")), "temperature"),
        (lambda: Normalise(reward_bound=5.0), "`rewards`"),
        (lambda: Normalise(rewards=True, reward_bound=-1.0), "negative"),
        (lambda: Networks(log_std=(2.0, -5.0)), "log_std"),
        (lambda: Networks(log_std_bound="sigmoid"), "log_std"),  # type: ignore[arg-type]
        (lambda: Networks(encoder=Torso(kind="xqc")), "encoder"),
        (lambda: TD3Config(networks=Networks(actor=Torso(kind="flash", hidden=(8,)))), "TD3's actor"),
        (lambda: TAACConfig(networks=Networks(critic=Torso(kind="xqc"))), "TAAC's critics"),
        (lambda: TAACConfig(networks=Networks(actor=Torso(norm="batch"))), "TAAC's actor"),
    ],
)
def test_options_that_do_not_fit(wrong: Any, text: str):
    with pytest.raises(CoveyError, match=text):
        wrong()
