"""Writes the page of skills: a map on which the user picks a skill and sees it."""

import tempfile
from base64 import b64encode
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from covey import plots
from covey.errors import require
from covey.run.run import Run
from covey.run.skills.films import SkillEpisode, chosen_skills, path_films, shown_skills, skill_episodes
from covey.storage.atomic import replace_output
from covey.storage.folder import disk_errors
from covey.web.page import document, static

NAME = "skills.html"
MOST_SKILLS = 36
"""Skills on a page. Each has a film."""
WIDTH = 320
"""The width of a film in pixels."""
MOST_POINTS = 200
"""Points of a path."""
KINDS = {".mp4": "video/mp4", ".gif": "image/gif"}


def write_skills_page(run: Run, out: Path | None = None, skills: Sequence[int] | None = None, seed: int = 0) -> Path:
    """Writes a page on which the user picks a skill and sees its path, its numbers and its film.

    Args:
        run: The run.
        out: The file; by default media/skills.html in the run folder.
        skills: The numbers of at most 36 skills; by default all that are shown, or 36 that represent them.
        seed: The seed of the start state, which all skills share.

    Returns:
        The file.

    Raises:
        CoveyError: The agent learns no skills, there is no such skill, or the file is no HTML file.

    Example:
        >>> write_skills_page(covey.load("runs/point-free-diayn-0"))
        PosixPath('runs/point-free-diayn-0/media/skills.html')
    """
    file = out or run.folder.media / NAME
    require(
        file.suffix == ".html", f"`out` must name an HTML file, for example {file.with_suffix('.html')}, not {file}."
    )
    numbers = chosen_skills(run.best.program, skills, MOST_SKILLS)
    page = document(
        f"Skills of {run.config.name or run.path.name}",
        skills_data(run, numbers, seed),
        [static("parts.js") + static("skills.js")],
        [static("page.css"), static("skills.css")],
    )
    with disk_errors(file.parent):
        replace_output(file, page.encode())
    return file


def skills_data(run: Run, numbers: Sequence[int], seed: int) -> dict[str, Any]:
    """Returns what the page shows, as JSON values.

    Args:
        run: The run.
        numbers: The numbers of the skills.
        seed: The seed of the start state.
    """
    with tempfile.TemporaryDirectory(prefix="covey-skills-") as folder:
        found: list[SkillEpisode] = []
        films: list[str] = []
        for each in skill_episodes(run.best, numbers, seed, WIDTH):
            if each.pictures:
                films.append(_film(Path(folder), each.pictures, each.pace.seconds))
                each.pictures.clear()  # those of all skills together are large
            found.append(each)
        drawn = bool(films)
        if not drawn:
            films = [_film(Path(folder), film, found[0].pace.seconds) for film in path_films(found)]
    descriptor = found[0].descriptor
    (left, bottom), (right, top) = plots.plane_limits([each.path for each in found], descriptor)
    return {
        "name": run.config.name or run.path.name,
        "agent": run.config.algorithm,
        "env": run.config.env,
        "axes": ["step", *descriptor.names][:2] if descriptor.size == 1 else list(descriptor.names[:2]),
        "names": list(descriptor.names),
        "limits": [left, bottom, right, top],
        "equal": descriptor.is_position and descriptor.size > 1,
        "drawn": drawn,
        "discrete": plots.are_discrete(shown_skills(run.best.program)),
        "speed": found[0].pace.speed,
        "count": len(shown_skills(run.best.program)),
        "skills": [_shown(each, film) for each, film in zip(found, films, strict=True)],
    }


def _shown(episode: SkillEpisode, film: str) -> dict[str, Any]:
    """Returns what the page shows of a skill."""
    steps = len(episode.path) - 1
    chosen = np.unique(np.linspace(0, steps, MOST_POINTS).round().astype(int))
    x, y = plots.drawn_coordinates(episode.path)
    return {
        "number": episode.number,
        "label": episode.label,
        "colour": episode.colour,
        "skill": _numbers(episode.skill),
        "path": [_numbers(point) for point in np.stack([x, y], axis=1)[chosen]],
        "end": _numbers(episode.path[-1]),
        "length": steps,
        "return": _numbers([episode.total])[0],
        "film": film,
    }


def _numbers(values: Any) -> list[float | None]:
    """Returns numbers with the digits that a page needs; None, which JSON has, for those that are not finite."""
    return [float(f"{x:.5g}") if np.isfinite(x) else None for x in values]


def _film(folder: Path, pictures: Sequence[np.ndarray], seconds: float) -> str:
    """Returns a film as an address that holds its bytes."""
    file = plots.save_film(folder / "film", pictures, seconds)
    return f"data:{KINDS[file.suffix]};base64,{b64encode(file.read_bytes()).decode()}"
