"""Tuned while it learns, a population gets out of a bad search space, in which random search does not."""

from pathlib import Path

import numpy as np
import pytest

import covey
from tests.runs import rows

SMALL = {
    "networks": {"actor": {"hidden": [64, 64]}, "critic": {"hidden": [64, 64], "norm": "layer"}, "weights": "lecun"},
    "batch_size": 64,
}
RUN = {"env": "pendulum", "members": 8, "steps": 10_000, "episodes": 10, "quiet": True, "preset": False, "agent": SMALL}
SPACE = dict.fromkeys(("actor_lr", "critic_lr"), "1e-6:1e-2")


@pytest.mark.slow
def test_out_of_a_bad_search_space(tmp_path: Path):
    """Learning rates over four decades on pendulum."""
    tuned = covey.evolve("td3", out=tmp_path / "tuned", space=SPACE, **RUN)
    searched = covey.evolve("td3", out=tmp_path / "searched", space=SPACE, pbt={"bottom": 0.0}, **RUN)
    found, other = ([row["fitness"] for row in rows(run.path / "lineage.jsonl")[-8:]] for run in (tuned, searched))
    assert max(found) >= -200
    assert np.median(found) > np.median(other) + 200
    rates = [row["hyper"]["critic_lr"] for row in rows(tuned.path / "lineage.jsonl")]
    assert np.median(rates[-8:]) > 3 * np.median(rates[:8]), "it moved to where learning is"
