"""Skills that differ in the observation: a tiny run from training to a plan."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import covey
from covey.cli import main
from covey.storage.layout import BEST
from tests.runs import last_arrays


@pytest.mark.parametrize(("chosen", "size"), [(["0", "1"], 2)], ids=["0 1"])
def test_dads_with_a_descriptor_of_the_observation(chosen, size, tmp_path: Path, capsys):
    """With normalised observations, from training to a plan; tiny, so the skills are none yet."""
    run = covey.train("dads", out=tmp_path / "run", **_tiny_dads(chosen))
    metrics = {name: column["value"] for name, column in run.metrics().items()}
    assert np.isfinite(metrics["skills/information"]).all() and np.isfinite(metrics["skills/explained_10"]).all()
    assert "skills/success" not in metrics, "an observation has no limits to draw goals from"
    kept = last_arrays(run.path)
    statistics = {name: x[0] for name, x in kept.items() if "/statistics/" in name and not name.startswith(BEST)}
    of_policy = next(x for name, x in statistics.items() if "/sac/statistics/observations/squares" in name)
    assert of_policy.shape == (4,) and (of_policy > 0).all(), "the velocity and the skill"
    for kind in ("descriptors", "changes"):
        squares = next(x for name, x in statistics.items() if f"/{kind}/squares" in name)
        assert squares.shape == (size,) and (squares > 0).all()
    goal = ["plan", str(run.path), "--goal", ",".join(["0.1"] * size)]
    assert main(goal) == 1 and "--radius" in capsys.readouterr().err
    assert main([*goal, "--radius", "0.1", "--out", str(tmp_path / "plan.png")]) == 0
    assert (tmp_path / "plan.png").exists() and (run.path / "media" / "skills.png").exists()


def _tiny_dads(descriptor: list[str]) -> dict[str, Any]:
    torso = {"hidden": [16]}
    sac = {"batch_size": 8, "networks": {"actor": torso, "critic": torso}, "normalise": {"observations": True}}
    agent = {"sac": sac, "dynamics": torso, "samples": 4, "skills": {"descriptor": descriptor}}
    steps = {"steps": 1200, "warmup": 400, "evaluations": 1, "episodes": 4}
    return steps | {"env": "point-free", "quiet": True, "agent": agent}
