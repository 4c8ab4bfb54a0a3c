"""TAAC's trajectories, switch, targets and losses against references written in NumPy."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import covey
from covey.agents.taac import TAAC, TAACConfig, TAACHyper, TAACMemory, TAACState
from covey.agents.targets import TARGETS
from covey.errors import CoveyError
from covey.nn.parts import Networks, Torso
from covey.nn.returns import compare_through
from covey.types import Step
from tests.reference import SPEC, batch_of, dense, hidden

NETWORKS = Networks(Torso(hidden=(8,)), Torso(hidden=(8,)), actor_head="tanh_normal")
HYPER = TAACHyper(discount=0.9, reward_scale=2.0, action_temperature=0.5, switch_temperature=0.3, tau=0.1)
TWO_REWARDS = dataclasses.replace(SPEC, rewards=("gain", "cost"), reward_weights=(2.0, -0.5))


def agent(order: int = 0, spec=SPEC, **options) -> TAAC:
    options = {"networks": NETWORKS, "batch_size": 16, "embedding": 4} | options
    return TAAC(TAACConfig(**options), spec, order)


def state_of(taac: TAAC) -> TAACState:
    """A state whose target critics differ from the online ones."""
    state, other = (taac.init(HYPER, jax.random.key(seed)) for seed in (0, 1))
    return state._replace(target_critic=other.critic)


def windows_of(taac: TAAC, seed: int = 0) -> Step:
    """Random windows with trajectories, switches, terminations and ends at random places."""
    batch, random = batch_of(taac, seed), np.random.default_rng(seed)
    shape, size = batch.reward.shape, (taac.order + 1) * SPEC.action_size

    def box(*tail):
        return jnp.asarray(random.uniform(-1, 1, shape + tail), jnp.float32)

    extras = {
        "previous": box(size),
        "trajectory": box(size),
        "repeated": jnp.asarray(random.random((*shape, 1)) < 0.6, jnp.float32),
    }
    if taac.spec.rewards:
        extras["rewards"] = box(len(taac.spec.rewards))
    return batch._replace(extras=extras)


# The reference, in NumPy.


def clip(x):
    return np.clip(x, -1, 1)


def carry_on(order, tau):
    tau = [np.array(row, np.float64) for row in tau]
    if order == 2:
        tau[1] = clip(tau[1] + 2 * tau[2])
    if order >= 1:
        tau[0] = clip(tau[0] + 2 * tau[1])
    return np.stack(tau)


def start(order, inverse, x, previous):
    a = np.asarray(previous[0], np.float64)
    if order == 0:
        return np.stack([x])
    if inverse:
        return np.stack([x, (x - a) / 2, (x - a) / 4][: order + 1])
    if order == 1:
        return np.stack([clip(a + 2 * x), x])
    return np.stack([clip(a + 2 * clip(2 * x)), clip(2 * x), x])


def values_of(ensemble, obs, tau):
    """Q of every critic and reward, [critics, rewards]."""
    x = np.concatenate([obs, np.asarray(tau).reshape(-1)])
    members = jax.tree.leaves(ensemble)[0].shape[0]
    each = [jax.tree.map(lambda p, i=i: np.asarray(p[i]), ensemble) for i in range(members)]
    return np.stack([dense(p["head"]["Dense_0"], hidden(p, x)) for p in each])


def conservative_of(ensemble, obs, tau, weights):
    values = values_of(ensemble, obs, tau)
    return np.array([values[:, d].max() if w < 0 else values[:, d].min() for d, w in enumerate(weights)])


def proposal_of(actor, obs, previous, noise):
    parts = [dense(actor[f"Dense_{i}"], np.asarray(row, np.float64)) for i, row in enumerate(previous)]
    body = actor["actor"]
    mean, log_std = np.split(dense(body["head"]["Dense_0"], hidden(body, np.concatenate([obs, *parts]))), 2)
    u = mean + np.exp(np.clip(log_std, -10, 2)) * noise
    log_prob = -0.5 * noise**2 - np.clip(log_std, -10, 2) - 0.5 * np.log(2 * np.pi) - np.log(1 - np.tanh(u) ** 2)
    return np.tanh(u), log_prob.sum()


def by_hand(taac: TAAC, state: TAACState, batch: Step, noise: np.ndarray, kind: str, sampled: np.ndarray | None):
    """beta_1, y [B, T - 1, rewards] and the actor's loss of every step, one window at a time."""
    weights, shape = np.array(taac.weights), batch.reward.shape
    rewards = np.asarray(batch.extras["rewards"] if taac.spec.rewards else batch.reward[..., None], np.float64)
    trajectories = np.asarray(batch.extras["previous"], np.float64).reshape(*shape, taac.order + 1, -1)
    beta, losses = np.zeros(shape), np.zeros(shape)
    y = np.zeros((shape[0], shape[1] - 1, len(weights)))
    for b in range(shape[0]):
        value, fresh = np.zeros((shape[1], len(weights))), np.zeros((shape[1], len(weights)))
        for t in range(shape[1]):
            obs, previous = np.asarray(batch.obs[b, t], np.float64), trajectories[b, t]
            x, log_prob = proposal_of(state.actor, obs, previous, noise[b, t])
            old, new = carry_on(taac.order, previous), start(taac.order, taac.config.inverse, x, previous)
            q_old, q_new = (conservative_of(state.critic.ensemble, obs, tau, weights) @ weights for tau in (old, new))
            beta[b, t] = 1 / (1 + np.exp(-(q_new - q_old) / 0.3))
            losses[b, t] = 0.5 * log_prob - beta[b, t] * q_new
            target_old, target_new = (
                conservative_of(state.target_critic.ensemble, obs, tau, weights) for tau in (old, new)
            )
            value[t] = (1 - beta[b, t]) * target_old + beta[b, t] * target_new
            fresh[t] = target_new
        acc = value[-1]
        for t in range(shape[1] - 2, -1, -1):
            y[b, t] = 2.0 * rewards[b, t] + 0.9 * (1 - float(batch.terminated[b, t])) * acc
            if not batch.valid[b, t] or not batch.extras["repeated"][b, t, 0]:
                acc = value[t]
            elif kind == "expected":
                acc = (1 - beta[b, t]) * y[b, t] + beta[b, t] * fresh[t]
            elif sampled[b, t]:
                acc = fresh[t] if kind == "sampled" else value[t]
            else:
                acc = y[b, t]
    return beta, y, losses


