"""A batch of Gymnasium environments that are stepped one after the other in this process."""

import warnings
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import numpy as np

from covey.backend import silence_mujoco
from covey.envs.base import HostStep
from covey.envs.host.answers import Answers
from covey.envs.host.guard import Guard
from covey.envs.host.parts import Rows
from covey.envs.host.state import UnsavableError, load_env, save_env
from covey.errors import CoveyError, require
from covey.observation import Obs
from covey.types import EnvSpec

RUNNING, ENDED = b"\x01", b"\x02"
"""The first byte of a saved state: whether the next step continues the episode or starts another."""


class LocalBatch:
    """A `HostBatch` of N Gymnasium environments.

    Gymnasium's SyncVectorEnv gives the same stream (a test compares them), but it can't be restored in the middle of an
    episode.

    Args:
        factory: Makes one environment.
        spec: Its sizes and limits.
        state_size: Bytes of a saved state; 0 if states can't be saved.
        name: The environment's full name, for error messages.
        count: N.
    """

    def __init__(self, factory: Callable[[], Any], spec: EnvSpec, state_size: int, name: str, count: int) -> None:
        self.name = name
        self.spec = spec
        self.state_size = state_size
        self._guard = Guard(name)
        with silence_mujoco(), self._guard.calling("__init__"):
            self.envs = [factory() for _ in range(count)]
        box = self.envs[0].action_space
        self._shape = box.shape
        self._dtype = box.dtype
        self._seeds: list[int | None] = [None] * count
        self._ended = np.zeros(count, bool)
        self._answers = Answers(self.envs[0].observation_space, name, spec.rewards)
        form = spec.observation
        self._is_array = form.is_array
        self._rows = (count, *form.named[0][1].shape)
        self._row_dtype = np.dtype(form.named[0][1].dtype)

    def reset(self, seeds: np.ndarray) -> Obs:
        self.restart(seeds)
        return self.step(np.zeros((len(self.envs), self.spec.action_size))).obs

    def restart(self, seeds: np.ndarray) -> None:
        self._seeds[:] = [int(seed) for seed in seeds]
        self._ended = np.ones(len(self.envs), bool)

    def step(self, actions: np.ndarray) -> HostStep:
        count = len(self.envs)
        obs = np.empty(self._rows, self._row_dtype) if self._is_array else Rows(self.spec.observation, count)
        reward = np.zeros((count, *self.spec.reward_shape), np.float32)
        terminated = np.zeros(count, bool)
        truncated = np.zeros(count, bool)
        actions = self.spec.to_box(np.asarray(actions, np.float64), self._dtype).reshape(count, *self._shape)
        with self._guard.calling("step") as guard:
            for i, env in enumerate(self.envs):
                if self._ended[i]:
                    guard.call = "reset"
                    obs[i] = self._answers.reset(env, self._seeds[i])
                    guard.call = "step"
                    self._seeds[i] = None
                else:
                    obs[i], reward[i], terminated[i], truncated[i] = self._answers.step(env.step(actions[i]))
        self._ended = terminated | truncated
        shown = obs.arrays if isinstance(obs, Rows) else obs
        return HostStep(shown, reward, terminated, truncated, np.zeros(count, bool))

    def save(self) -> np.ndarray:
        states = np.zeros((len(self.envs), self.state_size), np.uint8)
        for i, env in enumerate(self.envs):
            with suppress(UnsavableError):
                data = (ENDED if self._ended[i] else RUNNING) + save_env(env)
                if len(data) <= self.state_size:
                    states[i, : len(data)] = np.frombuffer(data, np.uint8)
        return states

    def load(self, states: np.ndarray) -> None:
        with self._guard.calling("reset"):
            for env, state in zip(self.envs, states, strict=True):
                env.reset()
                load_env(env, state[1:].tobytes())
        self._ended = states[:, 0] == ENDED[0]
        self._seeds = [None] * len(self.envs)

    def frame(self, index: int) -> np.ndarray:
        try:
            with warnings.catch_warnings(action="ignore"):
                picture = self.envs[index].render()
        except Exception as error:
            text = str(error).partition("\n")[0]
            raise CoveyError(f"{self.name} can't be drawn: {type(error).__name__}: {text}") from error
        drawn = getattr(picture, "shape", ())[2:] == (3,)
        require(
            drawn,
            f"{self.name} can't be drawn: with the render mode 'rgb_array', render() returns no picture.",
        )
        return np.asarray(picture, np.uint8)

    def close(self) -> None:
        for env in self.envs:
            env.close()
