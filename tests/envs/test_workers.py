"""Worker processes end silently with the training process, whatever their environments are doing."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

STEPS = """
import sys, numpy as np
from covey import envs
if __name__ == "__main__":
    batch = envs.make("gymnasium:benchmarks.torture.environments:" + sys.argv[1]).open(2, 2)
    batch.reset(np.arange(2).astype(np.uint32))
    print(*(worker.process.pid for worker in batch._workers), flush=True)
    while True:
        batch.step(np.zeros((2, 1), np.float32))
"""


def gone(pid: int) -> bool:
    try:
        status = Path(f"/proc/{pid}/stat").read_text()
    except FileNotFoundError:
        return True
    return status.rpartition(")")[2].split()[0] == "Z"


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="looks at Linux's process table")
@pytest.mark.parametrize("name", ["Healthy", "AHang", "ABusyHang"])
def test_workers_do_not_outlive_a_killed_parent(name: str, tmp_path: Path):
    script, said = tmp_path / "steps.py", tmp_path / "stderr"
    script.write_text(STEPS)
    environment = os.environ | {"PYTHONPATH": os.getcwd(), "JAX_PLATFORMS": "cpu"}
    with (
        said.open("w") as stderr,
        subprocess.Popen(
            [sys.executable, str(script), name], stdout=subprocess.PIPE, stderr=stderr, text=True, env=environment
        ) as running,
    ):
        assert running.stdout is not None
        workers = [int(text) for text in running.stdout.readline().split()]
        time.sleep(0.5)  # in the middle of steps, or of the hang
        for signal_ in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            os.kill(workers[0], signal_)  # as if sent to the whole process group
        time.sleep(0.1)
        stayed = not any(map(gone, workers))
        running.kill()
        running.wait()
        deadline = time.monotonic() + 10
        while not all(map(gone, workers)) and time.monotonic() < deadline:
            time.sleep(0.05)
    left = [pid for pid in workers if not gone(pid)]
    for pid in left:
        os.kill(pid, signal.SIGKILL)
    assert len(workers) == 2 and stayed
    assert not left
    assert said.read_text() == ""
