"""A population over two real processes on this machine: the lineage of one process, and what happens when one dies."""

import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import covey
from covey.run.checkpoint import Store
from tests.runs import FLAGS, TINY, rows

PBT = {"bottom": 0.5, "top": 0.25}
EVOLVE = ["evolve", "td3", *FLAGS, "--members", "4", "--population-axis", "map", "--devices", "1"]
EVOLVE += ["--pbt.bottom", "0.5", "--pbt.top", "0.25", "--checkpoint-minutes", "0"]
LONG = ["--steps", "12000", "--evaluations", "30"]


def port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


def job(arguments: list[str]) -> list[subprocess.Popen]:
    """Two processes of one job."""
    where = ["--coordinator", f"127.0.0.1:{port()}", "--processes", "2", "--process"]
    commands = [[sys.executable, "-m", "covey", *arguments, *where, str(i)] for i in range(2)]
    return [subprocess.Popen(c, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) for c in commands]


def finish(processes: list[subprocess.Popen]) -> list[str]:
    output = [p.communicate(timeout=240)[0] for p in processes]
    assert [p.returncode for p in processes] == [0, 0], "\n".join(output)
    return output


def alone(out: Path, **options) -> Path:
    """The same population in one process."""
    members = {"members": 4, "population_axis": "map", "devices": 1, "pbt": PBT, "quiet": True}
    return covey.evolve("td3", out=out, **(TINY | members | options)).path


def same(one: Path, two: Path) -> None:
    for file in ("lineage.jsonl", "metrics.jsonl", "evaluation/episodes.jsonl"):
        assert rows(one / file) == rows(two / file), file


def test_two_processes_have_the_lineage_of_one(tmp_path: Path):
    output = finish(job([*EVOLVE, "--out", str(tmp_path / "run")]))
    assert "of each of 2 processes" in output[0] and "Best policy" in output[0]
    same(alone(tmp_path / "alone"), tmp_path / "run")
    assert (tmp_path / "run" / "media" / "lineage.png").exists()
    assert covey.load(tmp_path / "run").evaluate(4).episodes.returns.shape == (4,)


def killed(processes: list[subprocess.Popen], victim: int, after: int, out: Path) -> str:
    """Kills one process when there is a checkpoint after a step; what the other says before it stops."""
    while max(Store(out / "checkpoints", "step").steps(), default=0) <= after:
        assert all(p.poll() is None for p in processes), "\n".join(p.communicate()[0] for p in processes)
        time.sleep(0.05)
    processes[victim].send_signal(signal.SIGKILL)
    began = time.monotonic()
    text, _ = processes[1 - victim].communicate(timeout=90)
    processes[victim].communicate()
    assert processes[1 - victim].returncode == 1 and time.monotonic() - began < 60
    return text


def test_when_one_dies_the_other_says_so_and_resume_goes_on(tmp_path: Path):
    """First the second process, then the first, where the job's coordinator is."""
    out = tmp_path / "run"
    text = killed(job([*EVOLVE, *LONG, "--out", str(out)]), 1, 400, out)
    assert "Another process of this job has stopped" in text
    assert "Traceback" not in text and "Check failure" not in text
    text = killed(job(["resume", str(out)]), 0, max(Store(out / "checkpoints", "step").steps()), out)
    assert "Another process of this job has stopped" in text
    finish(job(["resume", str(out)]))
    same(alone(tmp_path / "alone", steps=12_000, evaluations=30), out)
