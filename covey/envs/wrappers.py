"""Wrappers of compiled environments: another time limit, and another descriptor; and what is inside of wrappers."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Protocol, runtime_checkable

import numpy as np

from covey.envs.base import Env, Outcome
from covey.observation import Obs
from covey.types import Array, Descriptor, EnvSpec, Key


@dataclass(frozen=True)
class TimeLimit:
    """Wraps a compiled environment so that its episodes have another time limit, a truncation.

    Args:
        env: The environment to wrap.
        episode_length: The time limit in steps.

    Example:
        >>> TimeLimit(covey.envs.make("pendulum"), 50).spec.episode_length
        50
    """

    env: Env
    episode_length: int

    @property
    def spec(self) -> EnvSpec:
        return replace(self.env.spec, episode_length=self.episode_length)

    def reset(self, key: Key) -> tuple[Any, Obs]:
        return self.env.reset(key)

    def step(self, state: Any, action: Array, key: Key) -> tuple[Any, Outcome]:
        return self.env.step(state, action, key)

    def descriptor(self, state: Any) -> Array:
        return self.env.descriptor(state)

    def frame(self, state: Any) -> np.ndarray:
        return self.env.frame(state)

    def inner(self, state: Any) -> Any:
        return state


@dataclass(frozen=True)
class WithDescriptor:
    """Wraps a compiled environment so that it has another state descriptor.

    Args:
        env: The environment to wrap.
        about: Names and limits of the descriptor, and how that of an episode follows from those of its states.
        function: Computes the descriptor [about.size], float32, from a state of the environment.

    Example:
        >>> speed = covey.Descriptor(("speed",), (0.0,), (8.0,), is_position=False, reduce="mean")
        >>> env = covey.WithDescriptor(covey.envs.make("pendulum"), speed, lambda state: abs(state.velocity)[None])
        >>> run = covey.train("diayn", env=env)
    """

    env: Env
    about: Descriptor
    function: Callable[[Any], Array]

    @property
    def spec(self) -> EnvSpec:
        return replace(self.env.spec, descriptor=self.about)

    def reset(self, key: Key) -> tuple[Any, Obs]:
        return self.env.reset(key)

    def step(self, state: Any, action: Array, key: Key) -> tuple[Any, Outcome]:
        return self.env.step(state, action, key)

    def descriptor(self, state: Any) -> Array:
        return self.function(state)

    def frame(self, state: Any) -> np.ndarray:
        return self.env.frame(state)

    def inner(self, state: Any) -> Any:
        return state


@runtime_checkable
class Wrapper(Protocol):
    """A wrapper of a compiled environment that says which part of its state is the environment's."""

    env: Any

    def inner(self, state: Any) -> Any:
        """Returns the state of the wrapped environment."""
        ...


def innermost(env: Any) -> Any:
    """Returns the environment inside of covey's wrappers, but not inside of `Described`."""
    while isinstance(env, Wrapper):
        env = env.env
    return env


def inner_state(env: Any, state: Any) -> Any:
    """Returns the state of `innermost(env)` from one of `env`."""
    while isinstance(env, Wrapper):
        state = env.inner(state)
        env = env.env
    return state
