"""The contract between an algorithm and the rest of covey.

Config never changes, Hyper is what tuning changes, State is what learning changes, Memory is what an episode changes.
Arguments come in the order state, hyper, data, key, static values.
"""

from typing import Any, Literal, NamedTuple, Protocol, TypeVar

from covey.types import Array, Key, Metrics, Mode, Step

Scale = Literal["linear", "log", "one_minus"]

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


class Range(NamedTuple):
    """Where a hyper-parameter is searched, and between which values it makes sense at all.

    `one_minus` is logarithmic in 1 - value, as a discount wants. What is not `searched` stays as configured, unless the
    user asks: what was learnt at one scale of rewards, for one, is wrong at another.
    """

    low: float
    high: float
    scale: Scale = "log"
    least: float = 0.0
    most: float = 1e6
    searched: bool = True


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


class Paths(NamedTuple):
    """Where skills lead: skills [S, K], observations [S, N, T + 1, ...], and whether each step was made [S, N, T]."""

    skills: Array
    obs: Array
    valid: Array


class SkillAgent(Agent[State, Hyper, Memory], Protocol):
    """An agent that learns skills: its memory holds one, and it can be told which."""

    def show_skills(self) -> Array:
        """Skills [S, K] that stand for all."""
        ...

    def follow(self, skill: Array) -> Memory:
        """The memory at the first step of an episode that follows a skill [K]; `greedy` acting keeps it."""
        ...

    def measure(self, state: State, hyper: Hyper, paths: Paths, key: Key) -> Metrics:
        """How well the skills differ, and how well they are known, where greedy acting led."""
        ...


class Entry(NamedTuple):
    """An algorithm in the registry: its Config and Hyper types, the ranges to tune, and `make(config, spec)`.

    Every hyper-parameter has a range, by its name; within a nested Hyper by its path, as in `sac.actor_lr`.
    `skills`: it makes a SkillAgent. That is given the descriptor and the return behind each observation, and its last
    policy counts as the best one, because no reward says which is.
    """

    config: Any
    hyper: Any
    space: dict[str, Range]
    make: Any
    summary: str
    skills: bool = False
