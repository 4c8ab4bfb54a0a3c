"""Files of a run that were cut, altered, lost or made by strangers: one sentence, and never other data."""

import hashlib
import json
import os
import random
import resource
import shutil
import socket
import struct
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from covey.cli import main
from covey.errors import CoveyError
from covey.islands.merge import merge
from covey.plots.curves import curve
from covey.replay import Replay, Stored
from covey.run.config import default_config, read_run_config
from covey.run.config_text import to_json
from covey.storage.folder import RunFolder
from covey.storage.layout import restore
from covey.storage.lineage import read_lineage
from covey.storage.metrics import RunFiles, read_metrics, read_run_metrics
from covey.storage.replay_file import open_replay, write_replay
from covey.storage.store import Store, Writer

DEEP = "[" * 100_000


def files_of(folder: RunFolder, step: int, info: dict[str, Any], report: Callable[[str], None] = print) -> RunFiles:
    return RunFiles(folder, range(2), step, info, lineage=True, report=report)


def made_run(path: Path, steps: int = 5) -> RunFolder:
    """A run of two members with metrics, episodes, lineage and a checkpoint after `steps`, without training."""
    folder = RunFolder(path)
    pbt = {"bottom": 0.5, "top": 0.5}
    config = default_config("td3", env="point", seeds=2, pbt=pbt, steps=1200, warmup=400).resolved()
    folder.create(to_json(config))
    files = files_of(folder, 0, {})
    for step in range(steps):
        files.write(step, 0.5, {"eval/return": np.array([step, -step]), "agent/loss": np.ones(2)})
        for member in range(2):
            files.row("episodes", step=step, member=member, length=3)
            row = {"generation": step, "parent": None, "fitness": 1.5, "reason": "kept", "hyper": {"tau": 0.1}}
            files.row("lineage", step=step, member=member, **row)
    info = {"step": steps - 1, "wall": 1.0, "best": None, "files": files.sync()}
    files.close()
    Store(folder.checkpoints, "step").write(steps - 1, {"a": np.arange(3.0)}, info)
    return folder


def flip(path: Path) -> None:
    """Another digit in the middle of the file: it can still be parsed."""
    data = bytearray(path.read_bytes())
    at = next(i for i in range(len(data) // 2, len(data)) if data[i : i + 1].isdigit())
    data[at] ^= 1
    path.write_bytes(bytes(data))


def cut(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2 + 7)


def cut_at_a_line(path: Path) -> None:
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:-2]))


def lose_a_line(path: Path) -> None:
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:3] + lines[4:]))


def latin(path: Path) -> None:
    data = path.read_bytes()
    path.write_bytes(data[:20] + b"\xff\xfe" + data[22:])


def deep(path: Path) -> None:
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join([*lines[:2], DEEP.encode() + b"\n", *lines[3:]]))


