"""A population over two real processes on this machine: the lineage of one process, and what happens when one stops."""

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import covey
from covey.storage.store import Store
from tests.runs import FLAGS, TINY, rows
from tests.sockets import free_port

PBT = {"bottom": 0.5, "top": 0.25}
EVOLVE = ["evolve", "td3", *FLAGS, "--members", "4", "--population-axis", "map", "--devices", "1"]
EVOLVE += ["--pbt.bottom", "0.5", "--pbt.top", "0.25", "--checkpoint-minutes", "0"]
LONG = ["--steps", "8000", "--evaluations", "20"]


def job(arguments: list[str], second: tuple[str, ...] = (), processes: int = 2) -> list[subprocess.Popen]:
    """Processes of one job, of which the second has some more arguments; a single one is no job."""
    where = ["--coordinator", f"127.0.0.1:{free_port()}", "--processes", str(processes), "--process"]
    places = [[*where, str(i)] for i in range(processes)] if processes > 1 else [[]]
    more = [second if i == 1 else () for i in range(processes)]
    commands = [
        [sys.executable, "-m", "covey", *arguments, *at, *extra] for at, extra in zip(places, more, strict=True)
    ]
    return [subprocess.Popen(c, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) for c in commands]


def finish(processes: list[subprocess.Popen]) -> list[str]:
    output = [p.communicate(timeout=240)[0] for p in processes]
    assert {p.returncode for p in processes} == {0}, "\n".join(output)
    return output


def alone(out: Path, **options) -> Path:
    """The same population in one process."""
    members = {"members": 4, "population_axis": "map", "devices": 1, "pbt": PBT, "quiet": True}
    return covey.evolve("td3", out=out, **(TINY | members | options)).path


def same(one: Path, two: Path) -> None:
    for file in ("lineage.jsonl", "metrics.jsonl", "evaluation/episodes.jsonl"):
        assert rows(one / file) == rows(two / file), file


@pytest.mark.slow
def test_two_processes_have_the_lineage_of_one(tmp_path: Path):
    output = finish(job([*EVOLVE, "--out", str(tmp_path / "run")]))
    assert "of each of 2 processes" in output[0] and "Best policy" in output[0]
    same(alone(tmp_path / "alone"), tmp_path / "run")
    assert (tmp_path / "run" / "media" / "lineage.png").exists()
    assert covey.load(tmp_path / "run").evaluate(4).episodes.returns.shape == (4,)


def after(processes: list[subprocess.Popen], step: int, out: Path) -> None:
    """Waits for a checkpoint after a step."""
    while max(Store(out / "checkpoints", "step").steps(), default=0) <= step:
        assert all(p.poll() is None for p in processes), "\n".join(p.communicate()[0] for p in processes)
        time.sleep(0.05)


def killed(processes: list[subprocess.Popen], victim: int, step: int, out: Path) -> None:
    """Kills one process when there is a checkpoint after a step; the other says so and stops.

    Where it was the first, with the coordinator, jax may abort the other before it can say anything.
    """
    after(processes, step, out)
    processes[victim].send_signal(signal.SIGKILL)
    began = time.monotonic()
    text, _ = processes[1 - victim].communicate(timeout=90)
    processes[victim].communicate()
    assert time.monotonic() - began < 60
    aborted = victim == 0 and processes[1].returncode == -signal.SIGABRT
    assert aborted or processes[1 - victim].returncode == 1, text
    assert aborted or "Another process of this job has stopped" in text
    assert aborted or ("Traceback" not in text and "Check failure" not in text)


def reached(out: Path) -> int:
    return max(Store(out / "checkpoints", "step").steps())


@pytest.mark.slow
def test_when_one_dies_the_other_reports_it_and_any_number_resumes(tmp_path: Path):
    """Two processes, one, two, one: the second is killed, then the single one, then the first, with the coordinator."""
    out = tmp_path / "run"
    killed(job([*EVOLVE, *LONG, "--out", str(out)]), 1, 400, out)
    (single,) = job(["resume", str(out)], processes=1)
    after([single], reached(out), out)
    single.kill()
    assert "Resuming from step" in single.communicate()[0]
    killed(job(["resume", str(out)]), 0, reached(out), out)
    finish(job(["resume", str(out)], processes=1))
    assert not (out / "checkpoints" / "process-1").exists()
    same(alone(tmp_path / "alone", steps=8000, evaluations=20), out)


def ended(processes: list[subprocess.Popen], within: float = 60.0) -> list[str]:
    """What processes say that all have to stop soon, with an error."""
    began = time.monotonic()
    output = [p.communicate(timeout=240)[0] for p in processes]
    assert time.monotonic() - began < within, output
    assert all(p.returncode == 1 for p in processes), output
    assert not any("Traceback" in text or "Check failure" in text for text in output), output
    return output


def test_other_options_are_found_before_anything_is_compiled(tmp_path: Path):
    output = ended(job([*EVOLVE, "--out", str(tmp_path / "run")], second=("--seed", "5", "--hyper.tau", "0.1")))
    for text in output:
        assert "--hyper.tau is '0.02' in process 0 and '0.1' in 1" in text and "--seed is 0" in text
        assert "--capacity" not in text and "Compiling" not in text
    assert not (tmp_path / "run").exists()


def test_wrong_options_of_one_end_both(tmp_path: Path):
    """Even before they have met."""
    first, second = job([*EVOLVE, "--out", str(tmp_path / "run")], second=("--replay", "missing.safetensors"))
    output = ended([first, second], 90.0)
    assert "missing.safetensors" in output[1]
    assert "have different options: --replay" in output[0] or "Process 1 of this job has stopped" in output[0]
    first, second = job([*EVOLVE, "--out", str(tmp_path / "run")], second=("--nonsense",))
    assert "--nonsense" in second.communicate(timeout=90)[0] and second.returncode == 2
    assert "Process 1 of this job has stopped: There is no option --nonsense." in ended([first])[0]


def test_an_error_of_one_ends_both(tmp_path: Path):
    """The second can't write its checkpoints, while the first waits for it at the next log."""
    out = tmp_path / "run"
    processes = job([*EVOLVE, *LONG, "--out", str(out)])
    while not (out / "config.json").exists():
        assert all(p.poll() is None for p in processes), [p.communicate()[0] for p in processes]
        time.sleep(0.05)
    (out / "checkpoints" / "process-1").touch()
    output = ended(processes, 120.0)
    told = f"{out / 'checkpoints' / 'process-1'} can't be read: Not a directory"
    assert f"covey: {told}" in output[1]
    assert f"covey: Process 1 of this job has stopped: {told}" in output[0]
