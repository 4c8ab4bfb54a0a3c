"""A wrapper that adds the state descriptor and the return so far to the observation, as parts of their own."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from covey.envs.base import Env, Outcome
from covey.errors import require
from covey.observation import DESCRIPTOR, OBS, RETURN, Obs, Observation, Part
from covey.types import Array, EnvSpec, Key

ADDED = (DESCRIPTOR, RETURN)
"""The parts that `Described` adds."""


class DescribedState(NamedTuple):
    """The wrapped environment's state, and the return of the episode so far."""

    env: Any
    returns: Array


@dataclass(frozen=True)
class Described:
    """Wraps an environment so that its observation is a dictionary with its descriptor and the return so far.

    The parts are those of the environment, where an observation that is one array is called "obs"; then "descriptor"
    [size], if the environment has one; and "return" [1]. Skill agents need the descriptor of both ends of a transition.
    As a part of the observation it is stored in replay with it, also for the next observation, and is never mixed
    across the end of an episode.

    Args:
        env: The environment to wrap. A CoveyError if its observation already has a part with such a name.

    Example:
        >>> env = Described(covey.envs.make("point-free"))
        >>> print(env.spec.observation)
        descriptor (2 numbers), obs (4 numbers), return (1 numbers)
    """

    env: Env

    def __post_init__(self) -> None:
        _ = self.spec  # raises if a name is taken

    @property
    def spec(self) -> EnvSpec:
        return described_spec(self.env.spec, type(self.env).__name__)

    def reset(self, key: Key) -> tuple[DescribedState, dict[str, Array]]:
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

    def _describe(self, state: DescribedState, obs: Obs) -> dict[str, Array]:
        descriptor = {DESCRIPTOR: self.descriptor(state)} if self.env.spec.descriptor else {}
        return self.env.spec.observation.by_name(obs) | descriptor | {RETURN: state.returns[None]}


def described_spec(spec: EnvSpec, name: str) -> EnvSpec:
    """Returns the spec of an environment whose observation also has its descriptor and the return so far.

    Args:
        spec: The spec of the environment.
        name: Its name, for the error message.

    Returns:
        The spec. Raises a CoveyError if the observation has a part with the name of one that is added.
    """
    own = spec.observation.parts
    taken = [each for each in ADDED if each in own]
    require(
        not taken,
        f"The observation of {name} has a part called {''.join(taken[:1])!r}, the name of a part that skill agents "
        "add to it. Give it another name.",
    )
    descriptor = {DESCRIPTOR: Part((spec.descriptor.size,))} if spec.descriptor else {}
    return replace(spec, observation=own | descriptor | {RETURN: Part((1,))})


def own_observation(spec: EnvSpec) -> Observation:
    """Returns the form of the environment's own observation: without the parts that `Described` adds."""
    if not spec.described:
        return spec.observation
    own = {name: part for name, part in spec.observation.named if name not in ADDED}
    return Observation.of(own[OBS] if tuple(own) == (OBS,) else own)


def own_parts(obs: Obs) -> dict[str, Any]:
    """Returns the environment's own parts of an observation by name, whether it is described or not."""
    if not isinstance(obs, Mapping):
        return {OBS: obs}
    return {name: x for name, x in obs.items() if name not in ADDED}
