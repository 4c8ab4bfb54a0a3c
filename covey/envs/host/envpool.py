"""EnvPool's environments, stepped together in C++: `envpool:ID`, for example `envpool:HalfCheetah-v5`.

They use next-step resets, as Gymnasium does. Their states can't be saved, so a resumed run starts new episodes.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from covey.envs.base import HostBatch, HostEnv, HostStep
from covey.envs.host import gymnasium
from covey.envs.host.parts import Leaf, leaves_of, observation_of
from covey.envs.options import as_arguments, check_names
from covey.errors import CoveyError, require, unknown
from covey.install import install_command
from covey.observation import Obs
from covey.types import EnvSpec


@dataclass(frozen=True)
class EnvPoolEnv:
    """A task of EnvPool."""

    name: str
    spec: EnvSpec
    kwargs: tuple[tuple[str, Any], ...] = ()
    """Options of EnvPool for this task, by name."""
    state_size: int = 0
    unsaved: str = "EnvPool does not expose its states"
    leaves: tuple[Leaf, ...] = field(default=(), compare=False)
    """The spaces of which its observations consist."""

    def open(self, count: int, workers: int = 0, draws: bool = False) -> HostBatch:
        """Opens a pool with `workers` threads. EnvPool can't draw: with `draws`, Gymnasium's twin is opened instead."""
        return self._twin().open(count, 0, draws) if draws else PoolBatch(self, count, workers)

    def adjusted(self, wrappers: tuple[Any, ...], episode_length: int, reward_parts: tuple[str, ...]) -> "EnvPoolEnv":
        """Returns the task with another time limit, and the parts of its reward from `info`."""
        require(not wrappers, f"`wrappers`: EnvPool steps envpool:{self.name} in C++. Try gymnasium:{self.name}.")
        spec = replace(self.spec, rewards=reward_parts, reward_weights=(1.0,) * len(reward_parts))
        if not episode_length:
            return replace(self, spec=spec)
        kwargs = (*self.kwargs, ("max_episode_steps", episode_length))
        return replace(self, spec=replace(spec, episode_length=episode_length), kwargs=kwargs)

    def drawn(self, size: int, beside: bool) -> HostEnv:
        """Raises a CoveyError: EnvPool has no pictures."""
        raise CoveyError(f"`env_pixels`: EnvPool has no pictures of envpool:{self.name}. Try gymnasium:{self.name}.")

    def _twin(self) -> HostEnv:
        """Returns Gymnasium's environment of the same name; raises a CoveyError if there is none of the same sizes."""
        own = [name for name, _ in self.kwargs if name != "max_episode_steps"]
        require(
            not own,
            f"envpool:{self.name} can't be drawn: EnvPool has no pictures, and gymnasium:{self.name} would be another "
            f"environment, because it does not have EnvPool's `env_kwargs` {', '.join(own)}.",
        )
        try:
            twin = gymnasium.make(self.name)
        except CoveyError as error:
            raise CoveyError(f"envpool:{self.name} can't be drawn: EnvPool has no pictures, and {error}") from None
        sizes = ("observation", "action_size", "action_low", "action_high")
        same = all(getattr(twin.spec, name) == getattr(self.spec, name) for name in sizes)
        require(same, f"envpool:{self.name} can't be drawn: gymnasium:{self.name} has other sizes or limits.")
        return twin


def names() -> tuple[str, ...]:
    """Returns all of EnvPool's tasks, also those with discrete actions, which `make` refuses."""
    return tuple(sorted(_envpool().list_all_envs()))


def make(name: str, kwargs: Mapping[str, Any] | None = None) -> EnvPoolEnv:
    """Makes the task with this ID and EnvPool's options for it; raises a CoveyError if its action space is no box."""
    envpool = _envpool()
    if name not in envpool.list_all_envs():
        raise unknown("EnvPool environment", name, envpool.list_all_envs())
    options = as_arguments(kwargs or {})
    check_names(options, tuple(envpool.make_spec(name).config._fields) if options else (), f"envpool:{name}")
    made = envpool.make_spec(name, **options)
    box = gymnasium.action_box(made.gymnasium_action_space, f"envpool:{name}")
    leaves = leaves_of(made.gymnasium_observation_space, f"envpool:{name}")
    spec = EnvSpec(observation=observation_of(leaves), episode_length=made.config.max_episode_steps, **box)
    return EnvPoolEnv(name, spec, tuple(options.items()), leaves=leaves)


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

    def reset(self, seeds: np.ndarray) -> Obs:
        self.restart(seeds)
        return self._first()

    def restart(self, seeds: np.ndarray) -> None:
        self.close()
        # EnvPool's seeds are signed 32-bit integers.
        own = [int(seed) >> 1 for seed in seeds]
        self._pool = _envpool().make_gymnasium(
            self.env.name,
            num_envs=self.count,
            num_threads=min(self.threads, self.count),
            seed=own,
            **dict(self.env.kwargs),
        )
        self._starts = True

    def step(self, actions: np.ndarray) -> HostStep:
        none = np.zeros(self.count, bool)
        if self._starts:
            nothing = np.zeros((self.count, *self.env.spec.reward_shape), np.float32)
            return HostStep(self._first(), nothing, none, none, none)
        box = self._pool.action_space
        actions = self.env.spec.to_box(np.asarray(actions, np.float64), box.dtype).reshape(self.count, *box.shape)
        obs, reward, terminated, truncated, info = self._pool.step(actions)
        ends = terminated.astype(bool), truncated.astype(bool)
        shapes = {x.shape for x in (reward, *ends)}
        require(shapes == {none.shape}, f"envpool:{self.env.name} returned rewards and flags of the shapes {shapes}.")
        if self.env.spec.rewards:
            reward = self._parts(info)
        return HostStep(self._shown(obs), reward.astype(np.float32), *ends, none)

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

    def _first(self) -> Obs:
        self._starts = False
        return self._shown(self._pool.reset()[0])

    def _parts(self, info: dict[str, Any]) -> np.ndarray:
        """Returns the parts of the reward [N, parts]. The step that starts an episode has no reward."""
        known = [name for name, x in info.items() if np.shape(x) == (self.count,)]
        for name in self.env.spec.rewards:
            require(
                name in known,
                f"The environment envpool:{self.env.name} has no number {name!r} (`reward_parts`) in the info of step. "
                f"Its numbers are: {', '.join(known)}.",
            )
        return np.stack([info[name] for name in self.env.spec.rewards], axis=1)

    def _shown(self, obs: Any) -> Obs:
        """Converts observations to arrays [N, ...], by name of part if there are several."""
        parts = {leaf.name: self._part(leaf, obs) for leaf in self.env.leaves}
        return self.env.spec.observation.of_names(parts)

    def _part(self, leaf: Leaf, obs: Any) -> np.ndarray:
        for key in leaf.path:
            obs = obs[key]
        array = np.asarray(obs, leaf.part.dtype)
        require(
            array.size == self.count * leaf.part.size,
            f"envpool:{self.env.name} returned {array.dtype}{list(array.shape)} as its observation {leaf.name} of "
            f"{self.count} environments; its space has {leaf.part.size} numbers.",
        )
        return array.reshape(self.count, *leaf.part.shape)
