"""The contract between an agent that learns skills and the rest of covey."""

from typing import NamedTuple, Protocol

from covey.agent import Agent, Hyper, Memory, State
from covey.observation import Obs
from covey.types import Array, Key, Metrics


class Paths(NamedTuple):
    """Episodes of skills: S skills, N episodes of each, T steps.

    Args:
        skills: Skills [S, K].
        obs: Observations [S, N, T + 1, ...], an array or a dictionary of them.
        valid: 1 for steps that were made, 0 after the end of an episode, [S, N, T].
    """

    skills: Array
    obs: Obs
    valid: Array


class SkillAgent(Agent[State, Hyper, Memory], Protocol):
    """An agent that learns skills. Its memory holds the current skill, which a caller can choose.

    Example:
        >>> agent = covey.DIAYN(covey.DIAYNConfig(), Described(env).spec)
        >>> memory = agent.memory_for(agent.show_skills()[0])
        >>> decision = agent.act(state, hyper, memory, obs, key, "greedy")
    """

    def show_skills(self) -> Array:
        """Returns skills [S, K] that represent all skills in plots and measures."""
        ...

    def memory_for(self, skill: Array) -> Memory:
        """Returns the memory at the first step of an episode with a given skill.

        Args:
            skill: The skill [K]. Acting with mode `greedy` keeps it for the whole episode.

        Returns:
            The memory.
        """
        ...

    def skill_reward(self, state: State, hyper: Hyper, memory: Memory, obs: Obs, next_obs: Obs, key: Key) -> Array:
        """Returns the intrinsic reward of steps, without the environment's reward and without SMERL's gate.

        Args:
            state: The agent's state.
            hyper: Hyper-parameters.
            memory: Memories [rows] before the steps, with their skills.
            obs: Observations [rows, ...] before the steps.
            next_obs: Observations after them.
            key: A random key.

        Returns:
            One reward for each step, [rows].
        """
        ...

    def measure(self, state: State, hyper: Hyper, paths: Paths, key: Key) -> Metrics:
        """Measures how well the skills differ, on episodes of the greedy policy.

        Args:
            state: The agent's state.
            hyper: Hyper-parameters.
            paths: Episodes of the skills.
            key: A random key.

        Returns:
            Measures by name.
        """
        ...
