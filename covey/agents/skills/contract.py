"""The contract of an agent that learns skills."""

from typing import NamedTuple, Protocol

from covey.agent import Agent, Hyper, Memory, State
from covey.types import Array, Key, Metrics


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

    def memory_for(self, skill: Array) -> Memory:
        """The memory at the first step of an episode that follows a skill [K]; `greedy` acting keeps it."""
        ...

    def measure(self, state: State, hyper: Hyper, paths: Paths, key: Key) -> Metrics:
        """How well the skills differ, and how well they are known, where greedy acting led."""
        ...
