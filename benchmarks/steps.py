"""Measures each optimisation of the learner: the whole training program with and without it, in turns.

    python -m benchmarks.steps [--rounds 6]

If covey has no option to turn it off, this file does so: by another block length, or by replacing a function with a
cheaper one. A ratio is the best time without the optimisation divided by the best time with it.
"""

import argparse
import dataclasses
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import jax

from benchmarks.learner import learner, times
from covey.nn.optim import Optimiser
from covey.training.trainer import Trainer

Learner = tuple[Callable[[], Any], int]


def blocks_of(iterations: int) -> Callable[[Trainer], Trainer]:
    """Returns a change of the block length, for which random numbers and start states are drawn at once."""
    return lambda trainer: dataclasses.replace(trainer, iterations=iterations)


@contextmanager
def no_adam() -> Iterator[None]:
    """Replaces Adam with plain gradient steps: the difference is the most that a faster Adam could save."""

    def step(self: Optimiser, params: Any, gradient: Any, state: Any, rate: Any) -> Any:
        return jax.tree.map(lambda p, g: p - rate * g, params, gradient), state

    with mock.patch.object(Optimiser, "step", step):
        yield


def without_adam(name: str) -> Learner:
    def other_capacity(trainer: Trainer) -> Trainer:  # equal trainers would share one compiled program
        return dataclasses.replace(trainer, replay=dataclasses.replace(trainer.replay, rows=trainer.replay.rows - 2))

    with no_adam():
        return learner(name, change=other_capacity)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=6)
    options = parser.parse_args()
    learners: dict[str, Learner] = {}
    for name in ("td3", "sac"):
        learners[name] = learner(name)
        learners[f"{name}, random numbers drawn for every iteration"] = learner(name, change=blocks_of(1))
        learners[f"{name}, for every ten"] = learner(name, change=blocks_of(10))
        learners[f"{name}, for every 400"] = learner(name, change=blocks_of(400))
        learners[f"{name}, plain gradient steps instead of Adam"] = without_adam(name)
        learners[f"{name}, bfloat16"] = learner(name, precision="bfloat16")
    learners["td3, actor and targets at every update (what a masked delay computes)"] = learner(
        "td3", agent={"policy_delay": 1}
    )
    learners["td3, targets that move at every update"] = learner("td3", agent={"target_every_step": True})
    found = times(learners, options.rounds)
    for name, seconds in found.items():
        agent = name.partition(",")[0]
        print(f"{name:<70} {1000 * seconds:5.2f} ms, {seconds / found[agent]:.2f} of {agent}'s")


if __name__ == "__main__":
    main()
