"""Tests run strictly: no silent promotion of types or ranks, warnings are errors, two CPU devices.

Their compiled programs are cached in a folder of their own, which the processes that tests start inherit.
"""

import os
from pathlib import Path

home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
os.environ.setdefault("COVEY_CACHE", str(home / "covey" / "tests"))
# Compilation is most of the time of the tests: less optimised code is made in a third of it.
QUICK = "--xla_backend_optimization_level=1 --xla_cpu_use_fusion_emitters=false"
os.environ["XLA_FLAGS"] = f"{QUICK} {os.environ.get('XLA_FLAGS', '')}"

from covey.run.cache import use_cache  # noqa: E402, I001  (before jax, which it tells to be quiet)
from covey.trust import trust  # noqa: E402
import jax  # noqa: E402
import pytest  # noqa: E402

jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_num_cpu_devices", 2)
jax.config.update("jax_numpy_dtype_promotion", "strict")
jax.config.update("jax_numpy_rank_promotion", "raise")
use_cache()
trust("tests.host_tasks")
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.1)

MOST_MAPS = 20_000
"""Memory maps of a process; every compiled program has some, and Linux ends a process with more than 65,530."""


@pytest.fixture(scope="module", autouse=True)
def forget_programs():
    """A process that runs many files of tests forgets their programs now and then; those on disk stay."""
    yield
    maps = Path("/proc/self/maps")
    if maps.exists() and maps.read_text().count("\n") > MOST_MAPS:
        jax.clear_caches()
