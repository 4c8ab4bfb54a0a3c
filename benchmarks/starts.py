"""Measures data collection with many and with few start states: python -m benchmarks.starts brax:ant/16 ...

Each argument is an environment and the number of its copies. The warm-up of TD3 runs: random actions, stored in replay.
"""

import sys
import time
from dataclasses import dataclass, replace
from typing import Any

import jax
import numpy as np

from covey import agents, envs
from covey.backend import silence_xla, use_cache
from covey.envs import Env, Outcome
from covey.training.device import DeviceLoop
from covey.training.trainer import make_trainer
from covey.types import Array, EnvSpec, Key

STEPS, REPEATS = 4000, 6


@dataclass(frozen=True)
class Drawing:
    """Wraps an environment to change `steps_per_start`."""

    env: Env
    steps_per_start: int

    @property
    def spec(self) -> EnvSpec:
        return replace(self.env.spec, steps_per_start=self.steps_per_start)

    def reset(self, key: Key) -> tuple[Any, Array]:
        return self.env.reset(key)

    def step(self, state: Any, action: Array, key: Key) -> tuple[Any, Outcome]:
        return self.env.step(state, action, key)

    def descriptor(self, state: Any) -> Array:
        return self.env.descriptor(state)

    def frame(self, state: Any) -> np.ndarray:
        return self.env.frame(state)


def speed(env: Env, count: int) -> float:
    """Returns the most environment steps per second."""
    entry = agents.entry("td3")
    agent = entry.make(entry.config(), env.spec)
    trainer = make_trainer(agent, env, entry.hyper(), envs=count, updates_per_step=1.0 / count, capacity=200_000)
    loop = DeviceLoop(trainer, 1, "map")
    blocks, best = max(1, STEPS // trainer.block_steps), float("inf")
    with silence_xla():
        population = loop.init()
        population = loop.advance(population, 1, warmup=True)
    for _ in range(REPEATS):
        jax.block_until_ready(population.block)
        begin = time.perf_counter()
        population = loop.advance(population, blocks, warmup=True)
        jax.block_until_ready(population.block)
        best = min(best, time.perf_counter() - begin)
    return blocks * trainer.block_steps / best


def main() -> None:
    use_cache()
    for argument in sys.argv[1:] or ["pendulum/16"]:
        name, _, count = argument.partition("/")
        for steps in (2, 20):
            found = speed(Drawing(envs.make(name), steps), int(count or 1))
            print(f"{argument:<28}a start for {steps:>2} steps: {found:>10,.0f} steps/s", flush=True)


if __name__ == "__main__":
    main()
