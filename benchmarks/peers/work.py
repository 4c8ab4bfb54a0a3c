"""A library's part in the comparison: a process that does a piece of work when asked and says how long it took.

Imports nothing but the standard library, because every library runs in an environment that has only its own needs.
"""

import json
import os
import sys
import time
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from typing import Any, NamedTuple

OBS, ACTION, BATCH, HIDDEN, MEMBERS = 17, 6, 256, 256, 8
"""HalfCheetah's sizes, and what all libraries are set to."""
UPDATES = 200
"""Of a learner in one round."""
STEPS = 300
"""Of an environment on the host in one round, an update each."""
CAPACITY = 100_000
INSERTS = 50
BRAX_ENVS, BRAX_ITERATIONS = 16, 12
PACKAGES = ("covey", "qdax", "sbx-rl", "stable-baselines3", "prt-rl", "jax", "torch", "gymnasium", "mujoco", "brax")


class Work(NamedTuple):
    """What is measured: a call, and how much it does (updates, steps, generations, rows)."""

    run: Callable[[], Any]
    amount: int


def serve(works: dict[str, Callable[[], Work]]) -> None:
    """Makes the work that the command line names, then does it once for every line on standard input.

    Answers are lines of JSON on what was standard output; whatever else a library prints goes to standard error.
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