def fifo(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def zeros(path: Path) -> None:
    path.unlink()
    path.symlink_to("/dev/zero")


def listening(path: Path) -> None:
    path.unlink()
    where = os.getcwd()
    os.chdir(path.parent)  # the path of a socket must be short
    try:
        with socket.socket(socket.AF_UNIX) as made:
            made.bind(path.name)
    finally:
        os.chdir(where)


CONTENT = [flip, cut, cut_at_a_line, lose_a_line, latin, deep, Path.unlink]
STRANGE = [fifo, folder, zeros, listening]
READERS: dict[str, Callable[[RunFolder], Any]] = {
    "metrics": lambda run: read_metrics(run.metrics),
    "lineage": lambda run: read_lineage(run.lineage),
}


@pytest.mark.parametrize("harm", [*CONTENT, *STRANGE], ids=lambda f: f.__name__)
@pytest.mark.parametrize("name", READERS)
def test_rows_that_are_not_those_that_were_saved_are_told(harm: Any, name: str, tmp_path: Path):
    run = made_run(tmp_path / "run")
    READERS[name](run)
    harm(getattr(run, name))
    with pytest.raises(CoveyError, match=rf"{name}\.jsonl") as found:
        READERS[name](run)
    assert len(str(found.value)) < 600 and "\n" not in str(found.value)
    with pytest.raises(CoveyError):
        read_run_metrics(run.path, "nothing")


@pytest.mark.parametrize(
    "tail", [b'{"step": 9, "wa', b"", b'{"step": 9, "wall": 1, "member": 0, "name": "x", "value": 1}\n']
)
def test_what_follows_the_checkpoint_may_be_cut(tail: bytes, tmp_path: Path):
    run = made_run(tmp_path / "run")
    before = read_metrics(run.metrics)["eval/return"]
    with run.metrics.open("ab") as file:
        file.write(tail)
    assert read_metrics(run.metrics)["eval/return"] == before


@pytest.mark.parametrize("harm", CONTENT, ids=lambda f: f.__name__)
@pytest.mark.parametrize("name", ["metrics", "episodes", "lineage"])
def test_a_resumed_run_sets_a_damaged_file_aside(harm: Any, name: str, tmp_path: Path):
    """And keeps the rows that can be read, ends on a whole line, and says so once; readers accept what it kept."""
    run, said = made_run(tmp_path / "run"), []
    path: Path = getattr(run, name)
    original, info = path.read_bytes(), Store(run.checkpoints, "step").read_newest(print)[1]
    harm(path)
    harmed = path.read_bytes() if path.exists() else None
    for attempt in range(2):
        files = files_of(run, 4, info, said.append)
        files.write(5, 0.5, {"eval/return": np.ones(2)})
        if name != "metrics":
            files.row(name, step=5, member=0)
        files.close()
        assert len(said) == 1 and str(path) in said[0], f"attempt {attempt}"
    aside = path.with_name(path.name + ".damaged")
    assert (aside.read_bytes() if aside.exists() else None) == harmed
    rows = [json.loads(line) for line in path.read_bytes().splitlines()]
    kept = [line for line in original.splitlines() if harmed and line in harmed.splitlines()]
    assert [row["step"] for row in rows][-1] == 5 and path.read_bytes().endswith(b"\n")
    assert all(line in path.read_bytes().splitlines() for line in kept)
    read_metrics(run.metrics)


def test_the_last_rows_of_a_finished_run_are_verified(tmp_path: Path):
    """They follow its last checkpoint, so that the run itself records them; a resumed run writes them again."""
    run = made_run(tmp_path / "run")
    _, info = Store(run.checkpoints, "step").read_newest(print)
    before = run.lineage.read_bytes()
    files = files_of(run, info["step"], info)
    values = {"generation": 9, "step": 9999, "parent": 0, "fitness": 1.0, "reason": "kept", "hyper": {"tau": 0.1}}
    files.row("lineage", member=0, **values)
    files.finish(info["step"])
    files.close()
    whole = run.lineage.read_bytes()
    for harmed in (whole.replace(b"9999", b"9998"), before):
        run.lineage.write_bytes(harmed)
        with pytest.raises(CoveyError, match="is damaged"):
            read_lineage(run.lineage)
    run.lineage.write_bytes(whole)
    files_of(run, info["step"], info).close()
    assert run.lineage.read_bytes() == before
    read_lineage(run.lineage)


def test_a_row_is_never_joined_to_half_a_row(tmp_path: Path):
    run = made_run(tmp_path / "run")
    with run.metrics.open("ab") as file:
        file.write(b'{"step": 9, "wa')
    files = files_of(run, 4, Store(run.checkpoints, "step").read_newest(print)[1], pytest.fail)
    files.write(5, 0.5, {"eval/return": np.ones(2)})
    files.close()
    assert read_metrics(run.metrics)["eval/return"]["step"][-1] == 5


def test_a_curve_needs_every_member(tmp_path: Path):
    """A step of which a member's row is lost is left out; no member takes the place of another."""
    run = made_run(tmp_path / "run")
    shutil.rmtree(run.checkpoints)
    rows = run.metrics.read_bytes().splitlines(keepends=True)
    lost = next(i for i, row in enumerate(rows) if b'"step": 2' in row and b"eval/return" in row)
    run.metrics.write_bytes(b"".join(rows[:lost] + rows[lost + 1 :]))
    found = curve(read_metrics(run.metrics))
    assert found.steps.tolist() == [0, 1, 3, 4] and np.all(found.centre == 0)


def test_the_parts_of_islands_are_verified(tmp_path: Path):
    run = RunFolder(tmp_path / "run")
    made_run(run.path)
    for number in range(2):
        shutil.copytree(run.path, tmp_path / "copy")
        (run.path / "islands").mkdir(exist_ok=True)
        shutil.move(tmp_path / "copy", run.island(number).path)
        shutil.rmtree(run.island(number).path / "islands", ignore_errors=True)
    merge(run, 2, 2)
    flip(run.island(1).metrics)
    with pytest.raises(CoveyError, match=r"islands/1/metrics\.jsonl is damaged"):
        merge(run, 2, 2)


@pytest.mark.parametrize(
    "harm", [flip, cut, cut_at_a_line, latin, deep, Path.unlink, *STRANGE], ids=lambda f: f.__name__
)
def test_damaged_changes_are_told(harm: Any, tmp_path: Path):
    run = made_run(tmp_path / "run")
    run.record_changes(3, [(f"hyper.{name}", "1", "2") for name in "abcd"])
    run.write_config(to_json(read_run_config(run)))
    assert run.changed_since(3) == {"hyper.a", "hyper.b", "hyper.c", "hyper.d"}
    harm(run.changes)
    with pytest.raises(CoveyError, match=r"changes\.jsonl"):
        run.changed_since(3)


def test_half_a_change_was_never_made(tmp_path: Path):
    run = made_run(tmp_path / "run")
    run.record_changes(3, [("steps", 1, 2)])
    with run.changes.open("ab") as file:
        file.write(b'{"step": 4, "name": "ste')
    run.record_changes(5, [("episodes", 1, 2)])
    assert run.changed_since(0) == {"steps", "episodes"}


def test_an_edited_configuration_is_told(tmp_path: Path):
    run = made_run(tmp_path / "run")
    text = run.config.read_text()
    assert '"steps": 1200' in text
    run.config.write_text(text.replace('"steps": 1200', '"steps": 1201'))
    with pytest.raises(CoveyError, match=r'edited or damaged.*delete the line "digest"'):
        read_run_config(run)
    lines = run.config.read_text().splitlines()
    run.config.write_text("\n".join(line for line in lines if '"digest"' not in line))
    assert read_run_config(run).steps == 1201


def test_a_configuration_is_never_read_as_another(tmp_path: Path):
    """Random bytes at random places: the same values, or an error."""
    run, chance = made_run(tmp_path / "run"), random.Random(0)
    text, config = run.config.read_bytes(), read_run_config(run)
    for _ in range(300):
        data = bytearray(text)
        data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
        run.config.write_bytes(bytes(data))
        with suppress(CoveyError):
            assert read_run_config(run) == config


BAD_CONFIGS = {
    "nested": '{"algorithm": "td3", "agent": ' + DEEP,
    "not text": b"\xff\xfe\x00",
    "a huge number": '{"algorithm": "td3", "steps": 1' + "0" * 5000 + "}",
    "a large number": '{"algorithm": "td3", "seeds": 1' + "0" * 400 + "}",
    "no number": '{"algorithm": "td3", "updates_per_step": 1e400}',
    "a list": '{"algorithm": "td3", "pbt": [1]}',
    "a text": '{"algorithm": "td3", "space": "x"}',
    "too long": '{"algorithm": "td3"}' + " " * 2**25,
}


@pytest.mark.parametrize("case", BAD_CONFIGS)
def test_configurations_of_strangers(case: str, tmp_path: Path, capsys):
    data = BAD_CONFIGS[case]
    file = tmp_path / "config.json"
    file.write_bytes(data if isinstance(data, bytes) else data.encode())
    for arguments in (["resume", str(tmp_path)], ["train", "td3", "--config", str(file), "--out", str(tmp_path / "x")]):
        assert main(arguments) == 1
        said = capsys.readouterr().err
        assert "config.json" in said and len(said) < 500


@pytest.mark.parametrize("harm", STRANGE, ids=lambda f: f.__name__)
def test_configurations_and_replays_that_are_no_files(harm: Any, tmp_path: Path, capsys):
    file = tmp_path / "config.json"
    file.touch()
    harm(file)
    for arguments in (["--config", str(file)], ["--replay", str(file)]):
        assert main(["train", "td3", *arguments, "--out", str(tmp_path / "x")]) == 1
        assert "config.json" in capsys.readouterr().err
    assert main(["eval", str(tmp_path)]) == 1
    assert "config.json" in capsys.readouterr().err


@pytest.mark.parametrize("harm", [deep, *STRANGE], ids=lambda f: f.__name__)
@pytest.mark.parametrize("name", ["arrays.safetensors", "info.json", "manifest.json"])
def test_strange_files_of_a_checkpoint(harm: Any, name: str, tmp_path: Path):
    store = Store(tmp_path, "step")
    for step in (10, 20):
        store.write(step, {"a": np.arange(3.0)}, {"step": step})
    harm(tmp_path / "step_0000000020" / name)
    said: list[str] = []
    assert store.read_newest(said.append)[1]["step"] == 10
    assert len(said) == 1 and "step_0000000020 is damaged" in said[0]


def crafted(store: Store, step: int, name: str, data: bytes) -> None:
    """Replaces a file of a checkpoint, and makes the manifest fit."""
    path = store.folder / f"{store.kind}_{step:010d}"
    (path / name).write_bytes(data)
    manifest = json.loads((path / "manifest.json").read_text())
    manifest[name] = hashlib.sha256(data).hexdigest()
    (path / "manifest.json").write_text(json.dumps(manifest))


def tensors(header: Any, data: bytes = b"") -> bytes:
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


CRAFTED = {
    "no header": ("arrays.safetensors", b"\0" * 4),
    "a header bomb": ("arrays.safetensors", struct.pack("<Q", 2**62) + b"{}"),
    "a deep header": ("arrays.safetensors", struct.pack("<Q", len(DEEP)) + DEEP.encode()),
    "an unknown type": ("arrays.safetensors", tensors({"a": {"dtype": "F7", "shape": [0], "data_offsets": [0, 0]}})),
    "too large": ("arrays.safetensors", tensors({"a": {"dtype": "F64", "shape": [2**60], "data_offsets": [0, 2**63]}})),
    "overlapping": (
        "arrays.safetensors",
        tensors({n: {"dtype": "U8", "shape": [4], "data_offsets": [0, 4]} for n in "ab"}, b"four"),
    ),
    "no shape": ("arrays.safetensors", tensors({"a": {"dtype": "U8"}})),
    "a list": ("arrays.safetensors", tensors([1])),
    "info of a list": ("info.json", b"[]"),
    "info of no format": ("info.json", b'{"format": "x", "step": 20}'),
    "info of a text": ("info.json", b'{"format": 2, "step": "x"}'),
    "info of no best": ("info.json", b'{"format": 2, "step": 20, "best": 5}'),
    "info of no files": ("info.json", b'{"format": 2, "step": 20, "files": {"metrics": -5}}'),
    "info of a wall": ("info.json", b'{"format": 2, "step": 20, "wall": null}'),
    "deep info": ("info.json", DEEP.encode()),
}


@pytest.mark.parametrize("case", CRAFTED)
def test_checkpoints_of_strangers_whose_manifest_fits(case: str, tmp_path: Path):
    store = Store(tmp_path, "step")
    for step in (10, 20):
        store.write(step, {"a": np.arange(3.0)}, {"step": step})
    crafted(store, 20, *CRAFTED[case])
    said: list[str] = []
    assert store.read_newest(said.append)[1]["step"] == 10
    assert len(said) == 1 and len(said[0]) < 500


@pytest.mark.parametrize("kind", ["step", "best"])
@pytest.mark.parametrize(
    ("info", "message"),
    [
        (b'{"format": 7, "step": 20}', r"format 7.*reads format 2.*Install a newer covey"),
        (b'{"format": 1, "step": 20}', r"format 1.*reads format 2.*earlier covey; train again, or use the covey"),
        (b'{"step": 20}', r"format 1.*earlier covey; train again, or use the covey that wrote it"),
    ],
)
def test_another_format_is_an_error_and_no_damage(kind: str, info: bytes, message: str, tmp_path: Path):
    store = Store(tmp_path, kind)
    store.write(20, {"a": np.arange(3.0)}, {"step": 20})
    crafted(store, 20, "info.json", info)
    for read in (lambda: store.read_newest(print), store.newest_info, lambda: store.is_intact(20, print)):
        with pytest.raises(CoveyError, match=message):
            read()
    assert store.steps() == [20]


def test_a_run_of_an_earlier_format_is_refused(tmp_path: Path, capsys):
    """By every command, in one sentence, and nothing in it changes."""
    run = made_run(tmp_path / "run")
    store = Store(run.checkpoints, "step")
    (info,) = run.checkpoints.glob("step_*/info.json")
    values = json.loads(info.read_text()) | {"format": 1}
    crafted(store, 4, "info.json", json.dumps(values).encode())
    before = {path: path.read_bytes() for path in run.path.rglob("*") if path.is_file() and path.name != "lock"}
    for verb in ("eval", "resume", "plot", "replay", "lineage"):
        assert main([verb, str(run.path)]) == 1
        assert "written by an earlier covey" in capsys.readouterr().err, verb
    assert all(path.read_bytes() == data for path, data in before.items())


def test_wrong_key_data_does_not_match_the_program():
    template = jax.eval_shape(lambda: {"key": jax.random.key(0)})
    for wrong in (np.zeros(3, np.uint32), np.zeros(2, np.float32)):
        with pytest.raises(CoveyError, match="does not match this program"):
            restore(template, {"key": wrong})


def test_too_many_open_files_are_no_damage(tmp_path: Path):
    """Nothing is renamed."""
    store = Store(tmp_path, "step")
    for step in (10, 20):
        store.write(step, {"a": np.arange(3.0)}, {"step": step})
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    free = os.open(os.devnull, os.O_RDONLY)
    os.close(free)
    resource.setrlimit(resource.RLIMIT_NOFILE, (free + 1, hard))
    try:
        with pytest.raises(CoveyError, match="Too many open files"):
            store.read_newest(print)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert store.steps() == [10, 20]


LIKE = Replay(20, 1, observation=2, action_size=1, extras=())


def saved(path: Path, **changes: float) -> Path:
    data = np.random.default_rng(0).uniform(-1, 1, (1, 20, 1, LIKE.width)).astype(np.float32)
    for name, place in LIKE.columns.items():
        data[..., place] = changes.get(name, 0.0 if name in ("terminated", "last") else data[..., place])
    write_replay(path, LIKE, Stored(data, {}), 20, environment="point", algorithm="td3", step=3)
    return path


def loaded(path: Path) -> np.ndarray:
    found = open_replay(path)
    return found.read(LIKE, found.rows_for(LIKE, 1, "point"), 1).data


def test_a_replay_file_is_never_read_as_another(tmp_path: Path):
    """A flipped bit anywhere: the same data, or an error."""
    path, chance = saved(tmp_path / "replay.safetensors"), random.Random(0)
    original, data = path.read_bytes(), loaded(path)
    about = open_replay(path)
    for _ in range(300):
        harmed = bytearray(original)
        harmed[chance.randrange(len(harmed))] ^= 1 << chance.randrange(8)
        path.write_bytes(bytes(harmed))
        with suppress(CoveyError):
            np.testing.assert_array_equal(loaded(path), data)
            assert open_replay(path) == about


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"action": 1e30}, "actions from"),
        ({"action": -1.01}, r"Scale them to \[-1, 1\]"),
        ({"last": 0.37}, "last other than 0 and 1"),
        ({"terminated": 2.0}, "terminated other than 0 and 1"),
        ({"reward": float("inf")}, "not finite"),
    ],
)
def test_values_out_of_range(changes: dict[str, float], message: str, tmp_path: Path):
    with pytest.raises(CoveyError, match=message):
        loaded(saved(tmp_path / "replay.safetensors", **changes))
    loaded(saved(tmp_path / "replay.safetensors", action=1.0 + 1e-6))


