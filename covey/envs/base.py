"""What covey asks of an environment."""

from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np

from covey.errors import require
from covey.types import Array, EnvSpec, Key


class Outcome(NamedTuple):
    """What an action led to: the observation on arrival, the reward, and whether the task ended there.

    The reward is a number, or a vector where `spec.rewards` names its parts.

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


def check_env(env: Env) -> None:
    """Raises a CoveyError where an environment does not return what its spec promises. Computes nothing."""

    def probe() -> tuple[Any, ...]:
        key = jax.random.key(0)
        state, obs = env.reset(key)
        after, outcome = env.step(state, jnp.zeros(env.spec.action_size), key)
        return state, obs, after, outcome

    state, obs, after, outcome = jax.eval_shape(probe)
    require(
        len(env.spec.rewards) == len(env.spec.reward_weights),
        f"The environment {type(env).__name__} names {len(env.spec.rewards)} rewards and gives "
        f"{len(env.spec.reward_weights)} weights.",
    )
    size, name = env.spec.obs_size, type(env).__name__
    expected = [
        ("the observation of reset", obs, (size,), "float32"),
        ("the observation of step", outcome.obs, (size,), "float32"),
        ("the reward", outcome.reward, (len(env.spec.rewards),) if env.spec.rewards else (), "float32"),
        ("terminated", outcome.terminated, (), "bool"),
    ]
    for what, found, shape, dtype in expected:
        require(
            found.shape == shape and found.dtype == dtype,
            f"The environment {name} breaks its spec: {what} is {found.dtype}{list(found.shape)} and must be "
            f"{dtype}{list(shape)}.",
        )
    kinds = [jax.tree.map(lambda x: (x.shape, x.dtype), s) for s in (state, after)]
    require(
        kinds[0] == kinds[1],
        f"The environment {name} changes the shape or type of its state: {kinds[0]} on reset, {kinds[1]} on step.",
    )
