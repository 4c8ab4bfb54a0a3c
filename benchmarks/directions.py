"""Compares the skills of DIAYN, DADS and METRA on a robot: the table and the figure of docs/skills.md.

    python -m benchmarks.directions --runs OUT [--seed 300] [--seeds 3] [--only diayn dads metra]
    python -m benchmarks.directions --table          # the table from benchmarks/results/directions.csv

Trains each agent with its preset (a run that is there is resumed or kept), and measures every seed, its untrained
policy, and random actions: cells of 1 x 1 visited in 1,000 episodes with skills drawn from the prior; of the first 128
of them, the compass sectors in which one ends more than 3 m from its start; and goals that are reached to within 2 m,
20 at each of three distances and 20 drawn within 12 m. Goals are the same for all.
"""

import argparse
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import covey
from benchmarks.campaign import RESULTS, read_rows, write_rows
from covey.agent import Decision
from covey.agents.skills.prior import sectors
from covey.evaluation import policy_paths
from covey.observation import DESCRIPTOR
from covey.run.policy import BestPolicy, PolicyProgram, load_member
from covey.run.program import build
from covey.run.skills.plans import arrivals, make_planner, plans_to, random_goals
from covey.types import Array, EnvSpec, Key, Mode

ENV = "brax:ant_omni"
AGENTS = ("diayn", "dads", "metra")
FILE = RESULTS / "directions.csv"
EPISODES, CHUNK, SHOWN = 1_000, 100, 128
FAR, RADIUS, DISTANCES, GOALS = 3.0, 2.0, (3.0, 6.0, 12.0), 20
KEY = 22


@dataclass(frozen=True)
class RandomActions:
    """A policy of uniformly random actions."""

    spec: EnvSpec

    def begin(self, state: Any, hyper: Any, key: Key) -> tuple[()]:
        return ()

    def act(self, state: Any, hyper: Any, memory: tuple[()], obs: Any, key: Key, mode: Mode) -> Decision:
        return Decision(jax.random.uniform(key, (self.spec.action_size,), minval=-1.0, maxval=1.0), (), {})


def goals_of(agent: Any) -> dict[str, Array]:
    """Returns goals [20, 2] by the name of their column."""
    key_ways, key_within = jax.random.split(jax.random.key(KEY))
    ways = np.asarray(jax.random.uniform(key_ways, (len(DISTANCES), GOALS))) * 2 * np.pi
    rings = {
        f"goals at {distance:g} m": jnp.asarray(distance * np.stack([np.cos(way), np.sin(way)], axis=-1), jnp.float32)
        for distance, way in zip(DISTANCES, ways, strict=True)
    }
    return rings | {f"goals within {DISTANCES[-1]:g} m": random_goals(agent, key_within, GOALS, DISTANCES[-1])}


