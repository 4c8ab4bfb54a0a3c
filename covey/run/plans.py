"""What a run's skills can do: the map of them, and plans made with them."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from covey.agents.skills.dads import DADS
from covey.agents.skills.planner import Planner, PlannerState, Planning, goal_limits, goal_names
from covey.backend import silence_xla
from covey.errors import require
from covey.evaluation.record import record
from covey.evaluation.rollout import Episode
from covey.evaluation.skills import plan_paths, skill_paths
from covey.plots.skills import plot_plan, plot_skills
from covey.plots.style import write_csv
from covey.run.program import GOALS, SKILLS, Program
from covey.types import Descriptor

EPISODES = 3
"""Episodes of each skill in the map."""
INNER = 0.9
"""Random goals lie within this share of the descriptor's limits."""
NEAR = 0.05
"""A goal is reached within this share of the width of those limits."""


@dataclass(frozen=True)
class Plan:
    """A path [T + 1, D] past goals [G, D], and at which step each was reached, -1 if never."""

    path: np.ndarray
    goals: np.ndarray
    steps: list[int]

    @property
    def reached(self) -> list[bool]:
        return [step >= 0 for step in self.steps]


def draw_skills(program: Program, state: Any, hyper: Any, out: Path, title: str) -> Path:
    """The map of skills as PNG, and as CSV beside it where each episode of each skill ended, and its return."""
    agent = program.skill_agent
    require(agent is not None, f"{program.config.algorithm} learns no skills. Those that do: diayn, dads.")
    assert agent is not None
    spec = program.env.spec
    with silence_xla():
        paths = jax.device_get(skill_paths(agent, program.env, state, hyper, program.stream(SKILLS), EPISODES))
    length = paths.valid.sum(axis=-1).astype(int)
    own, first = spec.descriptor, spec.shown_size
    if own is None:  # the first numbers of the observation, then
        seen = paths.obs[..., : min(2, first)]
        low, high = (tuple(map(float, f(seen, axis=(0, 1, 2)))) for f in (np.min, np.max))
        own, first = Descriptor(tuple(f"obs{i}" for i in range(seen.shape[-1])), low, high, is_position=False), 0
    where = paths.obs[..., first : first + own.size]
    _write_csv(out.with_suffix(".csv"), paths, where, length, own)
    return plot_skills(np.asarray(paths.skills), where, length, own, out, title)


def _write_csv(path: Path, paths: Any, where: np.ndarray, length: np.ndarray, own: Descriptor) -> None:
    skill = [f"skill{i}" for i in range(paths.skills.shape[1])]
    rows = [[*skill, "episode", "steps", "return", *own.names]]
    for s, n in np.ndindex(length.shape):
        end = length[s, n]
        row = [*paths.skills[s], n, end, paths.obs[s, n, end, -1], *where[s, n, end]]
        rows.append([f"{x:g}" for x in row])
    write_csv(path, rows)


def planner(program: Program, planning: Planning) -> Planner:
    """The planner of a run's skills; an error where they can't be planned with."""
    agent = program.skill_agent
    require(
        isinstance(agent, DADS),
        f"{program.config.algorithm} learns no dynamics to plan with. Train skills with `covey train dads`.",
    )
    assert isinstance(agent, DADS)
    return Planner(agent, planning)


def can_plan(program: Program) -> bool:
    """Whether skills have dynamics of a descriptor with limits, so that random goals can be set."""
    return isinstance(program.skill_agent, DADS) and goal_limits(program.skill_agent) is not None


def near(program: Program, radius: float | None) -> float:
    """How near a goal counts as there: as given, or by the descriptor's limits."""
    limits = goal_limits(planner(program, Planning()).agent)
    require(
        radius is not None or limits is not None,
        "Say how near a goal is reached: --radius. (These skills differ in an observation, which has no limits.)",
    )
    if radius is None and limits is not None:
        radius = NEAR * float(np.mean(np.subtract(limits[1], limits[0])))
    assert radius is not None
    require(0 < radius < np.inf, f"--radius must be positive, not {radius:g}.")
    return radius


def plan_episode(
    policy: Planner, program: Program, state: Any, hyper: Any, goals: np.ndarray, radius: float, seed: int, steps: int
) -> tuple[Plan, Episode]:
    """One episode past goals [G, D] in turn, as long as the environment's for each of them unless `steps` are given."""
    names = goal_names(policy.agent)
    require(
        goals.ndim == 2 and goals.shape[1] == len(names) and bool(np.isfinite(goals).all()),
        f"A goal must have {len(names)} finite numbers ({', '.join(names)}), as in --goal "
        f"{','.join(['1.5'] * len(names))}.",
    )
    steps = steps or program.env.spec.episode_length * len(goals)
    planned = PlannerState(state, jnp.asarray(goals, jnp.float32), jnp.float32(radius))
    episode = record(policy, program.env, planned, hyper, program.stream(GOALS, seed), steps)
    path = episode.obs[:, list(policy.agent.skill_sac.view.descriptor)]
    return Plan(path, goals, arrivals(path, goals, radius)), episode


def random_plans(
    policy: Planner, program: Program, state: Any, hyper: Any, count: int, radius: float, seed: int
) -> list[Plan]:
    """Episodes with one random goal each, from start states of their own."""
    limits = goal_limits(policy.agent)
    require(limits is not None, "Random goals need the environment's own descriptor, which has limits. Give --goal.")
    assert limits is not None
    key_goals, key_starts = jax.random.split(program.stream(GOALS, seed))
    low, high = (jnp.array(x, jnp.float32) for x in limits)
    share = jax.random.uniform(key_goals, (count, len(low)), minval=-INNER, maxval=INNER)
    goals = (low + high)[None] / 2.0 + share * (high - low)[None] / 2.0
    states = jax.tree.map(lambda x: jnp.broadcast_to(x, (count, *x.shape)), state)
    planned = PlannerState(states, goals[:, None], jnp.full(count, radius))
    keys = jax.random.split(key_starts, count)
    with silence_xla():
        found = plan_paths(policy, program.env, planned, hyper, keys, program.env.spec.episode_length)
    obs, valid = jax.device_get(found)
    plans = []
    for i, goal in enumerate(np.asarray(goals)):
        path = obs[i, : int(valid[i].sum()) + 1, list(policy.agent.skill_sac.view.descriptor)].T
        plans.append(Plan(path, goal[None], arrivals(path, goal[None], radius)))
    return plans


def draw_plans(policy: Planner, plans: list[Plan], radius: float, out: Path, title: str) -> Path:
    """The paths of plans, and their goals."""
    own, view = policy.agent.spec.descriptor, policy.agent.skill_sac.view
    whole = own is not None and len(view.descriptor) == own.size and goal_limits(policy.agent) is not None
    return plot_plan(plans, radius, own if whole else None, goal_names(policy.agent), out, title)


def arrivals(path: np.ndarray, goals: np.ndarray, radius: float) -> list[int]:
    """The steps at which a path [T + 1, D] reached each goal in turn; -1 from the first that it missed."""
    found, step = [], 0
    for goal in goals:
        there = np.flatnonzero(np.linalg.norm(path[step:] - goal, axis=1) <= radius) if step >= 0 else np.empty(0)
        step = step + int(there[0]) if len(there) else -1
        found.append(step)
    return found
