"""Planning with skills, without further training: model-predictive control with the dynamics that DADS has learnt.

MPPI (Williams et al., 2016) optimises plans of continuous skills, as in the paper; discrete skills use search.
"""

from dataclasses import dataclass, field
from typing import NamedTuple

import jax
import jax.numpy as jnp

from covey.agent import Decision
from covey.agents.skills.dads import DADS, DADSHyper
from covey.agents.skills.goals import PlannerState, Planning, distance, next_goal
from covey.nn.held_noise import Held
from covey.observation import Obs
from covey.types import Array, Key, Mode

MOST_SEQUENCES = 1024
"""Up to this many sequences of discrete skills are enumerated; beyond it, sampled."""
SHRINK = 0.7
"""Factor by which the noise of the candidates shrinks with each refinement."""


class PlannerMemory(NamedTuple):
    """The memory of a planner within an episode.

    Args:
        plan: The current plan, [horizon, K].
        skill: The current skill, [K].
        age: Steps since the last plan.
        reached: Number of goals reached.
        noise: The noise that the agent holds; () if it holds none.
    """

    plan: Array
    skill: Array
    age: Array
    reached: Array
    noise: Held = ()


@dataclass(frozen=True)
class Planner:
    """A policy that chooses the skills of an agent so as to reach goals. It plans every `hold` steps, and at a goal.

    Args:
        agent: A trained DADS agent.
        planning: Settings.

    Example:
        >>> planner = Planner(agent, Planning(horizon=2))
        >>> state = PlannerState(agent_state, goals=jnp.array([[3.0, 4.0]]), radius=jnp.asarray(0.5))
        >>> memory = planner.begin(state, hyper, key)
        >>> decision = planner.act(state, hyper, memory, obs, key, "greedy")
    """

    agent: DADS
    planning: Planning = field(default_factory=Planning)

    @property
    def exhaustive(self) -> bool:
        """True if all sequences of skills are compared."""
        skills = self.agent.config.skills
        return skills.discrete and skills.number**self.planning.horizon <= MOST_SEQUENCES

    def begin(self, state: PlannerState, hyper: DADSHyper, key: Key) -> PlannerMemory:
        """Returns the memory before the first step of an episode."""
        size = self.agent.config.skills.size
        zero = jnp.zeros((), jnp.int32)
        noise = self.agent.skill_sac.sac.noise.begin()
        return PlannerMemory(jnp.zeros((self.planning.horizon, size)), jnp.zeros(size), zero, zero, noise)

    def act(
        self, state: PlannerState, hyper: DADSHyper, memory: PlannerMemory, obs: Obs, key: Key, mode: Mode
    ) -> Decision:
        """Decides at one observation, with a new plan if one is due."""
        key_plan, key_act = jax.random.split(key)
        where = self.agent.skill_sac.view.of(obs)
        reached, goal = next_goal(state, where, memory.reached)
        due = (reached > memory.reached) | (memory.age % self.planning.hold == 0)
        # Shift the plan by the skill that was just executed; its last skill is the first guess for the new one.
        rest = jnp.concatenate([memory.plan[1:], memory.plan[-1:]])
        plan = self._refined(state, jnp.where(due, rest, memory.plan), where, goal, due, key_plan)
        skill = jnp.where(due, plan[0], memory.skill)
        of_agent = self.agent.memory_for(skill)._replace(noise=memory.noise)
        decision = self.agent.act(state.agent, hyper, of_agent, obs, key_act, mode)
        age = jnp.where(due, 0, memory.age) + 1
        extras = {"skill": skill, "reached": reached.astype(jnp.float32) / state.goals.shape[0]}
        return Decision(decision.action, PlannerMemory(plan, skill, age, reached, decision.memory.noise), extras)

    def cost(self, state: PlannerState, plans: Array, where: Array, goal: Array) -> Array:
        """Returns the distance to the goal, summed over the predicted steps of plans [C, horizon, K]; [C]."""

        def step(carry: tuple[Array, Array], skill: Array) -> tuple[tuple[Array, Array], None]:
            descriptor, cost = carry
            descriptor = self.agent.predict(state.agent, descriptor, skill)
            return (descriptor, cost + distance(descriptor, goal[None])), None

        start = (jnp.broadcast_to(where, (plans.shape[0], *where.shape)), jnp.zeros(plans.shape[0]))
        skills = jnp.repeat(jnp.moveaxis(plans, 1, 0), self.planning.hold, axis=0)
        return jax.lax.scan(step, start, skills)[0][1]

    def _refined(self, state: PlannerState, plan: Array, where: Array, goal: Array, due: Array, key: Key) -> Array:
        """Returns a better plan if one is due, else the same plan.

        It is a loop of 0 rounds instead of a branch: under `vmap`, `lax.cond` would compute both branches.
        """
        discrete = self.agent.config.skills.discrete
        rounds = jnp.where(due, 1 if discrete else self.planning.refinements, 0)

        def refine(i: Array, plan: Array) -> Array:
            plans = self.candidates(plan, i, jax.random.fold_in(key, i))
            cost = self.cost(state, plans, where, goal)
            if discrete:
                return plans[jnp.argmin(cost)]
            weight = jax.nn.softmax(-self.planning.temperature * cost)
            return jnp.sum(weight[:, None, None] * plans, axis=0)

        return jax.lax.fori_loop(0, rounds, refine, plan)

    def candidates(self, plan: Array, i: Array, key: Key) -> Array:
        """Returns the plans of refinement i, [C, horizon, K]: all sequences, or draws; if continuous, near the plan."""
        skills = self.agent.config.skills
        horizon = self.planning.horizon
        if self.exhaustive:
            each = jnp.meshgrid(*[jnp.arange(skills.number)] * horizon, indexing="ij")
            return jax.nn.one_hot(jnp.stack(each, axis=-1).reshape(-1, horizon), skills.number)
        if skills.discrete:
            return skills.draw(key, self.planning.candidates * horizon).reshape(-1, horizon, skills.number)
        noise = jax.random.normal(key, (self.planning.candidates, horizon, skills.size)).at[0].set(0.0)
        drawn = skills.within(plan[None] + SHRINK ** i.astype(jnp.float32) * noise)
        smooth = [drawn[:, 0]]
        for h in range(1, horizon):
            smooth.append(self.planning.smoothing * smooth[-1] + (1.0 - self.planning.smoothing) * drawn[:, h])
        return jnp.stack(smooth, axis=1)
