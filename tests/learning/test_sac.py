"""SAC learns: seeded, with thresholds that a broken agent misses."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import covey

SMALL = {"networks": {"actor": {"hidden": [64, 64]}, "critic": {"hidden": [64, 64]}}, "batch_size": 64}
NORMED = {
    "networks": {"actor": {"hidden": [64, 64]}, "critic": {"hidden": [64, 64], "norm": "layer"}},
    "batch_size": 64,
}
QUICK = {"actor_lr": 3e-3, "critic_lr": 3e-3, "temperature_lr": 3e-3, "tau": 0.02}

# Untrained: about -1500, -80 and 5. On cartpole-swingup there is a plateau at 70 to 130 before the pole is balanced.
TASKS: dict[str, tuple[int, float, dict[str, Any]]] = {
    "pendulum": (6_000, -200.0, {"agent": SMALL, "hyper": QUICK}),
    "pendulum in bfloat16": (6_000, -200.0, {"agent": SMALL, "hyper": QUICK, "precision": "bfloat16"}),
    "reacher": (10_000, -45.0, {"agent": SMALL, "hyper": QUICK | {"discount": 0.97}}),
    "cartpole-swingup": (12_000, 180.0, {"agent": NORMED, "hyper": QUICK}),
}


@pytest.mark.parametrize(
    "task", [task if task == "pendulum" else pytest.param(task, marks=pytest.mark.slow) for task in TASKS]
)
def test_two_seeds_learn(task: str, tmp_path: Path):
    steps, threshold, options = TASKS[task]
    run = covey.train(
        "sac",
        env=task.split(maxsplit=1)[0],
        steps=steps,
        seeds=2,
        evaluations=10,
        preset=False,
        out=tmp_path / "run",
        quiet=True,
        **options,
    )
    returns = np.array(run.metrics()["eval/return"]["value"]).reshape(-1, 2)
    room = 0.5 * abs(threshold)
    assert returns[0].max() < threshold - room, "an untrained policy must fail"
    assert np.all(returns.max(axis=0) >= threshold), returns.max(axis=0)
    assert run.evaluate(episodes=20).mean.centre >= threshold - room
