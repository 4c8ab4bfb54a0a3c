"""A job listens only at the address that it was given."""

import socket
import subprocess
import sys

import pytest

from tests.population.test_jobs import EVOLVE
from tests.sockets import LOOPBACK, addresses, free_port


def process(number: int, coordinator: str) -> list[str]:
    where = ["--coordinator", coordinator, "--processes", "2", "--process", str(number)]
    return [sys.executable, "-m", "covey", *EVOLVE, "--out", "unused", *where]


@pytest.mark.parametrize(
    ("number", "expected"), [(0, "Waiting for the other processes"), (1, "Waiting for process 0: nothing answers")]
)
def test_a_process_that_waits_says_so_and_listens_where_it_was_told(number: int, expected: str):
    command = process(number, f"127.0.0.1:{free_port()}")
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as waiting:
        assert waiting.stderr is not None
        said = next(line for line in waiting.stderr if "Waiting" in line)
        listened = addresses([waiting.pid])
        waiting.send_signal(2)
        assert waiting.wait(10) == 130  # Ctrl-C works while it waits
    assert expected in said
    assert listened == (listened & LOOPBACK) and bool(listened) == (number == 0), listened


def test_a_port_in_use_is_a_clear_error(tmp_path):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        command = process(0, f"127.0.0.1:{taken.getsockname()[1]}")
        found = subprocess.run(command, check=False, capture_output=True, text=True, timeout=60, cwd=tmp_path)
    assert found.returncode == 1 and "Traceback" not in found.stderr
    assert "Process 0 can't listen at 127.0.0.1" in found.stderr and "Address already in use" in found.stderr
