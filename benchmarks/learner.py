"""Measures updates per second of covey's learners, as a share of the limit set by the machine's matrix products.

    python -m benchmarks.learner [--agents td3 sac] [--members 1 8] [--devices 2] [--axis map] [--hidden 256] ...

The sizes are HalfCheetah's (17 observations, 6 actions, batch 256, hidden 256 x 256, two critics; TD3's delay is 2).
The limit is the measured speed of a chain of 256 x 256 x 256 products, divided by the matrix work of one update, which
is counted by hand below. The whole training program runs: an environment that costs nothing is stepped, and its data
are stored and sampled. Because machines are noisy, all are measured in turns, and ratios are taken within a round.
Several members are divided among the devices, and compared with one member that has the machine to itself.
"""

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from benchmarks.noise import ACTION, BATCH, OBS, Noise
from covey import agents
from covey.envs.described import Described
from covey.run.config import default_config
from covey.training.device import DeviceLoop
from covey.training.precision import in_precision
from covey.training.trainer import Trainer, make_trainer
from covey.types import Array

CHAIN = 400
"""The number of products in the chain."""


def flops(agent: str, hidden: int) -> float:
    """Counts the matrix work of one update: 2 m n k for each product.

    Critics: the next action, both targets, both critics forward, and their gradients with respect to the weights and
    to everything but the inputs. Actor: forward, forward and backward through the critics (TD3 one, SAC both), and the
    gradient with respect to its weights.
    """
    outputs = {"td3": ACTION, "sac": 2 * ACTION}[agent]
    actor = OBS * hidden + hidden * hidden + hidden * outputs
    critic = (OBS + ACTION) * hidden + hidden * hidden + hidden
    critic_step = actor + 2 * critic + 2 * critic + 2 * critic + 2 * (critic - (OBS + ACTION) * hidden)
    actor_objective, every = {"td3": (1, 2), "sac": (2, 1)}[agent]
    actor_step = actor + 2 * actor_objective * critic + actor + (actor - OBS * hidden)
    return 2.0 * BATCH * (critic_step + actor_step / every)


def seconds(run: Callable[[], Any]) -> float:
    start = time.perf_counter()
    jax.block_until_ready(run())
    return time.perf_counter() - start


def product_chain() -> Callable[[], Any]:
    """Returns a program with CHAIN products of 256 x 256 x 256."""
    x = jnp.eye(256) * 0.999

    @jax.jit
    def chain(y: Array) -> Array:
        return jax.lax.fori_loop(0, CHAIN, lambda i, z: z @ x, y)

    return lambda: chain(x)


def learner(
    name: str,
    members: int = 1,
    axis: str = "map",
    agent: dict[str, Any] | None = None,
    precision: str = "float32",
    devices: int = 1,
    change: Callable[[Trainer], Trainer] = lambda trainer: trainer,
) -> tuple[Callable[[], Any], int]:
    """Returns a compiled training program after its warm-up, and the number of updates of one call (about 200)."""
    entry = agents.entry(name)
    env = Described(Noise()) if entry.is_skill_agent else Noise()
    config = default_config(name, agent=agent or {}).agent
    made = in_precision(entry.make(config, env.spec), precision)  # type: ignore[arg-type]
    trainer = change(make_trainer(made, env, entry.hyper(), capacity=100_000))
    loop = DeviceLoop(trainer, members, axis, devices)  # type: ignore[arg-type]
    hypers = jax.tree.map(lambda v: jnp.full(members, v), entry.hyper())
    state = [loop.init(hypers, jax.random.split(jax.random.key(0), members))]
    state[0] = loop.advance(state[0], jnp.int32(1000 // trainer.block_steps), warmup=True)
    blocks = max(1, 200 // trainer.block_steps // members)

    def run() -> Any:
        state[0] = loop.advance(state[0], blocks, warmup=False)
        return state[0].members.tally

    run()
    return run, members * blocks * trainer.iterations * trainer.updates * made.plan.updates


def times(learners: dict[str, tuple[Callable[[], Any], int]], rounds: int) -> dict[str, float]:
    """Measures seconds per update of each learner, in turns; the best of the rounds."""
    best = dict.fromkeys(learners, float("inf"))
    for _ in range(2 * rounds):
        for name, (run, updates) in learners.items():
            best[name] = min(best[name], seconds(run) / updates)
    return best


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--agents", nargs="+", default=["td3", "sac"])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--members", nargs="+", type=int, default=[1, 8])
    parser.add_argument("--devices", type=int, default=2)
    parser.add_argument("--axis", default="map", choices=["map", "vmap"])
    parser.add_argument("--hidden", type=int, default=256)
    options = parser.parse_args()
    jax.config.update("jax_num_cpu_devices", options.devices)
    torso = {"hidden": [options.hidden, options.hidden]}
    networks = {"networks": {"actor": torso, "critic": torso}}
    chain = product_chain()
    learners = {
        (name, members): learner(
            name, members, options.axis, networks, devices=options.devices if members % options.devices == 0 else 1
        )
        for name in options.agents
        for members in options.members
    }
    chain()
    print(f"jax {jax.__version__}, {jax.devices()[0].platform}, hidden {options.hidden}, {options.axis}, "
          f"several members on {options.devices} devices")  # fmt: skip
    results: dict[tuple[str, int], list[tuple[float, float, float]]] = {which: [] for which in learners}
    for _ in range(options.rounds):
        for which, (run, updates) in learners.items():
            work = flops(which[0], options.hidden) / 1e9
            turns = [(seconds(chain), seconds(run), seconds(chain)) for _ in range(4)]
            gflops = CHAIN * 2 * 256**3 / min(min(before, after) for before, _, after in turns) / 1e9
            rate = updates / min(middle for _, middle, _ in turns)
            results[which].append((gflops, rate, rate * work / gflops))
            print("products {:6.1f} GFLOP/s   {} x {} {:6.1f} updates/s   share of the limit {:.3f}".format(
                gflops, which[1], which[0], *results[which][-1][1:]))  # fmt: skip
    for (name, members), rows in results.items():
        work = flops(name, options.hidden) / 1e9
        best = max(rate for _, rate, _ in rows) * work / max(gflops for gflops, _, _ in rows)
        middle = statistics.median(share for *_, share in rows)
        line = (
            f"{members} x {name}, {1000 * work:.1f} MFLOP per update: {middle:.2f} of the limit in the median round, "
        )
        line += f"{best:.2f} with the best of each"
        if members > 1 and (name, 1) in results:
            ratios = [rate / alone for (_, rate, _), (_, alone, _) in zip(rows, results[name, 1], strict=True)]
            line += f"; {statistics.median(ratios):.2f} of one learner's updates per second"
        print(line)


if __name__ == "__main__":
    main()
