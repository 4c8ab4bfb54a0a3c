"""Gymnasium environments stepped one after the other in this process."""

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import numpy as np

from covey.backend import silence_mujoco
from covey.envs.base import HostStep
from covey.envs.host.answers import Answers
from covey.envs.host.guard import Guard
from covey.envs.host.state import UnsavableError, load_env, save_env
from covey.errors import CoveyError, require
from covey.types import EnvSpec

GOING, ENDED = b"\x01", b"\x02"
"""The first byte of a state: whether the next step begins another episode."""


class LocalBatch:
    """N environments with Gymnasium's next-step resets.

    Not Gymnasium's own SyncVectorEnv, which gives the same stream (a test compares them) but can't be set to the middle
    of an episode.
    """

    def __init__(self, factory: Callable[[], Any], spec: EnvSpec, state_size: int, name: str, count: int) -> None:
        self.name, self.spec, self.state_size = name, spec, state_size
        self._guard = Guard(f"gymnasium:{name}")
        with silence_mujoco(), self._guard.calling("__init__"):
            self.envs = [factory() for _ in range(count)]
        box = self.envs[0].action_space
        self._shape = box.shape
        self._dtype = box.dtype
        self._seeds: list[int | None] = [None] * count
        self._ended = np.zeros(count, bool)
        self._answers = Answers(self.envs[0].observation_space, f"gymnasium:{name}")

    def reset(self, seeds: np.ndarray) -> np.ndarray:
        self.restart(seeds)
        return self.step(np.zeros((len(self.envs), self.spec.action_size))).obs

    def restart(self, seeds: np.ndarray) -> None:
        self._seeds[:] = [int(seed) for seed in seeds]
        self._ended = np.ones(len(self.envs), bool)

    def step(self, actions: np.ndarray) -> HostStep:
        count = len(self.envs)
        obs, reward = np.empty((count, self.spec.obs_size), np.float32), np.zeros(count, np.float32)
        terminated, truncated = np.zeros(count, bool), np.zeros(count, bool)
        actions = self.spec.to_box(np.asarray(actions, np.float64), self._dtype).reshape(count, *self._shape)
        with self._guard.calling("step") as guard:
            for i, env in enumerate(self.envs):
                if self._ended[i]:
                    guard.call = "reset"
                    obs[i] = self._answers.reset(env, self._seeds[i])
                    guard.call, self._seeds[i] = "step", None
                else:
                    obs[i], reward[i], terminated[i], truncated[i] = self._answers.step(env.step(actions[i]))
        self._ended = terminated | truncated
        return HostStep(obs, reward, terminated, truncated, np.zeros(count, bool))

    def save(self) -> np.ndarray:
        states = np.zeros((len(self.envs), self.state_size), np.uint8)
        for i, env in enumerate(self.envs):
            with suppress(UnsavableError):
                data = (ENDED if self._ended[i] else GOING) + save_env(env)
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

    def frame(self, number: int) -> np.ndarray:
        try:
            picture = self.envs[number].render()
        except Exception as error:
            text = str(error).partition("\n")[0]
            raise CoveyError(f"gymnasium:{self.name} can't be drawn: {type(error).__name__}: {text}") from error
        drawn = getattr(picture, "shape", ())[2:] == (3,)
        require(drawn, f"gymnasium:{self.name} can't be drawn: its render() with 'rgb_array' gives no picture.")
        return np.asarray(picture, np.uint8)

    def close(self) -> None:
        for env in self.envs:
            env.close()
