"""The options that TD3 and SAC share, each formula against NumPy."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from covey.agents.sac import SAC, SACConfig
from covey.errors import CoveyError
from covey.nn.critics import Critics, Ensemble
from covey.nn.histogram import Histogram
from covey.nn.normalise import Normalise
from covey.nn.optim import Optimiser
from covey.nn.parts import Networks, Torso
from covey.nn.precision import dense
from covey.nn.regularise import BatchRenorm
from covey.nn.returns import Transition, n_step
from covey.types import Step
from tests.reference import SPEC, batch_of, critics_of

KEY = jax.random.key(0)


def ensemble(critic: Torso | None = None, **options) -> Ensemble:
    networks = Networks(actor=Torso(hidden=(8,)), critic=critic or Torso(hidden=(8,)))
    return Ensemble(Critics(**options), networks, Optimiser(), SPEC)


def state_of(critics: Ensemble):
    """A state whose targets differ from the online critics."""
    state, other = (critics.init(jax.random.key(seed)) for seed in (0, 1))
    return state._replace(target=other.online) if critics.has_targets else state


def data_of(seed: int = 0) -> Transition:
    sac = SAC(SACConfig(batch_size=16), SPEC)
    return n_step(batch_of(sac, seed), 0.9)


def float64(x) -> np.ndarray:
    return np.asarray(x, np.float64)


# Which critics make the target.


def test_mean_instead_of_minimum():
    critics, data = ensemble(number=3, combine="mean"), data_of()
    state = state_of(critics)
    found = critics.target(state, data, data.action, KEY)
    values = critics_of(state.target.ensemble, float64(data.next_obs), float64(data.action))
    np.testing.assert_allclose(found, data.reward + data.discount * values.mean(0), rtol=1e-4, atol=1e-5)
    actor_objective = critics.actor_objective(state, data.obs, data.action, KEY, first=True)
    values = critics_of(state.online.ensemble, float64(data.obs), float64(data.action))
    np.testing.assert_allclose(actor_objective, values.mean(0), rtol=1e-4, atol=1e-5)


def test_redq_takes_the_minimum_of_a_random_pair_and_maximises_the_mean():
    critics, data = ensemble(number=5, subset=2), data_of()
    state = state_of(critics)
    values = critics_of(state.target.ensemble, float64(data.next_obs), float64(data.action))
    pairs_drawn = set()
    for seed in range(30):
        found = float64(critics.target(state, data, data.action, jax.random.key(seed)))
        pairs = [
            (i, j)
            for i in range(5)
            for j in range(i)
            if np.allclose(found, data.reward + data.discount * values[[i, j]].min(0), rtol=1e-4, atol=1e-5)
        ]
        assert len(pairs) == 1, "the same pair for the whole batch"
        pairs_drawn |= set(pairs)
    assert len(pairs_drawn) >= 8, "every pair is drawn sooner or later"
    actor_objective = critics.actor_objective(state, data.obs, data.action, KEY)
    all_values = critics_of(state.online.ensemble, float64(data.obs), float64(data.action))
    np.testing.assert_allclose(actor_objective, all_values.mean(0), rtol=1e-4, atol=1e-5)


# Normalised torsos.


def test_layer_norm_before_the_activation():
    critics, data = ensemble(Torso(hidden=(8,), norm="layer"), number=1), data_of()
    state = state_of(critics)
    params = jax.tree.map(lambda x: float64(x[0]), state.online.ensemble)
    x = np.concatenate([float64(data.obs), float64(data.action)], -1)
    x = x @ params["torso"]["Dense_0"]["kernel"] + params["torso"]["Dense_0"]["bias"]
    x = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-6)
    x = np.maximum(x * params["torso"]["LayerNorm_0"]["scale"] + params["torso"]["LayerNorm_0"]["bias"], 0)
    expected = x @ params["head"]["Dense_0"]["kernel"] + params["head"]["Dense_0"]["bias"]
    found = critics.values(state.online, state.statistics, data.obs, data.action, KEY)
    np.testing.assert_allclose(found[0], expected[:, 0], rtol=1e-4, atol=1e-5)


def test_droq_drops_units_of_each_critic_on_its_own():
    """Dropout acts in targets, in critics and in the actor objective, and scales the units that stay."""
    critics, data = ensemble(Torso(hidden=(64,), norm="layer", dropout=0.5), number=2), data_of()
    state = state_of(critics)
    same = state._replace(online=state.online._replace(ensemble=jax.tree.map(lambda x: x[:1].repeat(2, 0),
                          state.online.ensemble)))  # fmt: skip
    values = critics.values(same.online, same.statistics, data.obs, data.action, KEY)
    assert float(jnp.abs(values[0] - values[1]).min()) > 0, "equal critics, different masks"
    for measure in (
        lambda key: critics.target(state, data, data.action, key),
        lambda key: critics.actor_objective(state, data.obs, data.action, key),
        lambda key: critics.update(state, data, data.action, 1e-3, key, data.reward)[1]["critic_loss"],
    ):
        one, two, three = (measure(jax.random.key(seed)) for seed in (0, 0, 1))
        np.testing.assert_array_equal(one, two)
        assert not np.allclose(one, three)
    plain = ensemble(Torso(hidden=(8,), dropout=0.25), number=1)
    state = plain.init(SPEC, KEY)
    keys = jax.random.split(KEY, 4000)
    many = jax.vmap(lambda k: plain.values(state.online, {}, data.obs, data.action, k))(keys)
    before = critics_of(state.online.ensemble, float64(data.obs), float64(data.action))[0]
    # relu is not linear, but it commutes with a factor that is not negative, so the mean stays
    np.testing.assert_allclose(many[:, 0].mean(0), before, atol=0.05)


def renorm_of(x, mean, variance, batches, warmup):
    std, old = np.sqrt(x.var(0) + 1e-3), np.sqrt(variance + 1e-3)
    r, d = (np.clip(std / old, 1 / 3, 3), np.clip((x.mean(0) - mean) / old, -5, 5)) if batches >= warmup else (1, 0)
    return (x - x.mean(0)) / std * r + d


@pytest.mark.parametrize("warmup", [0, 100])
def test_batch_renormalisation(warmup: int):
    module = BatchRenorm(warmup=warmup)
    random = np.random.default_rng(0)
    variables = module.init(KEY, jnp.zeros((1, 3)))
    mean, variance = np.zeros(3), np.ones(3)
    for batches in range(5):
        x = random.normal(size=(32, 3)) * [1.0, 5.0, 0.1] + [0.0, 2.0, -9.0]
        found, changed = module.apply(variables, jnp.asarray(x, jnp.float32), mutable=["batch_stats"])
        np.testing.assert_allclose(found, renorm_of(x, mean, variance, batches, warmup), rtol=1e-3, atol=1e-3)
        mean, variance = 0.99 * mean + 0.01 * x.mean(0), 0.99 * variance + 0.01 * x.var(0)
        variables = {"params": variables["params"], **changed}
        np.testing.assert_allclose(changed["batch_stats"]["mean"], mean, rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(changed["batch_stats"]["variance"], variance, rtol=1e-4)
        assert float(changed["batch_stats"]["batches"]) == batches + 1
    x = random.normal(size=(4, 3))
    found = module.apply(variables, jnp.asarray(x, jnp.float32))
    np.testing.assert_allclose(found, (x - mean) / np.sqrt(variance + 1e-3), rtol=1e-3, atol=1e-4)


def crossq_of(params, x):
    """A critic of one hidden layer on a joint batch [2B, ...], normalised by that batch."""
    x = (x - x.mean(0)) / np.sqrt(x.var(0) + 1e-3)
    x = np.maximum(x @ params["torso"]["Dense_0"]["kernel"] + params["torso"]["Dense_0"]["bias"], 0)
    x = (x - x.mean(0)) / np.sqrt(x.var(0) + 1e-3)
    return (x @ params["head"]["Dense_0"]["kernel"] + params["head"]["Dense_0"]["bias"])[:, 0]


def test_crossq_has_no_targets_and_one_pass_for_both():
    critics, data = ensemble(Torso(hidden=(8,), norm="batch")), data_of()
    data = data._replace(valid=jnp.ones(16))
    state = state_of(critics)
    assert state.target == () and critics.update_targets(state, 0.1) is state
    next_action = -data.action
    after, metrics = critics.update(state, data, next_action, 1e-3, KEY)
    both = np.concatenate(
        [np.concatenate([data.obs, data.action], -1), np.concatenate([data.next_obs, next_action], -1)]
    )
    values = np.stack(
        [
            crossq_of(jax.tree.map(lambda x, i=i: float64(x[i]), state.online.ensemble), both.astype(np.float64))
            for i in range(2)
        ]
    )
    target = float64(data.reward) + float64(data.discount) * values[:, 16:].min(0)
    errors = ((values[:, :16] - target) ** 2)[:, float64(data.valid) > 0]
    np.testing.assert_allclose(metrics["critic_loss"], errors.mean(1).sum(), rtol=1e-3)
    running = after.statistics["torso"]["BatchRenorm_0"]["mean"]
    np.testing.assert_allclose(running, np.tile(0.01 * both.mean(0), (2, 1)), rtol=1e-3, atol=1e-6)
    # The actor objective uses the running statistics: no row depends on another.
    together = critics.actor_objective(after, data.obs, data.action, KEY)[:3]
    np.testing.assert_allclose(together, critics.actor_objective(after, data.obs[:3], data.action[:3], KEY), rtol=1e-5)


def test_crossq_takes_no_gradient_through_the_target():
    """Only the batch's statistics join the two halves: with a discount of 0 or not, dL/dQ(s', a') is that of them."""
    critics, data = ensemble(Torso(hidden=(8,), norm="batch"), number=1), data_of()
    state = state_of(critics)
    ones = data._replace(discount=jnp.ones(16), valid=jnp.ones(16))
    head = state.online.ensemble["head"]["Dense_0"]["bias"]
    after, _ = critics.update(state, ones, data.action, 1e-3, KEY)
    gradient = after.optimiser.mu.ensemble["head"]["Dense_0"]["bias"] / 0.1

    def error(bias):
        params = jax.tree.map(lambda x: float64(x[0]), state.online.ensemble)
        both = np.concatenate(
            [np.concatenate([data.obs, data.action], -1), np.concatenate([data.next_obs, data.action], -1)]
        )
        values = crossq_of(params, both.astype(np.float64))
        target = float64(data.reward) + values[16:]
        return float(((values[:16] + bias - target) ** 2).mean())

    expected = (error(1e-5) - error(-1e-5)) / 2e-5
    np.testing.assert_allclose(gradient[0, 0], expected, rtol=1e-3)
    assert head.shape == (1, 1)


