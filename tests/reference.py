"""Batches for equation tests, and networks of one hidden layer written in NumPy."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from covey.types import EnvSpec, Step

SPEC = EnvSpec(3, 2, 50, (-2.0, -2.0), (2.0, 2.0))


def batch_of(agent: Any, seed: int = 0) -> Step:
    """Random windows with terminations and ends at random places."""
    random = np.random.default_rng(seed)
    shape = (agent.plan.batch_size, agent.plan.window)
    terminated = random.random(shape) < 0.2
    last = np.zeros(shape, bool)
    last[:, 1:] = terminated[:, :-1]
    last |= random.random(shape) < 0.2
    last[0] = False
    valid = np.cumprod(~last, axis=1)

    def normal(*tail):
        return jnp.asarray(random.normal(size=shape + tail), jnp.float32)

    return Step(
        obs=normal(3),
        action=jnp.asarray(random.uniform(-1, 1, (*shape, 2)), jnp.float32),
        reward=normal(),
        terminated=jnp.asarray(terminated, jnp.float32),
        next_obs=normal(3),
        valid=jnp.asarray(valid, jnp.float32),
        extras={},
    )


def dense(params, x):
    return x @ np.asarray(params["kernel"], np.float64) + np.asarray(params["bias"], np.float64)


def hidden(params, x):
    return np.maximum(dense(params["torso"]["Dense_0"], x), 0)


def actor_of(params, obs):
    """TD3's actor."""
    return np.tanh(dense(params["head"]["Dense_0"], hidden(params, obs)))


def critics_of(params, obs, action):
    """Q_j(s, a), [critics, B]."""
    x = np.concatenate([obs, action], -1)
    members = jax.tree.leaves(params)[0].shape[0]
    each = [jax.tree.map(lambda p, i=i: np.asarray(p[i]), params) for i in range(members)]
    return np.stack([dense(p["head"]["Dense_0"], hidden(p, x))[..., 0] for p in each])


def dirty(batch: Step) -> Step:
    """The batch with nonsense wherever it is not valid."""
    holes = batch.valid == 0
    assert bool(holes.any())
    return batch._replace(
        reward=jnp.where(holes, jnp.nan, batch.reward),
        obs=jnp.where(holes[..., None], 1e6, batch.obs),
        next_obs=jnp.where(holes[..., None], -1e6, batch.next_obs),
    )