def test_trajectories_continue_and_start_with_saturation():
    random = np.random.default_rng(0)
    saturated = 0
    for order in (0, 1, 2):
        for inverse in (True, False):
            taac = agent(order, inverse=inverse)
            for _ in range(20):
                previous = random.uniform(-1, 1, (order + 1, 2)).astype(np.float32)
                x = random.uniform(-1, 1, 2).astype(np.float32)
                found = taac.trajectories.carry_on(jnp.asarray(previous))
                np.testing.assert_allclose(found, carry_on(order, previous), atol=1e-6)
                saturated += order > 0 and bool((jnp.abs(found[0]) == 1).any())
                begun = taac.trajectories.start(jnp.asarray(x), jnp.asarray(previous))
                np.testing.assert_allclose(begun, start(order, inverse, x, previous), atol=1e-6)
                assert float(jnp.abs(begun).max()) <= 1.0
                if inverse:
                    np.testing.assert_allclose(begun[0], x, atol=1e-6)
    assert saturated > 10


def test_a_new_parabola_from_rest_is_its_own_continuation():
    """NEW with `inverse` is the trajectory that CONTINUE makes of (a-, 0, u): v = 2u, a = a- + 2v."""
    taac, a, x = agent(2), jnp.array([0.1, -0.2]), jnp.array([0.5, 0.3])
    begun = taac.trajectories.start(x, jnp.stack([a, 0 * a, 0 * a]))
    np.testing.assert_allclose(taac.trajectories.carry_on(jnp.stack([a, 0 * a, begun[2]])), begun, atol=1e-6)


