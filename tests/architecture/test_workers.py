"""`make test` fits the machine: as many processes as there are cores and memory for."""

from pathlib import Path

import pytest

from tests.workers import free_memory, workers

GIB = 2**30


@pytest.mark.parametrize(
    ("cores", "memory", "expected"),
    [(2, 23 * GIB, 2), (16, 16 * GIB, 5), (8, 64 * GIB, 8), (4, 2 * GIB, 1), (4, float("inf"), 4)],
)
def test_no_more_than_memory_allows(cores: int, memory: float, expected: int):
    assert workers(cores, memory) == expected


def test_memory_is_what_is_free_and_what_the_container_allows(tmp_path: Path):
    assert free_memory(tmp_path) == float("inf")
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/meminfo").write_text("MemTotal: 9000 kB\nMemAvailable: 8000 kB\n")
    assert free_memory(tmp_path) == 8000 * 1024
    (tmp_path / "sys/fs/cgroup").mkdir(parents=True)
    (tmp_path / "sys/fs/cgroup/memory.max").write_text("max\n")
    assert free_memory(tmp_path) == 8000 * 1024
    (tmp_path / "sys/fs/cgroup/memory.max").write_text("4096\n")
    assert free_memory(tmp_path) == 4096
