"""Measures the speed of environments: python -m benchmarks.environments brax:ant gymnasium:HalfCheetah-v5 [--count 16]

For compiled environments also the cost of a reset; for host environments also the speed with worker processes.
"""

import argparse
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from covey import envs
from covey.backend import silence_xla, use_cache
from covey.envs import Env, HostEnv

STEPS, REPEATS = 1_600, 5
"""Steps of all environments together, at least ten of each, and timed repetitions, of which the shortest counts."""
WORKERS = 2


def rows_of(count: int) -> int:
    """Returns the steps of each of `count` environments."""
    return max(10, STEPS // count)


def steps_program(env: Env, count: int) -> Callable[[Any], Any]:
    """Returns a program that takes random actions in all environments."""

    def step(state: Any, key: jax.Array) -> tuple[Any, jax.Array]:
        actions = jax.random.uniform(key, (count, env.spec.action_size), minval=-1.0, maxval=1.0)
        state, outcome = jax.vmap(env.step)(state, actions, jax.random.split(key, count))
        return state, outcome.reward

    def run(key: jax.Array) -> Any:
        state, _ = jax.vmap(env.reset)(jax.random.split(key, count))
        return jax.lax.scan(step, state, jax.random.split(key, rows_of(count)))

    return run


def starts_program(env: Env, count: int) -> Callable[[Any], Any]:
    """Returns a program that draws as many start states, and sums them up so that XLA can't remove unused parts."""

    def start(total: jax.Array, key: jax.Array) -> tuple[jax.Array, None]:
        state, _ = jax.vmap(env.reset)(jax.random.split(key, count))
        numbers = (x for x in jax.tree.leaves(state) if not jnp.issubdtype(x.dtype, jax.dtypes.prng_key))
        return total + sum(jnp.sum(x.astype(jnp.float32)) for x in numbers), None

    return lambda key: jax.lax.scan(start, jnp.zeros(()), jax.random.split(key, rows_of(count)))


def microseconds(program: Callable[[Any], Any], count: int) -> float:
    """Returns the time of one step, or one reset, of one environment."""
    compiled, key, best = jax.jit(program), jax.random.key(0), float("inf")
    with silence_xla():
        jax.block_until_ready(compiled(key))
    for _ in range(REPEATS):
        begin = time.perf_counter()
        jax.block_until_ready(compiled(key))
        best = min(best, time.perf_counter() - begin)
    return 1e6 * best / (count * rows_of(count))


def steps_per_second(env: HostEnv, count: int, workers: int) -> float:
    """Measures host environments with random actions."""
    batch, best = env.open(count, workers), float("inf")
    batch.reset(np.arange(count, dtype=np.uint32))
    actions = np.random.default_rng(0).uniform(-1, 1, (rows_of(count), count, env.spec.action_size)).astype(np.float32)
    for _ in range(REPEATS):
        begin = time.perf_counter()
        for action in actions:
            batch.step(action)
        best = min(best, time.perf_counter() - begin)
    batch.close()
    return count * rows_of(count) / best


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", default=envs.names())
    parser.add_argument("--count", type=int, default=16, help="environments")
    options = parser.parse_args()
    count = options.count
    use_cache()
    for name in options.names:
        env = envs.make(name)
        if isinstance(env, HostEnv):
            here, there = (steps_per_second(env, count, workers) for workers in (0, WORKERS))
            print(f"{name:<34}{here:>12,.0f} steps/s   with {WORKERS} workers {there:,.0f}", flush=True)
            continue
        step, start = (microseconds(program(env, count), count) for program in (steps_program, starts_program))
        print(f"{name:<34}{1e6 / step:>12,.0f} steps/s   a start costs {start / step:.0%} of a step", flush=True)


if __name__ == "__main__":
    main()
