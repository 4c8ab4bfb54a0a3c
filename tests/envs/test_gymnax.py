"""gymnax: the contract, its dynamics compared with covey's, and that a time limit does not terminate."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from covey import envs
from covey.envs.builtin.pendulum import Pendulum, PendulumState
from covey.envs.check import check, probe
from covey.errors import CoveyError

pytest.importorskip("gymnax")


@pytest.mark.parametrize("name", envs.adapter("gymnax").names())
def test_contract(name: str):
    assert not [f for f in check(envs.make(f"gymnax:{name}")) if f.wrong]


def test_pendulum_is_the_built_in_one():
    """Two independent versions of Gymnasium's task: the same rewards and observations from the same state."""
    env, own = envs.make("gymnax:Pendulum-v1"), Pendulum()
    actions = jax.random.uniform(jax.random.key(1), (100, 1), minval=-1.0, maxval=1.0)

    def own_state(state):  # gymnax lets the angle grow
        return PendulumState(jnp.arctan2(jnp.sin(state.theta), jnp.cos(state.theta)), state.theta_dot)

    @jax.jit
    def both(key):
        state, _ = env.reset(key)
        start = (state, own_state(state))

        def step(states, action):
            one, first = env.step(states[0], action, key)
            _, second = own.step(states[1], action, key)
            # From the same state at each step: swings amplify rounding.
            return (one, own_state(one)), (first, second)

        return jax.lax.scan(step, start, actions)[1]

    first, second = both(jax.random.key(0))
    np.testing.assert_allclose(first.reward, second.reward, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(first.obs, second.obs, atol=1e-4)
    assert env.spec.action_high == own.spec.action_high and env.spec.episode_length == own.spec.episode_length


def test_a_time_limit_does_not_terminate():
    env = envs.make("gymnax:Pendulum-v1")
    found = probe(env, jnp.zeros((env.spec.episode_length + 10, 2, 1)), jax.random.key(0))
    assert not np.asarray(found.outcome.terminated).any()


def test_unknown_and_discrete():
    for name in ("Pendulum-v2", "CartPole-v1"):
        with pytest.raises(CoveyError, match="no gymnax environment with continuous actions"):
            envs.make(f"gymnax:{name}")
