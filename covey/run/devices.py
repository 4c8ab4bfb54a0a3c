"""The devices and processes of a run. A CPU's cores become devices before jax is first used, or not at all."""

import os
from typing import Any

import jax

from covey.population.crew import Alone, Crew, Processes
from covey.run.config import RunConfig
from covey.run.job import Place, join


def use_devices(config: RunConfig[Any, Any], processes: int = 1, most: int | None = None) -> None:
    """Makes as many devices of a CPU, at most `most`, as the members can be spread over.

    A number set through jax itself is kept.
    """
    members = max(1, config.seeds // processes)
    cores = min(count_cores(), most or count_cores())
    wanted = config.devices or max(n for n in range(1, min(cores, members) + 1) if members % n == 0)
    if jax.config.jax_num_cpu_devices not in (-1, 0):  # pyright: ignore[reportAttributeAccessIssue]
        return
    try:
        jax.config.update("jax_num_cpu_devices", wanted)
    except RuntimeError:
        return  # jax is in use already: what there is has to do


def count_cores() -> int:
    """The cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def crew_of(place: Place | None) -> Crew:
    """The processes that share the members: this one alone, or those of a job."""
    if place is None:
        return Alone()
    join(place)
    return Processes(jax.process_index(), jax.process_count())
