"""A replay as a file: what was stored comes back, and nothing follows what it did not follow."""

import os
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import load_file, save_file

from covey.agent import SamplePlan
from covey.errors import CoveyError
from covey.replay import Record, Replay, ReplayState, Stored
from covey.storage.replay_file import arrange, open_replay, write_replay
from tests.replay import test_replay

ABOUT = {"environment": "point", "algorithm": "td3", "step": 90}


def coded(start: int, rows: int, streams: int) -> Record:
    """As for the replay, with actions in [-1, 1]."""
    record = test_replay.coded(start, rows, streams)
    return record._replace(action=record.action / 4096)


def replay(rows: int = 20, streams: int = 3) -> Replay:
    return Replay(rows, streams, observation=2, action_size=1, extras=(("skill", 1),))


def ring(to: Replay, rows: int, slots: int = 1) -> ReplayState:
    """A ring in which every slot has been written `rows` rows, two at a time; slot i's times begin at 1000 i."""
    state = to.init(slots)
    for start in range(0, rows, 2):
        written = state.written
        for slot in range(slots):
            state = to.add(state._replace(written=written), coded(start + 1000 * slot, 2, to.streams), slot)
    return state


def saved(path: Path, rows: int = 34, slots: int = 1, **options: int) -> Path:
    like = replay(**options)
    state = ring(like, rows, slots)
    data = np.asarray(state.data)[:, : min(rows, like.rows)]
    write_replay(path / "replay.safetensors", like, Stored(data, {}), int(state.written), **ABOUT)
    assert [p.name for p in path.iterdir()] == ["replay.safetensors"]
    return path / "replay.safetensors"


def loaded(file: Path, to: Replay, members: int = 1, unroll: int = 2) -> np.ndarray:
    found = open_replay(file)
    return found.read(to, found.rows_for(to, unroll, "point"), members).data


def times(data: np.ndarray) -> np.ndarray:
    return data[..., 0].astype(int)


@pytest.mark.parametrize("rows", [6, 20, 34, 90])
def test_the_file_holds_the_ring_in_time_order(rows: int, tmp_path: Path):
    """To the bit, oldest first, also when the ring has wrapped."""
    path = saved(tmp_path, rows, slots=2)
    arrays = load_file(path)
    for member in range(2):
        expected = coded(max(0, rows - 20) + 1000 * member, min(rows, 20), 3)
        for name in ("obs", "action", "reward", "terminated", "last"):
            np.testing.assert_array_equal(arrays[name][member], getattr(expected, name), err_msg=name)
        np.testing.assert_array_equal(arrays["extras.skill"][member, ..., 0], expected.extras["skill"])
    assert {x.dtype for x in arrays.values()} == {np.dtype(np.float32)} and len(arrays) == 6
    with safe_open(path, framework="numpy") as file:
        found = file.metadata()
    assert len(found.pop("sha256")) == 64
    assert found == {"format": "covey replay", "version": "1"} | {k: str(v) for k, v in ABOUT.items()}
    found = open_replay(path)
    assert (found.members, found.rows, found.streams, found.step) == (2, min(rows, 20), 3, 90)


def test_round_trip(tmp_path: Path):
    """What is loaded is what was stored, to the bit, but for the end of every stream."""
    like = replay()
    data = loaded(saved(tmp_path, 34), like)
    stored = np.roll(np.asarray(ring(like, 34).data), -14, axis=1)
    np.testing.assert_array_equal(data[:, :-1], stored[:, :-1])
    np.testing.assert_array_equal(data[:, -1, :, :3], stored[:, -1, :, :3])
    assert np.all(data[:, -1, :, 5] == 1) and np.all(data[:, -1, :, 3:5] == 0)
    assert not np.any(stored[:, -1, :, 5]), "the test would see nothing"


