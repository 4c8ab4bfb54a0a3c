"""Checkpoints are whole or absent, and never trusted before they are verified."""

import json
import shutil
import threading
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import covey
from covey.cli import main
from covey.errors import CoveyError
from covey.storage.layout import restore, snapshot
from covey.storage.store import Store, Writer
from tests.runs import assert_same_run, tiny


def tree():
    return {
        "w": jnp.arange(6.0).reshape(2, 3),
        "half": jnp.ones(2, jnp.bfloat16),
        "count": jnp.int32(7),
        "flag": jnp.array([True, False]),
        "key": jax.random.key(3),
        "nothing": {},
    }


def store_with(folder: Path, *steps: int) -> Store:
    store = Store(folder, "step")
    for step in steps:
        store.write(step, snapshot(tree() | {"count": jnp.int32(step)}), {"step": step})
    return store


def test_round_trip(tmp_path: Path):
    arrays, info = store_with(tmp_path, 10).read_newest(print)
    assert info == {"step": 10}
    template = jax.eval_shape(tree)
    found = restore(template, arrays)
    assert jax.tree.structure(found) == jax.tree.structure(template)
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(tree() | {"count": jnp.int32(10)}), strict=True):
        assert a.dtype == b.dtype
        plain = jax.random.key_data if jnp.issubdtype(a.dtype, jax.dtypes.prng_key) else np.asarray
        np.testing.assert_array_equal(plain(a), plain(b))


def test_the_last_two_are_kept(tmp_path: Path):
    assert store_with(tmp_path, 1, 2, 3, 4).steps() == [3, 4]


