"""One greedy episode with everything in it, to be looked at."""

from functools import partial
from typing import Any, NamedTuple

import jax
import numpy as np

from covey.agent import Policy
from covey.backend import silence_xla
from covey.envs.base import Env, HostEnv
from covey.evaluation.host import trace_host
from covey.types import Array, Key

MOST_FRAMES = 300
"""Steps of an episode that is shown, unless another number is asked for."""
GIF_FRAMES = 25
"""Frames per second, at most."""


class Trajectory(NamedTuple):
    """What each step led to [T]: the state of the environment, its observation, the action, what the policy says of it
    in one number, and whether the task ended there."""

    state: Any
    obs: Array
    action: Array
    annotations: dict[str, Array]
    terminated: Array


@partial(jax.jit, static_argnames=("policy", "env", "steps"))
def watch(
    policy: Policy[Any, Any, Any], env: Env, state: Any, hyper: Any, key: Key, steps: int
) -> tuple[tuple[Any, Array], Trajectory]:
    """The start state with its observation, and so many steps from there. What follows an end is no part of it."""
    key_reset, key_begin, key_run = jax.random.split(key, 3)
    start = env.reset(key_reset)

    def step(carry: Any, key: Key) -> tuple[Any, Trajectory]:
        world, obs, memory = carry
        key_act, key_step = jax.random.split(key)
        decision = policy.act(state, hyper, memory, obs, key_act, "greedy")
        world, outcome = env.step(world, decision.action, key_step)
        annotations = {name: x for name, x in decision.extras.items() if x.ndim == 0}
        return (world, outcome.obs, decision.memory), Trajectory(
            world, outcome.obs, decision.action, annotations, outcome.terminated
        )

    carry = (*start, policy.begin(state, hyper, key_begin))
    return start, jax.lax.scan(step, carry, jax.random.split(key_run, steps))[1]


class Episode(NamedTuple):
    """States and observations [T + 1], actions [T, A] in [-1, 1], what the policy says of each in one number [T].

    The states of a host environment are its pictures, None where none was taken.
    """

    states: list[Any]
    obs: np.ndarray
    actions: np.ndarray
    annotations: dict[str, np.ndarray]


def record(
    policy: Policy[Any, Any, Any],
    env: Env | HostEnv,
    state: Any,
    hyper: Any,
    key: jax.Array,
    steps: int = 0,
    drawn: int = GIF_FRAMES,
) -> Episode:
    """One greedy episode, as NumPy; of a number of steps, or as long as the environment's.

    `drawn`: how many pictures a second will be asked for, at most; a host environment takes them while it runs.
    """
    steps = steps or min(env.spec.episode_length, MOST_FRAMES)
    if isinstance(env, HostEnv):
        with silence_xla():
            found = trace_host(policy, env, state, hyper, key, steps, frame_interval(env, drawn) if drawn else 0)
        pictures = [found.frames.get(t) for t in range(len(found.obs))]
        return Episode(pictures, found.obs, found.actions, found.annotations)
    with silence_xla():
        (first, first_obs), seen = jax.device_get(watch(policy, env, state, hyper, key, steps))
    length = int(np.argmax(seen.terminated)) + 1 if seen.terminated.any() else steps
    later = [jax.tree.map(lambda x, t=t: x[t], seen.state) for t in range(length)]
    obs = np.concatenate([first_obs[None], seen.obs[:length]])
    return Episode(
        [first, *later], obs, seen.action[:length], {name: x[:length] for name, x in seen.annotations.items()}
    )


def frame_interval(env: Env | HostEnv, most: int) -> int:
    """Returns every how many steps a frame is drawn, for at most `most` frames per second."""
    return max(1, round(env.spec.frames_per_second / most))