# Distributional critics.


def histogram_of(value: float, low: float, high: float, bins: int) -> np.ndarray:
    width = (high - low) / bins
    edges = low + width * np.arange(bins + 1)
    value = min(max(value, low), high)
    below = np.array([math.erf((e - value) / (math.sqrt(2) * 0.75 * width)) for e in edges])
    return np.diff(below) / (below[-1] - below[0])


@pytest.mark.parametrize("value", [-3.0, -1.7, 0.0, 0.123, 1.9, 50.0])
def test_hl_gauss(value: float):
    histogram = Histogram(-2.0, 2.0, 41)
    found = histogram.probabilities(jnp.float32(value))
    expected = histogram_of(value, -2.0, 2.0, 41)
    np.testing.assert_allclose(found, expected, atol=1e-5)
    np.testing.assert_allclose(found.sum(), 1.0, rtol=1e-5)
    if abs(value) < 1.8:
        np.testing.assert_allclose(histogram.value(jnp.log(found + 1e-9)), value, atol=0.01)
    logits = np.random.default_rng(0).normal(size=(2, 41))
    log_softmax = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    loss = histogram.cross_entropy(jnp.asarray(logits[:, None], jnp.float32), jnp.full(1, value))
    np.testing.assert_allclose(loss[:, 0], -(expected * log_softmax).sum(-1), rtol=1e-4)


