"""The process of a library in the comparison: it does a piece of work on request and reports the time.

Imports only the standard library, because each library is installed without the dependencies of the others.
"""

import json
import os
import sys
import time
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from typing import Any, NamedTuple

OBS, ACTION, BATCH, HIDDEN, MEMBERS = 17, 6, 256, 256, 8
"""HalfCheetah's sizes, and the settings of all libraries."""
UPDATES = 200
"""Updates of a learner in one round."""
STEPS = 300
"""Steps of a host environment in one round, with one update each."""
CAPACITY = 100_000
INSERTS = 50
BRAX_ENVS, BRAX_ITERATIONS = 16, 12
PACKAGES = ("covey", "qdax", "sbx-rl", "stable-baselines3", "prt-rl", "jax", "torch", "gymnasium", "mujoco", "brax")


class Work(NamedTuple):
    """A piece of work: a function, and the amount that one call does (updates, steps, generations, rows)."""

    run: Callable[[], Any]
    amount: int


def serve(works: dict[str, Callable[[], Work]]) -> None:
    """Prepares the work named on the command line, and runs it once for every line on standard input.

    Answers are lines of JSON on standard output. Other output of the library is redirected to standard error.
    """
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)

    def say(**answer: Any) -> None:
        print(json.dumps(answer), file=answers, flush=True)

    work = works[sys.argv[1]]()
    work.run()
    say(versions=versions())
    for _ in sys.stdin:
        start = time.perf_counter()
        work.run()
        say(amount=work.amount, seconds=time.perf_counter() - start)


def versions() -> dict[str, str]:
    found = {}
    for name in PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found
