"""That every piece is used where it should be: the right encoder, optimiser, key, discount and precision."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from covey.agents.sac import SAC, SACConfig, SACHyper
from covey.agents.td3 import TD3, TD3Config, TD3Hyper
from covey.nn.critics import Critics, Ensemble
from covey.nn.networks import MLP, TanhNormalHead, apply, apply_ensemble
from covey.nn.normalise import MOST_ROWS, Normalise, RunningStats, update_stats
from covey.nn.optim import Optimiser, Optimisers
from covey.nn.parts import Networks, Torso
from covey.nn.regularise import BatchRenorm
from covey.nn.returns import n_step
from covey.run.config import default_config
from covey.run.policy import build_policy
from covey.training.precision import InPrecision, in_precision
from tests.nn.test_options import crossq_of, data_of, float64
from tests.reference import SPEC, batch_of

KEY = jax.random.key(0)
SHARED = {"encoder": Torso(hidden=(4,)), "share_encoder": True}


def networks(critic: Torso | None = None, head: str = "tanh_normal", **options) -> Networks:
    return Networks(Torso(hidden=(8,)), critic or Torso(hidden=(8,)), actor_head=head, **options)


def sac(**options) -> SAC:
    return SAC(SACConfig(**({"networks": networks(), "batch_size": 16} | options)), SPEC)


def ensemble(critic: Torso | None = None, **options) -> Ensemble:
    return Ensemble(Critics(**options), networks(critic, **SHARED), Optimiser(), SPEC)


def norm(tree) -> float:
    return float(jnp.sqrt(sum(jnp.sum(x**2) for x in jax.tree.leaves(tree))))


# The optimiser.


def test_actor_critics_and_temperature_obey_their_optimisers():
    agent = sac(optimisers=Optimisers(*(Optimiser(clip_norm=norm) for norm in (1e-3, 2e-3, 4e-3))))
    after, _ = jax.jit(agent.update)(agent.init(SACHyper(), KEY), SACHyper(), batch_of(agent), KEY)
    np.testing.assert_allclose(norm(after.critic.optimiser.mu) / 0.1, 2e-3, rtol=1e-3)
    np.testing.assert_allclose(norm(after.actor_optimiser.mu) / 0.1, 1e-3, rtol=1e-3)
    np.testing.assert_allclose(norm(after.temperature_optimiser.mu) / 0.1, 4e-3, rtol=1e-3)


# Encoders.


def test_targets_use_the_target_encoder_and_it_moves():
    critics, data = ensemble(), data_of()
    state, other = (critics.init(jax.random.key(seed)) for seed in (0, 1))
    state = state._replace(target=other.online)
    features = apply(critics.encoder, state.target.encoder, data.next_obs)
    values = apply_ensemble(critics.module, state.target.ensemble, {}, None, features, data.action)
    expected = data.reward + data.discount * values.min(0)
    np.testing.assert_allclose(critics.target(state, data, data.action, KEY), expected, rtol=1e-5)
    moved = critics.update_targets(state, 0.1).target.encoder
    jax.tree.map(
        lambda m, t, o: np.testing.assert_allclose(m, 0.9 * t + 0.1 * o, rtol=1e-4, atol=1e-6),
        *(jax.tree.map(float64, x) for x in (moved, state.target.encoder, state.online.encoder)),
    )


def test_sac_acts_with_the_online_encoder_and_td3_targets_with_the_target_encoder():
    obs = batch_of(sac()).obs[:, 0]
    agent = sac(networks=networks(**SHARED))
    state, other = (agent.init(SACHyper(), jax.random.key(seed)) for seed in (0, 1))
    expected = agent.policy(state, obs).mean
    state = state._replace(critic=state.critic._replace(target=other.critic.online))
    np.testing.assert_array_equal(agent.policy(state, obs).mean, expected)

    td3 = TD3(TD3Config(networks=networks(head="tanh", **SHARED), batch_size=16), SPEC)
    state, other = (td3.init(TD3Hyper(), jax.random.key(seed)) for seed in (0, 1))
    state = state._replace(critic=state.critic._replace(target=other.critic.online))
    found = td3.target_action(state, TD3Hyper(), obs, jnp.zeros((16, 2)))
    features = apply(td3.critics.encoder, other.critic.online.encoder, obs)
    np.testing.assert_allclose(found, apply(td3.actor, state.target_actor, features), rtol=1e-5)


# Dropout, and the keys of everything random.


def test_dropout_comes_before_layer_normalisation():
    """After it, the dropped units would be exactly 0; before it, they are what the others' mean makes of them."""
    module = MLP((64,), "tanh", "layer", 0.5)
    params = module.init(KEY, jnp.ones((5, 3)))
    found = module.apply(params, jnp.arange(15.0).reshape(5, 3), rngs={"dropout": KEY})
    assert float(jnp.mean(found == 0.0)) < 0.05


