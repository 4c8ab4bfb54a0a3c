"""A trained policy as a plain function: observation in, action out."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from covey.agent import Policy
from covey.errors import require
from covey.types import Array, EnvSpec, Key


class TrainedPolicy:
    """Observation in, action out, both as the environment has them. Greedy; memory is kept between calls."""

    def __init__(self, policy: Policy[Any, Any, Any], spec: EnvSpec, state: Any, hyper: Any, seed: int = 0) -> None:
        @jax.jit
        def begin(key: Key) -> tuple[Any, Key]:
            key, key_begin = jax.random.split(key)
            return policy.begin(state, hyper, key_begin), key

        @jax.jit
        def act(memory: Any, obs: Array, key: Key) -> tuple[Array, Any, Key]:
            key, key_act = jax.random.split(key)
            decision = policy.act(state, hyper, memory, obs, key_act, "greedy")
            return spec.to_box(decision.action), decision.memory, key

        self._begin, self._act, self._shape = begin, act, (spec.obs_size,)
        self._key = jax.random.key(seed)
        self.reset()
        act(self._memory, jnp.zeros(self._shape), self._key)  # compiled now, so that the first real call is quick

    def reset(self) -> None:
        """Forgets the episode: call it at the start of each."""
        self._memory, self._key = self._begin(self._key)

    def __call__(self, obs: Any) -> np.ndarray:
        obs = np.asarray(obs, np.float32)
        require(obs.shape == self._shape, f"An observation has shape {self._shape}, not {obs.shape}.")
        action, self._memory, self._key = self._act(self._memory, obs, self._key)
        return np.asarray(action)
