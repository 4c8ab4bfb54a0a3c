"""A wrapper that appends the state descriptor and the return so far to the observation."""

from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from covey.envs.base import Env, Outcome
from covey.types import Array, EnvSpec, Key


class DescribedState(NamedTuple):
    """The wrapped environment's state, and the return of the episode so far."""

    env: Any
    returns: Array


@dataclass(frozen=True)
class Described:
    """Wraps an environment so that its observation is [observation, descriptor, return so far].

    Skill agents need the descriptor of both ends of a transition. As a part of the observation it is stored in replay
    with it, also for the next observation, and is never mixed across the end of an episode.

    Args:
        env: The environment to wrap.

    Example:
        >>> env = Described(covey.envs.make("point-free"))
        >>> env.spec.obs_size, env.spec.shown_size
        (7, 4)
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