@pytest.mark.parametrize("streams", [1, 2, 3, 4, 7])
@pytest.mark.parametrize("window", [1, 4])
def test_no_window_crosses_a_seam(streams: int, window: int, tmp_path: Path):
    """Neither to what the run writes next, nor between streams that were joined, nor within what was cut."""
    to = replay(40, streams)
    data = loaded(saved(tmp_path, 34), to)
    rows = data.shape[1]
    assert rows == min(40, 60 // streams) // 2 * 2
    state = to.init(1)
    state = ReplayState(state.data.at[:, :rows].set(jnp.asarray(data)), jnp.int32(rows), {})
    state = to.add(state, coded(5000, 2, streams))
    bits = jax.random.bits(jax.random.key(0), (5000,), jnp.uint32)
    batch = to.sample_bits(state, SamplePlan(5000, window), bits)
    valid = np.asarray(batch.valid) > 0
    now, after = np.asarray(batch.obs)[valid], np.asarray(batch.next_obs)[valid]
    np.testing.assert_array_equal(after[:, 0], now[:, 0] + 1)
    if streams == 3:
        np.testing.assert_array_equal(after[:, 1], now[:, 1])
    assert (now[:, 0] < 5000).any()


def test_other_numbers_of_streams_keep_all_that_divides(tmp_path: Path):
    path = saved(tmp_path, 34)
    data = loaded(path, replay(40, 7))  # 60 records: 7 pieces of 8, and the 4 oldest are left out
    assert data.shape == (1, 8, 7, 7)
    joined = data[0].swapaxes(0, 1).reshape(56, -1)
    np.testing.assert_array_equal(times(joined), np.tile(np.arange(15, 34), 3)[1:])
    np.testing.assert_array_equal(joined[:, 1], np.repeat(np.arange(3), 19)[1:])
    lasts = np.flatnonzero(joined[:, 5])
    assert set(range(7, 56, 8)) | {17, 36, 55} <= set(lasts)
    one = loaded(path, replay(100, 1))
    np.testing.assert_array_equal(times(one)[0, :, 0], np.tile(np.arange(14, 34), 3))


def test_a_smaller_capacity_keeps_the_newest(tmp_path: Path):
    path = saved(tmp_path, 34)
    np.testing.assert_array_equal(times(loaded(path, replay(8)))[0, :, 0], np.arange(26, 34))
    other = times(loaded(path, replay(6, 2)))  # 12 of the newest records: 4 of each stream
    np.testing.assert_array_equal(other[0].T, [[30, 31, 32, 33, 30, 31], [32, 33, 30, 31, 32, 33]])


def test_rows_are_whole_collections(tmp_path: Path):
    data = loaded(saved(tmp_path, 34), replay(21), unroll=7)
    np.testing.assert_array_equal(times(data)[0, :, 0], np.arange(20, 34))


def test_members_take_turns(tmp_path: Path):
    path = saved(tmp_path, 34, slots=2)
    firsts = times(loaded(path, replay(), members=5))[:, 0, 0]
    np.testing.assert_array_equal(firsts, [14, 1014, 14, 1014, 14])
    np.testing.assert_array_equal(times(loaded(path, replay(), members=1))[:, 0, 0], [14])


def test_arranging_more_streams_than_records():
    like = replay(2, 2)
    data = np.zeros((1, 4, 1, like.width), np.float32)
    data[0, :, 0, 0] = np.arange(4)
    found = arrange(Stored(data, {}), like, 2).data
    np.testing.assert_array_equal(times(found)[0], [[0, 2], [1, 3]])
    np.testing.assert_array_equal(found[0, :, :, 5], [[0, 0], [1, 1]])


def harmed(path: Path, change, metadata=None) -> None:
    arrays = load_file(path)
    change(arrays)
    save_file(arrays, path, {"format": "covey replay", "version": "1", "step": "3"} | (metadata or {}))


HARMS = {
    "empty": (lambda p: p.write_bytes(b""), "can't be read as a replay file"),
    "text": (lambda p: p.write_text("not a replay" * 20), "can't be read as a replay file"),
    "truncated": (lambda p: p.write_bytes(p.read_bytes()[:-5]), "can't be read as a replay file"),
    "missing": (lambda p: p.unlink(), "There is no replay file"),
    "another safetensors": (lambda p: save_file({"a": np.zeros(2)}, p), "not a replay file of covey"),
    "another version": (lambda p: harmed(p, lambda a: None, {"version": "7"}), "of version 7, .* reads version 1"),
    "no step": (lambda p: harmed(p, lambda a: None, {"step": "x"}), "its step is 'x'"),
    "no rewards": (lambda p: harmed(p, lambda a: a.pop("reward")), "damaged: reward is missing"),
    "fewer rewards": (
        lambda p: harmed(p, lambda a: a.update(reward=a["reward"][:, :5].copy())),
        r"reward is F32\[1, 5, 3\] where action is F32\[1, 20, 3, 1\]",
    ),
    "another type": (lambda p: harmed(p, lambda a: a.update(last=a["last"].astype(np.int32))), "last is I32"),
    "no rows": (lambda p: harmed(p, lambda a: a.update({n: x[:, :0] for n, x in a.items()})), r"\[1, 0, 3"),
    "not finite": (lambda p: harmed(p, lambda a: a["reward"].fill(np.nan)), "not finite"),
    "no extras": (lambda p: harmed(p, lambda a: a.pop("extras.skill")), r"holds no extras.* stores skill \(1\)"),
    "unknown extras": (
        lambda p: harmed(p, lambda a: a.update({"extras.goal": a["obs"].copy()})),
        r"holds goal \(2\), skill \(1\).*and this agent stores skill \(1\)",
    ),
    "other observations": (
        lambda p: harmed(p, lambda a: a.update(obs=a["obs"][..., :1].copy())),
        "observations of 1 numbers .*those of point have 2",
    ),
    "other actions": (
        lambda p: harmed(p, lambda a: a.update(action=a["obs"].copy())),
        "actions of 2 numbers .*those of point have 1",
    ),
}


@pytest.mark.parametrize("case", HARMS)
def test_what_is_no_fitting_replay_is_told(case: str, tmp_path: Path):
    harm, message = HARMS[case]
    path = saved(tmp_path)
    harm(path)
    with pytest.raises(CoveyError, match=message):
        loaded(path, replay())


def test_too_few_steps_for_one_collection(tmp_path: Path):
    with pytest.raises(CoveyError, match=r"holds 60 steps of each member.* has 80"):
        loaded(saved(tmp_path), replay(40, 40))


def test_a_file_that_can_not_be_written(tmp_path: Path, monkeypatch):
    """Nothing is left of it, and what was there before stays."""
    path = saved(tmp_path)
    before = path.read_bytes()

    def fail(handle, data):
        os.write(handle, data[:9])
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("covey.storage.replay_file.write_all", fail)
    with pytest.raises(CoveyError, match=r"No space left on device\. Free some space"):
        saved(tmp_path)
    assert [p.name for p in tmp_path.iterdir()] == [path.name] and path.read_bytes() == before
    monkeypatch.undo()
    with pytest.raises(CoveyError, match="can't be written"):
        write_replay(path / "below" / "a_file", replay(), Stored(np.zeros((1, 2, 3, 7), np.float32), {}), 2, **ABOUT)
