"""EnvPool's environments, stepped together in C++: `envpool:ID`, for example `envpool:HalfCheetah-v5`.

Their resets are next-step resets like Gymnasium's. Their state can't be had, so episodes begin anew when a run goes on.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from covey.envs.base import HostBatch, HostEnv, HostStep
from covey.envs.host import gymnasium
from covey.errors import CoveyError, require, unknown
from covey.types import EnvSpec


@dataclass(frozen=True)
class EnvPoolEnv:
    """One of EnvPool's tasks."""

    name: str
    spec: EnvSpec
    state_size: int = 0
    unsaved: str = "EnvPool does not tell it"

    def open(self, count: int, workers: int = 0, draws: bool = False) -> HostBatch:
        """A pool; `workers` is the number of its threads. EnvPool does not draw, so what draws is Gymnasium's own."""
        return self._twin().open(count, 0, draws) if draws else PoolBatch(self, count, workers)

    def _twin(self) -> HostEnv:
        """Gymnasium's environment of the same name; an error where there is none of the same sizes."""
        try:
            twin = gymnasium.make(self.name)
        except CoveyError as error:
            raise CoveyError(f"envpool:{self.name} can't be drawn, nor can a twin of Gymnasium's: {error}") from None
        sizes = ("obs_size", "action_size", "action_low", "action_high")
        same = all(getattr(twin.spec, name) == getattr(self.spec, name) for name in sizes)
        require(same, f"envpool:{self.name} can't be drawn: gymnasium:{self.name} has other observations or actions.")
        return twin


def names() -> tuple[str, ...]:
    """All of EnvPool's tasks, those with discrete actions too."""
    return tuple(sorted(_envpool().list_all_envs()))


def make(name: str) -> EnvPoolEnv:
    """The task of an ID; an error where its actions are no box."""
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
        raise CoveyError("EnvPool is not installed: pip install 'covey[envpool]' (about 800 MB).") from None
    return envpool


class PoolBatch:
    """N environments of one pool. A pool is seeded when it is made, so other seeds make another."""

    def __init__(self, env: EnvPoolEnv, count: int, threads: int) -> None:
        self.env, self.count, self.threads = env, count, threads
        self._pool: Any = None
        self._begins = True

    def reset(self, seeds: np.ndarray) -> np.ndarray:
        self.restart(seeds)
        return self._first()

    def restart(self, seeds: np.ndarray) -> None:
        self.close()
        # EnvPool's seeds are signed.
        own = [int(seed) >> 1 for seed in seeds]
        self._pool = _envpool().make_gymnasium(
            self.env.name, num_envs=self.count, num_threads=min(self.threads, self.count), seed=own
        )
        self._begins = True

    def step(self, actions: np.ndarray) -> HostStep:
        none = np.zeros(self.count, bool)
        if self._begins:
            return HostStep(self._first(), np.zeros(self.count, np.float32), none, none, none)
        box = self._pool.action_space
        actions = self.env.spec.to_box(np.asarray(actions, np.float64), box.dtype).reshape(self.count, *box.shape)
        obs, reward, terminated, truncated, _ = self._pool.step(actions)
        ends = terminated.astype(bool), truncated.astype(bool)
        shapes = {x.shape for x in (reward, *ends)}
        require(shapes == {none.shape}, f"envpool:{self.env.name} returned rewards and ends of the shapes {shapes}.")
        return HostStep(self._flat(obs), reward.astype(np.float32), *ends, none)

    def save(self) -> np.ndarray:
        raise CoveyError(f"The state of envpool:{self.env.name} can't be saved: {self.env.unsaved}.")

    def load(self, states: np.ndarray) -> None:
        raise CoveyError(f"The state of envpool:{self.env.name} can't be loaded: {self.env.unsaved}.")

    def frame(self, number: int) -> np.ndarray:
        raise CoveyError(f"envpool:{self.env.name} can't be drawn; gymnasium:{self.env.name} may be.")

    def close(self) -> None:
        if self._pool is not None:
            self._pool.close()
            self._pool = None

    def _first(self) -> np.ndarray:
        self._begins = False
        return self._flat(self._pool.reset()[0])

    def _flat(self, obs: Any) -> np.ndarray:
        """Observations [N, D]; those in a dictionary in the order of its keys."""
        parts = [obs[key] for key in sorted(obs)] if isinstance(obs, dict) else [obs]
        flat = np.concatenate([np.asarray(x, np.float32).reshape(self.count, -1) for x in parts], axis=1)
        size = self.env.spec.obs_size
        require(
            flat.shape[1] == size,
            f"envpool:{self.env.name} returned {flat.shape[1]} numbers as its observation; its space has {size}.",
        )
        return flat