@pytest.mark.parametrize(("order", "kind"), [(0, "expected"), (1, "expected"), (2, "sampled"), (1, "alf")])
def test_target_switch_and_actor_loss_by_hand(order: int, kind: str):
    """Random switches, boundaries and terminations, two rewards of different signs."""
    taac = agent(order, TWO_REWARDS, target=kind)
    state, batch, key = state_of(taac), windows_of(taac), jax.random.key(2)
    scaled = taac.config.normalise.batch(state.statistics, batch, HYPER.reward_scale)
    noise = jax.random.normal(jax.random.key(1), batch.action.shape)
    _, choice, metrics = taac.update_actor(state, HYPER, scaled, noise)
    sampled = np.asarray(jax.random.bernoulli(key, choice.beta[..., None]))[..., 0]
    found, steps = taac.target(state, HYPER, scaled, choice, key)
    beta, y, losses = by_hand(taac, state, batch, np.asarray(noise, np.float64), kind, sampled)
    valid = np.asarray(batch.valid) > 0
    np.testing.assert_allclose(choice.beta, beta, rtol=1e-3, atol=1e-4)
    assert valid[:, :-1].sum() > 20 and (~valid).sum() > 5
    np.testing.assert_allclose(np.asarray(found)[valid[:, :-1]], y[valid[:, :-1]], rtol=1e-3, atol=1e-3)
    np.testing.assert_allclose(metrics["actor_loss"], losses[valid].mean(), rtol=1e-3, atol=1e-4)
    assert float(steps.min()) >= 1.0 and 1.0 < float(steps.mean()) < 3.0


def test_a_target_of_your_own(monkeypatch):
    """A copy of `expected` gives the same update to the bit; TD(lambda) goes through switches, not through ends."""
    monkeypatch.setattr("covey.agents.targets.TARGETS", dict(TARGETS))

    @covey.register_target("copy")
    def copy(inputs, key):
        keep = jnp.where(inputs.repeated, 1.0 - inputs.beta, 0.0)
        return keep, jnp.where(inputs.repeated, inputs.beta * inputs.new, inputs.value)

    @covey.register_target("td-lambda")
    def td_lambda(inputs, key):
        keep = jnp.full_like(inputs.value, 0.8)
        return keep, (1.0 - keep) * inputs.value

    one, two = agent(1, TWO_REWARDS), agent(1, TWO_REWARDS, target="copy")
    state, batch = state_of(one), windows_of(one)
    results = [jax.jit(each.update)(state, HYPER, batch, jax.random.key(0)) for each in (one, two)]
    jax.tree.map(np.testing.assert_array_equal, *results)

    taac = agent(1, TWO_REWARDS, target="td-lambda")
    _, choice, _ = taac.update_actor(state, HYPER, batch, jnp.zeros(batch.action.shape))
    found, _ = taac.target(state, HYPER, batch, choice, jax.random.key(0))
    weights = np.asarray(TWO_REWARDS.reward_weights)
    for b in range(len(found)):
        old, new = (
            np.stack([conservative_of(state.target_critic.ensemble, np.asarray(batch.obs[b, t], np.float64),
                                      np.asarray(each[b, t], np.float64), weights) for t in range(4)])
            for each in (choice.old, choice.new)
        )  # fmt: skip
        beta = np.asarray(choice.beta[b], np.float64)[:, None]
        value = (1 - beta) * old + beta * new
        acc = value[-1]
        for t in reversed(range(3)):
            y = np.asarray(batch.extras["rewards"][b, t]) + 0.9 * (1 - float(batch.terminated[b, t])) * acc
            if batch.valid[b, t]:
                np.testing.assert_allclose(found[b, t], y, rtol=1e-3, atol=1e-3)
            acc = 0.8 * y + 0.2 * value[t] if batch.valid[b, t] else value[t]
    with pytest.raises(covey.CoveyError, match="already a target called 'alf'"):
        covey.register_target("alf")