@pytest.mark.parametrize("norm", ["layer", "batch"])
def test_dropout_acts_under_either_normalisation(norm: str):
    critics, data = ensemble(Torso(hidden=(32,), norm=norm, dropout=0.5)), data_of()
    state = critics.init(KEY)
    update = jax.jit(lambda key: critics.update(state, data, data.action, 1e-3, key)[1]["critic_loss"])
    one, two, three = (float(update(jax.random.key(seed))) for seed in (0, 0, 1))
    assert one == two != three


def test_target_and_critic_drop_different_units():
    """Equal networks and equal inputs: with the same masks the error would be 0."""
    critics, data = ensemble(Torso(hidden=(32,), dropout=0.5), number=1), data_of()
    data = data._replace(next_obs=data.obs, reward=jnp.zeros(16), discount=jnp.ones(16))
    _, metrics = jax.jit(lambda: critics.update(critics.init(KEY), data, data.action, 1e-3, KEY))()
    assert float(metrics["critic_loss"]) > 1e-3


def test_every_random_choice_of_an_update_has_a_key_of_its_own(monkeypatch):
    keys = []
    for name in ("target", "actor_objective", "update"):
        method = getattr(Ensemble, name)

        def spy(self, *arguments, _method=method, **options):
            keys.extend(
                tuple(jax.random.key_data(x).tolist())
                for x in arguments
                if hasattr(x, "dtype") and jnp.issubdtype(x.dtype, jax.dtypes.prng_key)
            )
            return _method(self, *arguments, **options)

        monkeypatch.setattr(Ensemble, name, spy)
    agent = sac(policy_delay=3)
    agent.update(agent.init(SACHyper(), KEY), SACHyper(), batch_of(agent), KEY)
    td3 = TD3(TD3Config(networks=networks(head="tanh"), batch_size=16, policy_delay=3), SPEC)
    td3.update(td3.init(TD3Hyper(), KEY), TD3Hyper(), batch_of(td3), jax.random.key(1))
    # SAC: three updates with their targets and the actor; TD3: one target, three updates, the actor.
    assert len(keys) == len(set(keys)) == 7 + 5
    assert tuple(jax.random.key_data(KEY).tolist()) not in keys


# Batch renormalisation.


def test_batch_renormalisation_waits_for_100_000_batches():
    assert BatchRenorm().warmup == 100_000


def test_the_correction_of_batch_renormalisation_has_no_gradient():
    module = BatchRenorm(warmup=0)
    x = jax.random.normal(KEY, (6, 2)) * 2.0 + 1.0
    variables = module.init(KEY, x)
    slope = jax.random.normal(jax.random.key(1), (6, 2))

    def loss(x):
        return jnp.sum(slope * module.apply(variables, x, mutable=["batch_stats"])[0])

    x64, slope64 = float64(x), float64(slope)
    r, d = np.sqrt(x64.var(0) + 1e-3) / np.sqrt(1 + 1e-3), x64.mean(0) / np.sqrt(1 + 1e-3)

    def by_hand(x):
        return float((slope64 * ((x - x.mean(0)) / np.sqrt(x.var(0) + 1e-3) * r + d)).sum())

    expected = np.zeros((6, 2))
    for i in np.ndindex(6, 2):
        step = np.zeros((6, 2))
        step[i] = 1e-5
        expected[i] = (by_hand(x64 + step) - by_hand(x64 - step)) / 2e-5
    np.testing.assert_allclose(jax.grad(loss)(x), expected, rtol=1e-3, atol=1e-4)


