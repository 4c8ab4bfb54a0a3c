"""Updates per second of covey's learner as a share of what the machine's matrix products allow.

    python -m benchmarks.learner [--rounds 5] [--members 1] [--axis map] [--hidden 256]

The work is that of HalfCheetah (17 observations, 6 actions, batch 256, hidden 256 x 256, two critics, delay 2).
The limit is the measured speed of a chain of 256 x 256 x 256 products over the matrix work of one update, counted
by hand below. What runs is the whole training program: an environment that costs nothing is stepped, stored and
sampled from too. Machines are noisy, so the two are measured in turns, and the share is taken within a round.
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
from covey.nn.networks import Networks, Torso
from covey.training.device import DeviceLoop
from covey.training.schedule import constant
from covey.training.trainer import make_trainer
from covey.types import Array, EnvSpec, Key

OBS, ACTION, BATCH = 17, 6, 256
CHAIN = 400
"""Products in the chain."""


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


def td3_flops(hidden: int) -> float:
    """Matrix work of one update: 2 m n k of each product, the actor's share every second update."""
    actor = OBS * hidden + hidden * hidden + hidden * ACTION
    critic = (OBS + ACTION) * hidden + hidden * hidden + hidden
    critic_step = actor + 2 * critic + 2 * critic + 2 * critic + 2 * (critic - (OBS + ACTION) * hidden)
    actor_step = actor + critic + critic + actor + (actor - OBS * hidden)
    return 2.0 * BATCH * (critic_step + actor_step / 2)


def seconds(run: Callable[[], Any]) -> float:
    start = time.perf_counter()
    jax.block_until_ready(run())
    return time.perf_counter() - start


def product_chain() -> Callable[[], Any]:
    """CHAIN products of 256 x 256 x 256 in one program."""
    x = jnp.eye(256) * 0.999

    @jax.jit
    def chain(y: Array) -> Array:
        return jax.lax.fori_loop(0, CHAIN, lambda i, z: z @ x, y)

    return lambda: chain(x)


def learner(members: int, axis: str, hidden: int) -> tuple[Callable[[], Any], int]:
    hyper, env = TD3Hyper(), Noise()
    torso = Torso(hidden=(hidden, hidden))
    agent = TD3(TD3Config(networks=Networks(actor=torso, critic=torso)), env.spec)
    trainer = make_trainer(agent, env, constant(hyper), capacity=100_000)
    loop = DeviceLoop(trainer, members, axis)  # type: ignore[arg-type]
    hypers = jax.tree.map(lambda v: jnp.full(members, v), hyper)
    state = [loop.init(hypers, jax.random.split(jax.random.key(0), members))]
    state[0] = loop.advance(state[0], 10, warmup=True)
    blocks = max(1, 2 // members)

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
    parser.add_argument("--hidden", type=int, default=256)
    options = parser.parse_args()
    work = td3_flops(options.hidden) / 1e9
    chain, (run, updates) = product_chain(), learner(options.members, options.axis, options.hidden)
    chain()
    results = []
    for _ in range(options.rounds):
        turns = [(seconds(chain), seconds(run), seconds(chain)) for _ in range(4)]
        gflops = CHAIN * 2 * 256**3 / min(min(before, after) for before, _, after in turns) / 1e9
        rate = updates / min(middle for _, middle, _ in turns)
        results.append((gflops, rate, rate * work / gflops))
        print("products {:6.1f} GFLOP/s   TD3 {:6.1f} updates/s   share of the limit {:.3f}".format(*results[-1]))
    best = max(rate for _, rate, _ in results) * work / max(gflops for gflops, _, _ in results)
    middle = statistics.median(share for *_, share in results)
    print(f"jax {jax.__version__}, {jax.devices()[0].platform}, {1000 * work:.1f} MFLOP per update")
    what = f"TD3 learner, hidden {options.hidden}, members {options.members}, {options.axis}"
    print(f"{what}: {middle:.2f} of the limit in the median round, {best:.2f} with the best of each")


if __name__ == "__main__":
    main()
