"""A run small enough for tests, from Python and from the command line."""

import json
from pathlib import Path
from typing import Any

import numpy as np

import covey
from covey.storage.store import Store

TINY: dict[str, Any] = {
    "env": "point",
    "steps": 1200,
    "warmup": 400,
    "envs": 2,
    "evaluations": 3,
    "episodes": 4,
    "agent": {"networks": {"actor": {"hidden": [16]}, "critic": {"hidden": [16]}}, "batch_size": 8},
}

FLAGS = [
    *("--env", "point", "--steps", "1200", "--warmup", "400", "--envs", "2", "--evaluations", "3", "--episodes", "4"),
    *("--agent.batch-size", "8", "--agent.networks.actor.hidden", "16", "--agent.networks.critic.hidden", "16"),
]


def tiny(out: Path, **options: Any) -> covey.Run:
    return covey.train("td3", out=out, quiet=True, **(TINY | options))


def last_arrays(folder: Path) -> dict[str, np.ndarray]:
    """Everything in the newest checkpoint: parameters, optimiser, replay, environments, keys."""
    return Store(folder / "checkpoints", "step").read_newest(print)[0]


def rows(path: Path) -> list[dict[str, Any]]:
    """The lines of a JSONL file without the wall clock."""
    found = [json.loads(line) for line in path.read_text().splitlines()]
    return [{k: v for k, v in row.items() if k != "wall"} for row in found]


def assert_same_run(one: Path, two: Path) -> None:
    """Equal to the bit: all arrays, all metrics, all episodes."""
    a, b = last_arrays(one), last_arrays(two)
    assert a.keys() == b.keys()
    for name in a:
        np.testing.assert_array_equal(a[name], b[name], err_msg=name)
    assert rows(one / "metrics.jsonl") == rows(two / "metrics.jsonl")
    assert rows(one / "evaluation" / "episodes.jsonl") == rows(two / "evaluation" / "episodes.jsonl")
