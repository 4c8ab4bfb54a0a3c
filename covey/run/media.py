"""Pictures of one episode: the animation, from the drawings of the environment, and the actions over time."""

from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from covey.agent import Policy
from covey.envs.base import Env, HostEnv
from covey.run.cache import hushed
from covey.run.host_media import pictures, trace

MOST_FRAMES = 300
MARK = (214, 69, 65)
"""The colour of what a policy says of a decision."""


class Episode(NamedTuple):
    """States and observations [T + 1], actions [T, A] in [-1, 1], what the policy says of each in one number [T].

    The states of a host environment are its pictures, None where none was taken.
    """

    states: list[Any]
    obs: np.ndarray
    actions: np.ndarray
    marks: dict[str, np.ndarray]


def record(
    policy: Policy[Any, Any, Any],
    env: Env | HostEnv,
    state: Any,
    hyper: Any,
    key: jax.Array,
    steps: int = 0,
    drawn: bool = True,
) -> Episode:
    """One greedy episode, as NumPy; of a number of steps, or as long as the environment's. `drawn`: for `write_gif`."""
    steps = steps or min(env.spec.episode_length, MOST_FRAMES)
    if isinstance(env, HostEnv):
        found = trace(policy, env, state, hyper, key, steps, _every(env) if drawn else 0)
        return Episode(pictures(found), found.obs, found.actions, found.marks)

    def begin(key: jax.Array) -> Any:
        key_reset, key_begin = jax.random.split(key)
        return *env.reset(key_reset), policy.begin(state, hyper, key_begin)

    def step(carry: Any, key: jax.Array) -> Any:
        env_state, obs, memory = carry
        key_act, key_step = jax.random.split(key)
        decision = policy.act(state, hyper, memory, obs, key_act, "greedy")
        after, outcome = env.step(env_state, decision.action, key_step)
        marks = {name: x for name, x in decision.extras.items() if x.ndim == 0}
        return (after, outcome.obs, decision.memory), (after, outcome.obs, decision.action, marks, outcome.terminated)

    start = begin(key)
    with hushed():
        _, found = jax.lax.scan(step, start, jax.random.split(key, steps))
    states, obs, actions, marks, terminated = jax.device_get(found)
    length = int(np.argmax(terminated)) + 1 if terminated.any() else steps
    first, first_obs = jax.device_get(start[:2])
    later = [jax.tree.map(lambda x, t=t: x[t], states) for t in range(length)]
    obs = np.concatenate([first_obs[None], obs[:length]])
    return Episode([first, *later], obs, actions[:length], {name: x[:length] for name, x in marks.items()})


def _every(env: Env | HostEnv) -> int:
    """One step in so many becomes a frame."""
    return max(1, round(env.spec.frames_per_second / 25))


def write_gif(path: Path, env: Env | HostEnv, episode: Episode) -> Path:
    """Draws an episode into a looping GIF of at most 25 frames per second.

    A bar at the top shows for each mark how much of it there was, for example that the action was repeated.
    """
    from PIL import Image

    every, images = _every(env), []
    for t in range(0, len(episode.states), every):
        frame = np.array(episode.states[t] if isinstance(env, HostEnv) else env.frame(episode.states[t]))
        height, width = max(2, frame.shape[0] // 40), frame.shape[1]
        for row, values in enumerate(episode.marks.values()):
            share = float(np.clip(np.mean(values[max(0, t - every) : t]), 0.0, 1.0)) if t else 0.0
            frame[row * height : (row + 1) * height, : round(share * width)] = MARK
        images.append(Image.fromarray(frame))
    path.parent.mkdir(parents=True, exist_ok=True)
    duration = round(1000 * every / env.spec.frames_per_second)
    images[0].save(path, save_all=True, append_images=images[1:], duration=duration, loop=0, optimize=False)
    return path
