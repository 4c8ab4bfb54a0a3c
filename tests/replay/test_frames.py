"""Images in the replay: stored once, in their own dtype, and stacked when they are drawn."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from covey.agent import SamplePlan
from covey.observation import Observation, Part
from covey.replay import Record, Replay, Stored, frames_back
from tests.tasks import Camera

FORM = {"camera": Part((2, 2, 1), "uint8", stack=3), "speed": Part((2,))}


def stream(rows: int, length: int, streams: int = 2, stack: int = 3) -> Record:
    """Episodes of `length` records, each of whose frames has the number of its row; stacked as environments do it."""
    camera = np.zeros((rows, streams, 2, 2, stack), np.uint8)
    last = np.zeros((rows, streams), bool)
    for n in range(streams):
        for t in range(rows):
            age = (t + n) % length
            last[t, n] = age == length - 1
            camera[t, n] = [t - min(age, t, stack - 1 - k) for k in range(stack)]
    speed = np.broadcast_to(np.arange(rows, dtype=np.float32)[:, None, None], (rows, streams, 2))
    zero = np.zeros((rows, streams), np.float32)
    obs = {"camera": camera, "speed": speed}
    return jax.tree.map(jnp.asarray, Record(obs, zero[..., None], zero, zero, last, {}))


@pytest.mark.parametrize("window", [1, 3])
@pytest.mark.parametrize("rows", [8, 40])
@pytest.mark.parametrize("length", [2, 5])
def test_a_drawn_stack_is_the_one_that_was_seen(window: int, rows: int, length: int):
    """In a ring that is full and one that is not, for windows across the ends of episodes."""
    replay = Replay(rows, 2, FORM, 1)
    written = stream(24, length)
    state = replay.init()
    for t in range(0, 24, 4):
        state = replay.add(state, jax.tree.map(lambda x, t=t: x[t : t + 4], written))
    batch = replay.sample(state, SamplePlan(400, window), jax.random.key(0))
    valid = np.asarray(batch.valid) > 0
    assert valid.any() and batch.obs["camera"].dtype == jnp.uint8
    for found in (batch.obs, batch.next_obs):
        row = np.asarray(found["speed"])[valid][:, 0].astype(int)
        seen = np.asarray(written.obs["camera"])[row]
        drawn = np.asarray(found["camera"])[valid]
        same = (seen == drawn[:, None]).all(axis=(2, 3, 4))
        assert same.any(axis=1).all(), "no environment has seen this stack in this row"
    after = np.asarray(batch.next_obs["speed"])[valid] - np.asarray(batch.obs["speed"])[valid]
    assert (after == 1).all()


def test_records_in_time_order_have_the_stacks_that_were_seen():
    replay = Replay(24, 2, FORM, 1)
    written = stream(24, 5)
    state = replay.add(replay.init(), written)
    found = replay.ordered_records(jax.tree.map(lambda x: x[0], state.stored))
    np.testing.assert_array_equal(found.obs["camera"], written.obs["camera"])
    np.testing.assert_array_equal(found.obs["speed"], written.obs["speed"])


def test_frames_back_by_hand():
    """An episode that ends at row 2, and one that goes on; no row before the first."""
    last = jnp.array([0.0, 0.0, 1.0, 0.0, 0.0])
    expected = [[0, 0, 0], [1, 1, 0], [2, 1, 0], [0, 0, 0], [1, 1, 0]]
    assert frames_back(last, 3).tolist() == expected
    assert frames_back(last, 3, skipped=2).tolist() == expected[2:]


def test_a_million_steps_of_stacked_images_take_the_bytes_of_their_single_frames():
    replay = Replay(1_000_000, 1, Part((64, 64, 3), "uint8", stack=3), action_size=2)
    shapes = jax.eval_shape(replay.init)
    total = sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(shapes))
    assert total <= 1.05 * 1_000_000 * 64 * 64 * 3
    assert replay.record_bytes * 1_000_000 == total - 4  # the counter


def test_a_write_and_a_draw_copy_no_frames():
    replay = Replay(2_000, 1, Part((32, 32, 3), "uint8", stack=3), 1)
    shapes = jax.eval_shape(replay.init)
    record = jax.eval_shape(lambda: jax.tree.map(lambda x: x[:1, :1], stream(2, 2, 1)))
    record = record._replace(obs=jax.ShapeDtypeStruct((1, 1, 32, 32, 9), jnp.uint8))
    write = jax.jit(replay.add, donate_argnums=0).lower(shapes, record).compile().memory_analysis()
    draw = jax.jit(replay.sample, static_argnums=1).lower(shapes, SamplePlan(4), jax.random.key(0)).compile()
    frames = 2_000 * 32 * 32 * 3
    assert write.temp_size_in_bytes < frames / 10 and write.alias_size_in_bytes >= frames
    assert draw.memory_analysis().temp_size_in_bytes < frames / 10


def test_a_ring_with_frames_grows_in_time_order():
    small, large = Replay(8, 2, FORM, 1), Replay(16, 2, FORM, 1)
    state = small.init()
    for t in range(0, 12, 4):
        state = small.add(state, jax.tree.map(lambda x, t=t: x[t : t + 4], stream(12, 5)))
    grown = large.restore(jax.tree.map(np.asarray, state.stored), state.written)
    assert int(grown.written) == 8
    np.testing.assert_array_equal(grown.frames["camera"][0, :8, 0, 0], np.arange(4, 12))


def test_float_frames_that_are_not_finite_are_not_drawn():
    replay = Replay(6, 1, Part((2,), stack=2), 1)
    frames = jnp.ones((1, 6, 1, 2)).at[0, 3].set(jnp.nan)
    data = jnp.zeros((1, 6, 1, replay.width))
    found = replay.cleanse(Stored(data, {"obs": frames}))
    assert np.isfinite(found.frames["obs"]).all()
    assert found.data[0, :, 0, replay.columns["last"]][:, 0].tolist() == [0, 0, 1, 1, 0, 0]


def test_the_environment_of_other_tests_stacks_its_frames():
    env = Camera()
    state, obs = env.reset(jax.random.key(0))
    seen = [np.asarray(obs)[0, 0] // 10]
    for _ in range(3):
        state, outcome = env.step(state, jnp.ones(1), jax.random.key(1))
        seen.append(np.asarray(outcome.obs)[0, 0] // 10)
    assert np.array(seen).tolist() == [[0, 0, 0], [0, 0, 1], [0, 1, 2], [1, 2, 3]]


def test_forms_of_observations():
    assert Observation.of(3).is_vector and Observation.of(3).size == 3 and str(Observation.of(3)) == "3 numbers"
    form = Observation.of(FORM)
    assert not form.is_array and form.stack == 3 and form.bytes == 4 + 8
    assert list(form.parts) == ["camera", "speed"] and form.rows(form.zeros(4, 5)) == (4, 5)
    assert Observation.of(form) is form and hash(form) == hash(Observation.of(dict(reversed(FORM.items()))))


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (lambda: Part((3, 0)), "positive sizes"),
        (lambda: Part((3,), "int64"), "float32 or uint8, not int64"),
        (lambda: Part((3,), stack=0), "`stack` must be at least 1"),
        (lambda: Observation.of({}), "dictionary of Parts"),
        (lambda: Observation.of({"a": 3}), "dictionary of Parts"),
        (lambda: Observation.of(FORM).size, "not a vector"),
    ],
)
def test_wrong_forms_are_named(wrong, message):
    from covey import CoveyError

    with pytest.raises(CoveyError, match=message):
        wrong()
