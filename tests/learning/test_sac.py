"""SAC learns: seeded, with thresholds that a broken agent misses (untrained on pendulum: about -1500)."""

from pathlib import Path

import numpy as np
import pytest

import covey
from tests.learning.test_td3 import SMALL

FASTER = {"actor_lr": 1e-3, "critic_lr": 1e-3, "temperature_lr": 1e-3}


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_three_seeds_learn_pendulum(precision: str, tmp_path: Path):
    """In bfloat16 as in float32: the rounding of the products does not hurt."""
    run = covey.train(
        "sac",
        env="pendulum",
        steps=10_000,
        seeds=3,
        evaluations=10,
        agent=SMALL,
        hyper=FASTER,
        precision=precision,
        preset=False,
        out=tmp_path / "run",
        quiet=True,
    )
    returns = np.array(run.metrics()["eval/return"]["value"]).reshape(-1, 3)
    assert returns[0].max() < -400, "an untrained policy must fail"
    assert np.all(returns.max(axis=0) >= -200), returns.max(axis=0)
    assert run.evaluate(episodes=20).mean.centre >= -250
