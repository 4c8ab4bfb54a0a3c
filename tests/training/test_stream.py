"""The stream convention: one record per step, true final observations, nothing across a boundary."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from covey import envs
from covey.agent import SamplePlan
from covey.envs.builtin.point import Point
from covey.training.device import DeviceLoop
from covey.training.host import HostLoop
from tests.tasks import Counter, population, small_trainer

HOST = "gymnasium:tests.host_tasks:Counted"


@pytest.fixture(scope="module", params=[("device", 1), ("device", 3), ("host", 3)], ids=str)
def stream(request):
    """The records of some hundred steps: obs, reward, terminated, last, [time, stream, ...]."""
    kind, count = request.param
    trainer = small_trainer("td3", Counter() if kind == "device" else envs.make(HOST), envs=count)
    loop = DeviceLoop(trainer, 1, "map") if kind == "device" else HostLoop(trainer, 1, "map")
    state = loop.advance(population(loop), jnp.int32(2 if kind == "device" else 4), warmup=False)
    rows = int(state.replay.written)
    data = np.asarray(state.replay.data[0, :rows])
    return trainer, state, data[..., :2], data[..., 3], data[..., 4], data[..., 5]


def test_every_episode_is_whole_and_its_end_is_in_the_stream(stream):
    _, _, obs, reward, terminated, last = stream
    seen = 0
    for n in range(obs.shape[1]):
        ends = np.flatnonzero(last[:, n])
        starts = np.concatenate([[0], ends[:-1] + 1])
        for start, end in zip(starts, ends, strict=True):
            episode = obs[start : end + 1, n]
            assert np.all(episode[:, 0] == episode[0, 0]), "no record of another episode in between"
            np.testing.assert_array_equal(episode[:, 1], np.arange(end - start + 1))
            length = 3 if episode[0, 0] % 2 == 0 else 5
            assert end - start == length
            np.testing.assert_array_equal(reward[start:end, n], 10.0 * np.arange(1, length + 1))
            assert reward[end, n] == 0 and terminated[end, n] == 0
            expected = np.zeros(length)
            expected[-1] = length == 3
            np.testing.assert_array_equal(terminated[start:end, n], expected)
            seen += 1
    assert seen > 20


def test_start_states_are_drawn_anew(stream):
    _, _, obs, _, _, last = stream
    for n in range(obs.shape[1]):
        starts = obs[np.flatnonzero(last[:-1, n]) + 1, n, 0]
        assert len(np.unique(starts)) >= 0.95 * len(starts)


def test_a_sampled_successor_is_never_of_another_episode(stream):
    trainer, state, *_ = stream
    bits = jax.random.bits(jax.random.key(0), (5000,), jnp.uint32)
    batch = trainer.replay.sample_bits(state.replay, SamplePlan(5000, 3), bits)
    valid = np.asarray(batch.valid) > 0
    obs, after = np.asarray(batch.obs)[valid], np.asarray(batch.next_obs)[valid]
    np.testing.assert_array_equal(obs[:, 0], after[:, 0])
    np.testing.assert_array_equal(obs[:, 1] + 1, after[:, 1])
    truncated = (after[:, 1] == 5) & (after[:, 0] % 2 == 1)
    assert truncated.any() and not np.asarray(batch.terminated)[valid][truncated].any(), "a time limit is no end"


def test_training_statistics_count_each_episode_once(stream):
    _, state, _, reward, _, last = stream
    tally = state.members.tally
    closed = int(last.sum())
    count, returns, lengths = (float(x) for x in tally.episodes[0])
    ongoing = np.asarray(state.members.world.last).sum()
    assert count == closed + ongoing
    finished = np.cumsum(reward, axis=0)
    total = sum(finished[np.flatnonzero(last[:, n])[-1], n] for n in range(last.shape[1]) if last[:, n].any())
    pending = np.asarray(state.members.world.returns)[np.asarray(state.members.world.last)].sum()
    assert returns == pytest.approx(total + pending)
    assert lengths > 0


def test_the_normaliser_has_seen_every_record_once(stream):
    _, state, obs, *_ = stream
    stats = state.members.agent.statistics.observations
    assert float(stats.rows[0]) == obs.shape[0] * obs.shape[1]
    np.testing.assert_allclose(stats.mean[0], obs.reshape(-1, 2).mean(0), rtol=1e-4)


def test_a_skill_lasts_for_an_episode_and_the_next_has_another():
    trainer = small_trainer("diayn", Point(), envs=2)
    state = population(DeviceLoop(trainer, 2, "map"))
    records = trainer.replay.records(state.replay.data[:, : int(state.replay.written)])
    skill, last = np.argmax(records.extras["skill"], axis=-1), np.asarray(records.last)[:, :-1] > 0
    changes = skill[:, 1:] != skill[:, :-1]
    assert last.sum() == 4 and not changes[~last].any()
    assert changes[last].sum() >= 2
