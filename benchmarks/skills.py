"""Measures the skills of DIAYN and DADS on `point-free` with their presets, and draws the figures of the docs.

    python -m benchmarks.skills [--seed 100] [--seeds 3] [--only diayn dads] [--runs FOLDER] [--images FOLDER]

All seeds run in one program. The cells that they cover are compared with untrained policies (the same seeds before
training, and many others) and with straight paths. Figures show the first seed.
"""

import argparse
import json
import tempfile
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import covey
from covey.agents.skills.contract import Paths
from covey.agents.skills.prior import coverage
from covey.run.policy import SKILL_EPISODES, SKILLS, BestPolicy
from covey.run.presets import preset_config
from covey.run.program import Program, build
from covey.run.skills.plans import can_plan, goal_radius, make_planner, random_plans
from covey.storage.layout import unpack
from covey.storage.store import Store
from covey.types import Array, Key

ENV = "point-free"
GOALS = 20
UNTRAINED = 40
"""The number of untrained policies."""
CONTINUOUS = {"kind": "continuous"}
TASKS: dict[str, tuple[str, dict[str, Any]]] = {
    "diayn": ("diayn", {}),
    "diayn, continuous": ("diayn", {"agent": {"skills": CONTINUOUS}}),
    "dads": ("dads", {}),
    "dads, 8 discrete": ("dads", {"agent": {"skills": {"kind": "discrete"}}}),
    "dads, observation": (
        "dads",
        {"agent": {"skills": {"descriptor": ["observation"]}, "sac": {"normalise": {"observations": True}}}},
    ),
    "dads, coordinates 0 1": (
        "dads",
        {"agent": {"skills": {"descriptor": ["0", "1"]}, "sac": {"normalise": {"observations": True}}}},
    ),
}


def measured(run: covey.Run) -> list[dict[str, float]]:
    """Returns the measures of every seed's final policy, its cells before training, and the planner's success."""
    columns = {n.removeprefix("skills/"): c for n, c in run.metrics().items() if n.startswith("skills/")}
    seeds = run.config.members
    found = [{name: column["value"][i - seeds] for name, column in columns.items()} for i in range(seeds)]
    program = build(run.config)
    members = final_members(run, program)
    for i, values in enumerate(found):
        values["untrained_cells"] = columns["cells"]["value"][i]
        if can_plan(program.policy):
            state, hyper = jax.tree.map(lambda x, i=i: x[i], (members.agent, members.hyper))
            planner = make_planner(program.policy, None)
            best = BestPolicy(program.policy, state, hyper)
            plans = random_plans(planner, best, GOALS, goal_radius(planner, None), 0)
            values["success"] = sum(all(plan.reached) for plan in plans) / GOALS
    return found


def untrained(algorithm: str, changes: dict[str, Any]) -> str:
    """Reports the cells that policies cover before training, over many seeds, because they vary a lot."""
    options = changes | {"seed": 0, "seeds": UNTRAINED, "capacity": 2_000}
    program = build(preset_config(algorithm, env=ENV, **options).resolved())
    members = program.init(print).members
    cells = program.policy.measure(members.agent, members.hyper)["cells"]
    many = int(np.sum(cells > 60))
    return f"{np.mean(cells):.1f} cells on average, {np.min(cells):.0f} to {np.max(cells):.0f}, {many} more than 60"


def straight(program: Program, turn: float) -> float:
    """Cells that eight straight ways at full speed cover, turned by an angle, from the starts of the measures."""
    env = program.policy.env
    keys = jax.random.split(jax.random.split(program.policy.stream(SKILLS))[0], SKILL_EPISODES)
    angles = turn + jnp.arange(8) * jnp.pi / 4
    ways = jnp.stack([jnp.cos(angles), jnp.sin(angles)], axis=1)
    ways = ways / jnp.max(jnp.abs(ways), axis=1, keepdims=True)

    def walk(way: Array, key: Key) -> Array:
        world, start = env.reset(jax.random.split(key)[0])

        def step(world: Any, _: None) -> tuple[Any, Array]:
            world, outcome = env.step(world, way, key)
            return world, outcome.obs

        return jnp.concatenate([start[None], jax.lax.scan(step, world, None, env.spec.episode_length)[1]])

    obs = jax.vmap(lambda way: jax.vmap(lambda key: walk(way, key))(keys))(ways)
    return float(coverage(Paths(jnp.eye(8), obs, jnp.ones((*obs.shape[:2], obs.shape[2] - 1))), env.spec)["cells"])


def final_members(run: covey.Run, program: Program) -> Any:
    """Restores all members from the last checkpoint."""
    arrays, _ = Store(run.folder.checkpoints, "step").read_newest(print, set_aside=False)
    template = program.loop.template()
    tree = {"members": template.members, "replay": template.replay._asdict(), "block": template.block}
    return unpack(tree, arrays)["members"]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int, default=100)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=0)
    parser.add_argument("--only", nargs="+", default=list(TASKS), choices=list(TASKS))
    parser.add_argument("--runs", type=Path, default=None)
    parser.add_argument("--images", type=Path, default=Path("docs/images"))
    options = parser.parse_args()
    program = build(preset_config("diayn", env=ENV).resolved())
    ways = [straight(program, degrees * jnp.pi / 180) for degrees in range(0, 45, 5)]
    print(f"Eight straight paths from the middle cover {min(ways):.0f} to {max(ways):.0f} cells.", flush=True)
    folder = options.runs or Path(tempfile.mkdtemp())
    steps = {"steps": options.steps} if options.steps else {}
    for task in options.only:
        algorithm, changes = TASKS[task]
        name = task.replace(",", "").replace(" ", "-")
        more = steps | changes | {"seed": options.seed, "seeds": options.seeds, "evaluations": 10}
        run = covey.train(algorithm, env=ENV, out=folder / name, quiet=True, **more)
        for seed, values in enumerate(measured(run)):
            print(
                f"{task}, seed {options.seed + seed}: {json.dumps({n: round(x, 3) for n, x in values.items()})}",
                flush=True,
            )
        print(f"{task}: untrained policies of {UNTRAINED} seeds cover {untrained(algorithm, changes)}", flush=True)
        run.plot_skills(options.images / f"{ENV}-{name}.png")
        (options.images / f"{ENV}-{name}.csv").unlink()
        if task == "dads":
            run.random_plans(GOALS, options.images / f"{ENV}-dads-plans.png")
            run.plan([[6, 6], [-6, 6], [-6, -6], [6, -6]], options.images / f"{ENV}-dads-path.png")


if __name__ == "__main__":
    main()
