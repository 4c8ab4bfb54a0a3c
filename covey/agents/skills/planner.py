"""Planning with skills, and no further training: model-predictive control in the dynamics that DADS has learnt.

Continuous skills by MPPI (Williams et al., 2016), as in the paper; discrete ones by search.
"""

from dataclasses import dataclass, field
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from covey.agent import Decision
from covey.agents.skills.dads import DADS, DADSHyper, DADSState
from covey.errors import require
from covey.types import Array, Key, Mode

MOST_SEQUENCES = 1024
"""As many sequences of discrete skills are tried one and all; of more, some draws."""
SHRINK = 0.7
"""How much closer the candidates of each refinement lie to the plan than those of the one before."""


@dataclass(frozen=True)
class Planning:
    """How far and how hard to think."""

    horizon: int = 1
    """Skills in a plan."""
    hold: int = 10
    """Steps that each is followed for."""
    candidates: int = 50
    """Plans that are tried at once."""
    refinements: int = 10
    """Times that the best of them are averaged and new ones drawn around."""
    temperature: float = 10.0
    """How much the best of them count in the average: weights are exp(-temperature * cost)."""
    smoothing: float = 0.9
    """How much of a skill in a plan comes from the one before it."""

    def __post_init__(self) -> None:
        for name in ("horizon", "hold", "candidates", "refinements"):
            value = getattr(self, name)
            require(value >= 1, f"--planning.{name} must be at least 1, not {value}.")
            require(value <= 10_000, f"--planning.{name} must be at most 10,000, not {value}.")
        require(
            0 < self.temperature < float("inf"), f"--planning.temperature must be positive, not {self.temperature:g}."
        )
        require(0 <= self.smoothing < 1, f"--planning.smoothing must lie in [0, 1), not {self.smoothing:g}.")


class PlannerState(NamedTuple):
    """The agent's state, the goals [G, D] to visit in turn, and how near [] is there."""

    agent: DADSState
    goals: Array
    radius: Array


class PlannerMemory(NamedTuple):
    """The plan [horizon, K], the skill [K] being followed, for how many steps, and how many goals were reached."""

    plan: Array
    skill: Array
    age: Array
    reached: Array


