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
from covey.run.policy import ANIMATION, BestPolicy, PolicyProgram, build_policy, load_best, restore_member
from covey.storage import disk
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
        self._programs: dict[str, PolicyProgram] = {}

    def play(self, request: dict[str, Any]) -> dict[str, Any]:
        """Plays one greedy episode.

        Args:
            request: `folder`, `kind` (best or last), `step`, `member`, and `out`, the film without its ending.

        Returns:
            `step`, `kind`, `return`, `length`, and the `file` of the film.
        """
        folder = RunFolder(Path(request["folder"]))
        policy = self._policy(folder, request)
        program, state, hyper = policy
        steps = min(program.env.spec.episode_length, MOST_STEPS)
        key = program.stream(ANIMATION, 0)
        episode = record(program.agent, program.env, state, hyper, key, steps, GIF_FRAMES)
        file = write_film(Path(request["out"]), program.env, episode)
        total = float(np.sum(episode.rewards))
        return {
            "step": request["step"],
            "kind": request["kind"],
            "return": total if np.isfinite(total) else None,
            "length": len(episode.actions),
            "file": str(file),
        }

    def _policy(self, folder: RunFolder, request: dict[str, Any]) -> BestPolicy:
        config = read_run_config(folder)
        known = self._programs.get(request["folder"])
        program = known if known and known.config == config else build_policy(config)
        self._programs[request["folder"]] = program
        if request["kind"] == "best":
            return load_best(folder, program)
        return newest_policy(folder, program, request["step"], request["member"])


def newest_policy(folder: RunFolder, program: PolicyProgram, step: int, member: int) -> BestPolicy:
    """Reads the policy of a member from the checkpoint of a step, without its replay, which may be large.

    Its digest is that of the whole file, so it is not verified: a picture may rely on the file system.
    """
    path = Store(folder.checkpoints, "step").arrays_file(step)
    try:
        with disk.reading(path) as handle:
            found = read_header(handle).tensors
            chosen = {name: x for name, x in found.items() if name.startswith((AGENT, HYPER))}
            at = min(member, *(x.shape[0] - 1 for x in chosen.values()))
            own = {name: read_rows(handle, x, at, at + 1)[0] for name, x in chosen.items()}
    except (OSError, DamagedError) as error:
        raise CoveyError(f"the checkpoint of step {step:,} is gone or can't be read.") from error
    return restore_member(program, at, own, step)


def write_film(path: Path, env: Any, episode: Episode) -> Path:
    """Writes the first ten seconds of an episode as MP4 or, without ffmpeg, as GIF. Returns the file."""
    states = episode.states[: MOST_FRAMES * frame_interval(env, GIF_FRAMES)]
    short = episode._replace(states=states)
    try:
        film = path.with_suffix(".mp4")
        plots.film_writer(film)
        plots.write_mp4(film, env, short, GIF_FRAMES)
    except CoveyError:  # without imageio-ffmpeg, or with one whose ffmpeg does not work here
        film = path.with_suffix(".gif")
        plots.write_gif(film, env, short)
    return film


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
