"""The contract of every algorithm with images and dictionaries; `test_agents.py` has vectors."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from covey.agents import REGISTRY
from covey.evaluation.evaluate import evaluate
from covey.nn.encoders import PRIVILEGED
from covey.training.device import DeviceLoop
from tests.tasks import Camera, assert_same, population, small_trainer

AGENTS = [name for name in sorted(REGISTRY) if name not in ("taac", "taac-l")]
KINDS = [("privileged", name) for name in AGENTS] + [("image", "sac"), ("image", "taac-q"), ("dictionary", "td3")]


@pytest.fixture(scope="module", params=KINDS, ids="-".join)
def trained(request):
    """Two members before and after a block of learning."""
    kind, name = request.param
    loop = DeviceLoop(small_trainer(name, Camera(kind), envs=2), 2, "map")
    before = jax.tree.map(np.asarray, population(loop).members.agent)
    return loop, before, loop.advance(population(loop), 1)


def test_learning_changes_the_agent_and_stays_finite(trained):
    loop, before, after = trained
    found = jax.tree.map(np.asarray, after.members.agent)
    assert all(np.isfinite(x).all() for x in jax.tree.leaves(found))
    assert np.asarray(after.members.tally.fault).max() == -1
    changed = jax.tree.map(lambda a, b: not np.array_equal(a, b), before, found)
    assert np.mean(jax.tree.leaves(changed)) > 0.9
    (frames,) = after.replay.frames.values()
    assert frames.dtype == jnp.uint8 and np.asarray(frames).any()
    assert np.isfinite(evaluate(loop, after, episodes=2).returns).all()


def test_the_policy_does_not_see_what_is_privileged(trained):
    """And it sees the image."""
    loop, _, after = trained
    trainer = loop.trainer
    state, hyper, world = jax.tree.map(lambda x: x[0], (after.members.agent, after.members.hyper, after.members.world))
    obs = jax.tree.map(lambda x: x[0], world.obs)
    key = jax.random.key(0)
    memory = trainer.agent.begin(state, hyper, key)

    def action(obs):
        return np.asarray(trainer.agent.act(state, hyper, memory, obs, key, "greedy").action)

    if isinstance(obs, dict) and PRIVILEGED in obs:
        np.testing.assert_array_equal(action(obs), action(obs | {PRIVILEGED: obs[PRIVILEGED] + 1.0}))
    stripes = jnp.arange(100, 112, dtype=jnp.uint8)[:, None, None]
    other = obs | {"camera": obs["camera"] + stripes} if isinstance(obs, dict) else obs + stripes
    assert not np.array_equal(action(obs), action(other))


@pytest.mark.parametrize("name", ["sac"])
def test_a_member_with_images_is_as_if_alone(name: str):
    loop = DeviceLoop(small_trainer(name, Camera("privileged"), envs=2), 2, "map")
    alone = DeviceLoop(loop.trainer, 1, "map")
    both, one = loop.advance(population(loop), 1), alone.advance(population(alone), 1)
    assert_same(jax.tree.map(lambda x: x[:1], (both.members, both.replay.stored)), (one.members, one.replay.stored))
    lock_step = DeviceLoop(loop.trainer, 2, "vmap")
    other = lock_step.advance(population(lock_step), 1).members.agent
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-4), both.members.agent, other)
