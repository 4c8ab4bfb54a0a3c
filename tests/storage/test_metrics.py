"""Logged numbers reach `metrics.jsonl` and every sink."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from covey.cli import main
from covey.errors import CoveyError
from covey.storage.folder import RunFolder
from covey.storage.metrics import SINKS, RunFiles, read_metrics, read_run_metrics, register_sink
from tests.runs import tiny


class Recorder:
    """A sink that keeps what it is given."""

    def __init__(self, folder: RunFolder, members: range, step: int) -> None:
        self.opened = (folder.path, members, step)
        self.rows: list[tuple[int, dict[str, list[float]]]] = []
        self.closed = 0

    def write(self, step: int, wall: float, values: Any) -> None:
        self.rows.append((step, {name: np.asarray(value).tolist() for name, value in values.items()}))

    def close(self) -> None:
        self.closed += 1


@pytest.fixture
def recorders(monkeypatch: pytest.MonkeyPatch) -> list[Recorder]:
    """The sinks that were opened while `recorder` is registered."""
    monkeypatch.setattr("covey.storage.metrics.SINKS", dict(SINKS))
    opened: list[Recorder] = []

    def factory(folder: RunFolder, members: range, step: int) -> Recorder:
        opened.append(Recorder(folder, members, step))
        return opened[-1]

    register_sink("recorder", factory)
    return opened


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    (tmp_path / "evaluation").mkdir()
    return RunFolder(tmp_path)


def test_a_registered_sink_gets_every_number(recorders: list[Recorder], folder: RunFolder):
    files = RunFiles(folder, range(2, 4), 0, {})
    files.write(10, 0.5, {"eval/return": np.array([1.0, np.nan])})
    files.close()
    (sink,) = recorders
    assert sink.opened == (folder.path, range(2, 4), 0) and sink.closed == 1
    (row,) = sink.rows
    assert row[0] == 10 and row[1]["eval/return"][0] == 1.0
    found = read_metrics(folder.metrics)["eval/return"]
    assert found["member"] == [2, 3] and np.isnan(found["value"][1])
    assert any((folder.tensorboard / "member-2").iterdir())


def test_sinks_are_chosen_by_name(recorders: list[Recorder], folder: RunFolder):
    """`metrics.jsonl` is always written."""
    for names, opened in ((("tensorboard",), 0), ((), 0), (("recorder",), 1)):
        files = RunFiles(folder, range(1), 0, {}, sinks=names)
        files.write(10, 0.5, {"eval/return": np.ones(1)})
        files.close()
        assert len(recorders) == opened and read_metrics(folder.metrics)["eval/return"]["step"] == [10]
    with pytest.raises(CoveyError, match=r"no sink called 'recoder'. Did you mean 'recorder'"):
        RunFiles(folder, range(1), 0, {}, sinks=["recoder"])


def test_a_process_that_does_not_write_opens_no_sink(recorders: list[Recorder], folder: RunFolder):
    files = RunFiles(folder, range(1), 0, {}, writes=False)
    files.write(10, 0.5, {"eval/return": np.ones(1)})
    files.close()
    assert not recorders and not folder.metrics.exists()


def test_sinks_are_closed_if_one_cant_be_opened(recorders: list[Recorder], folder: RunFolder):
    def fail(folder: RunFolder, members: range, step: int) -> Recorder:
        raise CoveyError("There is no network.")

    register_sink("tracker", fail)
    with pytest.raises(CoveyError, match="no network"):
        RunFiles(folder, range(1), 0, {})
    assert recorders[0].closed == 1


def test_a_run_and_its_resumption_write_to_a_registered_sink(recorders: list[Recorder], tmp_path: Path):
    run = tiny(tmp_path / "run")
    assert main(["resume", str(run.path), "--steps", "1600"]) == 0
    first, second = recorders
    assert first.opened == (run.path, range(1), 0) and second.opened == (run.path, range(1), 1200)
    assert [sink.closed for sink in recorders] == [1, 1]
    logged = [(step, x) for sink in recorders for step, row in sink.rows for x in row.get("eval/return", [])]
    columns = run.metrics()["eval/return"]
    assert logged == list(zip(columns["step"], columns["value"], strict=True))


def test_a_missing_metric_is_named(folder: RunFolder):
    files = RunFiles(folder, range(1), 0, {}, sinks=())
    files.write(10, 0.5, {"eval/return": np.ones(1)})
    files.close()
    with pytest.raises(CoveyError, match=r"no metric 'eval/retrun'. It has: eval/return"):
        read_run_metrics(folder.path, "eval/retrun")
    with pytest.raises(CoveyError, match="There is no run folder"):
        read_run_metrics(folder.path / "nothing", "eval/return")