def files(folder: Path) -> list[Path]:
    return sorted(p for p in folder.rglob("*") if p.is_file())


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    if data:
        data[len(data) // 2] ^= 0x10
    else:
        data = bytearray(b"x")
    path.write_bytes(bytes(data))


def truncate(path: Path) -> None:
    data = path.read_bytes()
    path.write_bytes(data[: len(data) // 2] if data else b"x")


@pytest.mark.parametrize("harm", [flip, truncate, Path.unlink], ids=["flipped", "truncated", "deleted"])
def test_a_damaged_checkpoint_is_named_and_the_one_before_is_used(tmp_path: Path, harm):
    """Whichever file is harmed."""
    original = tmp_path / "original"
    store_with(original, 10, 20)
    harmed = files(original / "step_0000000020")
    assert [p.name for p in harmed] == ["arrays.safetensors", "info.json", "manifest.json"]
    for i, path in enumerate(harmed):
        copy = tmp_path / f"copy-{i}"
        shutil.copytree(original, copy)
        harm(copy / path.relative_to(original))
        said: list[str] = []
        _, info = Store(copy, "step").read_newest(said.append)
        assert info == {"step": 10}, path
        assert len(said) == 1 and "step_0000000020" in said[0] and "damaged" in said[0]


@pytest.mark.parametrize("text", ["", "[]", "null", "{}", '{"info.json": 3}', "\x00"])
def test_a_manifest_that_is_none(tmp_path: Path, text: str):
    store = store_with(tmp_path, 10, 20)
    (tmp_path / "step_0000000020" / "manifest.json").write_text(text)
    assert store.read_newest(lambda _: None)[1] == {"step": 10}


def test_nothing_intact_is_an_error(tmp_path: Path):
    store = store_with(tmp_path, 10)
    flip(files(tmp_path / "step_0000000010")[0])
    with pytest.raises(CoveyError, match="no intact checkpoint"):
        store.read_newest(lambda _: None)


def test_a_half_written_checkpoint_is_not_one(tmp_path: Path):
    store = store_with(tmp_path, 10)
    shutil.copytree(tmp_path / "step_0000000010", tmp_path / "step_0000000030.partial")
    assert store.steps() == [10]
    store.remove_after(10)
    assert [p.name for p in tmp_path.iterdir()] == ["step_0000000010"]


def test_arrays_of_another_program_are_refused(tmp_path: Path):
    arrays = snapshot(tree())
    with pytest.raises(CoveyError, match="does not match this program"):
        restore(jax.eval_shape(lambda: {"other": jnp.ones(2)}), arrays)
    with pytest.raises(CoveyError, match=r"float32\[2, 3\].*float32\[3, 3\]"):
        restore(jax.eval_shape(lambda: tree() | {"w": jnp.ones((3, 3))}), arrays)


def test_a_run_falls_back_and_ends_the_same(tmp_path: Path, capsys):
    one = tiny(tmp_path / "one", checkpoint_minutes=0.0).path
    two = tmp_path / "two"
    shutil.copytree(one, two)
    newest = sorted((two / "checkpoints").glob("step_*"))[-1]
    flip(max(files(newest), key=lambda p: p.stat().st_size))
    assert main(["resume", str(two)]) == 0
    assert f"{newest.name} is damaged" in capsys.readouterr().out
    assert_same_run(one, two)


def test_a_damaged_best_policy_is_an_error_not_garbage(tmp_path: Path, capsys):
    """The training's checkpoint holds a copy, which serves; if that is damaged too, there is no policy."""
    run = tiny(tmp_path / "run")
    good = run.evaluate(episodes=2)
    for kind, code in (("best_*", 0), ("step_*", 1)):
        flip(max(files(next((run.path / "checkpoints").glob(kind))), key=lambda p: p.stat().st_size))
        assert main(["eval", str(run.path), "--episodes", "2"]) == code
        captured = capsys.readouterr()
        assert "damaged" in captured.err and "Traceback" not in captured.err
        if code == 0:
            assert f"return {good.mean}" in captured.out
        else:
            assert "intact" in captured.err


def test_nan_weights_are_refused(tmp_path: Path, capsys):
    """By whatever loads them, though the digests fit."""
    run = tiny(tmp_path / "run")
    for prefix in ("best", "step"):
        store = Store(run.folder.checkpoints, prefix)
        arrays, info = store.read_newest(print)
        name = next(n for n, x in arrays.items() if n.startswith(("members/agent/", "best/agent/")) and x.dtype == "f4")
        arrays[name] = np.full_like(arrays[name], np.nan)
        shutil.rmtree(run.folder.checkpoints / f"{prefix}_{info['step']:010d}")
        store.write(info["step"], arrays, info)
    with pytest.raises(CoveyError, match="NaN or infinite"):
        covey.load(run.path).policy()
    for verb in ("eval", "resume"):
        assert main([verb, str(run.path)]) == 1
        assert "NaN or infinite" in capsys.readouterr().err


def test_readers_beside_a_trainer_see_whole_checkpoints(tmp_path: Path):
    """However often they are replaced, and without a word of damage."""
    store = store_with(tmp_path, 1)
    writer = threading.Thread(target=lambda: store_with(tmp_path, *range(2, 50)))
    writer.start()
    steps = []
    while writer.is_alive():
        arrays, info = store.read_newest(pytest.fail, set_aside=False)
        assert arrays["count"] == info["step"]
        assert (store.newest_info() or {})["step"] >= info["step"]
        steps.append(info["step"])
    assert steps == sorted(steps) and len(set(steps)) > 2


def test_there_is_no_pickle_in_a_run(tmp_path: Path):
    run = tiny(tmp_path / "run").path
    assert not [p for p in files(run) if p.suffix in (".pkl", ".pickle", ".pt")]
    for path in files(run / "checkpoints"):
        assert not path.read_bytes().startswith(b"\x80\x04"), path
    assert json.loads(next((run / "checkpoints").glob("step_*/info.json")).read_text())["step"] == 1200


def test_writer_waits_until_a_checkpoint_is_affordable(monkeypatch):
    """A large replay makes checkpoints rare: their cost stays within 3 % of the time, whatever their size."""
    now = [0.0]
    monkeypatch.setattr("covey.storage.store.time.monotonic", lambda: now[0])
    writer = Writer(60.0)
    size, cost, moments = 4_000_000_000, 30.0, []
    for second in range(0, 36_000, 10):
        now[0] = float(second)
        if writer.due(size):
            moments.append(second)

            def work() -> None:
                now[0] += cost

            writer.start(work, now[0], size)
            writer.finish()
            assert writer.seconds <= 0.03 * writer.elapsed + cost / 2
    assert len(moments) > 10
    assert writer.seconds <= 0.03 * 36_000
    small = Writer(60.0)
    now[0] += 59
    assert not small.due(1000)
    now[0] += 2
    assert small.due(1000)


def test_a_failed_write_is_told(tmp_path: Path):
    writer = Writer(0.0)

    def fail() -> None:
        raise OSError(28, "No space left on device")

    writer.start(fail, 0.0, 1)
    with pytest.raises(CoveyError, match="No space left on device"):
        writer.finish()
