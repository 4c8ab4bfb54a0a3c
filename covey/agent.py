"""The contract between an algorithm and the rest of covey.

Config never changes, Hyper is what tuning changes, State is what learning changes, Memory is what an episode changes.
Arguments come in the order state, hyper, data, key, static values.
"""

from typing import Any, NamedTuple, Protocol, TypeVar

from covey.types import Array, Key, Metrics, Mode, Step

State = TypeVar("State")
Hyper = TypeVar("Hyper", contravariant=True)  # noqa: PLC0105  (the name is the concept)
Memory = TypeVar("Memory")


class SamplePlan(NamedTuple):
    """What one call of `update` wants from replay, and how many gradient updates it makes of it."""

    batch_size: int
    window: int = 1
    updates: int = 1


class Decision(NamedTuple):
    """An action in [-1, 1], the memory after it, and what must be stored with the step."""

    action: Array
    memory: Any
    extras: dict[str, Array]


class Policy(Protocol[State, Hyper, Memory]):
    """Decides for one environment; the caller maps it over many."""

    def begin(self, state: State, hyper: Hyper, key: Key) -> Memory:
        """The memory at the first step of an episode."""
        ...

    def act(self, state: State, hyper: Hyper, memory: Memory, obs: Array, key: Key, mode: Mode) -> Decision:
        """The decision at one observation. `mode` is static."""
        ...


class Agent(Policy[State, Hyper, Memory], Protocol):
    """A policy that learns."""

    @property
    def plan(self) -> SamplePlan: ...

    def init(self, hyper: Hyper, key: Key) -> State:
        """A new state, every part of it from its own random stream."""
        ...

    def observe(self, state: State, hyper: Hyper, rollout: Step, key: Key) -> State:
        """Fresh data [T, N], seen once: normalisers and statistics."""
        ...

    def update(self, state: State, hyper: Hyper, batch: Step, key: Key) -> tuple[State, Metrics]:
        """Learns from replay [B, T], `plan.updates` gradient updates."""
        ...
