"""Tests run strictly: no silent promotion of types or ranks, warnings are errors, two CPU devices.

Their compiled programs are cached in a folder of their own, which the processes that tests start inherit.
"""

import ctypes
import gc
import os
import resource
import signal
from collections.abc import Iterator
from pathlib import Path

home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
os.environ.setdefault("COVEY_CACHE", str(home / "covey" / "tests"))
# Compilation is most of the time of the tests: less optimised code is made in a third of it.
QUICK = "--xla_backend_optimization_level=1 --xla_cpu_use_fusion_emitters=false"
os.environ["XLA_FLAGS"] = f"{QUICK} {os.environ.get('XLA_FLAGS', '')}"

from covey.backend import use_cache  # noqa: E402, I001  (before jax, which it tells to be quiet)
from covey.plugins import allow  # noqa: E402
import jax  # noqa: E402
import pytest  # noqa: E402

# Under nohup, or in the background of a script, these are ignored, which the processes that tests start inherit.
for number, handler in ((signal.SIGINT, signal.default_int_handler), (signal.SIGHUP, signal.SIG_DFL)):
    if signal.getsignal(number) == signal.SIG_IGN:
        signal.signal(number, handler)

jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_num_cpu_devices", 2)
jax.config.update("jax_numpy_dtype_promotion", "strict")
jax.config.update("jax_numpy_rank_promotion", "raise")
use_cache()
allow("tests.host_tasks", "benchmarks.torture.environments")
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.1)

ENOUGH, GROWTH = 1200 * 2**20, 300 * 2**20
"""Bytes with which a process forgets its compiled programs, which takes seconds: not before it has grown by the second
number since it last did."""
FLOOR = {"bytes": 0}  # what it then had


@pytest.fixture(autouse=True)
def forget_programs() -> Iterator[None]:
    """Keeps a process that runs many tests small: it forgets its compiled programs now and then; those on disk stay.

    They also have memory maps, of which Linux allows a process 65,530.
    """
    yield
    if memory("VmRSS") > max(ENOUGH, FLOOR["bytes"] + GROWTH):
        jax.clear_caches()
        gc.collect()
        trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # without which glibc keeps what was freed
        if trim:
            trim(0)
        FLOOR["bytes"] = memory("VmRSS")


def memory(name: str) -> int:
    """Bytes of this process, as Linux counts them: VmRSS now, VmHWM at the most; elsewhere 0."""
    status = Path("/proc/self/status")
    lines = status.read_text().splitlines() if status.exists() else []
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{name}:")), 0)


def pytest_sessionfinish() -> None:
    """With COVEY_TEST_MEMORY=FILE, appends the most memory that this process and any that it started have had."""
    file = os.environ.get("COVEY_TEST_MEMORY")
    if file:
        started = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024
        worker = os.environ.get("PYTEST_XDIST_WORKER", "main")
        with Path(file).open("a") as report:
            report.write(f"{worker}: {memory('VmHWM') / 2**30:.2f} GiB, started {started / 2**30:.2f} GiB\n")
