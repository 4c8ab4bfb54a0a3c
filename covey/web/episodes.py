"""The process that plays episodes for a live page: requests on stdin, answers on stdout, both as JSON lines."""

import json
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np

from covey import plots
from covey.backend import use_cache
from covey.errors import CoveyError
from covey.evaluation import GIF_FRAMES, Episode, frame_interval, record
from covey.plugins import append_current_folder, import_plugins
from covey.run.config import read_run_config
from covey.run.policy import ANIMATION, BestPolicy, PolicyProgram, build_policy, restore_best, restore_member
from covey.storage import disk
from covey.storage.best import read_best_checkpoint
from covey.storage.disk import DamagedError
from covey.storage.folder import RunFolder
from covey.storage.layout import AGENT, HYPER
from covey.storage.store import Store
from covey.storage.tensors import read_header, read_rows

MOST_STEPS = 1000
"""Steps that are played."""
MOST_FRAMES = 250
"""Pictures of a film: 10 seconds. Drawing them takes most of the time."""


class Cinema:
    """Plays episodes and films them. Keeps the programs of runs, so that each is compiled once."""

    def __init__(self) -> None:
        self._programs: dict[Path, PolicyProgram] = {}

    def play(self, request: dict[str, Any]) -> dict[str, Any]:
        """Plays one greedy episode.

        Args:
            request: `folder`, `kind` (best or last), `step`, `member`, and `out`, the film without its ending.

        Returns:
            `step`, `kind`, `return`, `length`, and the `file` of the film.
        """
        folder = RunFolder(Path(request["folder"]))
        program = self._program(folder)
        policy, step = _load(folder, program, request)
        steps = min(program.env.spec.episode_length, MOST_STEPS)
        key = program.stream(ANIMATION, 0)
        episode = record(program.agent, program.env, policy.state, policy.hyper, key, steps, GIF_FRAMES)
        file = write_film(Path(request["out"]), program.env, episode)
        total = float(np.sum(episode.rewards))
        return {
            "step": step,
            "kind": request["kind"],
            "return": total if np.isfinite(total) else None,
            "length": len(episode.actions),
            "file": str(file),
        }

    def _program(self, folder: RunFolder) -> PolicyProgram:
        config = read_run_config(folder)
        known = self._programs.get(folder.path)
        program = known if known and known.config == config else build_policy(config)
        self._programs[folder.path] = program
        return program


def _load(folder: RunFolder, program: PolicyProgram, request: dict[str, Any]) -> tuple[BestPolicy, int]:
    """Returns the newest policy of the kind, which may be newer than the one that was asked for, and its step."""
    if request["kind"] == "best":
        arrays, step = read_best_checkpoint(folder)
        return restore_best(folder, program, arrays), step
    return newest_policy(folder, program, request["member"])


def newest_policy(folder: RunFolder, program: PolicyProgram, member: int) -> tuple[BestPolicy, int]:
    """Reads the policy of a member from the newest checkpoint, without its replay, which may be large.

    The digest in a checkpoint is that of the whole file, so it is not verified: a film may rely on the file system.

    Returns:
        The policy, and its step.
    """
    store = Store(folder.checkpoints, "step")
    for step in reversed(store.steps()):
        try:
            with disk.reading(store.arrays_file(step)) as handle:
                found = read_header(handle).tensors
                chosen = {name: x for name, x in found.items() if name.startswith((AGENT, HYPER))}
                at = min(member, *(x.shape[0] - 1 for x in chosen.values()))
                own = {name: read_rows(handle, x, at, at + 1)[0] for name, x in chosen.items()}
        except (OSError, DamagedError):
            continue  # it was just replaced, or is damaged
        return restore_member(program, at, own, step), step
    raise CoveyError("No checkpoint can be read.")


def write_film(path: Path, env: Any, episode: Episode) -> Path:
    """Writes the first ten seconds of an episode as MP4 or, without ffmpeg, as GIF. Returns the file."""
    states = episode.states[: MOST_FRAMES * frame_interval(env, GIF_FRAMES)]
    return plots.save_film(path.with_suffix(""), *plots.frames(env, episode._replace(states=states), GIF_FRAMES))


def main(modules: list[str]) -> None:
    """Answers requests until stdin is closed.

    Args:
        modules: The plug-ins that the user has named.
    """
    with os.fdopen(os.dup(1), "w") as answers:
        os.dup2(2, 1)  # what an environment prints must not reach the answers
        if modules:
            append_current_folder()
        cinema: Cinema | None = None
        for line in sys.stdin:
            try:
                if cinema is None:
                    import_plugins(modules)
                    use_cache()
                    cinema = Cinema()
                answer = cinema.play(json.loads(line))
            except CoveyError as error:
                answer = {"error": str(error)}
            except Exception as error:  # of an environment, whose libraries raise anything
                answer = {"error": f"{type(error).__name__}: {error}"}
            answers.write(json.dumps(answer) + "\n")
            answers.flush()
