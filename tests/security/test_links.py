"""covey never writes through a symbolic link in a run folder, and a stranger's folder can't make it hang."""

import os
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from covey.cli import main
from covey.errors import CoveyError
from covey.plots.curves import curve, plot_curves
from covey.plots.film import write_gif, write_mp4
from covey.run.config import default_config
from covey.run.config_text import to_json
from covey.storage.extent import EMPTY, Extent
from covey.storage.folder import RunFolder
from covey.storage.jsonl import Jsonl
from covey.storage.metrics import read_metrics
from covey.storage.store import Store
from covey.storage.tensorboard import TensorBoard

TEXT = "precious\n" * 100


def made_run(path: Path) -> RunFolder:
    """A run folder with a curve, without training."""
    folder = RunFolder(path)
    folder.create(to_json(default_config("td3", env="point", steps=1200, warmup=400).resolved()))
    row = '{"step": %d, "wall": 0.0, "member": 0, "name": "eval/return", "value": 1.0}\n'
    folder.metrics.write_text("".join(row % step for step in range(3)))
    return folder


@pytest.fixture
def run(tmp_path: Path) -> RunFolder:
    (tmp_path / "precious.txt").write_text(TEXT)
    return made_run(tmp_path / "run")


def plot(run: RunFolder) -> Path:
    return plot_curves([curve(read_metrics(run.metrics))], run.media / "curve.png")


def link(run: RunFolder, name: str) -> Path:
    """Makes a file of the run a link to a file outside."""
    target = run.path.parent / "precious.txt"
    (run.path / name).unlink(missing_ok=True)
    (run.path / name).symlink_to(target)
    return target


def test_the_lock_follows_no_link(run: RunFolder):
    target = link(run, "lock")
    with pytest.raises(CoveyError, match="symbolic link"):
        run.lock()
    assert target.read_text() == TEXT


def test_the_lock_is_never_truncated(run: RunFolder):
    (run.path / "lock").write_text("held by me")
    run.lock().close()
    assert (run.path / "lock").read_text() == "held by me"


@pytest.mark.parametrize("name", ["metrics.jsonl", "lineage.jsonl", "evaluation/episodes.jsonl"])
def test_rows_follow_no_link(run: RunFolder, name: str):
    target = link(run, name)
    for known in (EMPTY, Extent(9, 0)):
        with pytest.raises(CoveyError, match="symbolic link"):
            Jsonl(run.path / name, known)
    assert target.read_text() == TEXT


def test_changes_follow_no_link(run: RunFolder):
    target = link(run, "changes.jsonl")
    with pytest.raises(CoveyError, match="symbolic link"):
        run.record_changes(3, [("steps", 1, 2)])
    assert target.read_text() == TEXT


@pytest.mark.parametrize("name", ["curve.png", "curve.csv", "curve.png.partial"])
def test_a_picture_replaces_the_link_and_not_what_it_points_to(run: RunFolder, name: str):
    target = link(run, f"media/{name}")
    plot(run)
    assert target.read_text() == TEXT
    assert (run.media / "curve.png").read_bytes().startswith(b"\x89PNG")
    assert {p.name for p in run.media.iterdir()} == {"curve.png", "curve.csv"}
    assert not any(p.is_symlink() for p in run.media.iterdir())


@pytest.mark.parametrize(("name", "write"), [("policy.gif", write_gif), ("policy.mp4", write_mp4)])
def test_a_film_replaces_the_link(run: RunFolder, name: str, write, monkeypatch):
    pictures = [np.zeros((32, 32, 3), np.uint8)] * 3
    monkeypatch.setattr("covey.plots.film.frames", lambda *_: (pictures, 0.1))
    target = link(run, f"media/{name}")
    write(run.media / name, SimpleNamespace(), SimpleNamespace())
    assert target.read_text() == TEXT and not (run.media / name).is_symlink()
    assert [p.name for p in run.media.iterdir()] == [name] and (run.media / name).stat().st_size > 50


def test_text_files_replace_the_link(run: RunFolder):
    for name in ("config.json", "config.json.partial"):
        target = link(run, name)
        run.write_config(to_json(default_config("td3", env="point").resolved()))
        assert target.read_text() == TEXT and not (run.path / "config.json").is_symlink()


@pytest.mark.parametrize("name", ["media", "checkpoints", "tensorboard", "evaluation"])
def test_a_folder_that_is_a_link_is_refused(run: RunFolder, name: str):
    elsewhere = run.path.parent / "elsewhere"
    (run.path / name).rename(elsewhere)
    (run.path / name).symlink_to(elsewhere)
    before = sorted(elsewhere.rglob("*"))
    writes = {
        "media": lambda: plot(run),
        "checkpoints": lambda: Store(run.checkpoints, "step").write(1, {"a": np.zeros(2)}, {}),
        "tensorboard": lambda: TensorBoard(run.tensorboard, range(2), 0),
        "evaluation": run.lock,
    }
    for write in (writes[name], run.lock):
        with pytest.raises(CoveyError, match="symbolic link"):
            write()
    assert sorted(elsewhere.rglob("*")) == before


def test_the_run_folder_itself_and_what_lies_around_it_may_be_links(run: RunFolder):
    (run.path.parent / "around").symlink_to(run.path.parent)
    (run.path.parent / "named").symlink_to(run.path)
    for path in (run.path.parent / "around" / "run", run.path.parent / "named"):
        plot(RunFolder(path))
        RunFolder(path).lock().close()
    assert (run.media / "curve.png").exists()


def test_event_files_are_new_files(run: RunFolder, monkeypatch):
    """A link by the name that an event file would get is left alone."""
    monkeypatch.setattr("covey.storage.tensorboard.time.time", lambda: 1e9)
    monkeypatch.setattr("covey.storage.tensorboard.socket.gethostname", lambda: "host")
    target = link(run, f"tensorboard/events.out.tfevents.1000000000.host.{os.getpid()}.0")
    board = TensorBoard(run.tensorboard, range(1), 0)
    board.write(3, 0.0, {"a": np.zeros(1)})
    board.close()
    assert target.read_text() == TEXT
    assert sum(p.stat().st_size > 0 for p in run.tensorboard.iterdir() if not p.is_symlink()) == 1


def test_from_the_command_line(run: RunFolder, capsys):
    target = link(run, "media/curve.csv")
    assert main(["plot", str(run.path)]) == 0
    assert target.read_text() == TEXT
    target = link(run, "lock")
    assert main(["resume", str(run.path)]) == 1
    assert "symbolic link" in capsys.readouterr().err and target.read_text() == TEXT
