"""The skills of a run: the map of their trajectories, and films of them."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np

from covey import agents, plots
from covey.errors import CoveyError, require
from covey.evaluation import GIF_FRAMES, frame_interval, record
from covey.observation import DESCRIPTOR, OBS, RETURN
from covey.run.policy import SKILLS, BestPolicy, PolicyProgram
from covey.types import Descriptor

EPISODES = 3
"""Episodes of each skill in the map."""
MOST_TILES = 9
"""Skills in a film of several skills."""
MOST_PICTURES = 150
"""Pictures in the film of a skill. A longer episode has them at larger intervals."""
SLOWEST = 0.1
"""Seconds between two pictures of such an episode, at most: then it plays faster than it was."""


def draw_skills(best: BestPolicy, out: Path, title: str) -> plots.Picture:
    """Draws the trajectories of the skills as PNG, and writes where each episode ended, and its return, as CSV."""
    program, state, hyper = best
    shown_skills(program)
    paths = program.skill_paths(state, hyper, program.stream(SKILLS), EPISODES)
    length = np.asarray(paths.valid).sum(axis=-1).astype(int)
    where, descriptor = _where(program, paths.obs)
    _write_csv(out.with_suffix(".csv"), paths, where, length, descriptor)
    return plots.plot_skills(np.asarray(paths.skills), where, length, descriptor, out, title)


def shown_skills(program: PolicyProgram) -> np.ndarray:
    """Returns the skills [S, K] that plots and films show; an error if the agent learns none."""
    known = ", ".join(name for name, entry in agents.REGISTRY.items() if entry.is_skill_agent)
    require(program.skill_agent is not None, f"{program.config.algorithm} learns no skills. These do: {known}.")
    assert program.skill_agent is not None
    return np.asarray(program.skill_agent.show_skills())


def _where(program: PolicyProgram, obs: Any) -> tuple[np.ndarray, Descriptor]:
    """Returns descriptors [..., D] along paths, or the first numbers of observations, and their names and limits."""
    descriptor = program.env.spec.descriptor
    if descriptor is not None:
        return obs[DESCRIPTOR], descriptor
    where = obs[OBS][..., :2]
    low, high = (tuple(map(float, f(where.reshape(-1, where.shape[-1]), axis=0))) for f in (np.min, np.max))
    return where, Descriptor(tuple(f"obs{i}" for i in range(where.shape[-1])), low, high, is_position=False)


def _write_csv(path: Path, paths: Any, where: np.ndarray, length: np.ndarray, descriptor: Descriptor) -> None:
    skill = [f"skill{i}" for i in range(paths.skills.shape[1])]
    rows = [[*skill, "episode", "steps", "return", *descriptor.names]]
    for s, n in np.ndindex(length.shape):
        end = length[s, n]
        row = [*paths.skills[s], n, end, paths.obs[RETURN][s, n, end, 0], *where[s, n, end]]
        rows.append([f"{x:g}" for x in row])
    plots.write_csv(path, rows)


@dataclass(frozen=True)
class SkillEpisode:
    """One greedy episode of a skill.

    Args:
        number: The number of the skill among those that are shown.
        skill: The skill [K].
        label: Its label.
        colour: Its colour on the map, such as #d62839.
        path: Descriptors [T + 1, D].
        descriptor: The names and limits of their coordinates.
        total: The return.
        pictures: Pictures [height, width, 3]; none if the environment can't be drawn.
        pace: When the pictures are taken and shown.
    """

    number: int
    skill: np.ndarray
    label: str
    colour: str
    path: np.ndarray
    descriptor: Descriptor
    total: float
    pictures: list[np.ndarray]
    pace: "Pace"


@dataclass(frozen=True)
class Pace:
    """The steps between two pictures of a film, the seconds between them, and how much faster than real it plays."""

    every: int
    seconds: float
    speed: float


def film_pace(env: Any) -> Pace:
    """Returns the pace at which a whole episode has at most 150 pictures."""
    rate = env.spec.frames_per_second
    natural = frame_interval(env, GIF_FRAMES)
    every = max(natural, math.ceil(env.spec.episode_length / MOST_PICTURES))
    seconds = min(every / rate, max(natural / rate, SLOWEST))
    return Pace(every, seconds, every / rate / seconds)


def chosen_skills(program: PolicyProgram, numbers: Sequence[int] | None, most: int) -> list[int]:
    """Returns the numbers of skills to film: those that are given, or at most `most` that represent all of them."""
    skills = shown_skills(program)
    if numbers is None:
        return representatives(skills, most)
    require(bool(numbers), "`skills` must name at least one skill, such as 0.")
    for number in numbers:
        require(0 <= number < len(skills), f"`skills` must be numbers from 0 to {len(skills) - 1}, not {number}.")
    require(len(set(numbers)) <= most, f"`skills` may name at most {most} skills, not {len(set(numbers))}.")
    return list(dict.fromkeys(map(int, numbers)))


def representatives(skills: np.ndarray, most: int) -> list[int]:
    """Returns the indices of at most `most` of the skills [S, K], as far from each other as possible, in order.

    Each is the farthest from those chosen before it. Of a 5 x 5 grid, nine are every second one of every second row.
    """
    chosen = [0]
    distance = np.full(len(skills), np.inf)
    while len(chosen) < min(most, len(skills)):
        distance = np.minimum(distance, np.linalg.norm(skills - skills[chosen[-1]], axis=1))
        distance[chosen] = -1.0
        chosen.append(int(np.argmax(distance > distance.max() - 1e-6)))  # the first, not one that rounding prefers
    return sorted(chosen)


def skill_episodes(best: BestPolicy, numbers: Sequence[int], seed: int, width: int) -> Iterator[SkillEpisode]:
    """Runs a whole episode of each of some skills, all from the same start state, and draws it.

    Args:
        best: The policy.
        numbers: The numbers of the skills.
        seed: The seed of the start state.
        width: The width of the pictures, which are large otherwise.
    """
    program, state, hyper = best
    agent = program.skill_agent
    assert agent is not None
    env = program.env
    skills = shown_skills(program)
    labels, colours = plots.skill_labels(skills), plots.skill_colours(skills)
    pace = film_pace(env)
    rate = env.spec.frames_per_second / pace.every
    key, steps = program.stream(SKILLS, seed), env.spec.episode_length
    for number in numbers:
        memory = agent.memory_for(jnp.asarray(skills[number]))
        pictures: list[np.ndarray] = []
        try:
            episode = record(program.agent, env, state, hyper, key, steps, rate, memory)
            pictures = [plots.resized(picture, width) for picture in plots.frames(env, episode, rate)[0]]
        except CoveyError:  # the environment can't be drawn, but its paths can
            episode = record(program.agent, env, state, hyper, key, steps, 0, memory)
        path, descriptor = _where(program, episode.obs)
        total = float(np.sum(episode.rewards))
        about = (number, skills[number], labels[number], colours[number], path, descriptor, total)
        yield SkillEpisode(*about, pictures, pace)


def path_films(episodes: Sequence[SkillEpisode]) -> list[list[np.ndarray]]:
    """Returns pictures of the paths of episodes, all in the same plane: for environments that can't be drawn."""
    limits = plots.plane_limits([each.path for each in episodes], episodes[0].descriptor)
    return [plots.path_pictures(each.path, each.pace.every, limits, each.colour) for each in episodes]