def test_distributional_critics_learn_a_value():
    critics, data = ensemble(bins=41, low=-2.0, high=2.0), data_of()
    state = state_of(critics)
    goal = jnp.sin(3.0 * data.obs[:, 0])
    step = jax.jit(lambda s: critics.update(s, data, data.action, 1e-2, KEY, goal)[0])
    for _ in range(300):
        state = step(state)
    values = critics.values(state.online, {}, data.obs, data.action, KEY)
    valid = float64(data.valid) > 0
    assert np.abs((float64(values) - float64(goal))[:, valid]).max() < 0.1


# Losses of the TD error.


def test_the_critics_take_the_loss_of_their_config():
    """And the slope of Huber's is at most delta."""
    networks = Networks(Torso(hidden=(8,)), Torso(hidden=(8,)))
    data = Transition(jnp.ones((4, 3)), jnp.zeros((4, 2)), *jnp.zeros((2, 4)), jnp.ones((4, 3)), jnp.ones(4))
    for critics, loss in (
        (Critics(td_loss="absolute"), lambda e: e),
        (Critics(td_loss="huber", huber_delta=2.0), lambda e: 2.0 * (e - 1.0)),
    ):
        ensemble = Ensemble(critics, networks, Optimiser(), SPEC)
        state = ensemble.init(jax.random.key(0))
        target = jnp.full(4, 50.0)
        values = np.asarray(ensemble.values(state.online, {}, data.obs, data.action, jax.random.key(0)), np.float64)
        after, metrics = ensemble.update(state, data, data.action, 0.0, jax.random.key(0), target)
        np.testing.assert_allclose(metrics["critic_loss"], loss(np.abs(values - 50.0)).mean(1).sum(), rtol=1e-5)
        slope = np.asarray(after.optimiser.mu.ensemble["head"]["Dense_0"]["bias"]) / 0.1
        np.testing.assert_allclose(slope, -2.0 if critics.td_loss == "huber" else -1.0, rtol=1e-5)


