"""Pictures of one episode: the animation, from the drawings of the environment, and the actions over time."""

from io import BytesIO
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from covey.agent import Policy
from covey.envs.base import Env, HostEnv
from covey.run.cache import hushed
from covey.storage.atomic import replace_output
from covey.training.episode import watch
from covey.training.host_episodes import trace_host

MOST_FRAMES = 300
GIF_FRAMES, MP4_FRAMES = 25, 50
"""Pictures a second, at most."""
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
    drawn: int = GIF_FRAMES,
) -> Episode:
    """One greedy episode, as NumPy; of a number of steps, or as long as the environment's.

    `drawn`: how many pictures a second will be asked for, at most; a host environment takes them while it runs.
    """
    steps = steps or min(env.spec.episode_length, MOST_FRAMES)
    if isinstance(env, HostEnv):
        with hushed():
            found = trace_host(policy, env, state, hyper, key, steps, _every(env, drawn) if drawn else 0)
        pictures = [found.frames.get(t) for t in range(len(found.obs))]
        return Episode(pictures, found.obs, found.actions, found.marks)
    with hushed():
        (first, first_obs), seen = jax.device_get(watch(policy, env, state, hyper, key, steps))
    length = int(np.argmax(seen.terminated)) + 1 if seen.terminated.any() else steps
    later = [jax.tree.map(lambda x, t=t: x[t], seen.state) for t in range(length)]
    obs = np.concatenate([first_obs[None], seen.obs[:length]])
    return Episode([first, *later], obs, seen.action[:length], {name: x[:length] for name, x in seen.marks.items()})


def write_gif(path: Path, env: Env | HostEnv, episode: Episode) -> Path:
    """Draws an episode into a looping GIF."""
    from PIL import Image

    pictures, seconds = frames(env, episode, GIF_FRAMES)
    images = [Image.fromarray(picture) for picture in pictures]
    film, more = BytesIO(), {"append_images": images[1:], "duration": round(1000 * seconds)}
    images[0].save(film, "GIF", save_all=True, loop=0, optimize=False, **more)
    replace_output(path, film.getbuffer())
    return path


def _every(env: Env | HostEnv, most: int) -> int:
    """One step in so many becomes a frame, at most so many a second."""
    return max(1, round(env.spec.frames_per_second / most))


def frames(env: Env | HostEnv, episode: Episode, most: int) -> tuple[list[np.ndarray], float]:
    """Pictures of an episode, at most so many per second, and the seconds from one to the next.

    A bar at the top shows for each mark how much of it there was, for example that the action was repeated.
    """
    every, pictures = _every(env, most), []
    for t in range(0, len(episode.states), every):
        picture = np.array(episode.states[t] if isinstance(env, HostEnv) else env.frame(episode.states[t]))
        height, width = max(2, picture.shape[0] // 40), picture.shape[1]
        for row, values in enumerate(episode.marks.values()):
            share = float(np.clip(np.mean(values[max(0, t - every) : t]), 0.0, 1.0)) if t else 0.0
            picture[row * height : (row + 1) * height, : round(share * width)] = MARK
        pictures.append(picture)
    return pictures, every / env.spec.frames_per_second
