"""Every call to the operating system fails once, in every operation of the storage."""

import errno
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from covey.errors import CoveyError
from covey.storage.atomic import replace_text
from covey.storage.changes import Changes
from covey.storage.disk import UnreadableError
from covey.storage.folder import RunFolder
from covey.storage.jsonl import Jsonl, read_rows
from covey.storage.store import Store, Writer
from tests.faults import SHORT, Faulty

FAULTS = [errno.EIO, errno.ENOSPC, errno.EACCES, SHORT]


def arrays(step: int) -> dict[str, np.ndarray]:
    return {"w": np.arange(12.0).reshape(3, 4) + step, "none": np.zeros((0, 3), np.int8), "flag": np.array(True)}


def store_with(folder: Path, *steps: int) -> Store:
    for step in steps:
        Store(folder, "step").write(step, arrays(step), {"step": step})
    return Store(folder, "step")


def count(action: Callable[[], Any], monkeypatch) -> int:
    with monkeypatch.context() as patch:
        faulty = Faulty().installed(patch)
        action()
    assert len(faulty.calls) > 5
    return len(faulty.calls)


def same(found: Any, step: int) -> None:
    values, info = found
    assert info == {"step": step} and values.keys() == arrays(step).keys()
    for name, value in arrays(step).items():
        np.testing.assert_array_equal(values[name], value)


@pytest.mark.parametrize("fault", FAULTS)
def test_a_checkpoint_is_written_whole_or_the_ones_before_are_left(fault: Any, tmp_path: Path, monkeypatch):
    store_with(tmp_path / "template", 10, 20)
    shutil.copytree(tmp_path / "template", tmp_path / "count")
    calls = count(lambda: store_with(tmp_path / "count", 30), monkeypatch)
    failed = 0
    for at in range(calls):
        folder = tmp_path / str(at)
        shutil.copytree(tmp_path / "template", folder)
        writer = Writer(0.0)
        with monkeypatch.context() as patch:
            Faulty(at, fault).installed(patch)
            writer.start(lambda folder=folder: store_with(folder, 30), 0.0, 1)
            try:
                writer.finish()
            except CoveyError as error:
                assert "could not be written" in str(error) or "can't be read" in str(error)
                assert str(error).count("\n") == 0
                failed += 1
        steps = Store(folder, "step").steps()
        assert {10, 20} <= set(steps) or 30 in steps, f"call {at}"
        said: list[str] = []
        same(Store(folder, "step").read_newest(said.append), max(steps))
        same(store_with(folder, 30).read_newest(said.append), 30)
        Store(folder, "step").remove_after(30)  # as a resumed run does
        assert not said and not list(folder.glob("*.partial")) and not list(folder.glob("*.damaged"))
    assert failed == 0 if fault == SHORT else failed > calls // 2


def read_intact(store: Store, say) -> Any:
    return store.read(max(step for step in store.steps() if store.is_intact(step, say)))


@pytest.mark.parametrize("fault", [*FAULTS, errno.EMFILE, errno.ESTALE, errno.ENOMEM])
@pytest.mark.parametrize("read", [lambda s, say: s.read_newest(say), read_intact])
def test_a_checkpoint_that_cant_be_read_is_no_damage(fault: Any, read: Any, tmp_path: Path, monkeypatch):
    store, said = store_with(tmp_path, 10, 20), []
    before = sorted(p.relative_to(tmp_path) for p in tmp_path.rglob("*"))
    for at in range(count(lambda: read(store, said.append), monkeypatch)):
        with monkeypatch.context() as patch:
            Faulty(at, fault).installed(patch)
            if fault == SHORT:
                same(read(store, said.append), 20)
            else:
                with pytest.raises(UnreadableError, match=r"can't be read: .* may be intact"):
                    read(store, said.append)
    assert not said and sorted(p.relative_to(tmp_path) for p in tmp_path.rglob("*")) == before
    same(read(store, said.append), 20)


@pytest.mark.parametrize("fault", FAULTS)
def test_lines_after_a_failed_call_are_whole(fault: Any, tmp_path: Path, monkeypatch):
    """What a checkpoint knew is still there, and a later row is joined to none before it."""
    path = tmp_path / "metrics.jsonl"
    first = Jsonl(path)
    first.row(step=1, text="a" * 50)
    known = first.sync()
    first.close()

    def add() -> None:
        rows = Jsonl(path, known, pytest.fail, 1)
        try:
            rows.row(step=2, text="b" * 50)
            rows.sync()
        finally:
            rows.close()

    for at in range(count(add, monkeypatch)):
        with monkeypatch.context() as patch:
            Faulty(at, fault).installed(patch)
            try:
                add()
            except (OSError, CoveyError):
                assert fault != SHORT
        add()
        assert [row.values["step"] for row in read_rows(path, known)] == [1, 2], f"call {at}"


@pytest.mark.parametrize("fault", FAULTS)
def test_changes_and_texts_after_a_failed_call(fault: Any, tmp_path: Path, monkeypatch):
    path, text = tmp_path / "changes.jsonl", tmp_path / "config.json"
    replace_text(text, "old")
    Changes(path).append([{"step": 1, "name": "hyper.tau", "old": "1", "new": "2"}])

    def change() -> None:
        Changes(path).append([{"step": 2, "name": "steps", "old": 1, "new": 2}])
        replace_text(text, "new")

    before = path.read_bytes()
    for at in range(count(change, monkeypatch)):
        path.write_bytes(before)
        replace_text(text, "old")
        with monkeypatch.context() as patch:
            Faulty(at, fault).installed(patch)
            try:
                change()
            except (OSError, CoveyError):
                assert fault != SHORT
        assert [row["step"] for row in Changes(path).rows()] in ([1], [1, 2])
        assert text.read_text() in ("old", "new")
        assert sorted(p.name for p in tmp_path.iterdir()) == ["changes.jsonl", "config.json"]


def test_modes_follow_the_umask(tmp_path: Path):
    store_with(tmp_path / "checkpoints", 10)
    replace_text(tmp_path / "config.json", "text")
    (tmp_path / "plain").touch()
    expected = (tmp_path / "plain").stat().st_mode
    assert {p.stat().st_mode for p in tmp_path.rglob("*") if p.is_file()} == {expected}


def test_a_failing_disk_is_not_a_missing_folder(tmp_path, monkeypatch):
    """The islands of a run are looked for when it is resumed; an error of the disk is one sentence."""

    def fail(path, *_, **__):
        raise OSError(errno.EIO, "Input/output error", str(path))

    folder = RunFolder(tmp_path).island(0)
    assert not folder.has_config()
    monkeypatch.setattr("os.lstat", fail)
    with pytest.raises(CoveyError, match=r"config\.json can't be read: Input/output error"):
        folder.has_config()
