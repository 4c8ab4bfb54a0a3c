"""The contract between an algorithm and the rest of covey.

Config never changes, Hyper is changed by tuning, State is changed by learning, Memory is changed within an episode.
Arguments come in the order state, hyper, data, key, static values.
"""

from typing import Any, NamedTuple, Protocol, TypeVar, runtime_checkable

from covey.observation import Obs
from covey.types import Array, Key, Metrics, Mode, Step

State = TypeVar("State")
Hyper = TypeVar("Hyper", contravariant=True)  # noqa: PLC0105  (the name is the concept)
Memory = TypeVar("Memory")


class SamplePlan(NamedTuple):
    """The batch that one call of `update` needs from replay.

    Args:
        batch_size: Windows in the batch.
        window: Steps in a window.
        updates: Gradient updates that one call makes of it. Trainers count these to keep `updates_per_step`.

    Example:
        >>> SamplePlan(batch_size=512, updates=2)  # two updates on 256 transitions each
    """

    batch_size: int
    window: int = 1
    updates: int = 1


class Decision(NamedTuple):
    """The result of `act`.

    Args:
        action: The action in [-1, 1], [action_size].
        memory: The memory after the decision.
        extras: Arrays to store in the replay with this step, by name. `update` receives them in `Step.extras`.

    Example:
        >>> Decision(action=jnp.tanh(mean), memory=(), extras={})
    """

    action: Array
    memory: Any
    extras: dict[str, Array]


class Policy(Protocol[State, Hyper, Memory]):
    """Acts in one environment. The caller maps it over many with `jax.vmap`.

    Example:
        >>> memory = policy.begin(state, hyper, key)
        >>> decision = policy.act(state, hyper, memory, obs, key, "greedy")
    """

    def begin(self, state: State, hyper: Hyper, key: Key) -> Memory:
        """Returns the memory at the first step of an episode.

        Args:
            state: The agent's state.
            hyper: Hyper-parameters.
            key: A random key.

        Returns:
            The memory; () for a policy without memory.
        """
        ...

    def act(self, state: State, hyper: Hyper, memory: Memory, obs: Obs, key: Key, mode: Mode) -> Decision:
        """Decides at one observation.

        Args:
            state: The agent's state.
            hyper: Hyper-parameters.
            memory: The memory from `begin` or from the decision before.
            obs: One observation: an array, or a dictionary of them, as `EnvSpec.observation` says.
            key: A random key.
            mode: Static: `random` (warm-up), `sample` (collection) or `greedy` (evaluation).

        Returns:
            The action, the new memory, and what the replay must store.
        """
        ...


@runtime_checkable
class Critic(Protocol[State, Hyper, Memory]):
    """An agent that can say what its critics think of an action. Optional: `run.q_values` needs it, training does not.

    Example:
        >>> values = agent.q_values(state, hyper, memory, obs, action, target=False)
    """

    def q_values(self, state: State, hyper: Hyper, memory: Memory, obs: Obs, action: Array, target: bool) -> Array:
        """Returns the value of an action at one observation, by every critic.

        Args:
            state: The agent's state.
            hyper: Hyper-parameters.
            memory: The memory before the decision, as for `act`.
            obs: One observation, not normalised.
            action: The action in [-1, 1], [action_size].
            target: Static: ask the target critics instead of the online ones.

        Returns:
            The values [critics], of the discounted sum of scaled rewards.
        """
        ...


class Agent(Policy[State, Hyper, Memory], Protocol):
    """A policy that learns. Every method is a pure function, which the caller compiles.

    An agent is a frozen dataclass of its config and the environment's spec, so equal agents share compiled programs.

    Example:
        >>> state = agent.init(hyper, key)
        >>> batch = replay.sample(replay_state, agent.plan, key)
        >>> state, metrics = agent.update(state, hyper, batch, key)
    """

    @property
    def plan(self) -> SamplePlan:
        """The batch that `update` needs."""
        ...

    def init(self, hyper: Hyper, key: Key) -> State:
        """Returns a new state.

        Args:
            hyper: Hyper-parameters.
            key: A random key; each part of the state is drawn from a key of its own.

        Returns:
            The state.
        """
        ...

    def observe(self, state: State, hyper: Hyper, rollout: Step, key: Key) -> State:
        """Updates running statistics with fresh data. Each step is observed once; no gradient step is made here.

        Args:
            state: The agent's state.
            hyper: Hyper-parameters.
            rollout: Steps [T, N] in the order in which they happened.
            key: A random key.

        Returns:
            The new state.
        """
        ...

    def update(self, state: State, hyper: Hyper, batch: Step, key: Key) -> tuple[State, Metrics]:
        """Learns from a batch, with `plan.updates` gradient updates.

        Args:
            state: The agent's state.
            hyper: Hyper-parameters.
            batch: Windows [plan.batch_size, plan.window] from replay. Entries with `valid` 0 must not have any effect.
            key: A random key.

        Returns:
            The new state, and metrics by name.
        """
        ...
