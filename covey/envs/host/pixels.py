"""Pictures of Gymnasium's environments as observations, drawn on the host. Imports Gymnasium."""

import atexit
import warnings
import weakref
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from covey.envs.host.guard import EnvError
from covey.envs.pixels import PIXELS, check_beside
from covey.observation import OBS

FILM = 240
"""The smallest side of a picture in a film; smaller pictures are enlarged."""


class Drawn(gymnasium.ObservationWrapper[Any, Any, Any]):
    """Wraps an environment with the render mode `rgb_array` so that its observation is its picture.

    Args:
        env: The environment.
        size: Width and height of the observation. A larger picture is averaged down, also if it is not square.
        beside: Whether to keep the environment's own observation beside it.
        name: The environment's full name, for error messages.
    """

    def __init__(self, env: gymnasium.Env[Any, Any], size: int, beside: bool, name: str) -> None:
        super().__init__(env)
        self._size = size
        self._beside = beside
        self._name = name
        self._has_drawn = False
        picture = spaces.Box(0, 255, (size, size, 3), np.uint8)
        if beside:
            own = _by_name(env.observation_space)
            check_beside(own)
            self.observation_space = spaces.Dict(own | {PIXELS: picture})
        else:
            self.observation_space = picture

    def observation(self, observation: Any) -> Any:
        picture = shrunk(self._picture(), self._size)
        if not self._beside:
            return picture
        return _by_name(observation, self.env.observation_space) | {PIXELS: picture}

    def render(self) -> Any:
        """Returns the picture for films, enlarged if it is small."""
        picture = self._picture()
        times = max(1, -(-FILM // min(picture.shape[:2])))
        return picture.repeat(times, axis=0).repeat(times, axis=1)

    def _picture(self) -> np.ndarray:
        try:
            _prepare(self.unwrapped)
            with warnings.catch_warnings(action="ignore"):
                picture: Any = self.env.render()
        except Exception as error:  # a graphics library may raise anything
            text = str(error).partition("\n")[0] or "it has no render mode 'rgb_array'"
            raise EnvError(f"`env_pixels`: {self._name} can't be drawn: {type(error).__name__}: {text}") from error
        if not isinstance(picture, np.ndarray) or picture.ndim != 3 or picture.shape[2] != 3:
            raise EnvError(
                f"`env_pixels`: {self._name} can't be drawn: with the render mode 'rgb_array', render() returns no "
                "picture [height, width, 3]."
            )
        if not self._has_drawn:
            self._has_drawn = True
            # At exit, before OpenGL itself is closed. Gymnasium would close it later, with error messages.
            atexit.register(_close, weakref.ref(self.env))
        return np.asarray(picture, np.uint8)


def _close(known: "weakref.ref[gymnasium.Env[Any, Any]]") -> None:
    env = known()
    if env is not None:
        with suppress(Exception):  # the process ends anyway
            env.close()


def _prepare(env: Any) -> None:
    """Prepares MuJoCo's environments for drawing.

    Gymnasium selects the OpenGL context of an environment only once. If another one was made or closed since then,
    `render` would return an old picture, or one of the other environment.
    """
    renderer: Any = vars(env).get("mujoco_renderer")
    if renderer is None:
        return
    import mujoco

    viewer = renderer._get_viewer("rgb_array")
    viewer.make_context_current()
    # Without a graphics card, shadows and reflections take most of the time.
    for flag in (mujoco.mjtRndFlag.mjRND_SHADOW, mujoco.mjtRndFlag.mjRND_REFLECTION):
        viewer.scn.flags[flag] = 0


def shrunk(picture: np.ndarray, size: int) -> np.ndarray:
    """Returns a picture with `size` x `size` pixels, each the average of the area that it replaces."""
    if picture.shape[:2] == (size, size):
        return np.ascontiguousarray(picture)
    from PIL import Image

    return np.array(Image.fromarray(picture).resize((size, size), Image.Resampling.BOX))


def _by_name(value: Any, space: Any = None) -> dict[str, Any]:
    """Returns the inner spaces of a space by name, or the values of an observation that belongs to a space."""
    space = value if space is None else space
    if isinstance(space, spaces.Dict):
        inner: Mapping[Any, Any] = value.spaces if value is space else value
        return {str(key): inner[key] for key in space.spaces}
    if isinstance(space, spaces.Tuple):
        return {str(i): each for i, each in enumerate(value)}
    return {OBS: value}
