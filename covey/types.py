"""Types that all modules use. Names of axes: P members, N environments, T time, B batch."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import jax
import numpy as np

from covey.observation import DESCRIPTOR, RETURN, Obs, Observation

Array = jax.Array
Key = jax.Array
Params = Any
Metrics = dict[str, Array]
"""Numbers by name. A vector is a histogram: the shares of bins, whose edges `covey.nn.diagnostics.bin_edges` names."""
Scalar = float | Array
"""A Python float in a declaration, a traced scalar in a computation."""

Mode = Literal["random", "sample", "greedy"]
"""How a policy acts: uniformly on the box (warm-up), exploring (collection) or deterministically (evaluation)."""


@dataclass(frozen=True)
class Descriptor:
    """A few numbers that describe the state of an environment. Skills differ in them, and plots show them.

    Args:
        names: Names of the numbers.
        low: Lower limits.
        high: Upper limits.
        is_position: True if the numbers are a position.
        reduce: How the descriptor of an episode follows from those of its states: their mean, the final one, or a
            function of them [T, size] and of `valid` [T], which is 0 after the end of the episode; it returns a vector.
        coordinates: Indices of the observation that hold these numbers, in the order of `names`; empty if none do.

    Example:
        >>> Descriptor(names=("x", "y"), low=(-5.0, -5.0), high=(5.0, 5.0), coordinates=(0, 1))
        >>> def highest(states, valid):
        ...     return jnp.max(jnp.where(valid[:, None] > 0, states, -jnp.inf), axis=0)
        >>> Descriptor(names=("z",), low=(0.0,), high=(2.0,), is_position=False, reduce=highest)
    """

    names: tuple[str, ...]
    low: tuple[float, ...]
    high: tuple[float, ...]
    is_position: bool = True
    reduce: Literal["mean", "final"] | Callable[[Array, Array], Array] = "final"
    coordinates: tuple[int, ...] = ()

    @property
    def size(self) -> int:
        """How many numbers there are."""
        return len(self.names)

    def reduced_names(self, size: int) -> tuple[str, ...]:
        """Returns names for the descriptor of an episode, which a function may have given another size."""
        return self.names if size == self.size else tuple(f"{i}" for i in range(size))


@dataclass(frozen=True)
class EnvSpec:
    """Sizes and limits of an environment. Agents act in [-1, 1]; the environment rescales actions to its own box.

    Args:
        observation: An observation: the size of a vector, a `Part` for another array, or a dictionary of parts by name.
            It is kept as an `Observation`.
        action_size: Numbers in an action.
        episode_length: Time limit in steps.
        action_low: Lower limits of the environment's own action box.
        action_high: Upper limits of the environment's own action box.
        descriptor: Describes its state in a few numbers, if it can.
        frames_per_second: Speed of a film of an episode.
        rewards: Names of the components of the reward, if it has several. `Outcome.reward` is then a vector of them.
        reward_weights: Weights of the components: the reward is their weighted sum.
        steps_per_start: Environment steps per start state that training draws in advance. Raise it if `reset` is
            expensive; episodes that are shorter then reuse start states within a block. With 2 none is reused.

    Example:
        >>> EnvSpec(observation=2, action_size=1, episode_length=60, action_low=(-2.0,), action_high=(2.0,))
        >>> parts = {"camera": Part((64, 64, 3), "uint8"), "speed": Part((2,))}
        >>> EnvSpec(observation=parts, action_size=1, episode_length=60, action_low=(-2.0,), action_high=(2.0,))
    """

    observation: Any  # an `Observation`, once `__post_init__` has converted what was given
    action_size: int
    episode_length: int
    action_low: tuple[float, ...]
    action_high: tuple[float, ...]
    descriptor: Descriptor | None = None
    frames_per_second: float = 30.0
    rewards: tuple[str, ...] = ()
    reward_weights: tuple[float, ...] = ()
    steps_per_start: int = 2

    def __post_init__(self) -> None:
        object.__setattr__(self, "observation", Observation.of(self.observation))

    @property
    def obs_size(self) -> int:
        """Numbers in an observation that is a vector; a CoveyError if it is not one."""
        return self.observation.size

    @property
    def described(self) -> bool:
        """True if the observation has the parts that `Described` adds: the return so far, and the descriptor."""
        return not self.observation.is_array and RETURN in self.observation.parts

    def descriptor_of(self, obs: Obs) -> Any:
        """Returns the state descriptors [..., size] that observations hold, in NumPy or JAX; size 0 if they hold none.

        They are the part `descriptor`, or the coordinates of a vector that the spec names.
        """
        if self.described and DESCRIPTOR in self.observation.parts:
            return obs[DESCRIPTOR]
        if self.descriptor is not None and self.observation.is_vector:
            return obs[..., list(self.descriptor.coordinates)]
        rows = self.observation.rows(obs)
        return np.zeros((*rows, 0), np.float32)

    def reward(self, parts: Any) -> Any:
        """Returns the reward [...] from its components [..., rewards], in NumPy or JAX; unchanged if it has none."""
        return parts @ np.asarray(self.reward_weights, np.float32) if self.rewards else parts

    @property
    def reward_shape(self) -> tuple[int, ...]:
        """The shape of `Outcome.reward`."""
        return (len(self.rewards),) if self.rewards else ()

    def to_box(self, action: Any, dtype: Any = np.float32) -> Any:
        """Rescales an action from [-1, 1] to the environment's box, and clips it there.

        Args:
            action: A NumPy or JAX array [..., action_size].
            dtype: The type of the box's limits and of the result.

        Returns:
            The rescaled action, an array of the same kind.

        Example:
            >>> covey.envs.make("pendulum").spec.to_box(np.array([0.5]))
            array([1.], dtype=float32)
        """
        low = np.asarray(self.action_low, dtype)
        high = np.asarray(self.action_high, dtype)
        return (low + (action + 1.0) / 2.0 * (high - low)).clip(low, high).astype(dtype)

    def from_box(self, action: Any) -> np.ndarray:
        """Rescales an action from the environment's box to [-1, 1].

        Args:
            action: A NumPy array [..., action_size].

        Returns:
            The rescaled action, clipped to [-1, 1].

        Example:
            >>> covey.envs.make("pendulum").spec.from_box(np.array([1.0]))
            array([0.5], dtype=float32)
        """
        low = np.asarray(self.action_low, np.float32)
        high = np.asarray(self.action_high, np.float32)
        return (2.0 * (action - low) / (high - low) - 1.0).clip(-1.0, 1.0).astype(np.float32)


class Step(NamedTuple):
    """Transitions as an agent receives them: [T, N, ...] fresh from the environment, [B, T, ...] from replay.

    Args:
        obs: Observations, an array or a dictionary of them (see `EnvSpec.observation`).
        action: Actions in [-1, 1].
        reward: Rewards of these actions.
        terminated: 1 if the action ended the task. A time limit does not end the task.
        next_obs: The true successors of `obs`, also at a time limit.
        valid: 0 if there is no transition, because the record closes an episode or the window already ended. Such an
            entry must not enter any loss or statistic.
        extras: Further arrays by name, which `act` returned in `Decision.extras`.
    """

    obs: Obs
    action: Array
    reward: Array
    terminated: Array
    next_obs: Obs
    valid: Array
    extras: dict[str, Array]
