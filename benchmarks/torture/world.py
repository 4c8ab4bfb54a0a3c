"""Shared by all campaigns: trials, random numbers, scratch folders, undisturbed reference runs, comparisons."""

import json
import os
import random
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from benchmarks.torture.commands import Result, run

SIZE = ["--envs", "2", "--evaluations", "3", "--episodes", "4", "--checkpoint-minutes", "0"]
SHORT = ["--steps", "1200", "--warmup", "400", *SIZE]
ONE_LAYER = ["--agent.batch-size", "8", "--agent.networks.actor.hidden", "16", "--agent.networks.critic.hidden", "16"]
SKILLS = [flag.replace("--agent.", "--agent.sac.") for flag in ONE_LAYER]
POINT, HOST = ["--env", "point", *SHORT], ["--env", "gymnasium:Pendulum-v1", *SHORT]
PBT = ["--members", "4", "--pbt.bottom", "0.5", "--pbt.top", "0.25"]

KINDS: dict[str, list[str]] = {
    name: ["train", name, *POINT, *ONE_LAYER] for name in ("td3", "sac", "taac", "taac-l", "taac-q")
} | {
    "diayn": ["train", "diayn", "--env", "point-free", *SHORT, *SKILLS, "--agent.discriminator.hidden", "16"],
    "dads": ["train", "dads", "--env", "point-free", *SHORT, *SKILLS, "--agent.dynamics.hidden", "16"],
    "seeds": ["train", "td3", *POINT, *ONE_LAYER, "--seeds", "3"],
    "evolve": ["evolve", "td3", *POINT, *ONE_LAYER, *PBT],
    "evolve-copy": ["evolve", "sac", *POINT, *ONE_LAYER, *PBT, "--pbt.replay", "copy"],
    "host": ["train", "td3", *HOST, *ONE_LAYER],
    "host-strict": ["train", "sac", *HOST, *ONE_LAYER, "--no-overlap"],
    "host-workers": ["train", "td3", *HOST, *ONE_LAYER, "--workers", "2"],
    "host-evolve": ["evolve", "td3", *HOST, *ONE_LAYER, *PBT],
}
"""The arguments of the runs that are disturbed: every agent, both loops, populations."""

TRAINING_SECONDS = 240.0
"""The time limit of a training command. Undisturbed, it takes a few seconds."""


class Trial(NamedTuple):
    """A trial of a campaign: what was tried, and what was wrong with the outcome, or ""."""

    campaign: str
    kind: str
    what: str
    fault: str = ""


@dataclass
class World:
    """The state of the campaigns. All randomness comes from `random`."""

    scratch: Path
    random: random.Random
    minutes: float
    numbers: Iterator[int] = field(default_factory=lambda: iter(range(10**9)))
    references: dict[str, Path] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    """Seconds that the undisturbed command of each kind took."""

    def path(self, name: str = "run") -> Path:
        """Returns a new path for a trial; `tidy` removes it."""
        folder = self.scratch / "trial"
        folder.mkdir(exist_ok=True)
        return folder / f"{name}-{os.getpid()}-{next(self.numbers)}"

    def tidy(self, keep: bool) -> None:
        """Removes the files of the last trials, or moves them aside for inspection."""
        folder = self.scratch / "trial"
        if keep and folder.exists():
            folder.rename(self.scratch / f"failed-{next(self.numbers)}")
        shutil.rmtree(folder, ignore_errors=True)

    def keep(self, name: str, folder: Path) -> Path:
        """Keeps a run as a reference."""
        self.references[name] = folder.rename(self.scratch / f"reference-{name}")
        return self.references[name]

    def run(self, arguments: list[str], seconds: float = TRAINING_SECONDS, **how: Any) -> Result:
        """Runs a command to its end."""
        return run(arguments, self.path("log"), seconds, **how)

    def reference(self, kind: str) -> Path:
        """Returns the undisturbed run of a kind."""
        if kind not in self.references:
            out = self.path()
            done = self.run([*KINDS[kind], "--out", str(out)], 600)  # it may have to compile
            if done.code != 0:
                raise RuntimeError(f"The undisturbed run {kind} failed:\n{done.output}")
            self.keep(kind, out)
            self.seconds[kind] = done.seconds
        return self.references[kind]

    def copy(self, folder: Path) -> Path:
        """Copies a run folder."""
        return shutil.copytree(folder, self.path("copy"), symlinks=True)


def newest(folder: Path, prefix: str = "step") -> int:
    """Returns the step of a run's newest checkpoint; -1 if it has none."""
    names = [p.name.removeprefix(f"{prefix}_") for p in (folder / "checkpoints").glob(f"{prefix}_*")]
    return max((int(name) for name in names if name.isdigit()), default=-1)


def arrays(folder: Path, prefix: str) -> dict[str, np.ndarray]:
    """Returns all arrays of a run's newest checkpoint."""
    from safetensors.numpy import load_file

    return load_file(folder / "checkpoints" / f"{prefix}_{newest(folder, prefix):010d}" / "arrays.safetensors")


def rows(path: Path) -> list[dict[str, Any]]:
    """Returns the rows of a JSONL file without the wall-clock time."""
    if not path.exists():
        return []
    found = [json.loads(line) for line in path.read_text().splitlines()]
    return [{name: value for name, value in row.items() if name != "wall"} for row in found]


ROWS = ("metrics.jsonl", "evaluation/episodes.jsonl", "lineage.jsonl")


def difference(one: Path, two: Path, files: tuple[str, ...] = (*ROWS, "evaluation/final.json")) -> str:
    """Compares two finished runs bit for bit: arrays, rows, the final evaluation. Returns a difference, or ""."""
    for prefix in ("step", "best"):
        if newest(one, prefix) != newest(two, prefix):
            return f"the newest {prefix} checkpoint is {newest(two, prefix)}, not {newest(one, prefix)}"
        a, b = arrays(one, prefix), arrays(two, prefix)
        if a.keys() != b.keys():
            return f"other arrays in the {prefix} checkpoint"
        for name in a:
            if a[name].dtype != b[name].dtype or a[name].tobytes() != b[name].tobytes():
                return f"{name} differs in the {prefix} checkpoint"
    for name in files:
        same = rows(one / name) == rows(two / name) if name in ROWS else _text(one / name) == _text(two / name)
        if not same:
            return f"{name} differs"
    left = [p.name for p in two.rglob("*") if p.name.endswith((".partial", ".tmp"))]
    return f"{left[0]} was left" if left else picture_fault(two)


def _text(path: Path) -> str | None:
    return path.read_text() if path.exists() else None


def picture_fault(folder: Path) -> str:
    """Returns the error of the first picture of a run that can't be opened, or ""."""
    from PIL import Image

    for path in sorted((folder / "media").glob("*")):
        if path.suffix not in (".png", ".gif"):
            continue
        try:
            with Image.open(path) as picture:
                picture.load()
        except Exception as error:
            return f"{path.name} can't be opened: {error}"
    return ""
