"""Stacked frames: `env_stack` shows the newest frames of each image at once, so that motion is visible.

An image with k frames is [height, width, k * channels], the oldest frame first. At the start of an episode, its first
frame is repeated.
"""

from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from covey.envs.base import Env, HostBatch, HostEnv, HostStep, Outcome
from covey.errors import require
from covey.observation import Obs, Observation
from covey.types import Array, EnvSpec, Key


def stacked(observation: Observation, stack: int) -> Observation:
    """Returns the form of an observation whose images are stacked; raises a CoveyError if it has none.

    Args:
        observation: The form of an observation.
        stack: Frames of each image.
    """
    images = {name: part for name, part in observation.parts.items() if part.is_image}
    require(
        bool(images),
        f"`env_stack` {stack}: the observation has no images, but: {observation}. Leave it out, or draw the "
        "environment with `env_pixels`.",
    )
    for name, part in images.items():
        require(part.stack == 1, f"`env_stack` {stack}: the image {name!r} has {part.stack} frames already.")
    named = tuple((name, replace(part, stack=stack) if part.is_image else part) for name, part in observation.named)
    return replace(observation, named=named)


class StackedState(NamedTuple):
    """The wrapped environment's state, and the newest frames but one of each image, by name."""

    env: Any
    frames: dict[str, Array]


@dataclass(frozen=True)
class Stacked:
    """Wraps a compiled environment so that the newest frames of each image are stacked.

    Args:
        env: The environment to wrap.
        stack: Frames of each image, at least 2.

    Example:
        >>> Stacked(Pixels(covey.envs.make("pendulum"), 64), 3).spec.observation
        uint8[64, 64, 9], 3 frames of 3
    """

    env: Env
    stack: int

    def __post_init__(self) -> None:
        require(self.stack >= 2, f"`env_stack` must be at least 2 frames to stack them, not {self.stack}.")
        stacked(self.env.spec.observation, self.stack)

    @property
    def spec(self) -> EnvSpec:
        spec = self.env.spec
        return replace(spec, observation=stacked(spec.observation, self.stack))

    def reset(self, key: Key) -> tuple[StackedState, Obs]:
        env, obs = self.env.reset(key)
        parts = self.env.spec.observation.by_name(obs)
        older = {name: jnp.tile(parts[name], (1, 1, self.stack - 1)) for name in self._images}
        return self._shown(env, parts, older)

    def step(self, state: StackedState, action: Array, key: Key) -> tuple[StackedState, Outcome]:
        env, outcome = self.env.step(state.env, action, key)
        state, obs = self._shown(env, self.env.spec.observation.by_name(outcome.obs), state.frames)
        return state, outcome._replace(obs=obs)

    def descriptor(self, state: StackedState) -> Array:
        return self.env.descriptor(state.env)

    def frame(self, state: StackedState) -> np.ndarray:
        return self.env.frame(state.env)

    def inner(self, state: StackedState) -> Any:
        return state.env

    @property
    def _images(self) -> dict[str, int]:
        """The channels of one frame of each image, by name."""
        return _channels(self.env.spec.observation)

    def _shown(self, env: Any, parts: dict[str, Array], older: dict[str, Array]) -> tuple[StackedState, Obs]:
        """Returns the state and the observation after a step, from one frame of each part and those before it."""
        frames = {name: jnp.concatenate([older[name], parts[name]], axis=-1) for name in self._images}
        newest = {name: frames[name][..., channels:] for name, channels in self._images.items()}
        return StackedState(env, newest), self.env.spec.observation.of_names(parts | frames)


