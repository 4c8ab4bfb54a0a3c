"""What skills are worth: DIAYN and DADS on `point-free` with their presets, several seeds, and the figures of the docs.

    python -m benchmarks.skills [--seeds 3] [--only diayn dads] [--runs FOLDER] [--images FOLDER]

The untrained policy is that of the evaluation before the first step. Figures are those of the first seed.
"""

import argparse
import json
import tempfile
from pathlib import Path
from typing import Any

import covey

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


def measured(run: covey.Run) -> dict[str, float]:
    """The measures of the final policy, and the cells of the untrained one."""
    found = run.evaluate(episodes=20).skills
    return found | {"untrained_cells": run.metrics()["skills/cells"]["value"][0]}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=0)
    parser.add_argument("--only", nargs="+", default=list(TASKS), choices=list(TASKS))
    parser.add_argument("--runs", type=Path, default=None)
    parser.add_argument("--images", type=Path, default=Path("docs/images"))
    options = parser.parse_args()
    folder = options.runs or Path(tempfile.mkdtemp())
    steps = {"steps": options.steps} if options.steps else {}
    for task in options.only:
        algorithm, changes = TASKS[task]
        name = task.replace(",", "").replace(" ", "-")
        for seed in range(options.seeds):
            out = folder / f"{name}-{seed}"
            run = covey.train(algorithm, env="point-free", seed=seed, out=out, quiet=True, **(steps | changes))
            found = measured(run)
            print(f"| {task} | {seed} | {json.dumps({n: round(x, 3) for n, x in found.items()})} |", flush=True)
            if seed == 0:
                run.plot_skills(options.images / f"point-free-{name}.png")
                (options.images / f"point-free-{name}.csv").unlink()
            if seed == 0 and task == "dads":
                run.random_plans(20, options.images / "point-free-dads-plans.png")
                run.plan([[6, 6], [-6, 6], [-6, -6], [6, -6]], options.images / "point-free-dads-path.png")


if __name__ == "__main__":
    main()
