"""The persistent compilation cache: a program compiled once is loaded the next time."""

import hashlib
import os
import platform
from pathlib import Path

import jax


def use_cache() -> None:
    """Turns the cache on, in the user's cache folder. COVEY_CACHE names another folder, or `off`.

    A cache that the user set up through jax itself is left as it is.
    """
    folder = os.environ.get("COVEY_CACHE", "")
    already: str | None = jax.config.jax_compilation_cache_dir  # pyright: ignore[reportAttributeAccessIssue]
    if folder == "off" or already:
        return
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    jax.config.update("jax_compilation_cache_dir", folder or str(home / "covey" / f"jax-{_processor()}"))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.1)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", 0)


def _processor() -> str:
    """A short name for the kind of processor: code compiled for one may not run on another that shares the folder."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        kind = next((line for line in lines if line.startswith(("flags", "Features"))), "")
    except OSError:
        kind = ""
    return hashlib.sha256(f"{platform.machine()} {platform.processor()} {kind}".encode()).hexdigest()[:12]
