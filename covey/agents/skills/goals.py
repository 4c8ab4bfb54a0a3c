"""Goals for skills: a policy over skills visits goals in the descriptor's space, one after the other."""

from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import jax.numpy as jnp

from covey.agent import Agent, Decision, Policy
from covey.agents.skills.skill_sac import SkillMemory, SkillSAC
from covey.errors import require, require_at_least
from covey.nn.held_noise import Held
from covey.observation import DESCRIPTOR, Obs
from covey.types import Array, EnvSpec, Key, Mode


class GoalAgent(Protocol):
    """A skill agent whose skills reach goals."""

    @property
    def spec(self) -> EnvSpec: ...

    @property
    def skill_sac(self) -> SkillSAC: ...


class SteeredAgent(Agent[Any, Any, Any], Protocol):
    """A skill agent that knows which of its skills leads to a goal."""

    @property
    def spec(self) -> EnvSpec: ...

    @property
    def skill_sac(self) -> SkillSAC: ...

    def memory_for(self, skill: Array) -> SkillMemory:
        """Returns the memory at the first step of an episode with a given skill [K]."""
        ...

    def skill_for(self, state: Any, where: Array, goal: Array) -> Array:
        """Returns the skill [K] that leads from a descriptor [D] to a goal [D]."""
        ...


class GoalPolicy(Policy[Any, Any, Any], Protocol):
    """A policy that reaches goals with the skills of an agent. Its state is a `PlannerState`."""

    @property
    def agent(self) -> GoalAgent: ...


@dataclass(frozen=True)
class Planning:
    """Settings of the planner.

    Example:
        >>> Planning(horizon=4, hold=10)
    """

    horizon: int = 1
    """Skills in a plan."""
    hold: int = 10
    """Steps that each skill in a plan lasts."""
    candidates: int = 50
    """Plans that are compared in each refinement."""
    refinements: int = 10
    """Rounds of averaging the best plans and drawing new ones around the average."""
    temperature: float = 10.0
    """How much better plans count in the average: their weight is exp(-temperature * cost)."""
    smoothing: float = 0.9
    """Share of a skill in a plan that comes from the skill before it."""

    def __post_init__(self) -> None:
        names = ("horizon", "hold", "candidates", "refinements")
        require_at_least(self, 1, *names)
        for name in names:
            value = getattr(self, name)
            require(value <= 10_000, f"`{name}` must be at most 10,000, not {value}.", self)
        finite = 0 < self.temperature < float("inf")
        require(finite, f"`temperature` must be positive, not {self.temperature:g}.", self)
        require(0 <= self.smoothing < 1, f"`smoothing` must lie in [0, 1), not {self.smoothing:g}.", self)


class PlannerState(NamedTuple):
    """The state of a policy that reaches goals with skills.

    Args:
        agent: The agent's state.
        goals: Descriptors to visit in turn, [G, D].
        radius: A goal counts as reached within this distance, [].
    """

    agent: Any
    goals: Array
    radius: Array


def next_goal(state: PlannerState, where: Array, reached: Array) -> tuple[Array, Array]:
    """Returns the number of goals reached at a descriptor [D], and the goal [D] to go to; at the end the last one.

    Args:
        state: The goals.
        where: The descriptor now.
        reached: The number of goals reached before.
    """
    count = state.goals.shape[0]
    here = distance(where, state.goals[jnp.minimum(reached, count - 1)]) <= state.radius
    reached = reached + (here & (reached < count)).astype(jnp.int32)
    return reached, state.goals[jnp.minimum(reached, count - 1)]


class TowardsMemory(NamedTuple):
    """The memory of `Towards` within an episode.

    Args:
        reached: Number of goals reached.
        noise: The noise that the agent holds; () if it holds none.
    """

    reached: Array
    noise: Held = ()


@dataclass(frozen=True)
class Towards:
    """A policy that reaches goals with the skills of an agent: at every step it takes the agent's skill for the goal.

    Args:
        agent: A trained agent, such as METRA or DIAYN.
        planning: The default settings; there is nothing to plan.

    Example:
        >>> policy = Towards(agent)
        >>> state = PlannerState(agent_state, goals=jnp.array([[3.0, 4.0]]), radius=jnp.asarray(0.5))
        >>> decision = policy.act(state, hyper, policy.begin(state, hyper, key), obs, key, "greedy")
    """

    agent: SteeredAgent
    planning: Planning = field(default_factory=Planning)

    def __post_init__(self) -> None:
        require(
            self.planning == Planning(),
            "This agent makes no plan: at every step it takes its skill for the goal. Leave `planning` out.",
            self.planning,
        )

    def begin(self, state: PlannerState, hyper: Any, key: Key) -> TowardsMemory:
        """Returns the memory before the first step of an episode."""
        return TowardsMemory(jnp.zeros((), jnp.int32), self.agent.skill_sac.sac.noise.begin())

    def act(self, state: PlannerState, hyper: Any, memory: TowardsMemory, obs: Obs, key: Key, mode: Mode) -> Decision:
        """Decides at one observation."""
        where = self.agent.skill_sac.view.of(obs)
        reached, goal = next_goal(state, where, memory.reached)
        skill = self.agent.skill_for(state.agent, where, goal)
        of_agent = self.agent.memory_for(skill)._replace(noise=memory.noise)
        decision = self.agent.act(state.agent, hyper, of_agent, obs, key, mode)
        extras = {"skill": skill, "reached": reached.astype(jnp.float32) / state.goals.shape[0]}
        return Decision(decision.action, TowardsMemory(reached, decision.memory.noise), extras)


def goal_limits(agent: GoalAgent) -> tuple[list[float], list[float]] | None:
    """Returns the environment's limits of the goal's coordinates; None unless skills differ in its descriptor."""
    own = agent.spec.descriptor
    chosen = agent.skill_sac.view
    if own is None or chosen.part != DESCRIPTOR:
        return None
    return [own.low[i] for i in chosen.descriptor], [own.high[i] for i in chosen.descriptor]


def goal_names(agent: GoalAgent) -> list[str]:
    """Returns the names of the goal's coordinates."""
    own = agent.spec.descriptor
    chosen = agent.skill_sac.view
    return [own.names[i] if own and chosen.part == DESCRIPTOR else f"obs{i}" for i in chosen.descriptor]


def distance(x: Any, y: Any) -> Array:
    """Returns the distance of vectors [..., D]."""
    return jnp.sqrt(jnp.sum((x - y) ** 2, axis=-1) + 1e-12)
