"""SAC's policy, targets and losses against a reference written in NumPy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from covey.agents.sac import SAC, SACConfig, SACHyper, SACState
from covey.nn.critics import Critics
from covey.nn.distributions import TanhNormal, log_tanh_slope
from covey.nn.normalise import Normalise
from covey.nn.parts import Networks, Torso
from covey.nn.returns import n_step
from covey.types import Step
from tests.reference import SPEC, batch_of, critics_of, dense, dirty, hidden

SMALL = Networks(Torso(hidden=(8,)), Torso(hidden=(8,)), actor_head="tanh_normal")
HYPER = SACHyper(discount=0.9, reward_scale=2.0, temperature=0.5, target_entropy=-0.7, tau=0.1)


def agent(**options) -> SAC:
    return SAC(SACConfig(**({"networks": SMALL, "batch_size": 16} | options)), SPEC)


def state_of(sac: SAC) -> SACState:
    """A state whose targets differ from the online critics, and whose temperature was learnt."""
    state, other = (sac.init(HYPER, jax.random.key(seed)) for seed in (0, 1))
    return state._replace(
        critic=state.critic._replace(target=other.critic.online), temperature=jnp.asarray(0.3, jnp.float32)
    )


# The reference, in NumPy.


ALPHA = 0.5 * np.exp(0.3)


def policy_of(params, obs):
    mean, log_std = np.split(dense(params["head"]["Dense_0"], hidden(params, obs)), 2, -1)
    return mean, np.clip(log_std, -10, 2)


def sample_of(params, obs, noise):
    mean, log_std = policy_of(params, obs)
    u = mean + np.exp(log_std) * noise
    normal = -0.5 * noise**2 - log_std - 0.5 * np.log(2 * np.pi)
    return np.tanh(u), (normal - np.log(1 - np.tanh(u) ** 2)).sum(-1)


def target_of(state: SACState, batch: Step, noise: np.ndarray) -> np.ndarray:
    """y for each window, step by step."""
    targets = np.zeros(batch.reward.shape[0])
    for b in range(len(targets)):
        reward, discount, bootstrap, steps = 0.0, 1.0, 1.0, 0
        for t in range(batch.reward.shape[1]):
            if not batch.valid[b, t]:
                break
            reward += discount * 2.0 * float(batch.reward[b, t])
            discount *= 0.9
            bootstrap, steps = 1.0 - float(batch.terminated[b, t]), t + 1
        if steps:
            next_obs = np.asarray(batch.next_obs[b, steps - 1], np.float64)
            action, log_prob = sample_of(state.actor, next_obs, noise[b])
            value = critics_of(state.critic.target.ensemble, next_obs, action).min()
            targets[b] = reward + bootstrap * discount * (value - ALPHA * log_prob)
    return targets


def noise_of(sac: SAC, key) -> tuple[np.ndarray, np.ndarray]:
    """The noise that an update draws: for the actor, and for the next actions."""
    size, key = sac.config.batch_size, jax.random.split(key, 2 + sac.config.policy_delay)[0]
    noise = jax.random.normal(key, ((sac.config.policy_delay + 1) * size, SPEC.action_size))
    return np.asarray(noise[:size], np.float64), np.asarray(noise[size:], np.float64)


def log_prob_in_high_precision(mean: float, log_std: float, noise: float) -> float:
    """From the density of u itself, with 1 - tanh(u)^2 = 4 e^(-2|u|) / (1 + e^(-2|u|))^2 in float64."""
    u = abs(mean + np.exp(log_std) * noise)
    slope = np.log(4.0) - 2 * u - 2 * np.log1p(np.exp(-2 * u))
    return -0.5 * noise**2 - log_std - 0.5 * np.log(2 * np.pi) - slope


def test_log_probability_at_ordinary_and_saturated_actions():
    means = np.array([-40.0, -12.0, -3.0, 0.0, 0.4, 9.0, 30.0])
    found_action, found = TanhNormal(jnp.asarray(means[:, None], jnp.float32), jnp.full((7, 1), -0.5)).sample(
        jnp.full((7, 1), 0.3)
    )
    expected = [log_prob_in_high_precision(m, -0.5, 0.3) for m in means]
    np.testing.assert_allclose(found, expected, rtol=1e-5)
    assert float(found_action[0, 0]) == -1.0 and float(found_action[-1, 0]) == 1.0, "these must round to the bounds"
    gradient = jax.grad(log_tanh_slope)
    np.testing.assert_allclose([gradient(jnp.float32(u)) for u in (-40.0, 30.0)], [2.0, -2.0], rtol=1e-6)


def test_probabilities_of_one_dimension_sum_to_one():
    policy = TanhNormal(jnp.full((20_001, 1), 0.4), jnp.full((20_001, 1), -0.7))
    action = np.linspace(-1 + 1e-6, 1 - 1e-6, 20_001)
    noise = (np.arctanh(action) - 0.4) / np.exp(-0.7)
    _, log_prob = policy.sample(jnp.asarray(noise[:, None], jnp.float32))
    np.testing.assert_allclose(np.trapezoid(np.exp(np.asarray(log_prob, np.float64)), action), 1.0, rtol=1e-3)


@pytest.mark.parametrize(("steps", "critics"), [(1, 1), (3, 2), (3, 5)])
def test_one_update_by_hand(steps: int, critics: int):
    """The critics' loss holds the target, with terminations, time limits, reward scale and the entropy's bonus."""
    sac = agent(n_step=steps, critics=Critics(critics))
    state, batch, key = state_of(sac), batch_of(sac), jax.random.key(3)
    after, metrics = sac.update(state, HYPER, batch, key)
    noise, next_noise = noise_of(sac, key)
    target = target_of(state, batch, next_noise)
    valid = np.asarray(batch.valid[:, 0]) > 0
    assert 2 < valid.sum() < 16
    obs, action = (np.asarray(x[:, 0], np.float64) for x in (batch.obs, batch.action))
    errors = (critics_of(state.critic.online.ensemble, obs, action) - target) ** 2
    np.testing.assert_allclose(metrics["critic_loss"], errors[:, valid].mean(1).sum(), rtol=1e-4)

    new_action, log_prob = sample_of(state.actor, obs, noise)
    value = critics_of(after.critic.online.ensemble, obs, new_action).min(0)
    np.testing.assert_allclose(metrics["actor_loss"], (ALPHA * log_prob - value)[valid].mean(), rtol=1e-3)
    np.testing.assert_allclose(metrics["entropy"], -log_prob[valid].mean(), rtol=1e-4)
    np.testing.assert_allclose(metrics["temperature"], ALPHA, rtol=1e-5)


def test_actor_gradient_against_finite_differences():
    sac = agent()
    state, batch = state_of(sac), batch_of(sac)
    data = n_step(batch, 0.9)
    noise = jax.random.normal(jax.random.key(0), (16, 2))
    after, _ = sac.update_actor(state, HYPER, data, noise, jax.random.key(0))
    valid, obs = np.asarray(data.valid) > 0, np.asarray(data.obs, np.float64)
    bias = np.asarray(state.actor["head"]["Dense_0"]["bias"], np.float64)

    def loss(shift: np.ndarray) -> float:
        head = {"kernel": state.actor["head"]["Dense_0"]["kernel"], "bias": bias + shift}
        actor = {"torso": state.actor["torso"], "head": {"Dense_0": head}}
        action, log_prob = sample_of(actor, obs, np.asarray(noise, np.float64))
        value = critics_of(state.critic.online.ensemble, obs, action).min(0)
        return float((ALPHA * log_prob - value)[valid].mean())

    slope = [(loss(1e-5 * e) - loss(-1e-5 * e)) / 2e-5 for e in np.eye(4)]
    moment = np.asarray(after.actor_optimiser.mu["head"]["Dense_0"]["bias"]) / 0.1
    np.testing.assert_allclose(moment, slope, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize(("target", "rises"), [(5.0, True), (-5.0, False)])
def test_the_temperature_moves_towards_the_target_entropy(target: float, rises: bool):
    """Too little entropy raises the temperature, too much lowers it; the slope is entropy minus target."""
    sac = agent()
    state, batch = state_of(sac), batch_of(sac)
    after, metrics = sac.update(state, HYPER._replace(target_entropy=target), batch, jax.random.key(0))
    assert (float(after.temperature) > float(state.temperature)) == rises
    slope = float(metrics["entropy"]) - target * SPEC.action_size
    np.testing.assert_allclose(after.temperature_optimiser.mu, 0.1 * slope, rtol=1e-4)


def test_a_fixed_temperature_is_the_hyper_parameter():
    sac = agent(fixed_temperature=True)
    state = sac.init(HYPER, jax.random.key(0))
    for i in range(3):
        state, metrics = sac.update(state, HYPER, batch_of(sac, i), jax.random.key(i))
        assert float(metrics["temperature"]) == 0.5
    assert float(sac.temperature(state, HYPER._replace(temperature=0.2))) == pytest.approx(0.2)


def test_invalid_transitions_change_nothing():
    sac = agent(n_step=3)
    state, batch = state_of(sac), batch_of(sac)
    one, _ = sac.update(state, HYPER, batch, jax.random.key(0))
    two, _ = sac.update(state, HYPER, dirty(batch), jax.random.key(0))
    for a, b in ((one.actor, two.actor), (one.critic, two.critic), (one.temperature, two.temperature)):
        jax.tree.map(np.testing.assert_array_equal, a, b)


@pytest.mark.parametrize("delay", [1, 3])
def test_delayed_updates(delay: int):
    sac = agent(policy_delay=delay)
    state = state_of(sac)
    assert sac.plan == (16 * delay, 1, delay)
    after, _ = sac.update(state, HYPER._replace(critic_lr=0.0), batch_of(sac), jax.random.key(0))
    assert int(after.critic.optimiser.count) == delay
    assert int(after.actor_optimiser.count) == int(after.temperature_optimiser.count) == 1
    left = 0.9**delay
    jax.tree.map(
        lambda t, o, w: np.testing.assert_allclose(t, left * o + (1 - left) * w, atol=1e-6),
        *(jax.tree.map(np.asarray, x) for x in (after.critic.target, state.critic.target, state.critic.online)),
    )


def test_a_shared_encoder_learns_from_the_critics_alone():
    networks = Networks(Torso(hidden=(8,)), Torso(hidden=(8,)), Torso(hidden=(4,)), True, actor_head="tanh_normal")
    sac = agent(networks=networks)
    state = sac.init(HYPER, jax.random.key(0))
    data = n_step(batch_of(sac), 0.9)
    after, _ = sac.update_actor(state, HYPER, data, jnp.zeros((16, 2)), jax.random.key(0))
    jax.tree.map(np.testing.assert_array_equal, after.critic, state.critic)
    after, _ = sac.update(state, HYPER, batch_of(sac), jax.random.key(0))
    encoders = after.critic.online.encoder, state.critic.online.encoder
    assert max(jax.tree.leaves(jax.tree.map(lambda a, b: float(jnp.abs(a - b).max()), *encoders))) > 0


def test_modes():
    sac = agent(normalise=Normalise(observations=True))
    state = sac.init(HYPER, jax.random.key(0))
    state = sac.observe(state, HYPER, batch_of(sac)._replace(obs=5.0 + 3.0 * batch_of(sac).obs), jax.random.key(0))
    obs, keys = jnp.array([8.0, 2.0, 5.0]), jax.random.split(jax.random.key(1), 4000)
    stats = state.statistics.observations
    normalised = (np.asarray(obs) - np.asarray(stats.mean)) / np.sqrt(np.asarray(stats.squares) / float(stats.rows))
    mean, log_std = policy_of(state.actor, normalised)

    def actions(mode):
        return np.asarray(jax.vmap(lambda k: sac.act(state, HYPER, (), obs, k, mode).action)(keys))

    np.testing.assert_allclose(actions("greedy"), np.tile(np.tanh(mean), (4000, 1)), atol=1e-4)
    before_tanh = np.arctanh(np.clip(actions("sample"), -1 + 1e-7, 1 - 1e-7))
    np.testing.assert_allclose(before_tanh.mean(0), mean, atol=0.1)
    np.testing.assert_allclose(before_tanh.std(0), np.exp(log_std), rtol=0.1)
    np.testing.assert_allclose(actions("random").std(0), 1 / np.sqrt(3), rtol=0.05)


def test_targets_can_move_at_every_third_critic_update():
    """Two critic updates per call: the targets move in the second call, at its first update."""
    sac = agent(policy_delay=2, target_update_period=3)
    hyper = HYPER._replace(critic_lr=0.0)
    state = state_of(sac)
    ages, shares = [], []
    for i in range(3):
        after, _ = sac.update(state, hyper, batch_of(sac, i), jax.random.key(i))
        trees = (state.critic.target, after.critic.target, state.critic.online)
        old, new, online = (float(x.ensemble["torso"]["Dense_0"]["kernel"][0, 0, 0]) for x in trees)
        shares.append((new - old) / (online - old))
        ages.append(int(after.target_age))
        state = after
    assert ages == [2, 1, 0]
    np.testing.assert_allclose(shares, [0.0, 0.1, 0.1], atol=1e-5)


def test_metrics_by_hand():
    """Of the first critic, the temperature, and the observations as they are in the replay."""
    sac = agent(normalise=Normalise(observations=True), diagnostics=True)
    state = state_of(sac)
    batch = dirty(batch_of(sac))
    _, metrics = jax.jit(sac.update)(state, HYPER, batch, jax.random.key(1))
    valid = np.asarray(batch.valid[:, 0]) > 0
    obs = np.asarray(batch.obs[:, 0])[valid]
    np.testing.assert_allclose(metrics["obs_mean"], obs.mean(), rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(metrics["obs_std"], obs.std(), rtol=1e-4)
    slope = float(metrics["entropy"]) - HYPER.target_entropy * 2
    np.testing.assert_allclose(metrics["temperature_loss"], np.log(ALPHA) * slope, rtol=1e-4)
    clean = batch_of(sac)
    y = target_of(state, clean, noise_of(sac, jax.random.key(1))[1])[valid]
    action = np.asarray(clean.action[:, 0], np.float64)[valid]
    values = critics_of(state.critic.online.ensemble, obs.astype(np.float64), action)
    for critic, q in enumerate(values):
        np.testing.assert_allclose(metrics[f"critic_{critic}_q_mean"], q.mean(), rtol=1e-3, atol=1e-5)
        np.testing.assert_allclose(metrics[f"critic_{critic}_td_error_std"], (y - q).std(), rtol=1e-3)
    np.testing.assert_allclose(metrics["q_std"], values[0].std(), rtol=1e-3)
    np.testing.assert_allclose([metrics["target_mean"], metrics["target_std"]], [y.mean(), y.std()], rtol=1e-3)
    explained = max(-1.0, 1 - (y - values[0]).var() / y.var())
    np.testing.assert_allclose(metrics["explained_variance"], explained, rtol=1e-3)
    np.testing.assert_allclose(metrics["target_histogram"].sum(), 1.0, rtol=1e-5)
    assert (
        "temperature_loss"
        not in jax.eval_shape(agent(fixed_temperature=True).update, state, HYPER, batch, jax.random.key(1))[1]
    )
