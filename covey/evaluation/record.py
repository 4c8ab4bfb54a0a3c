"""Records one greedy episode to show, in a compiled or a host environment."""

from typing import Any

import jax
import numpy as np

from covey.agent import Policy
from covey.backend import silence_xla
from covey.envs.base import Env, HostEnv
from covey.evaluation.host import record_host
from covey.evaluation.rollout import Episode, watch
from covey.types import Key

MOST_STEPS = 300
"""Steps of a recorded episode, unless another number is asked for."""
GIF_FRAMES = 25
"""Frames per second of an animation, at most."""


def record(
    policy: Policy[Any, Any, Any],
    env: Env | HostEnv,
    state: Any,
    hyper: Any,
    key: Key,
    steps: int = 0,
    frames_per_second: float = GIF_FRAMES,
    memory: Any = None,
) -> Episode:
    """Records one greedy episode.

    Args:
        policy: The policy.
        env: The environment.
        state: The policy's state.
        hyper: Its hyper-parameters.
        key: A random key.
        steps: The most steps; 0 for the environment's time limit, but no more than 300.
        frames_per_second: The most pictures per second of simulated time that will be shown; 0 for none. A host
            environment takes them while it runs; the states of a compiled one can be drawn later.
        memory: The policy's memory at the first step, such as that of a skill; by default a new one.

    Returns:
        The episode.
    """
    steps = steps or min(env.spec.episode_length, MOST_STEPS)
    with silence_xla():
        if isinstance(env, HostEnv):
            every = frame_interval(env, frames_per_second) if frames_per_second else 0
            return record_host(policy, env, state, hyper, key, steps, every, memory)
        start, found = jax.device_get(watch(policy, env, state, hyper, key, steps, memory))
    length = int(np.argmax(found.terminated)) + 1 if found.terminated.any() else steps
    found = jax.tree.map(lambda x: x[:length], found)
    later = [jax.tree.map(lambda x, t=t: x[t], found.env) for t in range(length)]
    obs = jax.tree.map(lambda first, x: np.concatenate([first[None], x]), start.obs, found.obs)
    return Episode([start.env, *later], obs, found.action, found.annotations, found.reward)


def frame_interval(env: Env | HostEnv, most: float) -> int:
    """Returns the number of steps between two frames, for at most `most` frames per second."""
    return max(1, round(env.spec.frames_per_second / most))
