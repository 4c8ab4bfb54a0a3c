"""An asymmetric critic beside a symmetric one, on tasks whose actor does not see the velocity.

    python -m benchmarks.asymmetric [--task pendulum] [--steps 10000] [--seeds 5]

The observation has the parts `position` (with a stack of frames) and `privileged` (the velocity). The actor sees the
positions alone. The symmetric critics see what the actor sees, the asymmetric ones see the velocity too. All seeds of
a row run as one program. Writes benchmarks/results/asymmetric-TASK.csv: one row per evaluation and seed.
"""

import argparse
import csv
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

import covey
from covey.envs.base import Outcome
from covey.evaluation.improvement import improvement_interval
from covey.types import Array, Key

RESULTS = Path(__file__).parent / "results"
TASKS = {"pendulum": ((0, 1), (2,)), "point": ((0, 1, 4, 5), (2, 3)), "cartpole-swingup": ((0, 1, 2), (3, 4))}
"""Coordinates of the observation that are positions, and those that are velocities."""


class Hidden(NamedTuple):
    """The state of the environment, and its earlier positions."""

    env: Any
    positions: Array


@dataclass(frozen=True)
class HiddenVelocity:
    """A built-in environment whose velocity is a part of its own, `privileged`."""

    task: str
    stack: int = 1

    @property
    def env(self) -> Any:
        return covey.envs.make(self.task)

    @property
    def spec(self) -> covey.EnvSpec:
        seen, hidden = TASKS[self.task]
        parts = {"position": covey.Part((len(seen),), stack=self.stack), "privileged": covey.Part((len(hidden),))}
        return replace(self.env.spec, observation=covey.Observation.of(parts))

    def reset(self, key: Key) -> tuple[Hidden, Any]:
        state, obs = self.env.reset(key)
        positions = jnp.tile(obs[jnp.array(TASKS[self.task][0])], self.stack)
        return Hidden(state, positions), self._parts(positions, obs)

    def step(self, state: Hidden, action: Array, key: Key) -> tuple[Hidden, Outcome]:
        env, outcome = self.env.step(state.env, action, key)
        now = outcome.obs[jnp.array(TASKS[self.task][0])]
        positions = jnp.concatenate([state.positions[len(now) :], now])
        return Hidden(env, positions), outcome._replace(obs=self._parts(positions, outcome.obs))

    def descriptor(self, state: Hidden) -> Array:
        return self.env.descriptor(state.env)

    def frame(self, state: Hidden) -> np.ndarray:
        return self.env.frame(state.env)

    def _parts(self, positions: Array, obs: Array) -> dict[str, Array]:
        return {"position": positions, "privileged": obs[jnp.array(TASKS[self.task][1])]}


def curve(env: HiddenVelocity, critic: tuple[str, ...], steps: int, seeds: int) -> list[np.ndarray]:
    """Returns the mean returns [seeds] of SAC after each tenth of the steps."""
    torso = covey.Torso(hidden=(64, 64))
    networks = covey.Networks(actor=torso, critic=torso, actor_head="tanh_normal")
    config = covey.SACConfig(networks=networks, batch_size=64, critic_observations=critic)
    hyper = covey.SACHyper(1e-3, 1e-3, 1e-3)
    agent = covey.SAC(config, env.spec)
    loop = covey.DeviceLoop(covey.make_trainer(agent, env, hyper, capacity=steps), members=seeds)
    population = loop.advance(loop.init(seed=3000), blocks=10, warmup=True)
    found = []
    for _ in range(10):
        population = loop.advance(population, blocks=steps // 1000)
        found.append(covey.evaluate(loop, population, episodes=20).returns.mean(axis=1))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--task", choices=list(TASKS), default="pendulum")
    parser.add_argument("--steps", type=int, default=10_000)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--stack", type=int, default=1, help="frames of the position that both see")
    options = parser.parse_args()
    env = HiddenVelocity(options.task, options.stack)
    curves = {
        "symmetric": curve(env, ("position",), options.steps, options.seeds),
        "asymmetric": curve(env, (), options.steps, options.seeds),
    }
    rows = []
    for i in range(10):
        step = 1_000 + (i + 1) * (options.steps // 10)
        one, two = curves["asymmetric"][i], curves["symmetric"][i]
        chance = improvement_interval(one, two)[0]
        print(
            f"{step:7,}  asymmetric {one.mean():8.1f}  symmetric {two.mean():8.1f}  P(asymmetric better) {chance:.2f}"
        )
        rows += [(step, n, seed, f"{x:.2f}") for n, c in curves.items() for seed, x in enumerate(c[i], 3000)]
    means = {name: np.mean(found, axis=0) for name, found in curves.items()}
    chance = improvement_interval(means["asymmetric"], means["symmetric"])[0]
    print(
        f"mean over the curve: asymmetric {means['asymmetric'].mean():.1f}, symmetric {means['symmetric'].mean():.1f}, "
        f"P(asymmetric better) {chance:.2f}"
    )
    with (RESULTS / f"asymmetric-{options.task}.csv").open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerows([("step", "critic", "seed", "return"), *rows])


if __name__ == "__main__":
    main()
