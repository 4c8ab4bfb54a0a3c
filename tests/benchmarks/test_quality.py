"""The campaign and its page: what is run, what is read from a run, the statistics, and that the page is current."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from benchmarks import campaign, quality
from benchmarks.campaign import RUNS, STUDIES, Run
from benchmarks.peers.curve import keep_whole_seeds
from covey import launch
from covey.cli import main
from covey.evaluation import improvement

ROOT = Path(__file__).parents[2]


def write(path: Path, *lines: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(lines) + "\n")
    return path


def test_the_page_is_current():
    """Every number of the page comes from a file: writing it again changes nothing."""
    page = (ROOT / quality.PAGE).read_text()
    assert quality.replace_generated(page, quality.render(quality.read_results())) == page, (
        "run `python -m benchmarks.quality`"
    )
    for line in page.splitlines():
        if line.startswith("!["):
            assert (ROOT / "docs" / line.partition("(")[2].rstrip(")")).exists(), line


COMMANDS = [run for run in RUNS.values() if not run.is_peer and "--recipe" not in run.command]


@pytest.mark.parametrize("run", COMMANDS, ids=lambda run: run.name)
def test_commands_are_understood(run: Run, monkeypatch):
    started: list = []
    monkeypatch.setattr(launch, "start_run", lambda config, *_: started.append(config))
    assert main(run.command.split()[1:]) == 0
    (config,) = started
    seeds = range(config.seed, config.seed + config.members)
    assert (config.steps, list(seeds)) == (run.steps, [2000, 2001, 2002][: run.seeds])
    assert config.steps // config.evaluations == 10_000 and config.episodes == 10
    assert config.env == f"gymnasium:{campaign.TASKS[run.task]}"


@pytest.mark.parametrize("run", STUDIES.values(), ids=lambda run: run.name)
def test_commands_of_studies_are_understood(run: Run, monkeypatch):
    started: list = []
    monkeypatch.setattr(launch, "start_run", lambda config, *_: started.append(config))
    assert main(run.command.split()[1:]) == 0
    (config,) = started
    assert (config.steps, config.seed, config.members) == (run.steps, 1000, run.seeds)
    assert config.steps % config.evaluations == 0 and config.episodes == 10


def row(step: int, member: int, name: str, value: float, wall: float) -> str:
    return json.dumps({"step": step, "wall": wall, "member": member, "name": name, "value": value})


@pytest.fixture
def begun(tmp_path: Path) -> Path:
    """A folder of runs: one of TAAC that was killed while it wrote, and one of a peer."""
    write(tmp_path / "taac-lander" / "config.json", json.dumps({"seed": 2000, "members": 2}))
    write(
        tmp_path / "taac-lander" / "metrics.jsonl",
        row(0, 1, "eval/return", -200.0, 3.0),
        row(0, 0, "eval/return", -100.0, 3.0),
        row(10_000, 0, "eval/return", 50.5, 61.0),
        row(10_000, 1, "eval/return", 60.25, 61.0),
        row(10_000, 1, "eval/repeated", 0.5, 61.0),
        row(10_000, 0, "eval/repeated", 0.75, 61.0),
        row(13_400, 0, "agent/critic_loss", 1.0, 70.0),
        '{"step": 14000, "wa',
    )
    write(tmp_path / "sb3-sac-hopper.csv", "step,seed,return,seconds", "0,2000,10,1", "100000,2000,900.5,50")
    return tmp_path


def test_collect(begun: Path, tmp_path: Path):
    results = tmp_path / "results"
    results.mkdir()
    campaign.collect(list(RUNS.values()), begun, results)
    assert (results / "taac-lander.csv").read_text().splitlines() == [
        "step,seed,return,seconds,repeated",
        "0,2000,-100.00,2,",
        "0,2001,-200.00,2,",
        "10000,2000,50.50,30,0.750",
        "10000,2001,60.25,30,0.500",
    ]
    state = campaign.read_rows(results / "campaign.csv")
    assert [(x["name"], x["reached"], x["finished"]) for x in state] == [
        ("sb3-sac-hopper", "100000", "no"),
        ("taac-lander", "13400", "no"),
    ]
    curve = quality.read_curve(results / "taac-lander.csv")
    assert curve is not None
    assert list(curve.steps) == [0, 10_000]
    np.testing.assert_array_equal(curve.returns, [[-100.0, -200.0], [50.5, 60.25]])
    assert np.isnan(curve.repeated[0]) and curve.repeated[1] == 0.625
    text = "\n".join(quality.our_table(quality.read_results(results), "lander"))
    assert "| TAAC (stopped at 13,400 of 100,000) | **10,000** instead of 100,000 | 55 | 55 | 50 to 60 |" in text
    assert "| TAAC-Q (not run yet) |" in text


def test_what_is_finished_and_how_a_run_continues(tmp_path: Path):
    run, peer = RUNS["sac-hopper"], RUNS["sbx-sac-hopper"]
    assert not campaign.is_finished(run, tmp_path)
    assert campaign.command_of(run, tmp_path, "")[3:5] == ["train", "sac"]
    write(tmp_path / run.name / "config.json", "{}")
    assert campaign.command_of(run, tmp_path, "")[3:] == ["resume", str(tmp_path / run.name)]
    final = tmp_path / run.name / "evaluation" / "final.json"
    write(final, json.dumps({"steps": 100_000}))
    assert not campaign.is_finished(run, tmp_path)
    write(final, json.dumps({"steps": 200_000}))
    assert campaign.is_finished(run, tmp_path)
    rows = [f"{step},{seed},1.0,5" for seed in (2000, 2001) for step in (0, 100_000)]
    out = write(tmp_path / f"{peer.name}.csv", "step,seed,return,seconds", *rows, "0,2002,1.0,5")
    assert not campaign.is_finished(peer, tmp_path)
    assert keep_whole_seeds(out, 100_000) == {2000, 2001}
    assert out.read_text().splitlines()[1:] == rows


CHILD = """
import pathlib, signal, sys, time
def stop(*_):
    pathlib.Path("saved").write_text("once")
    sys.exit(130)
