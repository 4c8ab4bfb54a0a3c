"""Prints how many processes `make test` runs: one per core, and no more than there is memory for."""

import os
from pathlib import Path

EACH = 3 * 2**30
"""Bytes for a process: at most 2 GiB of its own (tests/conftest.py), and what it starts."""


def workers(cores: int, memory: float) -> int:
    """The number of processes for a number of cores and bytes of memory; at least one."""
    return max(1, int(min(cores, memory / EACH)))


def free_memory(root: Path = Path("/")) -> float:
    """Bytes that are available, and that the container allows; infinite where neither is known."""
    sizes = [float("inf")]
    meminfo = root / "proc/meminfo"
    if meminfo.exists():
        lines = meminfo.read_text().splitlines()
        sizes += [int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:")]
    for limit in ("sys/fs/cgroup/memory.max", "sys/fs/cgroup/memory/memory.limit_in_bytes"):
        text = (root / limit).read_text().strip() if (root / limit).exists() else "max"
        sizes += [int(text)] if text.isdigit() else []
    return min(sizes)


def count_cores() -> int:
    """The cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


if __name__ == "__main__":
    print(workers(count_cores(), free_memory()))
