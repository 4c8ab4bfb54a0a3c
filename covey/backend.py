"""Process set-up: compilation cache, CPU devices, headless rendering; and the silencing of XLA and MuJoCo.

The functions `use_*` and `request_*` must be called before jax, or MuJoCo, is first used.
"""

import ctypes
import hashlib
import os
import platform
import sys
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager, suppress
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import jax

from covey.devices import PLATFORMS, devices, of_platform, seen
from covey.errors import CoveyError, require
from covey.install import install_command

EXTRAS = {"gpu": "cuda12", "cuda": "cuda12", "tpu": "tpu"}
"""The extras that install jax for a platform. For ROCm, jax has none that installs all it needs."""


def use_headless_rendering() -> None:
    """Lets MuJoCo render without a display, unless the user has set MUJOCO_GL.

    MuJoCo reads that variable when it is imported.
    """
    if sys.platform != "linux" or os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"):
        return
    with suppress(OSError):  # without this library, MUJOCO_GL=egl would make the import of MuJoCo fail
        ctypes.CDLL("libEGL.so.1")
        os.environ.setdefault("MUJOCO_GL", "egl")


def use_cache() -> None:
    """Turns on the persistent compilation cache, in the user's cache folder.

    The environment variable COVEY_CACHE sets another folder, or `off`. A cache that is already configured in jax is
    kept.
    """
    use_headless_rendering()
    folder = os.environ.get("COVEY_CACHE", "")
    already: str | None = jax.config.jax_compilation_cache_dir  # pyright: ignore[reportAttributeAccessIssue]
    if folder == "off" or already:
        return
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path(os.path.expanduser("~")) / ".cache")
    if not home.is_absolute():  # the user has no home folder, as in some containers
        return
    jax.config.update("jax_compilation_cache_dir", folder or str(home / "covey" / f"jax-{_processor()}"))
    # Small programs too, so that a second run compiles nothing; but not where XLA logs a page for each that it reads.
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0 if _xla_is_silent() else 0.5)


def use_cpu_devices(members: int, devices: int = 0, most: int | None = None) -> None:
    """Splits the CPU into as many devices as the members can be divided among. A number set in jax is kept.

    Args:
        members: Members of this process.
        devices: The number of devices that the user asked for; 0 chooses it.
        most: An upper limit besides the number of cores.
    """
    cores = min(count_cores(), most or count_cores())
    wanted = devices or max(n for n in range(1, min(cores, members) + 1) if members % n == 0)
    if jax.config.jax_num_cpu_devices not in (-1, 0):  # pyright: ignore[reportAttributeAccessIssue]
        return
    with suppress(RuntimeError):  # jax is already in use, and its number of devices fixed
        jax.config.update("jax_num_cpu_devices", wanted)


@contextmanager
def on_device(name: str) -> Iterator[None]:
    """Computes on a device of the user's choice instead of jax's default.

    Args:
        name: A platform (`cpu`, `gpu`, `tpu`, `cuda`, `rocm`), which stands for all its devices, or one device of it
            (`cuda:0`). Empty for jax's default.
    """
    if not name:
        yield
        return
    platform_name, colon, number = name.partition(":")
    require(
        platform_name in PLATFORMS and (number.isdigit() or not colon),
        f"`device` must be one of {', '.join(PLATFORMS)}, or one device of it, such as cuda:0, not {name!r}.",
    )
    if platform_name == "cpu" and not jax.config.jax_platforms:  # pyright: ignore[reportAttributeAccessIssue]
        jax.config.update("jax_platforms", "cpu")  # has an effect before jax is in use: accelerators stay free
    if name == "cpu":
        with jax.default_device("cpu"):
            yield
        return
    request_acting_device()
    found = _devices_of(platform_name)
    require(int(number or 0) < len(found), f"There is no `device` {name}. jax sees {seen()}.")
    # jax has no default of the name cuda or rocm.
    platform_name = {"cuda": "gpu", "rocm": "gpu"}.get(platform_name, platform_name)
    with jax.default_device(found[int(number)] if colon else platform_name):
        yield


def _devices_of(platform_name: str) -> list[Any]:
    """Returns the devices of a platform; an error that says how to get them if there are none."""
    try:
        return of_platform(platform_name)
    except CoveyError as error:
        extra = EXTRAS.get(platform_name, "")
        remedy = f", or install jax for it, with the extra {extra}:\n  {install_command(extra)}" if extra else "."
        raise CoveyError(f"{error} Check the driver and the variable JAX_PLATFORMS{remedy}") from None


def count_cores() -> int:
    """Returns the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def request_acting_device() -> None:
    """Requests two CPU devices, one for the learner and one for acting. Has no effect once jax is in use."""
    asked: int = jax.config.jax_num_cpu_devices  # pyright: ignore[reportAttributeAccessIssue]
    if asked < 2:
        with suppress(RuntimeError):
            jax.config.update("jax_num_cpu_devices", 2)


def acting_device() -> Any:
    """Returns a CPU device other than the learner's, or the learner's if there is no other."""
    learner = devices()[0]
    return next((device for device in jax.local_devices(backend="cpu") if device != learner), learner)


@contextmanager
def compiled_ahead(programs: Iterable[jax.stages.Lowered]) -> Iterator[Callable[[], None]]:
    """Compiles programs in threads, while this context does something else.

    jax remembers what it has compiled: a function that is called later, with arguments of the same shapes, is ready. An
    error of the compiler is dropped here and comes again with that call. Where XLA logs messages, nothing is compiled
    ahead: `silence_xla` can't silence another thread alone.

    Args:
        programs: The programs. The first is compiled while the next is traced, so the longest should come first.

    Yields:
        A function that waits for all of them. Leaving the context waits too.

    Example:
        >>> with compiled_ahead([function.lower(*shapes)]) as ready:
        ...     arguments = prepare()
        ...     ready()
        ...     function(*arguments)
    """
    with ThreadPoolExecutor(thread_name_prefix="covey-compiles") as pool:
        compiling = [pool.submit(program.compile) for program in programs] if _xla_is_silent() else []

        def ready() -> None:
            wait(compiling)

        yield ready


@contextmanager
def silence_xla() -> Iterator[None]:
    """Silences XLA's log messages about cached programs.

    Only needed if jax was imported before covey could set TF_CPP_MIN_LOG_LEVEL. XLA writes from C++, so the file
    descriptor itself is redirected.
    """
    if _xla_is_silent():
        yield
        return
    sys.stderr.flush()
    kept = os.dup(2)
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nowhere)


@contextmanager
def silence_mujoco() -> Iterator[None]:
    """Drops MuJoCo's warnings while models of other libraries are loaded.

    Without a handler MuJoCo prints them and writes MUJOCO_LOG.TXT into the current folder. Without MuJoCo, this does
    nothing.
    """
    if not find_spec("mujoco"):
        yield
        return
    mujoco: Any = import_module("mujoco")
    before = mujoco.get_mju_user_warning()
    mujoco.set_mju_user_warning(lambda text: None)
    try:
        yield
    finally:
        mujoco.set_mju_user_warning(before)


def _xla_is_silent() -> bool:
    """Returns whether XLA logs nothing but what it raises."""
    return os.environ.get("TF_CPP_MIN_LOG_LEVEL") == "3"


def _processor() -> str:
    """Returns a short hash of the processor type: programs compiled for one type may not run on another."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        kind = next((line for line in lines if line.startswith(("flags", "Features"))), "")
    except OSError:
        kind = ""
    return hashlib.sha256(f"{platform.machine()} {platform.processor()} {kind}".encode()).hexdigest()[:12]
