"""The contracts of environments: `Env` for those compiled by JAX, `HostEnv` for those that run outside of it."""

from typing import Any, NamedTuple, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np

from covey.errors import require
from covey.observation import Obs
from covey.types import Array, EnvSpec, Key


class Outcome(NamedTuple):
    """The result of a step.

    Args:
        obs: The observation after the step, an array or a dictionary of them, as `spec.observation` says.
        reward: A float32 scalar; a vector if `spec.rewards` names the parts of the reward.
        terminated: True if the task ended in this state. A time limit does not terminate an episode: the trainer
            applies `spec.episode_length` and treats it as a truncation.
    """

    obs: Obs
    reward: Array
    terminated: Array


class Env(Protocol):
    """An environment in pure JAX: `reset` and `step` are functions of their arguments alone.

    Write it for one environment; covey maps it over many. It never resets itself. `covey check-env NAME` checks an
    environment against this contract.

    Example:
        >>> @dataclass(frozen=True)
        ... class Line:
        ...     @property
        ...     def spec(self):
        ...         return EnvSpec(1, 1, episode_length=100, action_low=(-1.0,), action_high=(1.0,))
        ...
        ...     def reset(self, key):
        ...         x = jax.random.uniform(key, (1,))
        ...         return x, x
        ...
        ...     def step(self, state, action, key):
        ...         x = state + 0.1 * jnp.clip(action, -1.0, 1.0)
        ...         return x, Outcome(x, -jnp.sum(x**2), jnp.zeros((), bool))
        ...
        ...     def descriptor(self, state):
        ...         return jnp.zeros(0)
        ...
        ...     def frame(self, state):
        ...         raise CoveyError("Line has no pictures.")
    """

    @property
    def spec(self) -> EnvSpec: ...

    def reset(self, key: Key) -> tuple[Any, Obs]:
        """Starts an episode.

        Args:
            key: The only source of randomness.

        Returns:
            A state drawn from the start distribution (any tree of arrays), and its observation.
        """
        ...

    def step(self, state: Any, action: Array, key: Key) -> tuple[Any, Outcome]:
        """Takes one step.

        Args:
            state: A state that `reset` or `step` returned.
            action: [spec.action_size] in [-1, 1]; values outside are clipped by the environment.
            key: The only source of randomness.

        Returns:
            The next state, of the same shapes and types, and the outcome.
        """
        ...

    def descriptor(self, state: Any) -> Array:
        """Returns the state descriptor, [spec.descriptor.size], float32; empty if `spec.descriptor` is None."""
        ...

    def frame(self, state: Any) -> np.ndarray:
        """Draws a state whose leaves are NumPy arrays.

        Returns:
            A picture [height, width, 3], uint8. Raises a CoveyError if the environment has no pictures.
        """
        ...


class HostStep(NamedTuple):
    """The results of one step of N host environments, as NumPy arrays.

    Args:
        obs: Observations [N, ...], an array or a dictionary of them. At the end of an episode, the final observation.
        reward: [N], float32; [N, parts] if `spec.rewards` names the parts of the reward.
        terminated: [N], bool: the task ended.
        truncated: [N], bool: the episode was cut off, for example by a time limit.
        broken: [N], bool: the environment's process died or hung. There is no transition, and `obs` is already the
            first observation of a new episode.
    """

    obs: Any
    reward: np.ndarray
    terminated: np.ndarray
    truncated: np.ndarray
    broken: np.ndarray