def test_crossq_with_a_subset_and_without_invalid_rows():
    """The target is the minimum of one pair, and what stands in invalid rows changes nothing."""
    torso = Torso(hidden=(8,), norm="batch")
    critics, data = Ensemble(Critics(3, subset=2), networks(torso), Optimiser(), SPEC), data_of()
    state = critics.init(KEY)
    update = jax.jit(lambda data: critics.update(state, data, data.action, 1e-3, KEY))
    after, metrics = update(data)
    holes = data.valid == 0
    assert bool(holes.any())
    dirty = data._replace(obs=jnp.where(holes[:, None], 1e6, data.obs), next_obs=jnp.where(holes[:, None], 1e6,
                          data.next_obs))  # fmt: skip
    jax.tree.map(np.testing.assert_array_equal, update(dirty)[0], after)

    rows = np.where(~np.asarray(holes), np.arange(16), int(np.argmax(data.valid)))
    both = np.concatenate([np.concatenate([float64(x)[rows], float64(data.action)[rows]], -1)
                           for x in (data.obs, data.next_obs)])  # fmt: skip
    values = np.stack(
        [crossq_of(jax.tree.map(lambda x, i=i: float64(x[i]), state.online.ensemble), both) for i in range(3)]
    )
    losses = [
        ((values[:, :16] - float64(data.reward) - float64(data.discount) * values[list(pair), 16:].min(0)) ** 2)[
            :, ~np.asarray(holes)
        ]
        .mean(1)
        .sum()
        for pair in ((0, 1), (0, 2), (1, 2))
    ]
    assert np.isclose(losses, float(metrics["critic_loss"]), rtol=1e-3).sum() == 1


# Statistics.


def test_the_return_is_followed_with_the_discount_in_force():
    agent = sac(normalise=Normalise(rewards=True))
    state, rollout = agent.init(SACHyper(), KEY), batch_of(agent)
    rollout = rollout._replace(valid=jnp.ones_like(rollout.valid))
    one, two = (agent.observe(state, SACHyper(discount=g), rollout, KEY).statistics.running for g in (0.5, 0.9))
    assert float(one) != float(two)


def test_statistics_stay_right_beyond_what_a_float32_can_count():
    stats = RunningStats(jnp.float32(2**24), jnp.zeros(1), jnp.full(1, 2.0**24))
    rows = jax.random.normal(KEY, (2000, 1000, 1))
    stats, _ = jax.lax.scan(lambda s, x: (update_stats(s, x, jnp.ones(1000)), None), stats, rows)
    assert float(stats.rows) <= MOST_ROWS
    np.testing.assert_allclose(stats.squares / stats.rows, 1.0, rtol=0.01)


def test_a_batch_without_a_valid_transition_moves_nothing():
    agent = sac()
    state, batch = agent.init(SACHyper(), KEY), batch_of(agent)
    after, _ = jax.jit(agent.update)(state, SACHyper(), batch._replace(valid=jnp.zeros_like(batch.valid)), KEY)
    for name in ("actor", "temperature"):
        jax.tree.map(np.testing.assert_array_equal, getattr(after, name), getattr(state, name))
    jax.tree.map(np.testing.assert_array_equal, after.critic.online, state.critic.online)


def test_the_share_of_targets_beyond_the_histogram_is_a_metric():
    critics, data = Ensemble(Critics(bins=11, low=-1.0, high=1.0), networks(), Optimiser(), SPEC), data_of()
    state = critics.init(KEY)
    target = jnp.where(jnp.arange(16) % 2 == 0, 0.5, 5.0)
    _, metrics = critics.update(state, data._replace(valid=jnp.ones(16)), data.action, 1e-3, KEY, target)
    assert float(metrics["beyond_limits"]) == 0.5


# Heads and precision.


@pytest.mark.parametrize(("bias", "expected"), [(100.0, 2.0), (-100.0, -10.0)])
def test_limits_of_the_deviation(bias: float, expected: float):
    params = {"Dense_0": {"kernel": jnp.zeros((3, 4)), "bias": jnp.full(4, bias)}}
    assert float(TanhNormalHead(2).apply({"params": params}, jnp.ones(3)).log_std[0]) == expected


def test_acting_and_runs_obey_the_precision():
    agent = sac()
    state = agent.init(SACHyper(), KEY)
    exact, rounded = (
        a.act(state, SACHyper(), (), jnp.array([0.3, -1.7, 2.1]), KEY, "greedy").action
        for a in (agent, in_precision(agent, "bfloat16"))
    )
    assert 1e-6 < float(jnp.abs(exact - rounded).max()) < 0.05
    assert isinstance(build_policy(default_config("sac", precision="bfloat16").resolved()).agent, InPrecision)


def test_td3_maximises_the_first_critic_alone():
    td3 = TD3(TD3Config(networks=networks(head="tanh"), batch_size=16), SPEC)
    state, data = td3.init(TD3Hyper(), KEY), n_step(batch_of(td3), 0.9)
    _, metrics = td3.update_actor(state, TD3Hyper(), data, KEY)
    other = state.critic.online.ensemble
    changed = jax.tree.map(lambda x: x.at[1].add(-5.0), other)
    state = state._replace(critic=state.critic._replace(online=state.critic.online._replace(ensemble=changed)))
    assert float(td3.update_actor(state, TD3Hyper(), data, KEY)[1]["actor_loss"]) == float(metrics["actor_loss"])
