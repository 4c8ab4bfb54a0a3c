"""How much memory a run may take: of the device, and on a CPU of the machine, the container and the process."""

import math
from pathlib import Path

import jax


def free_memory() -> float:
    """Bytes that the first device can still give; infinite where nobody tells."""
    stats = jax.local_devices()[0].memory_stats()
    on_device = stats and stats.get("bytes_limit", 0) - stats.get("bytes_in_use", 0)
    return on_device or min(_machine(), _container(), _process())


def _machine() -> float:
    """Bytes that Linux can give without swapping."""
    lines = _text("/proc/meminfo").splitlines()
    return next((int(x.split()[1]) * 1024.0 for x in lines if x.startswith("MemAvailable:")), math.inf)


def _container() -> float:
    """What the control group, which is how containers are limited, has left. Files that are only cached don't count."""
    group = next((x[3:] for x in _text("/proc/self/cgroup").splitlines() if x.startswith("0::")), "/")
    for folder in (f"/sys/fs/cgroup{group}", "/sys/fs/cgroup"):
        limit, used = _text(f"{folder}/memory.max").strip(), _text(f"{folder}/memory.current").strip()
        if limit.isdigit() and used.isdigit():
            stats = (x.split() for x in _text(f"{folder}/memory.stat").splitlines())
            cached = next((int(x[1]) for x in stats if x[0] == "inactive_file"), 0)
            return float(int(limit) - int(used) + cached)
    return math.inf


def _process() -> float:
    """What `ulimit -v` leaves of address space."""
    try:
        import resource
    except ImportError:  # not on Windows
        return math.inf
    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    pages = _text("/proc/self/statm").split()
    if limit == resource.RLIM_INFINITY or not pages:
        return math.inf
    return float(limit - int(pages[0]) * resource.getpagesize())


def _text(path: str) -> str:
    try:
        return Path(path).read_text()
    except OSError:
        return ""
