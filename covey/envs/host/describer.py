"""A Gymnasium wrapper that adds a state descriptor to the observation. Imports Gymnasium."""

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from covey.envs.host.descriptor import HELD, Source
from covey.envs.host.guard import EnvError
from covey.observation import OBS


class Describer(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Wraps an environment so that its observation is a dictionary with its own parts and the state descriptor.

    It runs where the environment does, also in a worker, and keeps no state of its own.

    Args:
        env: The environment.
        sources: The sources of the descriptor.
        sizes: The number of numbers of each.
        name: The environment's full name, for error messages.
    """

    def __init__(
        self, env: gymnasium.Env[Any, Any], sources: tuple[Source, ...], sizes: tuple[int, ...], name: str
    ) -> None:
        super().__init__(env)
        # In a function, because attributes are part of a saved state, and sources can't be saved.
        self._read = lambda obs, info: read_all(env, sources, sizes, obs, info, name)
        own = env.observation_space
        inner = own.spaces if isinstance(own, spaces.Dict | spaces.Tuple) else own
        numbers: Any = spaces.Box(-np.inf, np.inf, (sum(sizes),), np.float32)
        self.observation_space = spaces.Dict(_by_name(inner, own) | {HELD: numbers})

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        obs, info = self.env.reset(seed=seed, options=options)
        return self._shown(obs, info), info

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        obs, *rest, info = self.env.step(action)
        return (self._shown(obs, info), *rest, info)  # type: ignore[return-value]

    def _shown(self, obs: Any, info: Any) -> dict[Any, Any]:
        return _by_name(obs, self.env.observation_space) | {HELD: self._read(obs, info)}


def read_all(
    env: Any, sources: tuple[Source, ...], sizes: tuple[int, ...], obs: Any, info: Any, name: str
) -> np.ndarray:
    """Returns the descriptor as float32; an EnvError if the size of a source has changed."""
    found = [source.read(env, obs, info, name) for source in sources]
    for source, numbers, size in zip(sources, found, sizes, strict=True):
        if len(numbers) != size:
            raise EnvError(
                f"`env_descriptor` {source.text} of {name} has {len(numbers)} numbers, and had {size} at first: the "
                "size must not change."
            )
    return np.concatenate(found)


def _by_name(values: Any, space: Any) -> dict[Any, Any]:
    """Returns an observation, or the spaces of one, by the names that its parts have without a descriptor."""
    if isinstance(space, spaces.Dict):
        return dict(values)
    if isinstance(space, spaces.Tuple):
        return {str(i): each for i, each in enumerate(values)}
    return {OBS: values}
