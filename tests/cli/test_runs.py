"""`covey runs`: what it lists, in 80 columns, also of damaged folders, and fast."""

import json
import shutil
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from covey.cli import main
from covey.cli.listing import table
from covey.evaluation.stats import mean_interval
from covey.run.config import default_config
from covey.run.config_text import to_json
from covey.storage.finished import write_final
from covey.storage.folder import RunFolder
from covey.storage.listing import TAIL, RunSummary, list_runs, summary
from covey.storage.metrics import RunFiles


def make(path: Path, returns: Any = (-140.0,), logs: int = 3, **options: Any) -> RunFolder:
    """A run folder without checkpoints whose members had these returns at step 2,000, after 10 s."""
    folder = RunFolder(path)
    config = default_config("td3", **({"members": len(returns)} | options)).resolved()
    folder.create(to_json(config))
    files = RunFiles(folder, range(len(returns)), 0, {}, sinks=())
    one = np.ones(len(returns))
    files.write(0, 0.0, {"eval/return": -900 * one})
    values = {"eval/return": np.array(returns), "eval/return_low": -160 * one, "eval/return_high": -120 * one}
    files.write(2000, 10.0, values)
    for log in range(1, logs + 1):
        files.write(2000 + 100 * log, 10.0 + 0.5 * log, {f"agent/{name}": one for name in "abcdefgh"})
    files.close()
    return folder


def test_a_run_of_every_state(tmp_path: Path):
    running = make(tmp_path / "a", steps=9000)
    make(tmp_path / "group" / "b", steps=9000)
    write_final(make(tmp_path / "c", steps=2300), 2300, {})
    write_final(make(tmp_path / "d", steps=2400), 2300, {})  # and then resumed with more steps
    (tmp_path / "group" / "b" / "checkpoints" / "step_0000001900").mkdir()
    (tmp_path / "e").mkdir()
    (tmp_path / "e" / "config.json").write_text("{}")
    (tmp_path / "f" / "checkpoints").mkdir(parents=True)
    (tmp_path / "g" / "notes").mkdir(parents=True)
    with running.lock():
        found = {Path(run.path).name: run for run in list_runs(tmp_path)}
    states = {name: run.state for name, run in found.items()}
    expected = {"a": "running", "b": "stopped", "c": "finished", "d": "stopped", "e": "damaged", "f": "damaged"}
    assert states == expected
    assert found["a"].step == 2300 and found["b"].step == 1900 and found["b"].steps == 9000
    a = found["a"]
    assert (a.agent, a.env, a.value, a.low, a.high) == ("td3", "pendulum", -140.0, -160.0, -120.0)
    assert a.steps_per_second == pytest.approx(2300 / 11.5)
    assert "names no algorithm" in found["e"].fault and "config.json" in found["f"].fault
    assert list_runs(tmp_path / "a")[0].state == "stopped", "a run folder itself, whose lock is free again"


def test_the_interval_is_that_of_the_progress_line(tmp_path: Path):
    """Of seeds over the seeds; of a population the best."""
    returns = [-100.0, -150.0, -131.0]
    make(tmp_path / "seeds", returns)
    found = summary(tmp_path / "seeds")
    assert (found.value, found.low, found.high) == pytest.approx(tuple(mean_interval(np.array(returns))))
    assert found.steps_per_second == pytest.approx(3 * 2300 / 11.5)
    make(tmp_path / "population", returns, pbt={})
    assert summary(tmp_path / "population").value == -100.0
    make(tmp_path / "broken", [np.nan])
    assert summary(tmp_path / "broken").value is None


def test_the_newest_is_first_and_the_tail_is_enough(tmp_path: Path):
    """Also if the last evaluation is far from the end of a long file, and the last line is incomplete."""
    make(tmp_path / "old")
    time.sleep(0.02)
    folder = make(tmp_path / "new", logs=200)
    assert folder.metrics.stat().st_size > TAIL
    with open(folder.metrics, "a") as file:
        file.write('{"step": 99')
    with folder.lock():
        found = list_runs(tmp_path)
    assert [Path(run.path).name for run in found] == ["new", "old"]
    assert found[0].value == -140.0 and found[0].step == 22000


@pytest.mark.parametrize("damage", [b"\xff\xfe\n", b'{"step": "x"}\n', b"[1]\n", b"[" * 100_000 + b"\n"])
def test_damage_is_listed_and_never_an_error(tmp_path: Path, damage: bytes, capsys):
    folder = make(tmp_path / "run")
    with open(folder.metrics, "ab") as file:
        file.write(damage)
    assert main(["runs", str(tmp_path)]) == 0
    assert "damaged" in capsys.readouterr().out
    folder.config.write_bytes(damage)
    assert main(["runs", str(tmp_path), "--json"]) == 0
    (found,) = json.loads(capsys.readouterr().out)
    assert found["state"] == "damaged" and found["fault"]


def test_the_table_fits(tmp_path: Path, monkeypatch, capsys):
    long = RunSummary(
        str(tmp_path / f"gymnasium-{'VeryLong' * 8}-taac-0"),
        *("running", "taac-q", f"gymnasium:{'VeryLong' * 8}-v5", 8, 123_456_789, 999_000_000, -123_456.7, -2e6, 2e6),
        steps_per_second=123_456.0,
    )
    short = RunSummary(str(tmp_path / "x"), "finished", "sac", "point", 1, 100, 100, 1.5)
    for columns in (80, 100, 250):
        lines = table([long, short], tmp_path, columns)
        assert max(map(len, lines)) <= columns and lines[1].endswith("running")
        assert ("…" in lines[1]) == (columns < 250)
    monkeypatch.setenv("COLUMNS", "80")
    make(tmp_path / ("n" * 90))
    assert main(["runs", str(tmp_path)]) == 0
    head, line = capsys.readouterr().out.splitlines()
    assert head.split() == ["run", "agent", "task", "step", "return", "steps/s", "state"]
    assert len(line) <= 80 and "-140 ± 20" in line and "td3" in line and line.endswith("stopped")


def test_an_empty_folder_and_no_folder(tmp_path: Path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["runs"]) == 1 and "There is no folder runs." in capsys.readouterr().err
    (tmp_path / "runs").mkdir()
    assert main(["runs"]) == 0 and "There are no runs in runs." in capsys.readouterr().out


def test_hundreds_of_runs_are_listed_at_once(tmp_path: Path):
    first = make(tmp_path / "0", logs=60)
    for number in range(1, 300):
        shutil.copytree(first.path, tmp_path / str(number))
    start = time.process_time()
    assert len(list_runs(tmp_path)) == 300
    assert time.process_time() - start < 1.0
