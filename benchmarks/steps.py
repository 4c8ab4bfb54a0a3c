"""What each of the learner's ways to be fast brings: the whole training program with it and without it, in turns.

    python -m benchmarks.steps [--rounds 6]

Where the other way is no option of covey, it is made here: by another block length, or by putting a cheaper function in
the place of one whose cost is asked for. A ratio is the best time without over the best time with.
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
    """Random numbers drawn, and start states renewed, for so many iterations at a time."""
    return lambda trainer: dataclasses.replace(trainer, iterations=iterations)


@contextmanager
def no_adam() -> Iterator[None]:
    """The gradient itself as the step: what is left is all that a faster Adam could save."""

    def step(self: Optimiser, params: Any, gradient: Any, state: Any, rate: Any) -> Any:
        return jax.tree.map(lambda p, g: p - rate * g, params, gradient), state

    with mock.patch.object(Optimiser, "step", step):
        yield


def without_adam(name: str) -> Learner:
    def other_capacity(trainer: Trainer) -> Trainer:  # equal trainers would share a program
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