def test_losses_that_do_not_fit():
    with pytest.raises(CoveyError, match="`td_loss` huber and `bins` exclude each other"):
        Critics(td_loss="huber", bins=11)
    with pytest.raises(CoveyError, match="`huber_delta` is for `td_loss` huber, not squared"):
        Critics(huber_delta=2.0)
    with pytest.raises(CoveyError, match="`huber_delta` must be positive"):
        Critics(td_loss="huber", huber_delta=0.0)
    with pytest.raises(CoveyError, match="`td_loss` must be one of squared, huber, absolute"):
        Critics(td_loss="cubic")  # type: ignore[arg-type]


# The optimiser.


def test_weight_decay_is_adamw_and_spares_biases():
    params = {"kernel": jnp.array([1.0, -2.0]), "bias": jnp.array([1.0, -2.0]), "scale": jnp.array([3.0])}
    gradient = jax.tree.map(lambda x: 0.1 * x + 0.3, params)
    mask = {"kernel": True, "bias": False, "scale": False}
    ours, theirs = Optimiser("adamw", weight_decay=0.1), optax.adamw(0.01, weight_decay=0.1, mask=mask)
    one, state = params, ours.init(params)
    two, their_state = params, theirs.init(params)
    for _ in range(5):
        one, state = ours.step(one, gradient, state, 0.01)
        with jax.numpy_dtype_promotion("standard"):
            updates, their_state = theirs.update(gradient, their_state, two)
        two = optax.apply_updates(two, updates)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6), one, two)


