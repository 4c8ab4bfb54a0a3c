"""`collect` is training's own step: the same records, in compiled and host environments."""

import dataclasses
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import covey
from covey.training.device import DeviceLoop
from covey.training.host import HostLoop
from tests.tasks import Counter, assert_same, population, small_trainer

KEY = jax.random.key(3)


@pytest.fixture(scope="module")
def played():
    trainer = small_trainer("td3", Counter())
    agent, env, hyper = trainer.agent, trainer.env, trainer.initial_hyper
    state = agent.init(hyper, KEY)
    world = covey.new_world(agent, env, state, hyper, KEY, envs=4)
    play = jax.jit(partial(covey.collect, agent, env, steps=30), static_argnames="mode")
    return trainer, play, state, hyper, world


def test_transitions_follow_each_other_and_episodes_start_anew(played):
    _, play, state, hyper, world = played
    after, rollout = play(state, hyper, world, KEY, mode="sample")
    steps = jax.tree.map(np.asarray, rollout.steps)
    assert steps.obs.shape == (30, 4, 2) and steps.reward.shape == (30, 4)
    valid = steps.valid > 0
    np.testing.assert_array_equal(steps.next_obs[valid], steps.obs[valid] + [0.0, 1.0])
    followed = valid[:-1]
    np.testing.assert_array_equal(steps.obs[1:][followed], steps.next_obs[:-1][followed])
    assert np.all(steps.obs[1:][~followed][:, 1] == 0.0), "after a final record, an episode starts"
    np.testing.assert_array_equal(steps.reward[valid], steps.next_obs[valid][:, 1] * 10.0)
    np.testing.assert_array_equal(1.0 - steps.valid, np.asarray(rollout.records.last))
    # The descriptor is the step within the episode, before and after.
    np.testing.assert_array_equal(np.asarray(rollout.descriptor)[..., 0], steps.obs[..., 1])
    np.testing.assert_array_equal(np.asarray(rollout.next_descriptor)[valid][:, 0], steps.next_obs[valid][:, 1])
    # The world goes on where it was left, and modes differ.
    _, more = play(state, hyper, after, jax.random.key(4), mode="sample")
    going = valid[-1]
    np.testing.assert_array_equal(np.asarray(more.steps.obs)[0][going], steps.next_obs[-1][going])
    _, greedy = play(state, hyper, world, KEY, mode="greedy")
    assert not np.array_equal(np.asarray(greedy.steps.action), steps.action)
    with pytest.raises(covey.CoveyError, match="`steps` must be at least 1"):
        covey.collect(played[0].agent, played[0].env, state, hyper, world, KEY, steps=0)


def test_it_can_be_mapped_over_members(played):
    _, play, state, hyper, world = played
    two = jax.tree.map(lambda x: jnp.stack([x, x]), state)
    keys = jax.random.split(KEY, 2)
    _, both = jax.vmap(lambda s, k: play(s, hyper, world, k, mode="sample"))(two, keys)
    _, one = play(state, hyper, world, keys[1], mode="sample")
    np.testing.assert_allclose(np.asarray(both.steps.action)[1], np.asarray(one.steps.action), atol=1e-6)


def test_records_feed_a_replay_and_an_update(played):
    trainer, play, state, hyper, world = played
    _, rollout = play(state, hyper, world, KEY, mode="random")
    replay = covey.Replay(rows=60, streams=4, observation=2, action_size=1)
    buffer = replay.add(replay.init(), rollout.records)
    state = trainer.agent.observe(state, hyper, rollout.steps, KEY)
    batch = replay.sample(buffer, trainer.agent.plan, KEY)
    learned, metrics = jax.jit(trainer.agent.update)(state, hyper, batch, KEY)
    assert np.isfinite(float(metrics["critic_loss"])) and int(learned.actor_optimiser.count) == 1


def test_on_a_compiled_loop_training_goes_on_as_before():
    """The member's environments move, its agent does not; no window of the replay crosses the gap."""
    loop = DeviceLoop(small_trainer("td3", Counter(), envs=2), members=2, axis="map")
    start = population(loop)
    before = jax.device_get(start.members.agent)
    obs = np.asarray(start.members.world.obs)
    found, rollout = loop.collect(start, KEY, steps=7)
    assert rollout.steps.obs.shape == (2, 7, 2, 2) and rollout.descriptor.shape == (2, 7, 2, 1)
    np.testing.assert_array_equal(np.asarray(rollout.steps.obs)[:, 0], obs)
    assert_same(before, found.members.agent)
    data = np.asarray(found.replay.data)
    newest = (int(found.replay.written) - 1) % data.shape[1]
    assert np.all(data[:, newest, :, loop.trainer.replay.columns["last"]] == 1.0)
    trained = loop.advance(found, 1)
    assert int(trained.block) == 3 and np.all(np.isfinite(np.asarray(trained.members.tally.sums)))


@pytest.mark.parametrize("overlap", [True, False])
def test_on_a_host_loop(overlap: bool):
    loop = HostLoop(
        small_trainer("td3", covey.envs.make("gymnasium:tests.host_tasks:Drift"), envs=2),
        members=2,
        axis="map",
        overlap=overlap,
    )
    start = population(loop)  # type: ignore[arg-type]
    obs = np.asarray(start.members.world.obs)
    found, rollout = loop.collect(start, KEY, steps=5)
    steps = jax.tree.map(np.asarray, rollout.steps)
    assert steps.obs.shape[:3] == (2, 5, 2)
    np.testing.assert_array_equal(steps.obs[:, 0], obs)
    valid = steps.valid[:, :-1] > 0
    np.testing.assert_array_equal(steps.obs[:, 1:][valid], steps.next_obs[:, :-1][valid])
    _, again = loop.collect(found, jax.random.key(4), steps=1, mode="greedy")
    going = steps.valid[:, -1] > 0
    np.testing.assert_array_equal(np.asarray(again.steps.obs)[:, 0][going], steps.next_obs[:, -1][going])
    loop.close()


def test_a_warm_up_may_act_with_the_policy():
    """Before the first update it stores the record that training stores; a uniform warm-up stores another action."""
    trainer = small_trainer("td3", Counter(), envs=2)
    as_policy = dataclasses.replace(trainer, warmup_mode="sample")
    stored = []
    for each, warmup in ((trainer, False), (as_policy, True), (trainer, True)):
        loop = DeviceLoop(each, members=2, axis="map")
        stored.append(np.asarray(loop.advance(loop.init(seed=0), 1, warmup=warmup).replay.data)[:, 0])
    np.testing.assert_array_equal(stored[0], stored[1])
    actions = [x[..., trainer.replay.columns["action"]] for x in stored]
    assert not np.any(actions[1] == actions[2])
