"""TD3 learns: seeded, with thresholds that a broken agent misses (untrained: about -40 and -1500)."""

from pathlib import Path

import numpy as np
import pytest

import covey

SMALL = {
    "networks": {"actor": {"hidden": [64, 64]}, "critic": {"hidden": [64, 64], "norm": "layer"}},
    "batch_size": 64,
}
FASTER = {"actor_lr": 3e-3, "critic_lr": 3e-3, "tau": 0.02, "exploration_noise": 0.3}


@pytest.mark.parametrize(
    ("env", "steps", "threshold"),
    [pytest.param("point", 5000, -18.0, marks=pytest.mark.slow), ("pendulum", 6_000, -200.0)],
)
def test_three_seeds_learn(env: str, steps: int, threshold: float, tmp_path: Path):
    run = covey.train(
        "td3",
        env=env,
        steps=steps,
        seeds=3,
        evaluations=10,
        agent=SMALL,
        hyper=FASTER,
        preset=False,
        out=tmp_path / "run",
        quiet=True,
    )
    column = run.metrics()["eval/return"]
    returns = np.array(column["value"]).reshape(-1, 3)
    assert returns[0].max() < 2 * threshold, "an untrained policy must fail"
    best = returns.max(axis=0)
    assert np.all(best >= threshold), best
    assert run.evaluate(episodes=20).mean.centre >= 1.25 * threshold