def paths_of(policy: Any, program: PolicyProgram, state: Any, hyper: Any) -> list[np.ndarray]:
    """Returns the paths [T + 1, 2] of 1,000 episodes, cut at their end."""
    found = []
    for keys in jax.random.split(jax.random.key(KEY + 1), (EPISODES // CHUNK, CHUNK)):
        obs, valid = jax.device_get(policy_paths(policy, program.env, state, hyper, keys))
        found += [x[: int(n) + 1] for x, n in zip(obs[DESCRIPTOR][..., :2], valid.sum(axis=-1), strict=True)]
    return found


def coverage_of(paths: list[np.ndarray]) -> dict[str, float]:
    """Returns the cells of all paths, the sectors of the first, and how far these go on average."""
    cells = np.unique(np.floor(np.concatenate(paths)), axis=0)
    ways = np.stack([path[-1] - path[0] for path in paths[:SHOWN]])
    return {
        "cells": len(cells),
        "sectors": int(np.sum(sectors(jnp.asarray(ways), FAR))),
        "distance": round(float(np.linalg.norm(ways, axis=1).mean()), 1),
    }


def measure(best: BestPolicy) -> tuple[dict[str, float], list[np.ndarray]]:
    """Returns the measures of a policy, and its paths."""
    program, state, hyper = best
    agent: Any = program.skill_agent
    paths = paths_of(agent, program, state, hyper)
    planner = make_planner(program, None)
    reached = {
        name: sum(all(plan.reached) for plan in plans_to(planner, best, goals, RADIUS, jax.random.key(KEY + 2)))
        for name, goals in goals_of(agent).items()
    }
    return coverage_of(paths) | reached, paths


def measure_random(program: PolicyProgram) -> tuple[dict[str, float], list[np.ndarray]]:
    """Returns the measures of random actions; goal i is reached if episode i passes it."""
    paths = paths_of(RandomActions(program.env.spec), program, (), ())
    reached = {
        name: sum(
            arrivals(path, np.asarray(goal)[None], RADIUS)[0] >= 0 for path, goal in zip(paths, goals, strict=False)
        )
        for name, goals in goals_of(program.skill_agent).items()
    }
    return coverage_of(paths) | reached, paths


def trained(name: str, folder: Path, seed: int, seeds: int) -> covey.Run:
    """Returns the run of an agent with its preset: loaded, resumed or trained."""
    out = folder / name
    if (out / "config.json").exists():
        return covey.resume(out, quiet=True)
    return covey.train(name, env=ENV, out=out, seed=seed, seeds=seeds, quiet=True)


def all_rows(options: argparse.Namespace) -> Iterator[tuple[dict[str, Any], list[np.ndarray]]]:
    """Yields a row for each policy, with its paths."""
    for number, name in enumerate(options.only):
        started = time.monotonic()
        run = trained(name, options.runs, options.seed, options.seeds)
        print(f"{name}: {(time.monotonic() - started) / 60:.1f} minutes", flush=True)
        program = run.best.program
        if number == 0:
            found, paths = measure_random(program)
            yield {"policy": "random actions", "seed": "", "steps": 0} | found, paths
        for member in range(options.seeds):
            found, paths = measure(load_member(run.folder, program, member))
            yield {"policy": name, "seed": options.seed + member, "steps": run.config.steps} | found, paths
        if name == options.only[-1]:
            members = build(run.config).init(print).members
            for member in range(options.seeds):
                state, hyper = jax.tree.map(lambda x, i=member: x[i], (members.agent, members.hyper))
                found, paths = measure(BestPolicy(program, state, hyper))
                yield {"policy": f"{name}, untrained", "seed": options.seed + member, "steps": 0} | found, paths


def draw(shown: dict[str, list[np.ndarray]], out: Path) -> None:
    """Draws the paths of the first seed of each policy side by side, coloured by where they end."""
    from matplotlib import colormaps
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.patches import Circle

    figure = Figure(figsize=(3.0 * len(shown), 3.3), layout="constrained")
    FigureCanvasAgg(figure)
    for axes, (name, paths) in zip(np.atleast_1d(figure.subplots(1, len(shown))), shown.items(), strict=True):
        for path in paths[:SHOWN]:
            way = path[-1] - path[0]
            colour = colormaps["hsv"]((np.arctan2(way[1], way[0]) / (2 * np.pi)) % 1.0)
            axes.plot(path[:, 0], path[:, 1], color=colour, linewidth=0.7, alpha=0.8)
        for distance in DISTANCES:
            axes.add_patch(Circle((0, 0), distance, fill=False, edgecolor="0.6", linewidth=0.6, linestyle=":"))
        axes.set(xlim=(-30, 30), ylim=(-30, 30), aspect="equal", title=name)
        axes.tick_params(labelsize=7, length=0)
        for side in axes.spines.values():
            side.set_color("0.85")
    figure.savefig(out, dpi=110)


def table(rows: list[dict[str, str]]) -> str:
    """Returns the table of the docs: a row for each policy with its mean over seeds, and each seed."""
    columns = [name for name in rows[0] if name not in ("policy", "seed", "steps")]
    lines = [f"| | steps | {' | '.join(columns)} |", f"|---|{'---:|' * (len(columns) + 1)}"]
    for policy in dict.fromkeys(row["policy"] for row in rows):
        own = [row for row in rows if row["policy"] == policy]
        cells = [f"{np.mean([float(row[c]) for row in own]):.4g} ({', '.join(row[c] for row in own)})" for c in columns]
        if len(own) == 1:
            cells = [own[0][c] for c in columns]
        lines.append(f"| {policy} | {int(own[0]['steps']):,} | {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=Path, help="the folder of the runs, outside of the repository")
    parser.add_argument("--seed", type=int, default=300)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--only", nargs="+", default=list(AGENTS), choices=AGENTS)
    parser.add_argument("--table", action="store_true")
    parser.add_argument("--image", type=Path, default=Path("docs/images/ant-skills.png"))
    options = parser.parse_args()
    if not options.table:
        if options.runs is None:
            parser.error("--runs is needed")
        rows: list[dict[str, Any]] = []
        shown: dict[str, list[np.ndarray]] = {}
        for row, paths in all_rows(options):
            print(row, flush=True)
            rows.append(row)
            shown.setdefault(row["policy"], paths)
        write_rows(FILE, rows)
        draw(shown, options.image)
    print(table(read_rows(FILE)))


if __name__ == "__main__":
    main()