def test_targets_can_move_at_every_second_update():
    taac = agent(target_update_period=2)
    states = [state_of(taac)]
    for i in range(2):
        states.append(taac.update(states[-1], HYPER, windows_of(taac, i), jax.random.key(i))[0])
    jax.tree.map(np.testing.assert_array_equal, states[0].target_critic, states[1].target_critic)
    jax.tree.map(
        lambda t, o, w: np.testing.assert_allclose(t, 0.9 * np.asarray(o) + 0.1 * np.asarray(w), atol=1e-6),
        states[2].target_critic,
        states[1].target_critic,
        states[2].critic,
    )


@pytest.mark.parametrize("kind", ["squared", "huber"])
def test_the_loss_of_the_td_error(kind: str):
    taac = agent(td_loss=kind, **({"huber_delta": 0.5} if kind == "huber" else {}))
    state, batch = state_of(taac), windows_of(taac)
    _, choice, _ = taac.update_actor(state, HYPER, batch, jnp.zeros(batch.action.shape))
    target, _ = taac.target(state, HYPER, batch, choice, jax.random.key(0))
    _, metrics = taac.update_critic(state, HYPER, batch, choice, jax.random.key(0))
    values = taac.values(state.critic, batch.obs[:, :-1], taac.stored_trajectory(batch, "trajectory")[:, :-1])
    error = np.abs(np.asarray(values, np.float64) - np.asarray(target, np.float64)[None])[..., 0]
    each = {
        "squared": error**2,
        "huber": np.where(error <= 0.5, 0.5 * error**2, 0.5 * (error - 0.25)),
        "absolute": error,
    }[kind]
    valid = np.asarray(batch.valid)[:, :-1] > 0
    np.testing.assert_allclose(metrics["critic_loss"], each[:, valid].mean(1).sum(), rtol=1e-4)


@pytest.mark.parametrize(("kind", "bias"), [("expected", False), ("sampled", False), ("alf", True)])
def test_the_mean_of_the_target_in_a_table(kind: str, bias: bool):
    """One step before the end, behaviour repeated: the true value is beta_0 y + beta_1 Q_1.

    ALF's rule replaces Q_1 by the mixture V = beta_0 Q_0 + beta_1 Q_1: with y = Q_0 its mean is off by
    beta_0 beta_1 (Q_0 - Q_1), and by that times the discount one step earlier.
    """
    beta, q_old, q_new, many = 0.3, 5.0, 2.0, 200_000
    value = (1 - beta) * q_old + beta * q_new
    reward, discount = jnp.zeros((many, 3)), jnp.full((many, 3), 0.9)
    # The window: step 1 repeated, and its y is Q_0: acc_2 * 0.9 = Q_0.
    instead_last = q_old / 0.9
    if kind == "expected":
        keep, instead = jnp.full(many, 1 - beta), jnp.full(many, beta * q_new)
    else:
        keep = 1.0 - jax.random.bernoulli(jax.random.key(0), beta, (many,)).astype(jnp.float32)
        instead = (1.0 - keep) * (q_new if kind == "sampled" else value)
    zero = jnp.zeros(many)
    found = compare_through(
        reward, discount, jnp.stack([zero, keep, zero], 1), jnp.stack([zero, instead, zero + instead_last], 1)
    )[:, 0].mean()
    truth = 0.9 * value
    predicted = 0.9 * (1 - beta) * beta * (q_old - q_new) if bias else 0.0
    np.testing.assert_allclose(float(found) - truth, predicted, atol=0.02)
    assert not bias or predicted > 0.5


