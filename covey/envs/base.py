"""What covey asks of an environment."""

from typing import Any, NamedTuple, Protocol

import numpy as np

from covey.types import Array, EnvSpec, Key


class Outcome(NamedTuple):
    """What an action led to: the observation on arrival, the reward, and whether the task ended there.

    A time limit is not an end: the trainer applies `spec.episode_length`.
    """

    obs: Array
    reward: Array
    terminated: Array


class Env(Protocol):
    """One environment, pure in JAX, written for one and mapped by the caller. It never resets itself."""

    @property
    def spec(self) -> EnvSpec: ...

    def reset(self, key: Key) -> tuple[Any, Array]:
        """A start state drawn from the start distribution, and its observation."""
        ...

    def step(self, state: Any, action: Array, key: Key) -> tuple[Any, Outcome]:
        """The next state and what the action in [-1, 1] led to."""
        ...

    def descriptor(self, state: Any) -> Array:
        """The state descriptor, [spec.descriptor.size]."""
        ...

    def frame(self, state: Any) -> np.ndarray:
        """A picture of a state (leaves are NumPy arrays): [height, width, 3], uint8."""
        ...