class HostBatch(Protocol):
    """N open host environments that are stepped together.

    Resets follow Gymnasium's next-step mode: the step after the end of an episode ignores the action, starts the next
    episode, and returns its first observation with a reward of 0.

    Example:
        >>> batch = covey.envs.make("gymnasium:Hopper-v5").open(count=2)
        >>> obs = batch.reset(np.array([0, 1], np.uint32))
        >>> step = batch.step(np.zeros((2, 3)))
        >>> batch.close()
    """

    def reset(self, seeds: np.ndarray) -> Any:
        """Starts new episodes.

        Args:
            seeds: [N], uint32.

        Returns:
            The first observations [N, ...], an array or a dictionary of them.
        """
        ...

    def restart(self, seeds: np.ndarray) -> None:
        """Abandons all episodes: the next step starts new ones from these seeds [N]."""
        ...

    def step(self, actions: np.ndarray) -> HostStep:
        """Takes one step in every environment.

        Args:
            actions: [N, action_size] in [-1, 1].
        """
        ...

    def save(self) -> np.ndarray:
        """Returns the complete states as bytes [N, HostEnv.state_size].

        The first byte of a state is not 0. If an environment can no longer be saved, its row is zeros.
        """
        ...

    def load(self, states: np.ndarray) -> None:
        """Restores states that `save` returned."""
        ...

    def frame(self, index: int) -> np.ndarray:
        """Draws one environment of the batch: [height, width, 3], uint8."""
        ...

    def close(self) -> None:
        """Closes the environments and ends their processes."""
        ...


@runtime_checkable
class HostEnv(Protocol):
    """An environment that runs outside of JAX, in Python or C++. `open` starts a batch of them."""

    @property
    def spec(self) -> EnvSpec: ...

    @property
    def state_size(self) -> int:
        """Bytes per environment of `HostBatch.save`; 0 if states can't be saved and resumed runs start new episodes."""
        ...

    @property
    def unsaved(self) -> str:
        """The reason why states can't be saved; empty if they can."""
        ...

    def open(self, count: int, workers: int = 0, draws: bool = False) -> HostBatch:
        """Opens a batch of environments.

        Args:
            count: The number of environments.
            workers: Worker processes (or threads) that step them; 0 steps them in this process.
            draws: Whether `HostBatch.frame` will be called.
        """
        ...


def check_env(env: Env) -> None:
    """Raises a CoveyError if an environment's shapes or types differ from its spec. Traces it, computes nothing."""

    def probe() -> tuple[Any, ...]:
        key = jax.random.key(0)
        state, obs = env.reset(key)
        after, outcome = env.step(state, jnp.zeros(env.spec.action_size), key)
        return state, obs, after, outcome

    state, obs, after, outcome = jax.eval_shape(probe)
    name = type(env).__name__
    parts = len(env.spec.rewards)
    require(
        parts == len(env.spec.reward_weights),
        f"The environment {name} has {parts} names in spec.rewards and {len(env.spec.reward_weights)} numbers in "
        "spec.reward_weights.",
    )
    expected = [
        *_expected_parts("the observation of reset", obs, env.spec, name),
        *_expected_parts("the observation of step", outcome.obs, env.spec, name),
        ("the reward", outcome.reward, (parts,) if parts else (), "float32"),
        ("terminated", outcome.terminated, (), "bool"),
    ]
    for what, found, shape, dtype in expected:
        require(
            found.shape == shape and found.dtype == dtype,
            f"The environment {name} does not match its spec: {what} is {found.dtype}{list(found.shape)} and must be "
            f"{dtype}{list(shape)}.",
        )
    kinds = [jax.tree.map(lambda x: (x.shape, x.dtype), s) for s in (state, after)]
    require(
        kinds[0] == kinds[1],
        f"The environment {name} changes the shape or type of its state: {kinds[0]} after reset, {kinds[1]} after "
        "step.",
    )


def _expected_parts(what: str, obs: Any, spec: EnvSpec, name: str) -> list[tuple[str, Any, tuple[int, ...], str]]:
    """Returns what is found and expected of each part of an observation. Raises a CoveyError if the parts differ."""
    form = spec.observation
    parts = form.parts
    if form.is_array:
        require(hasattr(obs, "shape"), f"The environment {name} does not match its spec: {what} must be one array.")
    else:
        require(
            isinstance(obs, dict) and obs.keys() == parts.keys(),
            f"The environment {name} does not match its spec: {what} must be a dictionary with "
            f"{', '.join(parts)}, not {', '.join(map(str, obs)) if isinstance(obs, dict) else 'an array'}.",
        )
    label = what if form.is_array else f"{what}, {{}},"
    return [(label.format(n), x, parts[n].shown, parts[n].dtype) for n, x in form.by_name(obs).items()]
