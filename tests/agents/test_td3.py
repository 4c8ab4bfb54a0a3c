"""TD3's targets, losses and delays against a reference written in NumPy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from covey.agents.td3 import TD3, TD3Config, TD3Hyper, TD3State
from covey.nn.critics import Critics
from covey.nn.normalise import Normalise, normalise
from covey.nn.parts import Networks, Torso
from covey.nn.returns import n_step
from covey.types import Step
from tests.reference import SPEC, actor_of, batch_of, critics_of, dirty

SMALL = Networks(actor=Torso(hidden=(8,)), critic=Torso(hidden=(8,)))
HYPER = TD3Hyper(discount=0.9, reward_scale=2.0, target_noise=0.7, target_noise_clip=0.3, tau=0.1)


def agent(**options) -> TD3:
    options = {"networks": SMALL, "batch_size": 16} | options
    return TD3(TD3Config(**options), SPEC)


def state_of(td3: TD3) -> TD3State:
    """A state whose targets differ from the online networks."""
    state, other = (td3.init(HYPER, jax.random.key(seed)) for seed in (0, 1))
    return state._replace(target_actor=other.actor, critic=state.critic._replace(target=other.critic.online))


# The reference, in NumPy.


def target_of(state: TD3State, batch: Step, noise: np.ndarray) -> np.ndarray:
    """y for each window, step by step as the paper writes it."""
    targets = np.zeros(batch.reward.shape[0])
    for b in range(len(targets)):
        reward, discount = 0.0, 1.0
        bootstrap = 1.0
        for t in range(batch.reward.shape[1]):
            if not batch.valid[b, t]:
                break
            reward += discount * 2.0 * float(batch.reward[b, t])
            discount *= 0.9
            next_obs = np.asarray(batch.next_obs[b, t], np.float64)
            bootstrap = 1.0 - float(batch.terminated[b, t])
        else:
            t += 1
        if t == 0:
            continue
        shift = np.clip(0.7 * noise[b], -0.3, 0.3)
        action = np.clip(actor_of(state.target_actor, next_obs) + shift, -1, 1)
        value = critics_of(state.critic.target.ensemble, next_obs, action).min()
        targets[b] = reward + bootstrap * discount * value
    return targets


@pytest.mark.parametrize("steps", [1, 3])
@pytest.mark.parametrize("critics", [1, 2, 5])
def test_target_with_terminations_time_limits_and_clipped_noise(steps: int, critics: int):
    td3 = agent(n_step=steps, critics=Critics(critics))
    state, batch = state_of(td3), batch_of(td3)
    scaled = batch._replace(reward=HYPER.reward_scale * batch.reward)
    data = n_step(scaled, HYPER.discount)
    noise = jax.random.normal(jax.random.key(3), data.action.shape)
    next_action = td3.target_action(state, HYPER, data.next_obs, noise)
    found = td3.critics.target(state.critic, data, next_action, jax.random.key(0))
    expected = target_of(state, batch, np.asarray(noise, np.float64))
    valid = np.asarray(data.valid) > 0
    assert valid.any()
    np.testing.assert_allclose(np.asarray(found)[valid], expected[valid], rtol=1e-4, atol=1e-4)
    assert np.abs(0.7 * np.asarray(noise)).max() > 0.3, "the noise must reach the clip for this test to say something"


def test_critic_loss_is_the_sum_of_mean_squares_over_valid_transitions():
    td3 = agent(critics=Critics(3))
    state, batch = state_of(td3), batch_of(td3)
    data = n_step(batch._replace(valid=batch.valid.at[:5].set(0.0)), 0.9)
    data = jax.tree.map(lambda x: x[:16], data)
    target = jnp.arange(16.0)
    _, metrics = td3.critics.update(state.critic, data, data.action, 1e-3, jax.random.key(0), target)
    obs, action = np.asarray(data.obs, np.float64), np.asarray(data.action, np.float64)
    errors = (critics_of(state.critic.online.ensemble, obs, action) - np.arange(16.0)) ** 2
    expected = errors[:, np.asarray(data.valid) > 0].mean(axis=1).sum()
    np.testing.assert_allclose(metrics["critic_loss"], expected, rtol=1e-4)


def test_actor_loss_is_minus_the_first_critic():
    td3 = agent()
    state, batch = state_of(td3), batch_of(td3)
    data = jax.tree.map(lambda x: x[:16], n_step(batch, 0.9))
    _, metrics = td3.update_actor(state, HYPER, data, jax.random.key(0))
    obs = np.asarray(data.obs, np.float64)
    values = critics_of(state.critic.online.ensemble, obs, actor_of(state.actor, obs))[0]
    np.testing.assert_allclose(metrics["actor_loss"], -values[np.asarray(data.valid) > 0].mean(), rtol=1e-4)


def test_the_actor_maximises_the_critic():
    """The gradient's direction: after a small step the first critic's value of the policy is higher."""
    td3 = agent()
    state, batch = state_of(td3), batch_of(td3)
    data = n_step(batch._replace(valid=jnp.ones_like(batch.valid)), 0.9)
    after, _ = td3.update_actor(state, HYPER._replace(actor_lr=1e-4), data, jax.random.key(0))
    obs = np.asarray(data.obs, np.float64)

    def value(actor):
        return critics_of(state.critic.online.ensemble, obs, actor_of(actor, obs))[0].mean()

    assert value(after.actor) > value(state.actor)


def test_invalid_transitions_change_nothing():
    """Entries beyond a boundary, NaN included, do not change the update."""
    td3 = agent(n_step=3)
    state, batch = state_of(td3), batch_of(td3)
    one, _ = td3.update(state, HYPER, batch, jax.random.key(0))
    two, _ = td3.update(state, HYPER, dirty(batch), jax.random.key(0))
    jax.tree.map(np.testing.assert_array_equal, one.actor, two.actor)
    jax.tree.map(np.testing.assert_array_equal, one.critic, two.critic)


def test_critics_differ_at_the_start_and_after_learning():
    td3 = agent(critics=Critics(2))
    state = td3.init(HYPER, jax.random.key(0))
    for i in range(20):
        kernel = state.critic.online.ensemble["torso"]["Dense_0"]["kernel"]
        assert float(jnp.abs(kernel[0] - kernel[1]).max()) > 1e-2
        state, _ = td3.update(state, HYPER, batch_of(td3, i), jax.random.key(i))


@pytest.mark.parametrize("delay", [1, 2, 3])
def test_delayed_updates(delay: int):
    """One call makes `delay` critic updates, one actor update, and moves both targets once."""
    td3 = agent(policy_delay=delay)
    state, batch = state_of(td3), batch_of(td3)
    assert td3.plan == (16 * delay, 1, delay)
    after, _ = td3.update(state, HYPER, batch, jax.random.key(0))
    assert int(after.critic.optimiser.count) == delay
    assert int(after.actor_optimiser.count) == 1
    for target, old, online in (
        (after.target_actor, state.target_actor, after.actor),
        (after.critic.target, state.critic.target, after.critic.online),
    ):
        jax.tree.map(
            lambda t, o, w: np.testing.assert_allclose(t, 0.9 * np.asarray(o) + 0.1 * np.asarray(w), atol=1e-6),
            target,
            old,
            online,
        )


def test_one_call_is_the_sequence_of_its_updates():
    """The block computes its targets at once; the result is that of one critic update after the other."""
    td3 = agent(policy_delay=3)
    state, batch = state_of(td3), batch_of(td3)
    after, _ = td3.update(state, HYPER, batch, jax.random.key(5))
    scaled = batch._replace(reward=HYPER.reward_scale * batch.reward)
    data = n_step(scaled, HYPER.discount)
    noise = jax.random.normal(jax.random.split(jax.random.key(5), 6)[0], data.action.shape)
    by_hand = state
    for i in range(3):
        part = jax.tree.map(lambda x, i=i: x[16 * i : 16 * (i + 1)], data)
        next_action = td3.target_action(by_hand, HYPER, part.next_obs, noise[16 * i : 16 * (i + 1)])
        critic, _ = td3.critics.update(by_hand.critic, part, next_action, HYPER.critic_lr, jax.random.key(i))
        by_hand = by_hand._replace(critic=critic)
    by_hand, _ = td3.update_actor(by_hand, HYPER, part, jax.random.key(0))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-6), after.critic.online, by_hand.critic.online)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-6), after.actor, by_hand.actor)


def test_targets_of_critics_can_move_at_every_update():
    slow, fast = agent(policy_delay=2), agent(policy_delay=2, target_every_step=True)
    state, batch = state_of(slow), batch_of(slow)
    after, _ = fast.update(state, HYPER._replace(critic_lr=0.0), batch, jax.random.key(0))
    jax.tree.map(
        lambda t, o, w: np.testing.assert_allclose(t, 0.81 * np.asarray(o) + 0.19 * np.asarray(w), atol=1e-6),
        after.critic.target,
        state.critic.target,
        state.critic.online,
    )


def test_targets_can_move_at_every_second_call():
    """Both targets; the networks themselves learn in every call, as those of a run without the option."""
    plain, slow = agent(), agent(target_update_period=2)
    assert plain.init(HYPER, jax.random.key(0)).target_age == ()
    start = state_of(slow)
    first, _ = slow.update(start, HYPER, batch_of(slow), jax.random.key(0))
    jax.tree.map(np.testing.assert_array_equal, first.critic.target, start.critic.target)
    jax.tree.map(np.testing.assert_array_equal, first.target_actor, start.target_actor)
    second, _ = slow.update(first, HYPER, batch_of(slow, 1), jax.random.key(1))
    expected, _ = plain.update(first._replace(target_age=()), HYPER, batch_of(slow, 1), jax.random.key(1))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6), second._replace(target_age=()), expected)
    assert int(first.target_age) == 1 and int(second.target_age) == 0


def test_a_shared_encoder_learns_from_the_critics_alone():
    networks = Networks(Torso(hidden=(8,)), Torso(hidden=(8,)), Torso(hidden=(4,)), share_encoder=True)
    td3 = agent(networks=networks)
    state = td3.init(HYPER, jax.random.key(0))
    data = n_step(batch_of(td3), 0.9)
    after_actor, _ = td3.update_actor(state, HYPER, data, jax.random.key(0))
    jax.tree.map(np.testing.assert_array_equal, after_actor.critic, state.critic)
    after, _ = td3.critics.update(state.critic, data, data.action, 1e-3, jax.random.key(0), jnp.ones(32))
    moved = jax.tree.map(lambda a, b: float(jnp.abs(a - b).max()), after.online.encoder, state.critic.online.encoder)
    assert max(jax.tree.leaves(moved)) > 0


def test_noise_and_modes():
    td3 = agent()
    state = td3.init(HYPER, jax.random.key(0))
    obs, keys = jnp.ones(3), jax.random.split(jax.random.key(1), 4000)

    def actions(mode, noise=0.1):
        hyper = HYPER._replace(exploration_noise=noise)
        return np.asarray(jax.vmap(lambda k: td3.act(state, hyper, (), obs, k, mode).action)(keys))

    greedy = actions("greedy")
    assert np.all(greedy == greedy[0])
    np.testing.assert_allclose(greedy[0], actor_of(state.actor, np.ones(3)), atol=1e-5)
    np.testing.assert_allclose(actions("sample").std(0), 0.1, rtol=0.1)
    assert np.abs(actions("sample", 5.0)).max() == 1.0
    uniform = actions("random")
    np.testing.assert_allclose(uniform.mean(0), 0, atol=0.05)
    np.testing.assert_allclose(uniform.std(0), 1 / np.sqrt(3), rtol=0.05)


def test_observations_are_normalised_in_acting_and_learning():
    plain, normed = agent(), agent(normalise=Normalise(observations=True))
    state = plain.init(HYPER, jax.random.key(0))
    rollout = batch_of(plain)._replace(obs=5.0 + 3.0 * batch_of(plain).obs)
    jax.tree.map(
        np.testing.assert_array_equal,
        plain.observe(state, HYPER, rollout, jax.random.key(0)).statistics,
        state.statistics,
    )
    state = normed.observe(state, HYPER, rollout, jax.random.key(0))
    rows = np.asarray(rollout.obs).reshape(-1, 3)
    np.testing.assert_allclose(state.statistics.observations.mean, rows.mean(0), rtol=1e-5)
    obs = jnp.array([8.0, 2.0, 5.0])
    scaled = jnp.asarray((np.asarray(obs) - rows.mean(0)) / rows.std(0), jnp.float32)
    found = normed.act(state, HYPER, (), obs, jax.random.key(0), "greedy").action
    expected = plain.act(state, HYPER, (), scaled, jax.random.key(0), "greedy").action
    np.testing.assert_allclose(found, expected, atol=1e-4)

    stats = state.statistics.observations
    by_hand = rollout._replace(obs=normalise(stats, rollout.obs), next_obs=normalise(stats, rollout.next_obs))
    learned, _ = normed.update(state, HYPER, rollout, jax.random.key(1))
    expected, _ = plain.update(state, HYPER, by_hand, jax.random.key(1))
    for name in ("actor", "critic"):
        jax.tree.map(
            lambda a, b: np.testing.assert_allclose(a, b, atol=1e-6), getattr(learned, name), getattr(expected, name)
        )