@dataclass(frozen=True)
class Planner:
    """A policy that steers an agent's skills from goal to goal. It decides anew every `hold` steps, and at a goal."""

    agent: DADS
    planning: Planning = field(default_factory=Planning)

    @property
    def exhaustive(self) -> bool:
        skills = self.agent.config.skills
        return skills.discrete and skills.number**self.planning.horizon <= MOST_SEQUENCES

    def begin(self, state: PlannerState, hyper: DADSHyper, key: Key) -> PlannerMemory:
        size, zero = self.agent.config.skills.size, jnp.zeros((), jnp.int32)
        return PlannerMemory(jnp.zeros((self.planning.horizon, size)), jnp.zeros(size), zero, zero)

    def act(
        self, state: PlannerState, hyper: DADSHyper, memory: PlannerMemory, obs: Array, key: Key, mode: Mode
    ) -> Decision:
        key_plan, key_act = jax.random.split(key)
        count = state.goals.shape[0]
        where = obs[jnp.array(self.agent.skill_sac.view.descriptor)]
        here = _distance(where, state.goals[jnp.minimum(memory.reached, count - 1)]) <= state.radius
        arrived = here & (memory.reached < count)
        reached = memory.reached + arrived.astype(jnp.int32)
        goal = state.goals[jnp.minimum(reached, count - 1)]
        due = arrived | (memory.age % self.planning.hold == 0)
        # The first skill has been followed; the last one is the first guess at the one that joins.
        rest = jnp.concatenate([memory.plan[1:], memory.plan[-1:]])
        plan = self._refined(state, jnp.where(due, rest, memory.plan), where, goal, due, key_plan)
        skill = jnp.where(due, plan[0], memory.skill)
        decision = self.agent.act(state.agent, hyper, self.agent.memory_for(skill), obs, key_act, mode)
        age = jnp.where(due, 0, memory.age) + 1
        extras = {"skill": skill, "reached": reached.astype(jnp.float32) / count}
        return Decision(decision.action, PlannerMemory(plan, skill, age, reached), extras)

    def cost(self, state: PlannerState, plans: Array, where: Array, goal: Array) -> Array:
        """The distance to the goal, summed up over the steps that the dynamics predict for plans [C, horizon, K]."""

        def step(carry: tuple[Array, Array], skill: Array) -> tuple[tuple[Array, Array], None]:
            descriptor, cost = carry
            descriptor = self.agent.predict(state.agent, descriptor, skill)
            return (descriptor, cost + _distance(descriptor, goal[None])), None

        start = (jnp.broadcast_to(where, (plans.shape[0], *where.shape)), jnp.zeros(plans.shape[0]))
        skills = jnp.repeat(jnp.moveaxis(plans, 1, 0), self.planning.hold, axis=0)
        return jax.lax.scan(step, start, skills)[0][1]

    def _refined(self, state: PlannerState, plan: Array, where: Array, goal: Array, due: Array, key: Key) -> Array:
        """A better plan, or where none is due the same. (A loop of no rounds costs nothing, as a branch would.)"""
        discrete = self.agent.config.skills.discrete
        rounds = jnp.where(due, 1 if discrete else self.planning.refinements, 0)

        def refine(i: Array, plan: Array) -> Array:
            plans = self._candidates(plan, i, jax.random.fold_in(key, i))
            cost = self.cost(state, plans, where, goal)
            if discrete:
                return plans[jnp.argmin(cost)]
            weight = jax.nn.softmax(-self.planning.temperature * cost)
            return jnp.sum(weight[:, None, None] * plans, axis=0)

        return jax.lax.fori_loop(0, rounds, refine, plan)

    def _candidates(self, plan: Array, i: Array, key: Key) -> Array:
        """Plans to try in refinement i, [C, horizon, K]: all, or draws; of continuous skills, near the plan."""
        skills, horizon = self.agent.config.skills, self.planning.horizon
        if self.exhaustive:
            each = jnp.meshgrid(*[jnp.arange(skills.number)] * horizon, indexing="ij")
            return jax.nn.one_hot(jnp.stack(each, axis=-1).reshape(-1, horizon), skills.number)
        if skills.discrete:
            return skills.draw(key, self.planning.candidates * horizon).reshape(-1, horizon, skills.number)
        noise = jax.random.normal(key, (self.planning.candidates, horizon, skills.size)).at[0].set(0.0)
        edge = 2.0 if skills.prior == "normal" else 1.0
        drawn = jnp.clip(plan[None] + SHRINK ** i.astype(jnp.float32) * noise, -edge, edge)
        smooth = [drawn[:, 0]]
        for h in range(1, horizon):
            smooth.append(self.planning.smoothing * smooth[-1] + (1.0 - self.planning.smoothing) * drawn[:, h])
        return jnp.stack(smooth, axis=1)


def goal_limits(agent: DADS) -> tuple[list[float], list[float]] | None:
    """Between which descriptors an environment says that it plays, if skills differ in its own descriptor."""
    own, first = agent.spec.descriptor, agent.spec.shown_size
    coordinates = [i - first for i in agent.skill_sac.view.descriptor]
    if own is None or min(coordinates) < 0:
        return None
    return [own.low[i] for i in coordinates], [own.high[i] for i in coordinates]


def goal_names(agent: DADS) -> list[str]:
    """What the coordinates of a goal are called."""
    own, first = agent.spec.descriptor, agent.spec.shown_size
    return [own.names[i - first] if own and i >= first else f"obs{i}" for i in agent.skill_sac.view.descriptor]


def _distance(x: Any, y: Any) -> Array:
    return jnp.sqrt(jnp.sum((x - y) ** 2, axis=-1) + 1e-12)