def film_skills(best: BestPolicy, out: Path, numbers: Sequence[int] | None, seed: int) -> plots.Picture:
    """Writes a film of several skills side by side (see `Run.film_skills`)."""
    chosen = chosen_skills(best.program, numbers, MOST_TILES)
    if out.suffix:
        plots.require_film(out)
    found = list(skill_episodes(best, chosen, seed, plots.TILE))
    films = [each.pictures for each in found] if found[0].pictures else path_films(found)
    tiles = [plots.Tile(each.label, each.colour, film) for each, film in zip(found, films, strict=True)]
    if numbers is None and not plots.are_discrete(shown_skills(best.program)):
        tiles = [tiles[i] for i in _on_map([each.skill for each in found])]
    return plots.save_film(out, plots.tiled(tiles), found[0].pace.seconds)


def _on_map(skills: Sequence[np.ndarray]) -> list[int]:
    """Returns the order of continuous skills in rows: their second coordinate falls, then their first one grows."""
    columns = math.ceil(math.sqrt(len(skills)))
    falling = sorted(range(len(skills)), key=lambda i: tuple(-skills[i][1:2]) + tuple(skills[i][:1]))
    rows = [falling[i : i + columns] for i in range(0, len(skills), columns)]
    return [i for row in rows for i in sorted(row, key=lambda i: float(skills[i][0]))]
