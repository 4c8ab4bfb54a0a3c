"""Measures covey's costs besides matrix products: updates of every agent, replay, memory, compilation.

    python -m benchmarks.costs [--only products agents replay memory start] [--rounds 5]

The sizes are HalfCheetah's, as in benchmarks/learner.py. All are measured in turns; times are the best of the rounds.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from benchmarks.learner import learner, times
from benchmarks.noise import ACTION, BATCH, OBS, Noise
from covey import agents
from covey.agent import SamplePlan
from covey.envs.described import Described
from covey.replay import Record, Replay, ReplayState
from covey.run.config import default_config
from covey.training.trainer import make_trainer
from covey.types import Array

CAPACITIES = (10_000, 100_000, 1_000_000)
ROWS = 20_000
"""Rows written in one program."""


def products() -> None:
    """Measures matrix products: one process on all cores, and one process per core."""
    code = "import os, sys; os.sched_setaffinity(0, eval(sys.argv[1]))\n"
    code += "from benchmarks.learner import CHAIN, product_chain, seconds\n"
    code += "chain = product_chain(); chain()\n"
    code += "print(CHAIN * 2 * 256**3 / min(seconds(chain) for _ in range(30)) / 1e9)\n"

    def measured(*sets: set[int]) -> list[float]:
        commands = [[sys.executable, "-c", code, repr(cores)] for cores in sets]
        running = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for command in commands]
        return [float(one.communicate()[0]) for one in running]

    cores = os.sched_getaffinity(0)
    together, apart = measured(cores)[0], sum(measured(*({core} for core in cores)))
    print(f"each on {len(cores)} cores: {together:.0f} GFLOP/s; one core each: {apart:.0f} GFLOP/s together")


def every_agent(rounds: int) -> None:
    """Measures updates per second of every agent, and their cost relative to SAC's."""
    found = times({name: learner(name) for name in agents.REGISTRY}, rounds)
    for name, seconds in found.items():
        print(f"{name:<8} {1 / seconds:7.1f} updates/s, {seconds / found['sac']:.2f} of SAC's cost")


def writing(replay: Replay) -> Callable[[ReplayState], ReplayState]:
    @partial(jax.jit, donate_argnums=0)
    def many(state: ReplayState) -> ReplayState:
        def one(i: Array, state: ReplayState) -> ReplayState:
            number = jnp.full((1, 1), i, jnp.float32)
            record = Record(jnp.full((1, 1, OBS), number), jnp.full((1, 1, ACTION), number), number, number, number, {})
            return replay.add(state, record)

        return jax.lax.fori_loop(0, ROWS, one, state)

    return many


def drawing(replay: Replay) -> Callable[[ReplayState, Array], Array]:
    plan = SamplePlan(BATCH)

    @jax.jit
    def many(state: ReplayState, bits: Array) -> Array:
        def one(total: Array, bits: Array) -> tuple[Array, None]:
            return total + jnp.sum(replay.sample_bits(state, plan, bits).obs), None

        return jax.lax.scan(one, jnp.zeros(()), bits)[0]

    return many


def replays(rounds: int) -> None:
    """Measures writing a row and sampling a batch for several capacities, with full buffers."""
    best: dict[tuple[str, int], float] = {}
    held: dict[int, tuple[Any, Any, ReplayState]] = {}
    for capacity in CAPACITIES:
        replay = Replay(capacity, 1, OBS, ACTION)
        held[capacity] = writing(replay), drawing(replay), replay.init(1)._replace(written=jnp.int32(capacity))
    bits = jax.random.bits(jax.random.key(0), (1000, BATCH), jnp.uint32)
    for turn in range(rounds + 1):
        for capacity, (write, draw, before) in held.items():
            start = time.perf_counter()
            state = jax.block_until_ready(write(before))
            middle = time.perf_counter()
            draw(state, bits).block_until_ready()
            end = time.perf_counter()
            held[capacity] = write, draw, state
            if turn:  # the first compiles
                for what, seconds in (("write", (middle - start) / ROWS), ("draw", (end - middle) / len(bits))):
                    best[what, capacity] = min(best.get((what, capacity), 1.0), seconds)
    for capacity in CAPACITIES:
        row, batch = best["write", capacity] * 1e9, best["draw", capacity] * 1e6
        print(f"capacity {capacity:>9,}: a row is written in {row:5.1f} ns, {BATCH} are drawn in {batch:5.1f} us")


def memory() -> None:
    """Reports the bytes of a member's state, and of one step in replay."""
    for name in agents.REGISTRY:
        entry = agents.entry(name)
        env = Described(Noise()) if entry.is_skill_agent else Noise()
        made = entry.make(default_config(name).agent, env.spec)  # type: ignore[arg-type]
        trainer = make_trainer(made, env, entry.hyper(), capacity=100_000)
        state = jax.eval_shape(made.init, entry.hyper(), jax.random.key(0))
        held = sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(state))
        step = trainer.replay.width * 4
        least = 4 * (env.spec.obs_size + ACTION + 3)
        more = f"{step} bytes for a step in replay ({step / least:.2f} of its parts)"
        print(f"{name:<8} {held / 1e6:5.2f} MB of state, {more}")


def start() -> None:
    """Measures a whole command with one block of learning, with an empty and with a filled compilation cache."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "covey", "train", "td3", "--preset", "off", "--steps", "1100"]
        command += ["--evaluations", "1", "--episodes", "1"]
        for what in ("nothing compiled", "compiled before", "compiled before"):
            before = time.perf_counter()
            out = os.path.join(folder, f"run-{before}")
            environment = os.environ | {"COVEY_CACHE": os.path.join(folder, "cache")}
            subprocess.run([*command, "--out", out], env=environment, check=True, stdout=subprocess.DEVNULL)
            print(f"covey train td3, 1,100 steps, {what}: {time.perf_counter() - before:.1f} s")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parts = ("products", "agents", "replay", "memory", "start")
    parser.add_argument("--only", nargs="+", default=parts, choices=parts)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    runs = {
        "products": products,
        "agents": lambda: every_agent(options.rounds),
        "replay": lambda: replays(options.rounds),
        "memory": memory,
        "start": start,
    }
    for part in options.only:
        print(f"== {part}")
        runs[part]()


if __name__ == "__main__":
    main()
