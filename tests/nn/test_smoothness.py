"""The terms of smooth actions (CAPS) against NumPy, alone and in the actor's loss of TD3 and SAC."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from covey.agents.sac import SAC, SACConfig, SACHyper
from covey.agents.td3 import TD3, TD3Config, TD3Hyper
from covey.errors import CoveyError
from covey.nn.normalise import Normalise
from covey.nn.parts import Networks, Torso
from covey.nn.returns import n_step
from covey.nn.smoothness import NOISE, Smoothness
from covey.types import Step
from tests.reference import SPEC, actor_of, batch_of, dense, dirty, hidden

KEY = jax.random.key(3)
BOTH = Smoothness(temporal=0.7, spatial=0.3, deviation=0.2)
TORSO = Torso(hidden=(8,))


def td3(**options) -> TD3:
    return TD3(TD3Config(Networks(TORSO, TORSO), batch_size=16, policy_delay=1, **options), SPEC)


def sac(**options) -> SAC:
    return SAC(SACConfig(Networks(TORSO, TORSO, actor_head="tanh_normal"), batch_size=16, **options), SPEC)


def mode_of(params, obs):
    """SAC's deterministic action, in NumPy."""
    return np.tanh(np.split(dense(params["head"]["Dense_0"], hidden(params, obs)), 2, -1)[0])


def expected(smoothness: Smoothness, policy, batch: Step) -> float:
    """The terms, row by row: the successor is that of the first step of a window."""
    noise = np.asarray(jax.random.normal(jax.random.fold_in(KEY, NOISE), batch.obs[:, 0].shape), np.float64)
    obs, after = (np.asarray(x[:, 0], np.float64) for x in (batch.obs, batch.next_obs))
    temporal, spatial = [], []
    for b in range(len(obs)):
        if not batch.valid[b, 0]:
            continue
        spatial.append(((policy(obs[b]) - policy(obs[b] + smoothness.deviation * noise[b])) ** 2).sum())
        if not batch.terminated[b, 0]:
            temporal.append(((policy(obs[b]) - policy(after[b])) ** 2).sum())
    assert 2 < len(temporal) < len(spatial) < len(obs)
    return smoothness.temporal * np.mean(temporal) + smoothness.spatial * np.mean(spatial)


@pytest.mark.parametrize("steps", [1, 3])
@pytest.mark.parametrize(
    "smoothness", [BOTH, Smoothness(temporal=2.0), Smoothness(spatial=2.0)], ids=["both", "temporal", "spatial"]
)
def test_the_terms(smoothness: Smoothness, steps: int):
    weights = np.random.default_rng(0).normal(size=(3, 2))
    batch = batch_of(td3(n_step=steps))
    batch = batch._replace(terminated=batch.terminated.at[1:4, 0].set(1.0))
    data = n_step(dirty(batch)._replace(reward=batch.reward), 0.9)
    found = smoothness.loss(lambda obs: jnp.tanh(obs @ weights), data, KEY)
    wanted = expected(smoothness, lambda obs: np.tanh(obs @ weights), batch)
    np.testing.assert_allclose(found["smoothness_loss"], wanted, rtol=1e-5)


def test_the_gradient_flows_through_both_actions():
    """Of a linear policy: d/dW mean ||W (s - s')||^2 = 2 W mean (s - s')(s - s')^T."""
    data = n_step(batch_of(td3()), 0.9)
    weights = jnp.asarray(np.random.default_rng(0).normal(size=(3, 2)), jnp.float32)

    def loss(weights):
        return Smoothness(temporal=0.5).loss(lambda obs: obs @ weights, data, KEY)["smoothness_loss"]

    counted = np.asarray(data.continues) > 0
    apart = np.asarray(data.obs - data.successor)[counted]
    wanted = 0.5 * 2.0 * (apart.T @ apart / counted.sum()) @ np.asarray(weights)
    np.testing.assert_allclose(jax.grad(loss)(weights), wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("make", "hyper", "policy"), [(td3, TD3Hyper(), actor_of), (sac, SACHyper(), mode_of)])
def test_an_actors_loss_is_its_own_and_the_terms(make, hyper, policy):
    """With normalised observations: the noise is added to what the networks receive."""
    options = {"normalise": Normalise(observations=True), "n_step": 2}
    agent, plain = make(smoothness=BOTH, **options), make(**options)
    batch = batch_of(agent)
    noise = () if make is td3 else (jnp.zeros((16, 2)),)

    @jax.jit
    def learn(batch):
        state = agent.init(hyper, jax.random.key(0))
        state = agent.observe(state, hyper, batch._replace(obs=3.0 + 2.0 * batch.obs), KEY)
        batch = agent.config.normalise.batch(state.statistics, batch, 1.0)
        data = n_step(batch, 0.9)
        results = (each.update_actor(state, hyper, data, *noise, KEY) for each in (agent, plain))
        return state, batch, *results

    state, batch, (after, metrics), (other, without) = learn(batch)
    np.testing.assert_allclose(
        metrics["smoothness_loss"], expected(BOTH, lambda obs: policy(state.actor, obs), batch), rtol=1e-4
    )
    np.testing.assert_allclose(metrics["actor_loss"], without["actor_loss"] + metrics["smoothness_loss"], rtol=1e-5)
    assert metrics.keys() == without.keys() | {"smoothness_loss"}
    changed = jax.tree.map(lambda a, b: bool(np.any(a != b)), after.actor, other.actor)
    assert any(jax.tree.leaves(changed)), "the terms reach the actor"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"temporal": -1.0}, "`temporal` must be 0"),
        ({"spatial": float("inf")}, "`spatial` must be 0"),
        ({"temporal": float("nan")}, "`temporal` must be 0"),
        ({"spatial": 1.0, "deviation": 0.0}, "`deviation` must be positive"),
        ({"temporal": 1.0, "deviation": 0.2}, "Set its weight `spatial`"),
    ],
)
def test_senseless_options_are_refused(options: dict[str, float], message: str):
    with pytest.raises(CoveyError, match=message) as error:
        dataclasses.replace(Smoothness(), **options)
    assert error.value.owner is Smoothness
