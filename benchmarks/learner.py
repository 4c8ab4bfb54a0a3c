"""Updates per second of covey's learner as a share of what the machine's matrix products allow.

    python -m benchmarks.learner [--rounds 5] [--members 1] [--axis map]

The work is that of HalfCheetah (17 observations, 6 actions, batch 256, hidden 256 x 256, two critics, delay 2).
The limit is the measured speed of a chain of 256 x 256 x 256 products over the matrix work of one update, counted
by hand below. Machines are noisy, so each round measures the limit, covey, and the limit again, and the share is
taken within the round.
"""

import argparse
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from covey.agents.td3 import TD3, TD3Config, TD3Hyper
from covey.envs.base import Outcome
from covey.training.device import DeviceLoop
from covey.training.schedule import constant
from covey.training.trainer import make_trainer
from covey.types import Array, EnvSpec, Key

OBS, ACTION, BATCH, HIDDEN = 17, 6, 256, 256


@dataclass(frozen=True)
class Noise:
    """An environment that costs nothing: the learner is what is measured."""

    @property
    def spec(self) -> EnvSpec:
        return EnvSpec(OBS, ACTION, 1000, (-1.0,) * ACTION, (1.0,) * ACTION)

    def reset(self, key: Key) -> tuple[Array, Array]:
        return jnp.zeros(()), jnp.zeros(OBS)

    def step(self, state: Array, action: Array, key: Key) -> tuple[Array, Outcome]:
        obs = jnp.tile(action, 3)[:OBS]
        return state, Outcome(obs, jnp.sum(action), jnp.zeros((), bool))

    def descriptor(self, state: Array) -> Array:
        return jnp.zeros(0)

    def frame(self, state: Array) -> np.ndarray:
        return np.zeros((1, 1, 3), np.uint8)


def td3_flops() -> float:
    """Matrix work of one update: 2 m n k of each product, the actor's share every second update."""
    actor = OBS * HIDDEN + HIDDEN * HIDDEN + HIDDEN * ACTION
    critic = (OBS + ACTION) * HIDDEN + HIDDEN * HIDDEN + HIDDEN
    critic_step = actor + 2 * critic + 2 * critic + 2 * critic + 2 * (critic - (OBS + ACTION) * HIDDEN)
    actor_step = actor + critic + critic + actor + (actor - OBS * HIDDEN)
    return 2.0 * BATCH * (critic_step + actor_step / 2)


def best_seconds(run: Callable[[], Any], repeats: int = 3) -> float:
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        jax.block_until_ready(run())
        times.append(time.perf_counter() - start)
    return min(times)


def product_chain() -> Callable[[], Any]:
    """400 products of 256 x 256 x 256 in one program."""
    x = jnp.eye(256) * 0.999

    @jax.jit
    def chain(y: Array) -> Array:
        return jax.lax.fori_loop(0, 400, lambda i, z: z @ x, y)

    return lambda: chain(x)


def learner(members: int, axis: str) -> tuple[Callable[[], Any], int]:
    hyper, env = TD3Hyper(), Noise()
    agent = TD3(TD3Config(), env.spec)
    trainer = make_trainer(agent, env, constant(hyper), capacity=100_000)
    loop = DeviceLoop(trainer, members, axis)  # type: ignore[arg-type]
    hypers = jax.tree.map(lambda v: jnp.full(members, v), hyper)
    state = [loop.init(hypers, jax.random.split(jax.random.key(0), members))]
    state[0] = loop.advance(state[0], 10, warmup=True)
    blocks = max(1, 4 // members)

    def run() -> Any:
        state[0] = loop.advance(state[0], blocks, warmup=False)
        return state[0].members.tally

    run()
    return run, members * blocks * trainer.iterations * trainer.updates * agent.plan.updates


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--members", type=int, default=1)
    parser.add_argument("--axis", default="map", choices=["map", "vmap"])
    options = parser.parse_args()
    chain, (run, updates) = product_chain(), learner(options.members, options.axis)
    chain()
    shares, rates = [], []
    for _ in range(options.rounds):
        before = best_seconds(chain)
        seconds = best_seconds(run)
        after = best_seconds(chain)
        gflops = 400 * 2 * 256**3 / min(before, after) / 1e9
        rates.append(updates / seconds)
        shares.append(rates[-1] * td3_flops() / (gflops * 1e9))
        print(f"products {gflops:6.1f} GFLOP/s   TD3 {rates[-1]:6.1f} updates/s   share of the limit {shares[-1]:.3f}")
    print(f"jax {jax.__version__}, {jax.devices()[0].platform}, {td3_flops() / 1e6:.1f} MFLOP per update")
    print(
        f"TD3 learner, {options.members} member(s), {options.axis}: "
        f"best {max(shares):.3f}, median {statistics.median(shares):.3f} of the limit"
    )


if __name__ == "__main__":
    main()
