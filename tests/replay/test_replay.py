"""The replay returns what was stored, in whole windows, never across a boundary, and without copies."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from covey.agent import SamplePlan
from covey.errors import CoveyError
from covey.replay import Record, Replay, Stored
from covey.types import Step


def coded(start: int, rows: int, streams: int, episode: int = 7) -> Record:
    """Records whose observation is (time, stream); every `episode`-th closes an episode."""
    time = np.arange(start, start + rows)[:, None].repeat(streams, 1)
    stream = np.arange(streams)[None].repeat(rows, 0)
    last = (time % episode) == episode - 1
    return Record(
        obs=jnp.asarray(np.stack([time, stream], -1), jnp.float32),
        action=jnp.asarray(time[..., None] * 0.5, jnp.float32),
        reward=jnp.asarray(time, jnp.float32) * 10,
        terminated=jnp.asarray((time % episode) == episode - 2),
        last=jnp.asarray(last),
        extras={"skill": jnp.asarray(stream, jnp.float32) + 100},
    )


def filled(replay: Replay, rows: int, unroll: int, slots: int = 1):
    state = replay.init(slots)
    for slot in range(slots):
        each = state._replace(written=jnp.zeros((), jnp.int32))
        for start in range(0, rows, unroll):
            each = replay.add(each, coded(start + 1000 * slot, unroll, replay.streams), slot)
        state = each
    return state


REPLAY = Replay(rows=20, streams=3, observation=2, action_size=1, extras=(("skill", 1),))


@pytest.mark.parametrize("rows", [6, 20, 34, 90])
@pytest.mark.parametrize("window", [1, 2, 5])
def test_windows_are_uniform_over_what_is_stored(rows: int, window: int):
    state = filled(REPLAY, rows, 2)
    assert_uniform(REPLAY.sample(state, SamplePlan(20_000, window), jax.random.key(0)), max(0, rows - 20), rows - 1)


@pytest.mark.parametrize("more", [0, 4, 16, 40])
@pytest.mark.parametrize("rows", [6, 20, 34, 90])
def test_a_ring_that_grows_keeps_its_rows_in_time_order(rows: int, more: int):
    """Also where it had wrapped around: old rows are drawn until replaced, and no window joins the ends."""
    state = filled(REPLAY, rows, 2)
    larger = dataclasses.replace(REPLAY, rows=36)
    grown = larger.restore(Stored(np.asarray(state.data)[:, : min(rows, 20)], {}), state.written)
    for start in range(rows, rows + more, 2):
        grown = larger.add(grown, coded(start, 2, 3))
    oldest = max(0, rows - 20, rows + more - 36)
    assert_uniform(larger.sample(grown, SamplePlan(20_000, 2), jax.random.key(0)), oldest, rows + more - 1)


def test_a_ring_of_the_same_size_is_restored_as_it_was():
    for rows in (6, 20, 34):
        state = filled(REPLAY, rows, 2)
        same = REPLAY.restore(Stored(np.asarray(state.data)[:, : min(rows, 20)], {}), state.written)
        np.testing.assert_array_equal(same.data, state.data)
        assert same.written == state.written


def assert_uniform(batch: Step, oldest: int, newest: int) -> None:
    """Windows of 20,000 that start uniformly from the oldest record on, the last of which ends with the newest."""
    window = batch.reward.shape[1]
    time, stream = np.asarray(batch.obs[:, 0, 0]).astype(int), np.asarray(batch.obs[:, 0, 1]).astype(int)
    expected = np.arange(oldest, newest - window + 1)
    starts, counts = np.unique(time, return_counts=True)
    np.testing.assert_array_equal(starts, expected)
    share = 20_000 / len(expected)
    assert np.all(np.abs(counts - share) < 5 * np.sqrt(share))
    assert set(stream) == {0, 1, 2}
    for t in range(window):
        np.testing.assert_array_equal(batch.obs[:, t, 0], time + t)
        np.testing.assert_array_equal(batch.next_obs[:, t, 0], time + t + 1)
        np.testing.assert_array_equal(batch.next_obs[:, t, 1], stream)
        np.testing.assert_array_equal(batch.action[:, t, 0], (time + t) * 0.5)
        np.testing.assert_array_equal(batch.reward[:, t], (time + t) * 10)
        np.testing.assert_array_equal(batch.terminated[:, t], (time + t) % 7 == 5)
        np.testing.assert_array_equal(batch.extras["skill"][:, t, 0], stream + 100)
        crossed = np.any([(time + k) % 7 == 6 for k in range(t + 1)], axis=0)
        np.testing.assert_array_equal(batch.valid[:, t], ~crossed)


def test_slots_are_separate():
    state = filled(REPLAY, 20, 2, slots=3)
    for slot in range(3):
        time = np.asarray(REPLAY.sample(state, SamplePlan(500, 1), jax.random.key(1), slot).obs[:, 0, 0])
        assert time.min() >= 1000 * slot and time.max() < 1000 * slot + 20


def test_a_key_draws_its_bits():
    state, plan, key = filled(REPLAY, 20, 2), SamplePlan(500, 2), jax.random.key(3)
    bits = jax.random.bits(key, (500,), jnp.uint32)
    jax.tree.map(np.testing.assert_array_equal, REPLAY.sample(state, plan, key), REPLAY.sample_bits(state, plan, bits))


@pytest.mark.parametrize("streams", [1, 3])
def test_one_step_needs_no_axis_of_time_and_one_stream_none_of_streams(streams: int):
    replay = dataclasses.replace(REPLAY, streams=streams)
    records = coded(5, 1, streams)
    added = replay.add(replay.init(), records)
    row = jax.tree.map(lambda x: x[0], records)
    jax.tree.map(np.testing.assert_array_equal, replay.add(replay.init(), row), added)
    if streams == 1:
        jax.tree.map(np.testing.assert_array_equal, replay.add(replay.init(), jax.tree.map(lambda x: x[0], row)), added)


@pytest.mark.parametrize("shape", [(), (2,), (1, 2), (3, 1)])
def test_records_of_another_number_of_streams_are_an_error(shape: tuple[int, ...]):
    zero = jnp.zeros(shape)
    records = Record(jnp.zeros((*shape, 2)), jnp.zeros((*shape, 1)), zero, zero, zero, {"skill": zero})
    with pytest.raises(CoveyError, match=r"3 streams.*\[T, 3\]"):
        REPLAY.add(REPLAY.init(), records)


def test_writing_and_drawing_do_not_copy_the_buffer():
    """Compiled with donation, a write aliases the buffer and neither needs scratch space of its size."""
    replay = Replay(rows=100_000, streams=1, observation=17, action_size=6)
    state = replay.init(1)
    record = Record(jnp.zeros((2, 1, 17)), jnp.zeros((2, 1, 6)), *(jnp.zeros((2, 1)) for _ in range(3)), extras={})

    def work(state, record, bits):
        def body(i, carry):
            state, total = carry
            state = replay.add(state, record)
            return state, total + jnp.sum(replay.sample_bits(state, SamplePlan(256, 1), bits).obs)

        return jax.lax.fori_loop(0, 10, body, (state, jnp.zeros(())))

    bits = jnp.zeros(256, jnp.uint32)
    memory = jax.jit(work, donate_argnums=0).lower(state, record, bits).compile().memory_analysis()
    assert memory.alias_size_in_bytes >= state.data.nbytes
    assert memory.temp_size_in_bytes < state.data.nbytes / 10


def test_bytes_per_transition():
    replay = Replay(rows=100, streams=1, observation=17, action_size=6)
    assert replay.width <= 1.1 * (17 + 6 + 3)


@pytest.mark.parametrize(
    ("rows", "plan", "unroll", "warmup", "message"),
    [
        (4, SamplePlan(8, 4), 2, 10, "Raise `capacity` to at least 10"),
        (2, SamplePlan(8, 1), 4, 10, "Raise `capacity` to at least 8"),
        (20, SamplePlan(8, 6), 2, 6, "Raise `warmup` to at least 14"),
    ],
)
def test_a_replay_that_cannot_serve_the_plan_is_an_error(rows, plan, unroll, warmup, message):
    with pytest.raises(CoveyError, match=message):
        Replay(rows=rows, streams=2, observation=1, action_size=1).check(plan, unroll, warmup)


def test_all_members_of_a_block_draw_from_the_same_records():
    """At any point of the block: from the rows that all held before it and that none overwrites during it."""
    bits = jax.random.bits(jax.random.key(0), (5000,), jnp.uint32)
    plan, block = SamplePlan(5000, 2), 6
    for rows in (12, 20, 40):
        before = filled(REPLAY, rows, 2, slots=3)
        drawn = REPLAY.sample_all(before, plan, bits, jnp.int32(0), block)
        oldest = max(0, rows + block - REPLAY.rows)
        for t, records in enumerate((drawn.obs[:, 0], drawn.next_obs[:, 0], drawn.next_obs[:, 1])):
            slot, time = np.divmod(np.asarray(records[:, 0]).astype(int), 1000)
            assert set(slot) == {0, 1, 2} and set(time) == set(range(oldest + t, rows - 2 + t))
        state = before
        for done in (2, 4, 6):
            state = REPLAY.add(state, coded(5000 + done, 2, 3), 1)
            again = REPLAY.sample_all(state, plan, bits, jnp.int32(done), block)
            jax.tree.map(np.testing.assert_array_equal, again, drawn)


def test_what_is_not_finite_is_drawn_from_no_shared_replay():
    state = filled(REPLAY, 20, 2, slots=2)
    state = state._replace(data=state.data.at[1, 11, 0, 0].set(jnp.nan))
    bits = jax.random.bits(jax.random.key(0), (5000,), jnp.uint32)
    step = REPLAY.sample_all(state, SamplePlan(5000, 2), bits, jnp.int32(0), 4)
    assert all(np.isfinite(x).all() for x in jax.tree.leaves(step))
    time, stream = np.asarray(step.obs[:, 0, 0]).astype(int), np.asarray(step.obs[:, 0, 1]).astype(int)
    here = (time >= 1000) & (stream == 0)
    assert set(time[here & (step.valid[:, 0] == 0)]) == {1007, 1010, 1014}, "two ends, and the record before the NaN"
    before = np.asarray(step.valid)[here & (time == 1009)]
    assert len(before) > 10 and np.all(before == [1, 0])


def test_the_newest_record_of_a_slot_is_closed():
    """By hand: row 13 % 6 - 1 of slot 1 closes its episode, and nothing else changes."""
    replay = Replay(rows=6, streams=2, observation=2, action_size=1)
    data = np.arange(2 * 6 * 2 * 6, dtype=np.float32).reshape(2, 6, 2, 6)
    state = replay.init(2)._replace(data=jnp.asarray(data), written=jnp.int32(13))
    data[1, 0, :, 3:] = [0.0, 0.0, 1.0]
    closed = replay.close(state, jnp.array([False, True]))
    np.testing.assert_array_equal(closed.data, data)
