"""Animations of a policy, from the drawings of the environment."""

from pathlib import Path
from typing import Any

import jax
import numpy as np

from covey.agent import Policy
from covey.envs.base import Env
from covey.run.cache import hushed

MOST_FRAMES = 300


def record(policy: Policy[Any, Any, Any], env: Env, state: Any, hyper: Any, key: jax.Array) -> list[Any]:
    """The states of one greedy episode, as NumPy."""

    def begin(key: jax.Array) -> Any:
        key_reset, key_begin = jax.random.split(key)
        return *env.reset(key_reset), policy.begin(state, hyper, key_begin)

    def step(carry: Any, key: jax.Array) -> Any:
        env_state, obs, memory = carry
        key_act, key_step = jax.random.split(key)
        decision = policy.act(state, hyper, memory, obs, key_act, "greedy")
        after, outcome = env.step(env_state, decision.action, key_step)
        return (after, outcome.obs, decision.memory), (after, outcome.terminated)

    start = begin(key)
    steps = min(env.spec.episode_length, MOST_FRAMES)
    with hushed():
        _, (states, terminated) = jax.lax.scan(step, start, jax.random.split(key, steps))
    states, terminated = jax.device_get((states, terminated))
    length = int(np.argmax(terminated)) + 1 if terminated.any() else steps
    first = jax.device_get(start[0])
    return [first, *(jax.tree.map(lambda x, t=t: x[t], states) for t in range(length))]


def write_gif(path: Path, env: Env, states: list[Any]) -> Path:
    """Draws states into a looping GIF of at most 25 frames per second."""
    from PIL import Image

    every = max(1, round(env.spec.frames_per_second / 25))
    images = [Image.fromarray(env.frame(state)) for state in states[::every]]
    path.parent.mkdir(parents=True, exist_ok=True)
    duration = round(1000 * every / env.spec.frames_per_second)
    images[0].save(path, save_all=True, append_images=images[1:], duration=duration, loop=0, optimize=False)
    return path
