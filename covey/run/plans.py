"""The skills of a run: the map of their trajectories, and plans made with them."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from covey import agents, plots
from covey.agents.skills.planner import Planner, PlannerState, Planning, goal_limits, goal_names
from covey.backend import silence_xla
from covey.envs import HostEnv
from covey.errors import require
from covey.evaluation import Episode, host_plan_paths, plan_paths, record
from covey.observation import DESCRIPTOR, OBS, RETURN
from covey.run.policy import GOALS, SKILLS, BestPolicy, PolicyProgram
from covey.types import Descriptor

EPISODES = 3
"""Episodes of each skill in the map."""
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


def draw_skills(best: BestPolicy, out: Path, title: str) -> plots.Picture:
    """Draws the trajectories of the skills as PNG, and writes where each episode ended, and its return, as CSV."""
    program, state, hyper = best
    agent = program.skill_agent
    known = ", ".join(name for name, entry in agents.REGISTRY.items() if entry.is_skill_agent)
    require(agent is not None, f"{program.config.algorithm} learns no skills. These do: {known}.")
    assert agent is not None
    spec = program.env.spec
    paths = program.skill_paths(state, hyper, program.stream(SKILLS), EPISODES)
    length = np.asarray(paths.valid).sum(axis=-1).astype(int)
    descriptor = spec.descriptor
    if descriptor is None:  # draw the first numbers of the observation instead
        where = paths.obs[OBS][..., :2]
        low, high = (tuple(map(float, f(where, axis=(0, 1, 2)))) for f in (np.min, np.max))
        descriptor = Descriptor(tuple(f"obs{i}" for i in range(where.shape[-1])), low, high, is_position=False)
    else:
        where = paths.obs[DESCRIPTOR]
    _write_csv(out.with_suffix(".csv"), paths, where, length, descriptor)
    return plots.plot_skills(np.asarray(paths.skills), where, length, descriptor, out, title)


def _write_csv(path: Path, paths: Any, where: np.ndarray, length: np.ndarray, descriptor: Descriptor) -> None:
    skill = [f"skill{i}" for i in range(paths.skills.shape[1])]
    rows = [[*skill, "episode", "steps", "return", *descriptor.names]]
    for s, n in np.ndindex(length.shape):
        end = length[s, n]
        row = [*paths.skills[s], n, end, paths.obs[RETURN][s, n, end, 0], *where[s, n, end]]
        rows.append([f"{x:g}" for x in row])
    plots.write_csv(path, rows)


def make_planner(program: PolicyProgram, planning: Planning | None) -> Planner:
    """Returns the planner over a run's skills; an error if the agent can't plan."""
    entry = agents.entry(program.config.algorithm)
    known = " or ".join(f"`covey train {name}`" for name, each in agents.REGISTRY.items() if each.make_planner)
    require(
        entry.make_planner is not None,
        f"{program.config.algorithm} learns no dynamics to plan with. Train skills with {known}.",
    )
    assert entry.make_planner is not None
    return entry.make_planner(program.skill_agent, planning or Planning())


def can_plan(program: PolicyProgram) -> bool:
    """Whether the skills can be planned with, and their descriptor has limits, so that random goals can be drawn."""
    entry = agents.entry(program.config.algorithm)
    return entry.make_planner is not None and goal_limits(program.skill_agent) is not None  # type: ignore[arg-type]


def goal_radius(planner: Planner, radius: float | None) -> float:
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
    planner: Planner, best: BestPolicy, goals: np.ndarray, radius: float, seed: int, steps: int
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


def random_plans(planner: Planner, best: BestPolicy, count: int, radius: float, seed: int) -> list[Plan]:
    """Runs episodes with one random goal each."""
    program, state, hyper = best
    limits = goal_limits(planner.agent)
    require(limits is not None, "Random goals need the environment's own descriptor, which has limits. Give a `goal`.")
    assert limits is not None
    key_goals, key_starts = jax.random.split(program.stream(GOALS, seed))
    low, high = (jnp.array(x, jnp.float32) for x in limits)
    share = jax.random.uniform(key_goals, (count, len(low)), minval=-INNER, maxval=INNER)
    goals = (low + high)[None] / 2.0 + share * (high - low)[None] / 2.0
    states = jax.tree.map(lambda x: jnp.broadcast_to(x, (count, *x.shape)), state)
    planned = PlannerState(states, goals[:, None], jnp.full(count, radius))
    steps = program.env.spec.episode_length
    with silence_xla():
        if isinstance(program.env, HostEnv):
            found = host_plan_paths(planner, program.env, planned, hyper, key_starts, steps)
        else:
            keys = jax.random.split(key_starts, count)
            found = plan_paths(planner, program.env, planned, hyper, keys, steps)
    obs, valid = jax.device_get(found)
    paths = planner.agent.skill_sac.view.of(obs)
    plans = []
    for i, goal in enumerate(np.asarray(goals)):
        path = paths[i, : int(valid[i].sum()) + 1]
        plans.append(Plan(path, goal[None], arrivals(path, goal[None], radius)))
    return plans


def draw_plans(planner: Planner, plans: list[Plan], radius: float, out: Path, title: str) -> Path:
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
