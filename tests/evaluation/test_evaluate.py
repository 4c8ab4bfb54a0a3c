"""Evaluation: own start states, each episode to its own end, NaN after an end is not looked at."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np

from covey import agents
from covey.envs.base import Outcome
from covey.evaluation.evaluate import evaluate
from tests.tasks import Counter, small_trainer


def run(env, members: int = 2, episodes: int = 64):
    trainer = small_trainer("td3", env)
    hyper = agents.entry("td3").hyper()
    keys = jax.random.split(jax.random.key(0), members)
    states = jax.vmap(lambda k: trainer.agent.init(hyper, k))(keys)
    hypers = jax.tree.map(lambda x: jnp.full(members, x), hyper)
    return evaluate(trainer.agent, env, states, hypers, jax.random.key(1), episodes)


def test_returns_lengths_and_descriptors():
    found = run(Counter())
    assert found.returns.shape == (2, 64) and found.descriptor.shape == (2, 64, 1)
    assert set(np.unique(found.length)) == {3, 5}
    np.testing.assert_array_equal(found.returns, np.where(found.length == 3, 60.0, 150.0))
    np.testing.assert_array_equal(found.descriptor[..., 0], found.length)
    np.testing.assert_array_equal(found.returns[0], found.returns[1])


@dataclass(frozen=True)
class NanAfterEnd(Counter):
    """Falls apart when stepped after its end, as simulators do. Its descriptor is averaged over the episode."""

    @property
    def spec(self):
        spec = super().spec
        descriptor = type(spec.descriptor)(("step",), (0.0,), (9.0,), reduce="mean")
        return type(spec)(2, 1, 5, (-1.0,), (1.0,), descriptor)

    def step(self, state, action, key):
        over = (state.episode % 2 == 0) & (state.step >= self.ends)
        state, outcome = super().step(state, action, key)
        reward = jnp.where(over, jnp.nan, outcome.reward)
        state = state._replace(step=jnp.where(over, jnp.nan, state.step))
        return state, Outcome(outcome.obs, reward, outcome.terminated)


def test_what_happens_after_an_end_is_masked():
    found = run(NanAfterEnd())
    assert np.isfinite(found.returns).all()
    np.testing.assert_array_equal(found.returns, np.where(found.length == 3, 60.0, 150.0))
    np.testing.assert_allclose(found.descriptor[..., 0], np.where(found.length == 3, 2.0, 3.0), rtol=1e-6)
