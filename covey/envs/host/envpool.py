"""EnvPool's environments, stepped together in C++: `envpool:ID`, for example `envpool:HalfCheetah-v5`.

They use next-step resets, as Gymnasium does. Their states can't be saved, so a resumed run starts new episodes.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from covey.envs.base import HostBatch, HostEnv, HostStep
from covey.envs.host import gymnasium
from covey.errors import CoveyError, require, unknown
from covey.install import install_command
from covey.types import EnvSpec


@dataclass(frozen=True)
class EnvPoolEnv:
    """A task of EnvPool."""

    name: str
    spec: EnvSpec
    state_size: int = 0
    unsaved: str = "EnvPool does not expose its states"

    def open(self, count: int, workers: int = 0, draws: bool = False) -> HostBatch:
        """Opens a pool with `workers` threads. EnvPool can't draw: with `draws`, Gymnasium's twin is opened instead."""
        return self._twin().open(count, 0, draws) if draws else PoolBatch(self, count, workers)

    def _twin(self) -> HostEnv:
        """Returns Gymnasium's environment of the same name; raises a CoveyError if there is none of the same sizes."""
        try:
            twin = gymnasium.make(self.name)
        except CoveyError as error:
            raise CoveyError(f"envpool:{self.name} can't be drawn: EnvPool has no pictures, and {error}") from None
        sizes = ("obs_size", "action_size", "action_low", "action_high")
        same = all(getattr(twin.spec, name) == getattr(self.spec, name) for name in sizes)
        require(same, f"envpool:{self.name} can't be drawn: gymnasium:{self.name} has other sizes or limits.")
        return twin


def names() -> tuple[str, ...]:
    """Returns all of EnvPool's tasks, also those with discrete actions, which `make` refuses."""
    return tuple(sorted(_envpool().list_all_envs()))


def make(name: str) -> EnvPoolEnv:
    """Makes the task with this ID; raises a CoveyError if its action space is not a box."""
    envpool = _envpool()
    if name not in envpool.list_all_envs():
        raise unknown("EnvPool environment", name, envpool.list_all_envs())
    from gymnasium import spaces

    made = envpool.make_spec(name)
    box = gymnasium.action_box(made.gymnasium_action_space, f"envpool:{name}")
    size = spaces.flatdim(made.gymnasium_observation_space)
    return EnvPoolEnv(name, EnvSpec(obs_size=size, episode_length=made.config.max_episode_steps, **box))


def _envpool() -> Any:
    try:
        import envpool
    except ImportError:
        raise CoveyError(
            f"EnvPool is not installed. Install it (about 800 MB):\n  {install_command('envpool')}"
        ) from None
    return envpool


class PoolBatch:
    """A `HostBatch` of N environments in one pool. A pool is seeded when it is made, so new seeds need a new pool."""

    def __init__(self, env: EnvPoolEnv, count: int, threads: int) -> None:
        self.env = env
        self.count = count
        self.threads = threads
        self._pool: Any = None
        self._starts = True

    def reset(self, seeds: np.ndarray) -> np.ndarray:
        self.restart(seeds)
        return self._first()

    def restart(self, seeds: np.ndarray) -> None:
        self.close()
        # EnvPool's seeds are signed 32-bit integers.
        own = [int(seed) >> 1 for seed in seeds]
        self._pool = _envpool().make_gymnasium(
            self.env.name, num_envs=self.count, num_threads=min(self.threads, self.count), seed=own
        )
        self._starts = True

    def step(self, actions: np.ndarray) -> HostStep:
        none = np.zeros(self.count, bool)
        if self._starts:
            return HostStep(self._first(), np.zeros(self.count, np.float32), none, none, none)
        box = self._pool.action_space
        actions = self.env.spec.to_box(np.asarray(actions, np.float64), box.dtype).reshape(self.count, *box.shape)
        obs, reward, terminated, truncated, _ = self._pool.step(actions)
        ends = terminated.astype(bool), truncated.astype(bool)
        shapes = {x.shape for x in (reward, *ends)}
        require(shapes == {none.shape}, f"envpool:{self.env.name} returned rewards and flags of the shapes {shapes}.")
        return HostStep(self._flat(obs), reward.astype(np.float32), *ends, none)

    def save(self) -> np.ndarray:
        raise CoveyError(f"The state of envpool:{self.env.name} can't be saved: {self.env.unsaved}.")

    def load(self, states: np.ndarray) -> None:
        raise CoveyError(f"The state of envpool:{self.env.name} can't be loaded: {self.env.unsaved}.")

    def frame(self, index: int) -> np.ndarray:
        raise CoveyError(f"envpool:{self.env.name} can't be drawn. Try gymnasium:{self.env.name}.")

    def close(self) -> None:
        if self._pool is not None:
            self._pool.close()
            self._pool = None

    def _first(self) -> np.ndarray:
        self._starts = False
        return self._flat(self._pool.reset()[0])

    def _flat(self, obs: Any) -> np.ndarray:
        """Flattens observations to [N, D]. Those in a dictionary are concatenated in the order of their sorted keys."""
        parts = [obs[key] for key in sorted(obs)] if isinstance(obs, dict) else [obs]
        flat = np.concatenate([np.asarray(x, np.float32).reshape(self.count, -1) for x in parts], axis=1)
        size = self.env.spec.obs_size
        require(
            flat.shape[1] == size,
            f"envpool:{self.env.name} returned {flat.shape[1]} numbers as its observation; its space has {size}.",
        )
        return flat
