"""Islands on Ray, as a user starts them: workers are killed, and the run continues. `make test-ray` runs this."""

import importlib.util
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import covey
from covey.islands.merge import reached
from covey.storage.folder import RunFolder
from tests.runs import FLAGS, rows
from tests.sockets import LOOPBACK, addresses

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("ray") is None, reason="Ray is not installed: make test-ray, or pip install 'covey[ray]'"
)
LONG = 60_000
OPTIONS = [*FLAGS, "--members", "4", "--engine", "ray", "--islands", "2", "--steps", str(LONG)]


@contextmanager
def process(arguments: list[str]) -> Iterator[subprocess.Popen]:
    """The command in a session of its own, which all that Ray starts belongs to; nothing of it is left."""
    command = [sys.executable, "-m", "covey", *arguments]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    with subprocess.Popen(command, start_new_session=True, **pipes) as started:
        yield started
    deadline = time.monotonic() + 20
    while (left := of_session(started.pid)) and time.monotonic() < deadline:
        time.sleep(0.2)
    assert not left, left


def of_session(session: int) -> list[int]:
    """The processes of a session."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[3]) == session and fields[0] != "Z":
            found.append(int(stat.parent.name))
    return found


def read_until(running: subprocess.Popen, pattern: str) -> tuple[str, re.Match[str]]:
    """The output up to a line that matches."""
    assert running.stdout is not None
    seen = ""
    for line in running.stdout:
        seen += line
        if found := re.search(pattern, line):
            return seen, found
    raise AssertionError(seen)


def assert_whole(out: Path) -> None:
    """Every member is there in every generation and every evaluation, as in a run of one process."""
    lines = rows(out / "lineage.jsonl")
    generations = [(line["generation"], line["member"]) for line in lines if line["reason"] != "failed"]
    assert generations == sorted(generations) and {m for _, m in generations} == {0, 1, 2, 3}
    assert lines[-1]["step"] == LONG
    run = covey.load(out)
    returns = run.metrics()["eval/return"]
    assert returns["member"] == [0, 1, 2, 3] * 4 and returns["step"][-1] == LONG
    assert (out / "media" / "curve.png").exists()
    assert run.policy()([0.0] * run.best.program.env.spec.obs_size).shape == (run.best.program.env.spec.action_size,)


def test_a_killed_worker_is_started_again_from_its_checkpoint(tmp_path: Path):
    out = tmp_path / "run"
    with process(["evolve", "td3", *OPTIONS, "--checkpoint-minutes", "0", "--out", str(out)]) as running:
        _, found = read_until(running, r"island 1: process (\d+)")
        while reached(RunFolder(out), 1) == 0 and running.poll() is None:
            time.sleep(0.02)
        listened = addresses(of_session(running.pid))
        os.kill(int(found[1]), signal.SIGKILL)
        output, _ = running.communicate()
    assert running.returncode == 0, output
    assert "Traceback" not in output and "Warning" not in output
    # 127.0.0.1, as IPv4 and within IPv6
    assert listened and listened <= LOOPBACK
    assert "island 1: lost" in output and "island 0: lost" not in output
    again = re.search(r"island 1: restarted from step ([\d,]+) \(1 of 5\)", output)
    assert again and 0 < int(again[1].replace(",", "")) < LONG
    assert f"island 1: Resuming from step {again[1]}." in output
    assert_whole(out)


BROKEN = """
import sys
if "covey.islands.ray" in sys.modules:  # in a worker: the command line imports plugins before anything else
    raise RuntimeError("this machine is broken")
"""


def test_gives_up_with_the_error_of_the_worker(tmp_path: Path, monkeypatch):
    (tmp_path / "broken.py").write_text(BROKEN)
    (tmp_path / "jax.py").write_text("raise ImportError('from the current folder')")  # installed packages come first
    monkeypatch.chdir(tmp_path)
    with process(["evolve", "td3", *OPTIONS, "--plugin", "broken", "--out", "run"]) as running:
        output, _ = running.communicate()
    assert running.returncode == 1, output
    assert "restarted from step 0 (5 of 5)" in output
    last = output.rpartition("covey: ")[2]
    assert "was restarted 5 times without getting beyond step 0" in last
    assert "RuntimeError: this machine is broken" in last and 'File "' in last


def test_ctrl_c_saves_all_islands_and_resume_continues(tmp_path: Path):
    out = tmp_path / "run"
    with process(["evolve", "td3", *OPTIONS, "--out", str(out)]) as running:
        read_until(running, r"island [01]: step +20,000")
        os.killpg(running.pid, signal.SIGINT)  # as a terminal does
        output, _ = running.communicate()
    assert running.returncode == 130, output
    assert f"covey resume {out}" in output and "Traceback" not in output
    saved = [reached(RunFolder(out), island) for island in (0, 1)]
    assert max(saved) >= 20_000 and min(saved) < LONG
    with process(["resume", str(out)]) as running:
        output, _ = running.communicate()
    assert running.returncode == 0, output
    assert all(f"Resuming from step {step:,}." in output for step in saved if step)
    assert_whole(out)
