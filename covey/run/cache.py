"""The persistent compilation cache: a program compiled once is loaded the next time."""

import ctypes
import hashlib
import os
import platform
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import jax


def use_screenless_drawing() -> None:
    """Lets MuJoCo draw where there is no screen, unless the user said how. It reads this when it is imported."""
    if sys.platform != "linux" or os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"):
        return
    with suppress(OSError):  # without this library, MuJoCo could not even be imported
        ctypes.CDLL("libEGL.so.1")
        os.environ.setdefault("MUJOCO_GL", "egl")


def use_cache() -> None:
    """Turns the cache on, in the user's cache folder. COVEY_CACHE names another folder, or `off`.

    A cache that the user set up through jax itself is left as it is.
    """
    use_screenless_drawing()
    folder = os.environ.get("COVEY_CACHE", "")
    already: str | None = jax.config.jax_compilation_cache_dir  # pyright: ignore[reportAttributeAccessIssue]
    if folder == "off" or already:
        return
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path(os.path.expanduser("~")) / ".cache")
    if not home.is_absolute():  # a user without a home, as in a container
        return
    jax.config.update("jax_compilation_cache_dir", folder or str(home / "covey" / f"jax-{_processor()}"))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.5)


@contextmanager
def hushed() -> Iterator[None]:
    """Keeps XLA's messages about the cache off the terminal while programs are loaded.

    Only needed where jax was imported before covey, too early to be told so. It speaks from C++, so that it is the
    file descriptor that has to be turned away.
    """
    if os.environ.get("TF_CPP_MIN_LOG_LEVEL") == "3":
        yield
        return
    sys.stderr.flush()
    kept, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nowhere)


def _processor() -> str:
    """A short name for the kind of processor: code compiled for one may not run on another that shares the folder."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        kind = next((line for line in lines if line.startswith(("flags", "Features"))), "")
    except OSError:
        kind = ""
    return hashlib.sha256(f"{platform.machine()} {platform.processor()} {kind}".encode()).hexdigest()[:12]
