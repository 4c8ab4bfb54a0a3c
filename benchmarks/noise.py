"""An environment that costs nothing, for benchmarks of the learner."""

from dataclasses import dataclass

import jax.numpy as jnp
import numpy as np

from covey.envs.base import Outcome
from covey.types import Array, Descriptor, EnvSpec, Key

OBS, ACTION, BATCH = 17, 6, 256
"""HalfCheetah's sizes, and the batch of every learner."""
PLACE = Descriptor(("x", "y"), (-1.0, -1.0), (1.0, 1.0))
HALFCHEETAH = EnvSpec(OBS, ACTION, 1000, (-1.0,) * ACTION, (1.0,) * ACTION, PLACE)


@dataclass(frozen=True)
class Noise:
    """An environment whose observation is the action, repeated."""

    spec: EnvSpec = HALFCHEETAH

    def reset(self, key: Key) -> tuple[Array, Array]:
        return jnp.zeros(2), jnp.zeros(self.spec.obs_size)

    def step(self, state: Array, action: Array, key: Key) -> tuple[Array, Outcome]:
        obs = jnp.resize(action, (self.spec.obs_size,))
        return action[:2], Outcome(obs, jnp.sum(action), jnp.zeros((), bool))

    def descriptor(self, state: Array) -> Array:
        return state

    def frame(self, state: Array) -> np.ndarray:
        return np.zeros((1, 1, 3), np.uint8)