signal.signal(signal.SIGTERM, stop)
pathlib.Path("began").touch()
time.sleep(30)
"""
PARENT = """
import sys
from pathlib import Path
from benchmarks.campaign import Runner
runner = Runner()
code = runner.run([sys.executable, "child.py"], Path("log"))
sys.exit(40 + (runner.stopped and code == 130))
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_stopped_runner_lets_its_run_save(number: signal.Signals, tmp_path: Path):
    """Also as a background job of a shell, which ignores SIGINT."""
    write(tmp_path / "child.py", CHILD)
    write(tmp_path / "parent.py", PARENT)
    command = ["sh", "-c", "trap '' INT; exec \"$0\" parent.py", sys.executable]
    process = subprocess.Popen(command, cwd=tmp_path, env=os.environ | {"PYTHONPATH": str(ROOT)})
    try:
        end = time.monotonic() + 60
        while not (tmp_path / "began").exists() and time.monotonic() < end:
            time.sleep(0.05)
        process.send_signal(number)
        assert process.wait(60) == 41
    finally:
        process.kill()
        process.wait()
    assert (tmp_path / "saved").read_text() == "once"


def test_probability_of_improvement():
    ours, theirs = np.array([3.0, 5.0]), np.array([1.0, 3.0, 4.0])
    assert improvement.probability_of_improvement(ours, theirs) == pytest.approx((1 + 0.5 + 0 + 3) / 6)
    centre, low, high = improvement.improvement_interval(ours + 10, theirs)
    assert (centre, low, high) == (1.0, 1.0, 1.0)


def test_paired_difference():
    mean, error = quality.paired_difference(np.array([2.0, 4.0, 9.0]), np.array([1.0, 2.0, 3.0]))
    assert mean == 3.0
    assert error == pytest.approx(np.std([1.0, 2.0, 6.0], ddof=1) / 3**0.5)


def test_the_study_compares_what_both_have(tmp_path: Path):
    """A shorter run is compared at its last step, and with the mean after step 0, seed by seed."""
    head = "step,seed,return"
    base = ["0,1,0", "0,2,0", "5,1,10", "5,2,20", "10,1,30", "10,2,50", "15,1,999", "15,2,999"]
    write(tmp_path / "study-td3-hopper-base.csv", head, *base)
    write(tmp_path / "study-td3-hopper-lr.csv", head, "0,1,7", "0,2,7", "5,1,12", "5,2,22", "10,1,36", "10,2,60")
    (cells,) = quality.study_rows(tmp_path, "hopper")
    assert cells[1:] == ["2", "10", "40", "48", "+8 (2)", "+5 (1)"]


def test_an_evaluation_at_the_end_of_a_block_counts(tmp_path: Path):
    write(tmp_path / "x.csv", "step,seed,return", "100032,1,5", "100032,2,7", "200300,1,9", "200300,2,9")
    curve = quality.read_curve(tmp_path / "x.csv")
    assert curve is not None and list(curve.at(100_000)) == [5, 7]
    assert curve.at(100_040) is None and curve.at(200_000) is None and curve.at(99_000) is None


def test_a_mean_beside_published_values():
    value = quality.Published("SAC", "Hopper", "v4", 100_000, 1000.0, 100.0, 5, "")
    told = [quality.verdict(mean, value) for mean in (1101.0, 1100.0, 900.0, 899.0)]
    assert told == ["above", "inside", "inside", "**below**"]


def test_figure(tmp_path: Path):
    lines = [f"{step},{seed},{step / 100 + seed},{step}" for step in range(0, 200_001, 50_000) for seed in (1, 2, 3)]
    write(tmp_path / "sac-hopper.csv", "step,seed,return,seconds", *lines)
    (tmp_path / "published.csv").write_text((campaign.RESULTS / "published.csv").read_text())
    results = quality.read_results(tmp_path)
    quality.draw(results, "hopper", tmp_path / "figure.png")
    assert (tmp_path / "figure.png").stat().st_size > 10_000
    text = quality.render(results)
    assert "| SAC, Hopper-v5, 100,000 | SAC (Tianshou), v3 | 1,766 ± 1,036 | 1,002 | inside |" in text
