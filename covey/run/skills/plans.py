"""Plans made with the skills of a run: episodes that go to goals."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from covey import agents, plots
from covey.agents.skills.goals import GoalAgent, GoalPolicy, PlannerState, Planning, goal_limits, goal_names
from covey.agents.skills.prior import direction
from covey.backend import silence_xla
from covey.envs import HostEnv
from covey.errors import require
from covey.evaluation import Episode, host_plan_paths, plan_paths, record
from covey.run.policy import GOALS, BestPolicy, PolicyProgram
from covey.types import Array, Key

INNER = 0.9
"""Random goals lie within this share of the descriptor's limits."""
NEAR = 0.05
"""By default a goal is reached within this share of the width of those limits."""


@dataclass(frozen=True)
class Plan:
    """A path [T + 1, D] past goals [G, D], and the step at which each goal was reached, -1 if never."""

    path: np.ndarray
    goals: np.ndarray
    steps: list[int]

    @property
    def reached(self) -> list[bool]:
        """For each goal, whether it was reached."""
        return [step >= 0 for step in self.steps]


def make_planner(program: PolicyProgram, planning: Planning | None) -> GoalPolicy:
    """Returns the policy that reaches goals with a run's skills; an error if the agent has none."""
    entry = agents.entry(program.config.algorithm)
    known = " or ".join(f"`covey train {name}`" for name, each in agents.REGISTRY.items() if each.make_planner)
    require(
        entry.make_planner is not None,
        f"{program.config.algorithm} learns nothing that leads to a goal. Train skills with {known}.",
    )
    assert entry.make_planner is not None
    return entry.make_planner(program.skill_agent, planning or Planning())


def can_plan(program: PolicyProgram) -> bool:
    """Whether the skills can be planned with, and their descriptor has limits, so that random goals can be drawn."""
    entry = agents.entry(program.config.algorithm)
    return entry.make_planner is not None and goal_limits(program.skill_agent) is not None  # type: ignore[arg-type]


def goal_radius(planner: GoalPolicy, radius: float | None) -> float:
    """Returns the distance at which a goal counts as reached: as given, or by the descriptor's limits."""
    limits = goal_limits(planner.agent)
    require(
        radius is not None or limits is not None,
        "Give `radius`, the distance at which a goal counts as reached: the observation that these skills differ in "
        "has no limits.",
    )
    if radius is None and limits is not None:
        radius = NEAR * float(np.mean(np.subtract(limits[1], limits[0])))
    assert radius is not None
    require(0 < radius < np.inf, f"`radius` must be positive, not {radius:g}.")
    return radius


def goals_outside(program: PolicyProgram, goals: np.ndarray) -> str:
    """Returns a note about goals [G, D] outside of the descriptor's limits, out of reach; "" if there are none."""
    agent: Any = program.skill_agent
    limits = goal_limits(agent)
    if limits is None or goals.shape[1:] != (len(limits[0]),):
        return ""
    low, high = limits
    outside = [goal for goal in goals if not (np.all(goal >= low) and np.all(goal <= high))]
    listed = " and ".join(",".join(f"{x:g}" for x in goal) for goal in outside)
    ranges = (f"{n} {a:g} to {b:g}" for n, a, b in zip(goal_names(agent), low, high, strict=True))
    return f"Note: outside of the limits ({', '.join(ranges)}), so out of reach: {listed}." if outside else ""


def plan_episode(
    planner: GoalPolicy, best: BestPolicy, goals: np.ndarray, radius: float, seed: int, steps: int
) -> tuple[Plan, Episode]:
    """Runs one episode past goals [G, D] in turn, of the environment's length for each goal unless `steps` is given."""
    program, state, hyper = best
    names = goal_names(planner.agent)
    require(
        goals.ndim == 2 and goals.shape[1] == len(names) and bool(np.isfinite(goals).all()),
        f"A `goal` must have {len(names)} finite numbers ({', '.join(names)}), such as "
        f"{','.join(['1.5'] * len(names))}.",
    )
    steps = steps or program.env.spec.episode_length * len(goals)
    planned = PlannerState(state, jnp.asarray(goals, jnp.float32), jnp.float32(radius))
    episode = record(planner, program.env, planned, hyper, program.stream(GOALS, seed), steps)
    path = planner.agent.skill_sac.view.of(episode.obs)
    return Plan(path, goals, arrivals(path, goals, radius)), episode