@pytest.mark.parametrize(("length", "expected"), [(0.5, 0.5), (5.0, 2.0)])
def test_long_gradients_are_cut_to_the_norm(length: float, expected: float):
    gradient = {"a": jnp.array([3.0, 0.0]) * length / 5, "b": jnp.array([4.0]) * length / 5}
    optimiser = Optimiser(clip_norm=2.0)
    _, state = optimiser.step(gradient, gradient, optimiser.init(gradient), 0.01)
    moment = np.concatenate([np.asarray(x) for x in jax.tree.leaves(state.mu)]) / 0.1
    np.testing.assert_allclose(np.linalg.norm(moment), expected, rtol=1e-5)
    np.testing.assert_allclose(moment / expected, [0.6, 0.0, 0.8], rtol=1e-5)


def test_beta1():
    params = {"w": jnp.ones(1)}
    _, state = Optimiser(beta1=0.5).step(params, params, Optimiser(beta1=0.5).init(params), 0.01)
    np.testing.assert_allclose(state.mu["w"], 0.5)


# Rewards over the deviation of the return.


def test_rewards_over_the_running_deviation_of_the_return():
    """Follows the first environment's return, from 0 in each episode, through any split into rollouts."""
    random = np.random.default_rng(0)
    reward, last = random.normal(size=(60, 2)), random.random((60, 2)) < 0.1
    reward[last] = 0.0
    normaliser = Normalise(rewards=True)
    statistics = normaliser.init(3)

    def rollout(rows: slice) -> Step:
        zeros = jnp.zeros((60, 2))[rows]
        return Step(jnp.zeros((60, 2, 3))[rows], zeros[..., None], jnp.asarray(reward[rows], jnp.float32), zeros,
                    jnp.zeros((60, 2, 3))[rows], jnp.asarray(1.0 - last[rows], jnp.float32), {})  # fmt: skip

    for start in (0, 7, 30):
        end = {0: 7, 7: 30, 30: 60}[start]
        statistics = normaliser.observe(statistics, rollout(slice(start, end)), 0.9)
    returns, running = [], 0.0
    for r, end in zip(reward[:, 0], last[:, 0], strict=True):
        running = 0.0 if end else 0.9 * running + r
        returns += [] if end else [running]
    assert float(statistics.returns.rows) == len(returns) < 60
    np.testing.assert_allclose(float(statistics.running), running, rtol=1e-5)
    batch = rollout(slice(0, 60))
    found = normaliser.batch(statistics, batch, 2.0).reward
    np.testing.assert_allclose(found, 2.0 * reward / np.std(returns), rtol=1e-3)
    untouched = Normalise().batch(statistics, batch, 2.0)
    np.testing.assert_allclose(untouched.reward, 2.0 * reward, rtol=1e-6)


# bfloat16 products.


def bfloat16(x) -> np.ndarray:
    return float64(jnp.asarray(x, jnp.float32).astype(jnp.bfloat16).astype(jnp.float32))


def test_products_are_rounded_to_bfloat16_and_summed_up_in_float32():
    random = np.random.default_rng(0)
    x, weight, slope = (random.normal(size=s).astype(np.float32) for s in ((5, 40), (40, 3), (5, 3)))
    module = dense(3)
    params = {"params": {"kernel": jnp.asarray(weight), "bias": jnp.full(3, 1e-4)}}
    exact, back = jax.vjp(module.apply, params, jnp.asarray(x))
    np.testing.assert_allclose(exact, x @ weight + 1e-4, rtol=1e-4, atol=1e-5)
    with jax.default_matmul_precision("bfloat16"):
        found, back = jax.vjp(module.apply, params, jnp.asarray(x))
    np.testing.assert_allclose(found, bfloat16(x) @ bfloat16(weight) + 1e-4, rtol=1e-5, atol=1e-5)
    assert float(jnp.abs(found - exact).max()) > 1e-4 and found.dtype == jnp.float32
    gradient, to_input = back(jnp.asarray(slope))
    np.testing.assert_allclose(to_input, bfloat16(slope) @ bfloat16(weight).T, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(gradient["params"]["kernel"], bfloat16(x).T @ bfloat16(slope), rtol=1e-4, atol=1e-5)
