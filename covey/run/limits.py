"""Limits of numbers, and whether memory suffices. Both are checked before a run starts, and nothing is compiled.

Beyond these limits a program would never end, or the system would kill it.
"""

import dataclasses
import math
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import jax

from covey.devices import devices as local_devices
from covey.envs.base import HostEnv
from covey.errors import CoveyError, require
from covey.hyper.schedule import initial_hyper
from covey.training.sharding import Axis
from covey.training.trainer import Trainer

LARGEST = 2**31 - 1
"""The largest whole number in compiled programs."""
MOST = {
    "steps": LARGEST,
    "members": 100_000,
    "envs": 1_000_000,
    "warmup": LARGEST,
    "episode_length": LARGEST,
    "env_pixels": 1_024,
    "env_stack": 64,
    "updates_per_step": 10_000,
    "capacity": 10**15,
    "evaluations": 100_000,
    "episodes": 1_000_000,
    "workers": 1_024,
    "checkpoint_minutes": 525_600,
    "devices": 1_024,
    "islands": 1_024,
}
"""Largest values of the options of a run."""
MOST_OF_AGENT = {
    "batch_size": 2**24,
    "policy_delay": 100,
    "n_step": 10_000,
    "window": 10_000,
    "hidden": 65_536,
    "embedding": 65_536,
    "number": 10_000,
    "num_critics": 1_000,
    "bins": 100_000,
    "dimensions": 1_000,
    "components": 1_000,
    "samples": 100_000,
}
"""Largest values of an agent's options, by the name of the field at any depth; for all others LARGEST."""
MOST_LAYERS = 100
MOST_GENERATIONS = 100_000
MOST_VIDEO = 100_000
"""Steps of a video or a plan."""
MOST_PLANS = 10_000
HOST_BYTES = 2**20
"""Approximate memory of a host environment. MuJoCo's need more."""
IMAGE_SHARE = 20
"""Approximate numbers per number of an image that are in memory at once while a convolutional encoder learns."""
SHARE = 0.5
"""Approximate share of an update's intermediate results that is in memory at once: XLA reports 0.35 to 0.7."""


def at_most(name: str, value: float, most: float) -> None:
    """Raises a CoveyError for a value above a limit."""
    require(value <= most, f"`{name}` must be at most {most:,}, not {value}.")


def check_numbers(config: Any) -> None:
    """Raises a CoveyError for numbers of a RunConfig that are too large for any run."""
    for name, most in MOST.items():
        at_most(name, getattr(config, name), most)
    for path, name, value in _numbers(config.agent, "agent"):
        at_most(path, value, MOST_OF_AGENT.get(name, LARGEST))
    if config.pbt is not None:
        at_most("pbt.interval", config.pbt.interval, LARGEST)


def _numbers(options: Any, path: str) -> list[tuple[str, str, int]]:
    """Lists the whole numbers in a dataclass at any depth: path, name of the field, value."""
    found = []
    for each in dataclasses.fields(options):
        value = getattr(options, each.name)
        where = f"{path}.{each.name}"
        if dataclasses.is_dataclass(value):
            found += _numbers(value, where)
        elif isinstance(value, tuple):
            require(len(value) <= MOST_LAYERS, f"`{where}` has {len(value)} entries; the most is {MOST_LAYERS}.")
            found += [(where, each.name, x) for x in value if isinstance(x, int)]
        elif isinstance(value, int):
            found.append((where, each.name, value))
    return found