def random_plans(
    planner: GoalPolicy, best: BestPolicy, count: int, radius: float, seed: int, within: float | None = None
) -> list[Plan]:
    """Runs episodes with one random goal each (see `random_goals`)."""
    key_goals, key_starts = jax.random.split(best.program.stream(GOALS, seed))
    return plans_to(planner, best, random_goals(planner.agent, key_goals, count, within), radius, key_starts)


def random_goals(agent: GoalAgent, key: Key, count: int, within: float | None) -> Array:
    """Draws goals [count, D] within the descriptor's limits; or, if given, `within` a distance of their middle."""
    limits = goal_limits(agent)
    require(limits is not None, "Random goals need the environment's own descriptor, which has limits. Give a `goal`.")
    assert limits is not None
    low, high = (jnp.array(x, jnp.float32) for x in limits)
    middle = (low + high)[None] / 2.0
    if within is None:
        share = jax.random.uniform(key, (count, len(low)), minval=-INNER, maxval=INNER)
        return middle + share * (high - low)[None] / 2.0
    require(0 < within < np.inf, f"`within` must be positive, not {within:g}.")
    key_way, key_distance = jax.random.split(key)
    share = jax.random.uniform(key_distance, (count, 1)) ** (1.0 / len(low))
    return middle + within * share * direction(jax.random.normal(key_way, (count, len(low))))


def plans_to(planner: GoalPolicy, best: BestPolicy, goals: Array, radius: float, key: Key) -> list[Plan]:
    """Runs an episode for each of the goals [G, D], from different start states."""
    program, state, hyper = best
    count = len(goals)
    states = jax.tree.map(lambda x: jnp.broadcast_to(x, (count, *x.shape)), state)
    planned = PlannerState(states, goals[:, None], jnp.full(count, radius))
    steps = program.env.spec.episode_length
    with silence_xla():
        if isinstance(program.env, HostEnv):
            found = host_plan_paths(planner, program.env, planned, hyper, key, steps)
        else:
            keys = jax.random.split(key, count)
            found = plan_paths(planner, program.env, planned, hyper, keys, steps)
    obs, valid = jax.device_get(found)
    paths = planner.agent.skill_sac.view.of(obs)
    plans = []
    for i, goal in enumerate(np.asarray(goals)):
        path = paths[i, : int(valid[i].sum()) + 1]
        plans.append(Plan(path, goal[None], arrivals(path, goal[None], radius)))
    return plans


def draw_plans(planner: GoalPolicy, plans: list[Plan], radius: float, out: Path, title: str) -> Path:
    """Draws the paths of plans, and their goals."""
    descriptor = planner.agent.spec.descriptor
    view = planner.agent.skill_sac.view
    whole = descriptor is not None and len(view.descriptor) == descriptor.size
    whole = whole and goal_limits(planner.agent) is not None
    return plots.plot_plan(plans, radius, descriptor if whole else None, goal_names(planner.agent), out, title)


def arrivals(path: np.ndarray, goals: np.ndarray, radius: float) -> list[int]:
    """Returns the steps at which a path [T + 1, D] reached each goal in turn; -1 from the first that it missed."""
    found = []
    step = 0
    for goal in goals:
        there = np.flatnonzero(np.linalg.norm(path[step:] - goal, axis=1) <= radius) if step >= 0 else np.empty(0)
        step = step + int(there[0]) if len(there) else -1
        found.append(step)
    return found
