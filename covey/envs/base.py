"""What covey asks of an environment."""

from typing import Any, NamedTuple, Protocol, runtime_checkable

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


class HostStep(NamedTuple):
    """What N host environments answered, in NumPy: obs [N, D], and [N] each of the others.

    `terminated`: the task ended; `truncated`: the episode was cut, as by a time limit; `obs` is then the final
    observation. `broken`: there was no answer, because a process died or hung; `obs` already opens another episode,
    and the action led nowhere.
    """

    obs: np.ndarray
    reward: np.ndarray
    terminated: np.ndarray
    truncated: np.ndarray
    broken: np.ndarray


class HostBatch(Protocol):
    """N open environments, stepped together.

    Resets are Gymnasium's next-step resets: after a step that ended an episode, the next one ignores the action, begins
    another episode and gives its first observation, with a reward of 0.
    """

    def reset(self, seeds: np.ndarray) -> np.ndarray:
        """Begins new episodes from seeds [N] (uint32); the observations [N, D]."""
        ...

    def restart(self, seeds: np.ndarray) -> None:
        """Gives every episode up: the next step begins new ones, from these seeds."""
        ...

    def step(self, actions: np.ndarray) -> HostStep:
        """Takes actions [N, A] in [-1, 1]."""
        ...

    def save(self) -> np.ndarray:
        """All that the environments will do next depends on, as bytes [N, `state_size`].

        The first byte is not 0; one that can't be saved any more, though it could at first, gives zeros.
        """
        ...

    def load(self, states: np.ndarray) -> None:
        """Goes on where `save` was called."""
        ...

    def frame(self, number: int) -> np.ndarray:
        """A picture of one of them, [height, width, 3], uint8."""
        ...

    def close(self) -> None: ...


@runtime_checkable
class HostEnv(Protocol):
    """An environment that runs outside of JAX, in Python or C++; many are opened at once."""

    @property
    def spec(self) -> EnvSpec: ...

    @property
    def state_size(self) -> int:
        """The bytes of `HostBatch.save`; 0 where the state can't be had, and episodes restart when a run goes on."""
        ...

    @property
    def unsaved(self) -> str:
        """Why the state can't be had; empty where it can."""
        ...

    def open(self, count: int, workers: int = 0, draws: bool = False) -> HostBatch:
        """A batch of `count`, in this process or spread over some `workers`; `draws`: its frames are wanted."""
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