def test_beta_is_the_logistic_and_the_clip_keeps_it_above_one_half():
    state, obs = state_of(agent()), jax.random.normal(jax.random.key(0), (200, 3))
    previous = jax.random.uniform(jax.random.key(1), (200, 1, 2), minval=-1.0, maxval=1.0)
    x = jax.random.uniform(jax.random.key(2), (200, 2), minval=-1.0, maxval=1.0)
    plain = agent().compare(state, HYPER, obs, previous, x)
    np.testing.assert_allclose(plain.beta, 1 / (1 + np.exp(-np.asarray(plain.advantage, np.float64) / 0.3)), rtol=1e-4)
    assert float(plain.beta.min()) < 0.45
    clipped = agent(advantage_clip=(0.0, float("inf"))).compare(state, HYPER, obs, previous, x)
    assert float(clipped.beta.min()) >= 0.5
    np.testing.assert_allclose(clipped.value, plain.value, rtol=1e-6)


@pytest.mark.parametrize("mode", ["random", "sample", "greedy"])
def test_repeats_end_at_the_limit_and_a_forced_switch_is_stored(mode: str):
    taac = agent(max_repeat=3)
    state = state_of(taac)._replace(temperatures=jax.tree.map(jnp.asarray, (0.0, -9.0)))
    state = state._replace(temperatures=type(taac.init(HYPER, jax.random.key(0)).temperatures)(*state.temperatures))
    memory, actions, repeated, obs = taac.begin(state, HYPER, jax.random.key(0)), [], [], jnp.ones(3)
    act = jax.jit(lambda m, k: taac.act(state, HYPER, m, obs, k, mode))
    for key in jax.random.split(jax.random.key(1), 60):
        decision = act(memory, key)
        same = bool(jnp.all(decision.action == memory.trajectory[0]))
        assert same or not decision.extras["repeated"], "what is stored is what was done"
        actions.append(tuple(np.asarray(decision.action)))
        repeated.append(float(decision.extras["repeated"]))
        memory = decision.memory
        assert 1 <= int(memory.repeats) <= 3
    runs = "".join(str(int(r)) for r in repeated)
    assert "111" not in runs[1:], "a trajectory lasts three steps at most: one new, two repeated"
    assert "11" in runs, "and it does reach the limit"


