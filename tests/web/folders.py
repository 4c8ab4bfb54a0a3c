"""Run folders for tests of the page, written as a run writes them, without a training."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from covey.run.config import default_config
from covey.run.config_text import to_json
from covey.storage.finished import write_final
from covey.storage.folder import RunFolder
from covey.storage.metrics import RunFiles

RETURNS = (-1200.5, -400.25, -130.125)
STEPS = (0, 500, 1000)


def make_run(
    path: Path,
    *,
    algorithm: str = "td3",
    members: int = 1,
    finished: bool = True,
    offset: float = 0.0,
    extra: Iterable[str] = (),
    **options: Any,
) -> Path:
    """Writes a run of 1,000 steps with three evaluations; member m returns RETURNS + offset + m.

    Args:
        path: The run folder.
        algorithm: The agent.
        members: Its members.
        finished: Whether it has its final evaluation.
        offset: Added to all returns.
        extra: Names of further metrics.
        **options: Further options of its configuration.
    """
    folder = RunFolder(path)
    config = default_config(algorithm, steps=1000, warmup=100, members=members, **options).resolved()
    folder.create(to_json(config))
    files = RunFiles(folder, range(members), 0, {}, lineage=config.pbt is not None, sinks=())
    one = np.ones(members)
    for i, (step, value) in enumerate(zip(STEPS, RETURNS, strict=True)):
        values = value + offset + np.arange(members)
        named = {"eval/return": values, "eval/return_low": values - 10, "eval/return_high": values + 10}
        named |= {"agent/critic_loss": one / (i + 1), "hyper/actor_lr": one * 1e-3, "skills/information": one * i}
        files.write(step, 2.0 * i, named | dict.fromkeys(extra, one))
        for member in range(members):
            parent = 0 if i == 1 and member == 1 else None
            reason = "start" if i == 0 else "kept" if parent is None else "worse"
            about = {"generation": i, "step": step, "member": member, "parent": parent, "reason": reason}
            files.row("lineage", **about, fitness=float(values[member]), hyper={"actor_lr": 1e-3})
    files.close()
    if finished:
        write_final(folder, 1000, {"return": -131.5, "low": -140.0, "high": -123.0, "returns": [-140.0, -123.0]})
    return path


def json_rows(path: Path) -> list[dict[str, Any]]:
    """Returns the lines of a file."""
    return [json.loads(line) for line in path.read_text().splitlines()]