def check_training(config: Any, trainer: Trainer, members: int, devices: int, axis: Axis) -> None:
    """Raises a CoveyError if memory, or the numbers that index it, do not suffice for training."""
    check_memory(training_needs(config, trainer, members, devices, axis))
    records = trainer.replay.rows * trainer.replay.streams * (members // devices if axis == "map" else 1)
    require(
        records <= LARGEST,
        f"The replay of {members // devices} members would have {records:,} records; at most {LARGEST:,} are allowed. "
        "Lower `capacity`, or train fewer `members` at once.",
    )


class Need(NamedTuple):
    """One use of memory: what for, how many bytes, and which option reduces it; and its name in the memory plan."""

    what: str
    size: float
    remedy: str
    name: str = "rest"


def memory_plan(needs: list[Need]) -> str:
    """Returns a line with the estimated memory of a run, its parts, and the free memory where that is known."""
    sizes: dict[str, float] = {}
    for need in needs:
        sizes[need.name] = sizes.get(need.name, 0.0) + need.size
    parts = ", ".join(f"{name} {_mib(size)}" for name, size in sizes.items())
    where = "" if local_devices()[0].platform == "cpu" else " on a device"
    free = free_memory()
    available = "" if free == math.inf else f" of {_mib(free)} free{where}"
    return f"memory in MiB: about {_mib(sum(sizes.values()))}{available}; {parts}"


def check_memory(needs: list[Need]) -> None:
    """Raises a CoveyError if the needs exceed the free memory; it names the largest."""
    free, total = free_memory(), sum(need.size for need in needs)
    largest = max(needs, key=lambda need: need.size)
    require(
        total < 0.9 * free,
        f"This would need about {_gib(total)} of memory, {_gib(largest.size)} of it for {largest.what}, and "
        f"{_gib(free)} are free. {largest.remedy}",
    )


def _gib(size: float) -> str:
    return f"{size / 2**30:,.1f} GiB"


def _mib(size: float) -> str:
    return f"{math.ceil(size / 2**20):,}"


def training_needs(config: Any, trainer: Trainer, members: int, devices: int, axis: Axis) -> list[Need]:
    """Estimates the memory for training this process's members: in all on a CPU, per device on accelerators."""
    if local_devices()[0].platform != "cpu":
        members, devices = members // devices, 1
    at_once = members if axis == "vmap" else devices
    replay, plan, agent = trainer.replay, trainer.agent.plan, _agent_state(trainer)
    units = sum(leaf.size // leaf.shape[-2] for leaf in agent if len(leaf.shape) >= 2)
    rows = plan.batch_size * plan.window
    images = sum(part.size * part.stack for part in replay.frames.values())
    batch = plan.batch_size * (plan.window + 1) * (replay.width + IMAGE_SHARE * images)
    draws = trainer.iterations * trainer.updates * (plan.batch_size + 2)
    paths = {name: path for path, name, _ in _numbers(config.agent, "agent")}
    batch_size = f"`{paths['batch_size']}`" if "batch_size" in paths else "the batch size"
    return [
        Need(
            "the replay",
            float(members * replay.rows * replay.streams * replay.record_bytes),
            "Lower `capacity`, or train fewer `members` at once.",
            "replay",
        ),
        Need(
            "weights and the optimisers' moments",
            sum(leaf.size * leaf.dtype.itemsize for leaf in agent) * members,
            "Use smaller or fewer networks, or train fewer `members` at once.",
            "networks",
        ),
        Need(
            f"the {plan.batch_size:,} transitions of an update",
            4 * at_once * (SHARE * units * rows + batch),
            f"Lower {batch_size}.",
        ),
        Need(
            f"the random numbers of {trainer.iterations * trainer.updates:,} updates",
            4 * at_once * draws,
            f"Lower `updates_per_step` or {batch_size}.",
        ),
        environments_need(trainer.env, members * trainer.envs, "Lower `envs`."),
        environments_need(trainer.env, at_once * config.episodes, "Lower `episodes`.", "evaluation "),
    ]


def environments_need(env: Any, count: int, remedy: str, kind: str = "") -> Need:
    """Estimates the memory of environments: their states before and after a step, and their observations."""
    if isinstance(env, HostEnv):
        return Need(f"{count:,} {kind}environments", float(count * HOST_BYTES), remedy)
    return Need(f"{count:,} {kind}environments", float(2 * count * _state_bytes(env)), remedy)


@lru_cache(maxsize=64)
def _state_bytes(env: Any) -> int:
    shapes = jax.eval_shape(lambda: env.reset(jax.random.key(0)))
    return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(shapes))


@contextmanager
def memory_errors() -> Iterator[None]:
    """Turns an out-of-memory error of XLA into a CoveyError: the estimate was too low."""
    try:
        yield
    except jax.errors.JaxRuntimeError as error:
        if "RESOURCE_EXHAUSTED" not in str(error):
            raise
        raise CoveyError(
            f"There was not enough memory: {str(error).splitlines()[0]} Lower the batch size, `envs`, `episodes` or "
            "`capacity`, or train fewer `members` at once."
        ) from error


def _agent_state(trainer: Trainer) -> list[Any]:
    """Returns the shapes of an agent's state."""
    init = trainer.agent.init
    return jax.tree.leaves(jax.eval_shape(lambda: init(initial_hyper(trainer.schedules), jax.random.key(0))))


def free_memory() -> float:
    """Returns the free memory in bytes: of the first device, or on a CPU of the machine, container and process."""
    stats = local_devices()[0].memory_stats() or {}
    if "bytes_limit" in stats:
        return float(stats["bytes_limit"] - stats.get("bytes_in_use", 0))
    return min(_machine(), _container(), _process())


def _machine() -> float:
    """Bytes that Linux can allocate without swapping."""
    lines = _text("/proc/meminfo").splitlines()
    return next((int(x.split()[1]) * 1024.0 for x in lines if x.startswith("MemAvailable:")), math.inf)


def _container() -> float:
    """Bytes that the control group (a container) has left. Cached files don't count."""
    group = next((x[3:] for x in _text("/proc/self/cgroup").splitlines() if x.startswith("0::")), "/")
    for folder in (f"/sys/fs/cgroup{group}", "/sys/fs/cgroup"):
        limit, used = _text(f"{folder}/memory.max").strip(), _text(f"{folder}/memory.current").strip()
        if limit.isdigit() and used.isdigit():
            stats = (x.split() for x in _text(f"{folder}/memory.stat").splitlines())
            cached = next((int(x[1]) for x in stats if x[0] == "inactive_file"), 0)
            return float(int(limit) - int(used) + cached)
    return math.inf


def _process() -> float:
    """Bytes of address space that `ulimit -v` leaves."""
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