def test_with_a_switch_at_every_step_and_windows_of_two_it_is_sac_without_its_entropy():
    taac = agent(window=2)
    state, batch = state_of(taac), windows_of(taac)
    state = state._replace(temperatures=state.temperatures._replace(switch=jnp.asarray(-30.0)))
    batch = batch._replace(extras=batch.extras | {"repeated": jnp.zeros_like(batch.extras["repeated"])})
    _, choice, _ = taac.update_actor(state, HYPER, batch, jnp.zeros(batch.action.shape))
    choice = choice._replace(beta=jnp.ones_like(choice.beta))
    found, _ = taac.target(state, HYPER, batch, choice, jax.random.key(0))
    for b in range(16):
        if batch.valid[b, 0]:
            value = values_of(
                state.target_critic.ensemble, np.asarray(batch.obs[b, 1], np.float64), choice.new[b, 1]
            ).min()
            expected = float(batch.reward[b, 0]) + 0.9 * (1 - float(batch.terminated[b, 0])) * value
            np.testing.assert_allclose(found[b, 0, 0], expected, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize(("order", "inverse"), [(1, False), (2, True)])
def test_actor_gradient_through_the_trajectory_against_finite_differences(order: int, inverse: bool):
    taac = agent(order, inverse=inverse)
    state, batch = state_of(taac), windows_of(taac)
    noise = jax.random.normal(jax.random.key(1), batch.action.shape)
    after, _, _ = taac.update_actor(state, HYPER, batch, noise)
    found = np.asarray(after.actor_optimiser.mu["actor"]["head"]["Dense_0"]["bias"]) / 0.1
    base, _, _ = by_hand(taac, state, batch, np.asarray(noise, np.float64), "expected", None)
    valid = np.asarray(batch.valid) > 0

    def loss(shift) -> float:
        """With beta_1 held at its value: the gradient does not pass through the switch."""
        head = state.actor["actor"]["head"]["Dense_0"]
        moved = {"kernel": head["kernel"], "bias": np.asarray(head["bias"], np.float64) + shift}
        actor = state.actor | {"actor": state.actor["actor"] | {"head": {"Dense_0": moved}}}
        total = []
        for b, t in zip(*np.nonzero(valid), strict=True):
            obs = np.asarray(batch.obs[b, t], np.float64)
            previous = np.asarray(batch.extras["previous"][b, t], np.float64).reshape(order + 1, 2)
            x, log_prob = proposal_of(actor, obs, previous, np.asarray(noise[b, t], np.float64))
            q = conservative_of(state.critic.ensemble, obs, start(order, inverse, x, previous), [1.0])[0]
            total.append(0.5 * log_prob - base[b, t] * q)
        return float(np.mean(total))

    slope = [(loss(1e-5 * e) - loss(-1e-5 * e)) / 2e-5 for e in np.eye(4)]
    np.testing.assert_allclose(found, slope, rtol=2e-3, atol=1e-4)


def test_a_reward_of_weight_zero_still_learns():
    spec = dataclasses.replace(SPEC, rewards=("real", "watched"), reward_weights=(1.0, 0.0))
    taac = agent(0, spec)
    state, batch = state_of(taac), windows_of(taac)
    goal = batch._replace(
        extras=batch.extras | {"rewards": jnp.stack([batch.reward, jnp.full_like(batch.reward, 3.0)], -1)},
        terminated=jnp.ones_like(batch.terminated),
    )
    step = jax.jit(lambda s, k: taac.update(s, HYPER._replace(critic_lr=1e-2), goal, k)[0])
    for key in jax.random.split(jax.random.key(0), 300):
        state = step(state, key)
    values = taac.values(state.critic, batch.obs[:, 0], taac.stored_trajectory(batch, "trajectory")[:, 0])
    valid = np.asarray(batch.valid[:, 0]) > 0
    assert np.abs(np.asarray(values)[:, valid, 1] - 6.0).mean() < 1.0, "it starts at about 0"


def test_temperatures_move_towards_the_entropies_of_their_probabilities():
    taac = agent()
    state, batch = state_of(taac), windows_of(taac)
    after, metrics = taac.update(state, HYPER._replace(action_probability=0.2, switch_probability=0.1), batch,
                                 jax.random.key(0))  # fmt: skip
    wanted = 2 * np.log(2 * 0.2), -0.1 * np.log(0.1) - 0.9 * np.log(0.9)
    slopes = float(metrics["entropy"]) - wanted[0], float(metrics["switch_entropy"]) - wanted[1]
    np.testing.assert_allclose(after.temperature_optimiser.mu.action, 0.1 * slopes[0], rtol=1e-3)
    np.testing.assert_allclose(after.temperature_optimiser.mu.switch, 0.1 * slopes[1], rtol=1e-3)


def test_first_trajectories_are_zero_or_random_in_collection_alone():
    plain, random = agent(1), agent(1, randomize_first=True)
    state = state_of(plain)
    begin = plain.begin(state, HYPER, jax.random.key(0))
    assert not np.any(begin.trajectory)

    def previous(taac, memory, mode):
        return taac.act(state, HYPER, memory, jnp.ones(3), jax.random.key(1), mode).extras["previous"]

    assert not np.any(previous(plain, begin, "sample")) and not np.any(previous(random, begin, "greedy"))
    assert np.all(np.asarray(previous(random, begin, "sample")) != 0)
    later = TAACMemory(begin.trajectory, jnp.ones((), jnp.int32))
    assert not np.any(previous(random, later, "sample"))


@pytest.mark.parametrize("rate", [0.1, 0.5])
def test_random_actions_of_the_warm_up_change_at_their_rate(rate: float):
    taac = agent(random_switch=rate)
    memory = taac.begin(None, HYPER, jax.random.key(0))  # type: ignore[arg-type]
    keys = jax.random.split(jax.random.key(1), 4000)
    decisions = jax.vmap(lambda key: taac.act(None, HYPER, memory, jnp.ones(3), key, "random"))(keys)  # type: ignore[arg-type]
    changed = np.any(np.asarray(decisions.action) != 0.0, axis=-1)
    np.testing.assert_array_equal(changed, decisions.extras["repeated"] == 0.0)
    assert abs(changed.mean() - rate) < 0.03


def decided(taac: TAAC, hyper: TAACHyper, batch: Step) -> tuple[TAACState, dict, np.ndarray]:
    """The metrics of an actor update and the targets, with fixed random numbers."""
    state = state_of(taac)
    noise = jax.random.normal(jax.random.key(1), batch.action.shape)
    after, choice, metrics = taac.update_actor(state, hyper, batch, noise)
    target, _ = taac.target(state, hyper, batch, choice, jax.random.key(2))
    return after, metrics | {"beta": choice.beta, "choice": choice}, np.asarray(target)


def test_every_reward_may_have_its_own_discount():
    taac = agent(0, TWO_REWARDS)
    batch = windows_of(taac)
    both = decided(taac, HYPER._replace(discounts=(0.9, 0.5)), batch)[2]
    for column, discount in enumerate((0.9, 0.5)):
        alone = decided(taac, HYPER._replace(discount=discount), batch)[2]
        np.testing.assert_allclose(both[..., column], alone[..., column], rtol=1e-6)
    assert np.abs(both[..., 1] - decided(taac, HYPER, batch)[2][..., 1]).max() > 0.01


def test_given_weights_replace_those_of_the_environment_without_a_new_program():
    """The sign counts too: a negative weight takes the largest critic."""
    batch = windows_of(agent(0, TWO_REWARDS))
    weights = (-0.5, 3.0)
    own = agent(0, dataclasses.replace(TWO_REWARDS, reward_weights=weights))
    _, wanted, y = decided(own, HYPER, batch)
    _, found, target = decided(agent(0, TWO_REWARDS), HYPER._replace(reward_weights=weights), batch)
    np.testing.assert_allclose(found["beta"], wanted["beta"], rtol=1e-5)
    np.testing.assert_allclose(target, y, rtol=1e-5)

    taac = agent(0, TWO_REWARDS)
    state = state_of(taac)
    update = jax.jit(taac.update)
    results = [
        update(state, jax.tree.map(jnp.float32, HYPER._replace(reward_weights=w)), batch, jax.random.key(0))[1]
        for w in ((2.0, -0.5), weights)
    ]
    assert update._cache_size() == 1
    assert abs(float(results[0]["advantage"] - results[1]["advantage"])) > 1e-4
    assert {"q_mean", "target_std", "explained_variance", "bootstrap_steps"} <= results[0].keys()


@pytest.mark.parametrize("name", ["discounts", "reward_weights"])
def test_as_many_numbers_as_rewards(name: str):
    with pytest.raises(CoveyError, match=rf"`hyper.{name}` needs one value for each of the 2 rewards.*cost.*not 3"):
        agent(0, TWO_REWARDS).init(HYPER._replace(**{name: (0.9, 0.8, 0.7)}), jax.random.key(0))


def test_target_entropies_by_probability_or_as_numbers():
    taac = agent()  # two actions
    probabilities = taac.target_entropies(HYPER._replace(action_probability=0.2, switch_probability=0.1))
    np.testing.assert_allclose(probabilities, (2 * np.log(0.4), 0.325083), rtol=1e-5)
    np.testing.assert_allclose(
        taac.target_entropies(HYPER._replace(action_entropy=-1.5, switch_entropy=0.25)), (-3.0, 0.25), rtol=1e-6
    )
    hyper = HYPER._replace(action_entropy=-1.5, switch_entropy=0.25)
    after, metrics, _ = decided(taac, hyper, windows_of(taac))
    slopes = float(metrics["entropy"]) + 3.0, float(metrics["switch_entropy"]) - 0.25
    np.testing.assert_allclose(after.temperature_optimiser.mu.action, 0.1 * slopes[0], rtol=1e-3)
    np.testing.assert_allclose(metrics["action_temperature_loss"], np.log(0.5) * slopes[0], rtol=1e-3)
    np.testing.assert_allclose(metrics["switch_temperature_loss"], np.log(0.3) * slopes[1], rtol=1e-3)


def test_metrics_of_the_switch():
    taac = agent(advantage_clip=(0.0, 0.01))
    batch = windows_of(taac)
    _, metrics, _ = decided(taac, HYPER, batch)
    valid = np.asarray(batch.valid) > 0
    repeat = 1 - np.asarray(metrics["beta"])[valid]
    unclipped = np.asarray(metrics["choice"].unclipped)[valid]
    np.testing.assert_allclose(metrics["repeat_probability_std"], repeat.std(), rtol=1e-3, atol=1e-7)
    np.testing.assert_allclose(metrics["repeat_probability"], repeat.mean(), rtol=1e-5)
    np.testing.assert_allclose(
        metrics["repeat_probabilities"], np.histogram(repeat, 10, (0, 1))[0] / valid.sum(), atol=1e-6
    )
    np.testing.assert_allclose(metrics["advantage_unclipped"], unclipped.mean(), rtol=1e-4)
    np.testing.assert_allclose(metrics["advantage"], np.clip(unclipped, 0, 0.01).mean(), rtol=1e-4)
    assert unclipped.min() < 0 and unclipped.max() > 0.01


def test_repeats_are_counted_in_collection_and_in_the_replay():
    taac = agent(diagnostics=True)
    state, batch = state_of(taac), windows_of(taac)
    count = np.random.default_rng(0).integers(1, 20, batch.valid.shape)
    batch = batch._replace(extras=batch.extras | {"repeats": jnp.asarray(count, jnp.float32)[..., None]})
    counts = jnp.asarray([[3.0, 1.0], [4.0, np.nan]])
    fresh = jax.tree.map(lambda x: x[:2, :2], batch)
    fresh = fresh._replace(valid=jnp.asarray([[1.0, 1.0], [1.0, 0.0]]), extras={"repeats": counts})
    state = taac.observe(state, HYPER, fresh, jax.random.key(0))
    nothing = fresh._replace(valid=jnp.zeros((2, 2)))
    state = taac.observe(state, HYPER, nothing, jax.random.key(0))
    _, metrics = taac.update(state, HYPER, batch, jax.random.key(0))
    valid = np.asarray(batch.valid) > 0
    np.testing.assert_allclose(metrics["collected_repeats"], 8 / 3, rtol=1e-6)
    np.testing.assert_allclose(metrics["collected_repeats_histogram"][:4], np.array([1, 1, 1, 0]) / 3, rtol=1e-6)
    np.testing.assert_allclose(metrics["replayed_repeats"], count[valid].mean(), rtol=1e-5)
    np.testing.assert_allclose(metrics["replayed_repeats_histogram"].sum(), 1.0, rtol=1e-5)
    decision = taac.act(
        state, HYPER, TAACMemory(jnp.ones((1, 2)), jnp.int32(4)), jnp.ones(3), jax.random.key(3), "sample"
    )
    assert float(decision.extras["repeats"]) == float(decision.memory.repeats) in (1.0, 5.0)
    assert "repeats" not in agent().act(state, HYPER, decision.memory, jnp.ones(3), jax.random.key(3), "sample").extras
