"""Publishes a policy: its model card, its learning curve, and an animation."""

from contextlib import suppress
from pathlib import Path

import numpy as np

from covey.errors import CoveyError, require
from covey.export.card import Card, write_card
from covey.export.export import SUFFIXES
from covey.export.opened import open_policy
from covey.run.run import Run
from covey.storage.atomic import replace_output
from covey.storage.disk import remove

EPISODES = 100
SHOWN = (*SUFFIXES.values(), ".png", ".gif")
"""Suffixes of the files that a model card names."""


def model_card(run: Run, folder: str | Path, episodes: int = EPISODES) -> Path:
    """Writes a README.md for an exported policy, in the layout that the Hugging Face Hub reads.

    Args:
        run: The run that the policy is from.
        folder: The folder of the exported policy. The learning curve and an animation are written beside it.
        episodes: Episodes of the evaluation.

    Returns:
        The README.md.

    Example:
        >>> run = covey.load("runs/pendulum-sac-0")
        >>> covey.model_card(run, run.export().path.parent)
    """
    folder = Path(folder)
    policies = [file for file in sorted(folder.glob("*")) if file.suffix in SUFFIXES.values()]
    require(bool(policies), f"{folder} holds no exported policy. Write one with `covey export {run.path}`.")
    about = open_policy(policies[0]).about
    found = run.evaluate(episodes)
    run.plot(folder / "curve.png")
    remove(folder / "curve.csv")
    with suppress(CoveyError):  # an environment that can't be drawn has no animation
        run.animate(folder / "policy.gif")
    first, _, versions = (run.path / "environment.txt").read_text().partition("\n")
    files = tuple(sorted(file.name for file in folder.iterdir() if file.suffix in SHOWN))
    spread = float(np.std(found.episodes.returns))
    command = f"covey {first.removeprefix('command: ').partition(' ')[2]}"
    card = Card(about, *found.mean, spread, episodes, run.config.steps, command, versions, files)
    replace_output(folder / "README.md", write_card(card).encode())
    return folder / "README.md"


def write_bundle(run: Run, folder: Path) -> None:
    """Writes what `covey push` publishes: the policy as ONNX and as NumPy archive, and its model card."""
    for suffix in (".onnx", ".npz"):
        run.export(folder / f"policy{suffix}")
    model_card(run, folder)
