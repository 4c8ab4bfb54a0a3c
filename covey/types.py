"""The words that every other module uses. Axes: P members, N environments, T time, B batch."""

from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

Array = jax.Array
Key = jax.Array
Params = Any
Metrics = dict[str, Array]
"""Named numbers; a vector is a histogram, the shares of as many equal bins of [0, 1]."""
Scalar = float | Array
"""A Python float where it is declared, a traced scalar where it is used."""

Mode = Literal["random", "sample", "greedy"]
"""How a policy acts: uniform on the box (warm-up), exploring (collection), deterministic (evaluation)."""


@dataclass(frozen=True)
class Descriptor:
    """What an environment tells of its state in a few numbers: the space of skills and of diversity.

    `reduce` says how the descriptor of a whole episode comes from those of its states.
    """

    names: tuple[str, ...]
    low: tuple[float, ...]
    high: tuple[float, ...]
    is_position: bool = True
    reduce: Literal["mean", "final"] = "final"
    coordinates: tuple[int, ...] = ()
    """Which coordinates of the observation tell the same, in the order of `names`; none where it does not show them."""

    @property
    def size(self) -> int:
        return len(self.names)


@dataclass(frozen=True)
class EnvSpec:
    """The sizes and limits of an environment. Agents act in [-1, 1]; the environment rescales to its own box."""

    obs_size: int
    action_size: int
    episode_length: int
    action_low: tuple[float, ...]
    action_high: tuple[float, ...]
    descriptor: Descriptor | None = None
    frames_per_second: float = 30.0
    rewards: tuple[str, ...] = ()
    """Names of the parts of the reward, if it has several: `Outcome.reward` is then a vector of them."""
    reward_weights: tuple[float, ...] = ()
    """Their weights: the reward is the weighted sum."""
    described: bool = False
    """Behind what the environment shows, the observation also holds the descriptor and the episode's return so far."""
    steps_per_start: int = 2
    """Training draws one start state for so many steps of an environment: more where a reset is dear. Episodes that
    are shorter share them for some hundred steps; with 2, none ever does."""

    @property
    def shown_size(self) -> int:
        """How many numbers of an observation the environment itself shows."""
        return self.obs_size - self.described * ((self.descriptor.size if self.descriptor else 0) + 1)

    def reward(self, parts: Array) -> Array:
        """The reward [...] of its parts [..., rewards]; the reward itself where it has none."""
        return parts @ jnp.asarray(self.reward_weights) if self.rewards else parts

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


class Step(NamedTuple):
    """Transitions as an agent sees them: [T, N, ...] fresh from the environment, [B, T, ...] from replay.

    `next_obs` is the true successor of `obs`, also at a time limit. Where `valid` is false there is no transition
    (the record closes an episode, or the window already ended): such an entry must not enter any loss or statistic.
    """

    obs: Array
    action: Array
    reward: Array
    terminated: Array
    next_obs: Array
    valid: Array
    extras: dict[str, Array]
