"""Measures the host loop, overlapped and in strict order, in steps per second and relative to the learner alone.

    python -m benchmarks.host [--env gymnasium:HalfCheetah-v5] [--agent td3] [--rounds 5] [--blocks 6] [--workers 0]
    python -m benchmarks.host --profile      # where a step's time on the host goes

One environment, one update per step, the agent's defaults (hidden 256 x 256, batch 256). The learner alone is the
compiled loop on an environment of the same sizes that costs nothing. Because machines are noisy, all are measured in
turns, and ratios are taken within a round.
"""

import argparse
import dataclasses
import statistics
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.noise import Noise
from covey import agents, envs
from covey.backend import request_acting_device, use_cache
from covey.training.device import DeviceLoop
from covey.training.host import HostLoop
from covey.training.host_acting import Acting
from covey.training.precision import Precision, in_precision
from covey.training.trainer import Trainer, make_trainer


def trainer(agent: str, env: Any, iterations: int = 0, precision: Precision = "float32") -> Trainer:
    entry = agents.entry(agent)
    own = in_precision(entry.make(entry.config(), env.spec), precision)
    made = make_trainer(own, env, entry.hyper(), capacity=200_000)
    return dataclasses.replace(made, iterations=iterations or made.iterations)


def course(loop: Any, blocks: int) -> Callable[[], float]:
    """Returns a function that advances the loop by some blocks and returns steps per second. Compiles it first."""
    hyper = jax.tree.map(lambda s: jnp.full(1, s.start), loop.trainer.schedules)
    state = loop.init(hyper, jax.vmap(jax.random.key)(jnp.arange(1)))
    state = loop.advance(state, jnp.int32(-(-1000 // loop.trainer.block_steps)), warmup=True)
    held = [loop.advance(state, 1, warmup=False)]

    def go() -> float:
        start = time.perf_counter()
        held[0] = jax.block_until_ready(loop.advance(held[0], blocks, warmup=False))
        return blocks * loop.trainer.block_steps / (time.perf_counter() - start)

    return go


def stepping(env: envs.HostEnv, workers: int, steps: int = 2000) -> Callable[[], float]:
    """Returns a function that measures the environment alone, with random actions."""
    batch = env.open(1, workers)
    batch.reset(np.zeros(1, np.uint32))
    actions = np.random.default_rng(0).uniform(-1, 1, (steps, 1, env.spec.action_size))

    def go() -> float:
        start = time.perf_counter()
        for action in actions:
            batch.step(action)
        return steps / (time.perf_counter() - start)

    return go


def profile(loop: HostLoop, blocks: int) -> dict[str, float]:
    """Returns microseconds of processor time per step and environment, of all threads, while nothing is learned."""
    acting = Acting(loop.programs, loop.advance(loop.init(), 1, warmup=True), "sample")
    agents = jax.block_until_ready(loop.init().members.agent)
    batch = loop.env.open(loop.trainer.envs, loop.workers)
    batch.reset(np.zeros(loop.trainer.envs, np.uint32))
    rows = range(loop.trainer.block_rows)
    action = np.zeros((loop.trainer.envs, loop.env.spec.action_size))
    acting.begin(0)
    parts = {
        "environment": lambda: [batch.step(action) for _ in rows],
        "choosing the action": lambda: [np.asarray(acting.decide(row).action) for row in rows],
        "both, with the records": lambda: acting.rows(batch, rows),
        "per block: joining the records": lambda: acting.stacked(found, loop.trainer.iterations),
        "per block: drawing the noise": lambda: jax.block_until_ready((acting.begin(0), acting.prepared)),
        "per block: copying the policy": lambda: jax.block_until_ready((acting.take(agents), acting.actor)),
    }
    found, _ = acting.rows(batch, rows)
    spent: dict[str, list[float]] = {name: [] for name in parts}
    for _ in range(blocks):
        for name, run in parts.items():
            start = time.process_time()
            run()
            spent[name].append(1e6 * (time.process_time() - start) / loop.trainer.block_steps)
    return {name: statistics.median(values) for name, values in spent.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--env", default="gymnasium:HalfCheetah-v5")
    parser.add_argument("--agent", default="td3")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--blocks", type=int, default=6)
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--profile", action="store_true", help="processor time of the parts of a step on the host")
    options = parser.parse_args()
    request_acting_device()
    use_cache()
    env = envs.make(options.env)
    host = trainer(options.agent, env)
    if options.profile:
        for name, spent in profile(HostLoop(host, 1, "map", True, options.workers), 20 * options.blocks).items():
            print(f"{name:<32} {spent:6.1f} us of processor time per step")
        return
    device = trainer(options.agent, Noise(env.spec), host.iterations)
    courses = {
        "learner alone": course(DeviceLoop(device, 1, "map"), options.blocks),
        "overlapped": course(HostLoop(host, 1, "map", True, options.workers), options.blocks),
        "strict order": course(HostLoop(host, 1, "map", False, options.workers), options.blocks),
        "environment alone": stepping(env, options.workers),
    }
    rounds = [{name: go() for name, go in courses.items()} for _ in range(options.rounds)]
    print(f"{options.agent} on {options.env}, steps/s, {options.rounds} rounds of {options.blocks} blocks")
    for name in courses:
        speeds = [each[name] for each in rounds]
        shares = [each[name] / each["learner alone"] for each in rounds]
        print(
            f"{name:<18} median {statistics.median(speeds):>8,.0f}  best {max(speeds):>8,.0f}  "
            f"of the learner alone: median {statistics.median(shares):.2f}, best {max(shares):.2f}"
        )


if __name__ == "__main__":
    main()