@dataclass(frozen=True)
class StackedHost:
    """Wraps a host environment so that the newest frames of each image are stacked.

    Args:
        env: The environment to wrap.
        stack: Frames of each image, at least 2.
    """

    env: HostEnv
    stack: int

    def __post_init__(self) -> None:
        require(self.stack >= 2, f"`env_stack` must be at least 2 frames to stack them, not {self.stack}.")
        stacked(self.env.spec.observation, self.stack)

    @property
    def spec(self) -> EnvSpec:
        spec = self.env.spec
        return replace(spec, observation=stacked(spec.observation, self.stack))

    @property
    def state_size(self) -> int:
        return self.env.state_size + self._extra if self.env.state_size else 0

    @property
    def unsaved(self) -> str:
        return self.env.unsaved

    def open(self, count: int, workers: int = 0, draws: bool = False) -> HostBatch:
        return StackedBatch(self.env.open(count, workers, draws), self.env.spec, self.stack, count)

    @property
    def _extra(self) -> int:
        """Bytes of a saved state besides the environment's: whether the episode has ended, and the older frames."""
        parts = [part for _, part in self.env.spec.observation.named if part.is_image]
        return 1 + (self.stack - 1) * sum(part.size * np.dtype(part.dtype).itemsize for part in parts)


class StackedBatch:
    """A `HostBatch` that stacks the frames of another one. They are stacked in this process, also those of workers.

    Args:
        batch: The batch.
        spec: Its spec, without stacks.
        stack: Frames of each image.
        count: The number of environments.
    """

    def __init__(self, batch: HostBatch, spec: EnvSpec, stack: int, count: int) -> None:
        self.batch = batch
        self._form = spec.observation
        self._stack = stack
        self._channels = _channels(spec.observation)
        parts = spec.observation.parts
        self._older = {
            name: np.zeros((count, *parts[name].shape[:2], (stack - 1) * channels), parts[name].dtype)
            for name, channels in self._channels.items()
        }
        self._starts = np.ones(count, bool)  # whether the next observation is the first of an episode

    def reset(self, seeds: np.ndarray) -> Obs:
        self._starts[:] = True
        return self._shown(self.batch.reset(seeds))

    def restart(self, seeds: np.ndarray) -> None:
        self._starts[:] = True
        self.batch.restart(seeds)

    def step(self, actions: np.ndarray) -> HostStep:
        step = self.batch.step(actions)
        self._starts |= step.broken
        obs = self._shown(step.obs)
        self._starts = step.terminated | step.truncated
        return step._replace(obs=obs)

    def save(self) -> np.ndarray:
        inner = self.batch.save()
        columns = [inner, self._starts[:, None].view(np.uint8)]
        contiguous = map(np.ascontiguousarray, self._older.values())
        columns += [older.reshape(len(older), -1).view(np.uint8) for older in contiguous]
        states = np.concatenate(columns, axis=1)
        states[inner[:, 0] == 0] = 0  # an environment that could not be saved
        return states

    def load(self, states: np.ndarray) -> None:
        sizes = [older[0].nbytes for older in self._older.values()]
        end = states.shape[1] - sum(sizes)
        self.batch.load(np.ascontiguousarray(states[:, : end - 1]))
        self._starts = states[:, end - 1].astype(bool)
        for (name, older), size in zip(self._older.items(), sizes, strict=True):
            self._older[name] = np.ascontiguousarray(states[:, end : end + size]).view(older.dtype).reshape(older.shape)
            end += size

    def frame(self, index: int) -> np.ndarray:
        return self.batch.frame(index)

    def close(self) -> None:
        self.batch.close()

    def _shown(self, obs: Obs) -> Obs:
        """Returns observations with all frames, in new arrays, from the newest frames."""
        parts = self._form.by_name(obs)
        for name, channels in self._channels.items():
            frames = np.concatenate([self._older[name], parts[name]], axis=-1)
            if self._starts.any():
                frames[self._starts] = np.tile(parts[name][self._starts], (1, 1, 1, self._stack))
            parts[name] = frames
            self._older[name] = frames[..., channels:]
        self._starts = np.zeros(len(self._starts), bool)
        return self._form.of_names(parts)


def _channels(observation: Observation) -> dict[str, int]:
    """Returns the channels of one frame of each image, by name."""
    return {name: part.shape[-1] for name, part in observation.named if part.is_image}
