"""Pictures as observations: `env_pixels` draws an environment, in JAX if it is compiled, otherwise on the host."""

from dataclasses import dataclass, replace
from typing import Any, Protocol, runtime_checkable

import numpy as np

from covey.envs.base import Env, Outcome
from covey.envs.wrappers import inner_state, innermost
from covey.errors import require
from covey.observation import Obs, Observation, Part
from covey.types import Array, EnvSpec, Key

PIXELS = "pixels"
"""The name of the picture among the parts of an observation."""
SMALLEST, LARGEST = 8, 1024
"""Limits of the size of a picture, in pixels."""


@runtime_checkable
class Drawable(Protocol):
    """A compiled environment that draws its states in JAX, as the built-in ones do."""

    def pixels(self, state: Any, size: int) -> Array:
        """Draws a state.

        Args:
            state: The state of one environment.
            size: Width and height in pixels, a Python number.

        Returns:
            The picture [size, size, 3], uint8.
        """
        ...


@dataclass(frozen=True)
class Pixels:
    """Wraps a compiled environment so that its observation is a picture of its state, drawn in JAX.

    Args:
        env: The environment to wrap, a `Drawable`.
        size: Width and height of the picture in pixels.
        beside: Whether to keep the environment's own observation: a vector becomes the part "obs" beside the part
            "pixels", and a dictionary keeps its parts.

    Example:
        >>> Pixels(covey.envs.make("pendulum"), 64).spec.observation
        uint8[64, 64, 3]
    """

    env: Env
    size: int
    beside: bool = False

    def __post_init__(self) -> None:
        check_size(self.size)
        inner = innermost(self.env)
        require(
            isinstance(inner, Drawable),
            f"`env_pixels`: {type(inner).__name__} can't be drawn in JAX: it has no method pixels(state, size). Choose "
            "a built-in environment, or one of Gymnasium (`gymnasium:...`), which are drawn on the host.",
        )

    @property
    def spec(self) -> EnvSpec:
        spec = self.env.spec
        descriptor = spec.descriptor and replace(spec.descriptor, coordinates=())
        form = with_picture(spec.observation, self.size, self.beside)
        return replace(spec, observation=form, descriptor=descriptor)

    def reset(self, key: Key) -> tuple[Any, Obs]:
        state, obs = self.env.reset(key)
        return state, self._shown(state, obs)

    def step(self, state: Any, action: Array, key: Key) -> tuple[Any, Outcome]:
        state, outcome = self.env.step(state, action, key)
        return state, outcome._replace(obs=self._shown(state, outcome.obs))

    def descriptor(self, state: Any) -> Array:
        return self.env.descriptor(state)

    def frame(self, state: Any) -> np.ndarray:
        return self.env.frame(state)

    def inner(self, state: Any) -> Any:
        return state

    def _shown(self, state: Any, obs: Obs) -> Obs:
        picture = innermost(self.env).pixels(inner_state(self.env, state), self.size)
        if not self.beside:
            return picture
        return self.env.spec.observation.by_name(obs) | {PIXELS: picture}


def check_size(size: int) -> None:
    """Raises a CoveyError if pictures can't have this size."""
    require(
        SMALLEST <= size <= LARGEST,
        f"`env_pixels` must be the width and height of the picture, from {SMALLEST} to {LARGEST} pixels, not {size}.",
    )


def with_picture(observation: Observation, size: int, beside: bool) -> Observation:
    """Returns the form of an observation that is a picture, or has one beside it."""
    picture = Part((size, size, 3), "uint8")
    if not beside:
        return Observation.of(picture)
    check_beside(observation.parts)
    return Observation.of(observation.parts | {PIXELS: picture})


def check_beside(names: Any) -> None:
    """Raises a CoveyError if a picture would replace a part of the environment's own observation."""
    require(
        PIXELS not in names,
        f"`env_pixels_beside`: the environment has an observation called {PIXELS!r} already. Rename it, or leave "
        "`env_pixels` out.",
    )