@pytest.mark.parametrize("verb", ["eval", "plot", "skills", "video", "replay", "resume", "lineage"])
def test_long_paths(verb: str, capsys):
    assert main([verb, "x" * 5000]) == 1
    assert "Traceback" not in capsys.readouterr().err


@pytest.mark.parametrize("verb", ["plot", "skills", "video", "replay", "plan"])
def test_outputs_that_are_no_files(verb: str, tmp_path: Path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run = made_run(tmp_path / "run")
    more = ["--random", "1"] if verb == "plan" else []
    assert main([verb, str(run.path), "--out", ".", *more]) == 1
    assert "Traceback" not in capsys.readouterr().err


def test_readers_beside_a_trainer_report_no_damage(tmp_path: Path):
    """A trainer that is resumed again and again cuts the file, writes it again and replaces its checkpoint."""
    run = made_run(tmp_path / "run")
    store, said = Store(run.checkpoints, "step"), []

    def train() -> None:
        for _ in range(10):
            info = store.newest_info() or {}
            files = files_of(run, info["step"], info, said.append)
            for step in range(info["step"] + 1, info["step"] + 4):
                files.write(step, 0.5, {"eval/return": np.ones(2), "agent/loss": np.ones(2)})
            places = files.sync()
            files.write(99, 0.5, {"eval/return": np.ones(2)})  # forgotten by the next
            files.close()
            store.write(step, {"a": np.arange(3.0)}, info | {"step": step, "files": places})

    trainer = threading.Thread(target=train)
    trainer.start()
    while trainer.is_alive():
        read_metrics(run.metrics)
    trainer.join()
    assert not said and read_metrics(run.metrics)["agent/loss"]["step"][-1] == 34


def test_a_deleted_run_folder_is_told(tmp_path: Path):
    """While it trains: one sentence, no traceback of TensorBoard's, and nothing of the folder is made again."""
    run = made_run(tmp_path / "run")
    files, writer = files_of(run, 4, {}), Writer(0.0)
    shutil.rmtree(run.path)
    files.write(9, 0.5, {"eval/return": np.ones(2)})
    places = files.sync()
    store = Store(run.checkpoints, "step")
    writer.start(lambda: store.write(9, {"a": np.arange(3.0)}, {"files": places}), 0.0, 1)
    with pytest.raises(CoveyError, match=r"could not be written.*deleted or moved"):
        writer.finish()
    files.close()
    assert not run.path.exists()


def test_a_deleted_run_folder_is_not_made_again(tmp_path: Path):
    run = made_run(tmp_path / "run")
    shutil.rmtree(run.path)
    with pytest.raises(OSError, match="No such file"):
        Store(run.checkpoints, "step").write(9, {"a": np.arange(3.0)}, {})
    assert not run.path.exists()
