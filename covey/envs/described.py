"""An environment that tells an agent more than it shows: its state descriptor, and the return so far."""

from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from covey.envs.base import Env, Outcome
from covey.types import Array, EnvSpec, Key


class DescribedState(NamedTuple):
    """The state of the environment within, and the return of the episode so far."""

    env: Any
    returns: Array


@dataclass(frozen=True)
class Described:
    """The environment with [observation, descriptor, return so far] in the place of its observation.

    Both then lie in replay like any observation, the next one's too, and never across an episode's end.
    """

    env: Env

    @property
    def spec(self) -> EnvSpec:
        spec = self.env.spec
        more = (spec.descriptor.size if spec.descriptor else 0) + 1
        return replace(spec, obs_size=spec.obs_size + more, described=True)

    def reset(self, key: Key) -> tuple[DescribedState, Array]:
        env, obs = self.env.reset(key)
        state = DescribedState(env, jnp.zeros(()))
        return state, self._describe(state, obs)

    def step(self, state: DescribedState, action: Array, key: Key) -> tuple[DescribedState, Outcome]:
        env, outcome = self.env.step(state.env, action, key)
        state = DescribedState(env, state.returns + self.env.spec.reward(outcome.reward))
        return state, outcome._replace(obs=self._describe(state, outcome.obs))

    def descriptor(self, state: DescribedState) -> Array:
        return self.env.descriptor(state.env)

    def frame(self, state: DescribedState) -> np.ndarray:
        return self.env.frame(state.env)

    def _describe(self, state: DescribedState, obs: Array) -> Array:
        described = [self.descriptor(state)] if self.env.spec.descriptor else []
        return jnp.concatenate([obs, *described, state.returns[None]])
