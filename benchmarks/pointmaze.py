"""How often random actions find the goal of pointmaze, depending on how long they are held.

    python -m benchmarks.pointmaze [--episodes 20000]

TAAC acts as in its warm-up, with another `random_switch` in each row (1: a uniform action at every step, the warm-up of
SAC and TD3). SAC acts as with `--warmup-actions policy`, untrained, with another `noise_hold` in each row; every
thousand episodes have another actor.
"""

import argparse
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import covey
from covey.nn.parts import Networks, Torso
from covey.types import Key, Mode

PER_STATE = 1000
SMALL = Torso(hidden=(64, 64))


def shares(agent: Any, hyper: Any, env: Any, mode: Mode, key: Key) -> tuple[jax.Array, jax.Array]:
    """Plays PER_STATE episodes. Returns the share that got behind the wall, and the share that reached the goal."""
    key_init, key_world, key_play = jax.random.split(key, 3)
    state = agent.init(hyper, key_init)
    world = covey.new_world(agent, env, state, hyper, key_world, envs=PER_STATE)
    _, rollout = covey.collect(
        agent, env, state, hyper, world, key_play, steps=env.spec.episode_length, mode=mode
    )  # fmt: skip
    first = jnp.cumsum(rollout.records.last, axis=0) == 0  # of the first episode
    goal = rollout.steps.terminated > 0
    behind = rollout.next_descriptor[..., 1] > env.walls[0].y_high
    return tuple(jnp.mean(jnp.any(x & first, axis=0)) for x in (behind, goal))  # type: ignore[return-value]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--episodes", type=int, default=20_000)
    episodes = parser.parse_args().episodes
    env = covey.envs.make("pointmaze")
    rows: list[tuple[str, Any, Any, Mode]] = []
    for rate in (1.0, 0.3, 0.1, 0.05, 0.02):
        taac = covey.TAAC(covey.TAACConfig(random_switch=rate), env.spec)
        rows.append((f"TAAC, random_switch {rate:g}", taac, covey.TAACHyper(), "random"))
    networks = Networks(SMALL, SMALL, actor_head="tanh_normal")
    for steps in (1, 16, 64):
        sac = covey.SAC(covey.SACConfig(networks=networks, noise_hold=steps), env.spec)
        rows.append((f"SAC, noise_hold {steps}", sac, covey.SACHyper(), "sample"))
    print("| random actions | behind the wall | at the goal |\n|---|---|---|")
    for name, agent, hyper, mode in rows:
        keys = jax.random.split(jax.random.key(0), -(-episodes // PER_STATE))
        play = jax.jit(partial(shares, agent, hyper, env, mode))
        behind, goal = np.mean([play(key) for key in keys], axis=0)
        print(f"| {name} | {behind:.1%} | {goal:.2%} |", flush=True)


if __name__ == "__main__":
    main()
