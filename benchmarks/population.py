"""Compares population-based training with random search and with one agent, with the same total number of steps.

    python -m benchmarks.population [--tasks pendulum cartpole-swingup] [--seeds 3] [--members 8] [--runs FOLDER]

The search space is deliberately bad: learning rates over four decades, everything else at its default. Random search
is the same population without replacement of members. The one agent has the default hyper-parameters, the same
networks, and the steps of all members together. Every policy is evaluated on 50 new start states.
"""

import argparse
import json
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

import covey
from covey.run.presets import PRESETS

SPACE: dict[str, Any] = dict.fromkeys(("actor_lr", "critic_lr"), "1e-6:1e-2")
STEPS = {"pendulum": 10_000, "cartpole-swingup": 30_000, "reacher": 25_000}
GENERATIONS = 20
EPISODES = 50


def final(run: covey.Run) -> list[float]:
    """Returns the members' returns at the last evaluation."""
    column = run.metrics()["eval/return"]
    return column["value"][-run.config.members :]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--tasks", nargs="+", default=["pendulum", "cartpole-swingup"], choices=list(STEPS))
    parser.add_argument("--agent", default="td3")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--members", type=int, default=8)
    parser.add_argument("--runs", type=Path, default=None)
    options = parser.parse_args()
    folder = options.runs or Path(tempfile.mkdtemp())
    for task in options.tasks:
        agent = PRESETS[options.agent, task]["agent"]
        common: dict[str, Any] = {"env": task, "agent": agent, "preset": False, "quiet": True}
        common |= {"evaluations": GENERATIONS, "episodes": 10}
        for seed in range(0, 100 * options.members, 100):
            runs = {}
            for name, bottom in (("pbt", 0.25), ("random search", 0.0)):
                runs[name] = covey.evolve(
                    options.agent,
                    members=options.members,
                    steps=STEPS[task],
                    seed=seed,
                    pbt={"bottom": bottom},
                    space=SPACE,
                    out=folder / f"{task}-{name.replace(' ', '-')}-{seed}",
                    **common,
                )
            steps = options.members * STEPS[task]
            runs["one agent"] = covey.train(
                options.agent, steps=steps, seed=seed, out=folder / f"{task}-one-{seed}", **common
            )
            for name, run in runs.items():
                returns, best = final(run), run.evaluate(EPISODES).mean.centre
                row = {"best policy": round(best, 1), "median at the end": round(float(np.median(returns)), 1)}
                print(f"{options.agent} on {task}, seed {seed}, {name}: {json.dumps(row)}", flush=True)


if __name__ == "__main__":
    main()
