"""TAAC's family learns: seeded, with thresholds that a broken agent misses."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import covey

SMALL = {"networks": {"actor": {"hidden": [64, 64]}, "critic": {"hidden": [64, 64]}}, "batch_size": 64}
QUICK = {"actor_lr": 3e-3, "critic_lr": 3e-3, "temperature_lr": 3e-3, "tau": 0.02}

# Untrained: about 0 and -1500. On mountaincar, 0 is also what an agent gets that learnt to save effort.
TASKS: dict[str, tuple[str, str, int, float, dict[str, Any]]] = {
    "an action": (
        "taac",
        "mountaincar",
        10_000,
        90.0,
        {
            "agent": SMALL | {"normalise": {"observations": True}},
            "hyper": QUICK | {"reward_scale": 0.1},
            "warmup": 5_000,
        },
    ),
    "a parabola": ("taac-q", "pendulum", 4_000, -200.0, {"agent": SMALL, "hyper": QUICK}),
}


@pytest.mark.parametrize("what", ["an action", pytest.param("a parabola", marks=pytest.mark.slow)])
def test_three_seeds_learn_when_to_repeat(what: str, tmp_path: Path):
    algorithm, env, steps, threshold, options = TASKS[what]
    run = covey.train(
        algorithm,
        env=env,
        steps=steps,
        seeds=3,
        evaluations=6,
        preset=False,
        out=tmp_path / "run",
        quiet=True,
        **options,
    )
    returns, repeated = (np.array(run.metrics()[f"eval/{name}"]["value"]) for name in ("return", "repeated"))
    best = returns.reshape(-1, 3).max(axis=0)
    assert returns[:3].max() < threshold - 0.5 * abs(threshold), "an untrained policy must fail"
    assert np.all(best >= threshold), best
    assert np.all((repeated[-3:] > 0.1) & (repeated[-3:] < 0.99)), "it repeats, and switches"
