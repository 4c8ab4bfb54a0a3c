"""Films of an episode: MP4 and GIF from the frames of the environment, and an HTML page that replays it."""

import subprocess
import warnings
from collections.abc import Callable, Sequence
from io import BytesIO
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np

from covey.envs.base import Env, HostEnv
from covey.envs.described import Described
from covey.envs.wrappers import inner_state, innermost
from covey.errors import CoveyError, require, unknown
from covey.evaluation.record import GIF_FRAMES, frame_interval
from covey.evaluation.rollout import Episode
from covey.install import install_command
from covey.plots.style import Picture
from covey.storage.atomic import replace_output, replacing
from covey.storage.disk import make_folder, partial_path

MP4_FRAMES = 50
"""Frames per second, at most."""
ANNOTATION_COLOUR = (214, 69, 65)
"""The colour of the bars that show a policy's annotations."""
QUALITY = "20"
"""The quality of an MP4: 0 is lossless, 23 is ffmpeg's default, 51 is the worst."""

SAVED = (".mp4", ".gif")
"""Endings of films that consist of pictures."""

Writer = Callable[[Path, Env, Episode], Path]


@runtime_checkable
class Replayable(Protocol):
    """An environment that has a page which replays states in a browser, as Brax has."""

    def replay(self, states: list[Any]) -> str:
        """Returns the HTML page."""
        ...


def film_writer(path: Path) -> Writer:
    """Returns the function that writes a film of the kind that the file's ending names.

    Raises:
        CoveyError: There is no such kind, or a package for it is missing.
    """
    if path.suffix not in WRITERS:
        raise unknown("kind of film", path.suffix or path.name, WRITERS)
    if path.suffix == ".mp4":
        _ffmpeg()
    return WRITERS[path.suffix]


def write_gif(path: Path, env: Env | HostEnv, episode: Episode) -> Picture:
    """Writes an episode as a looping GIF. Returns its path."""
    return save_gif(path, *frames(env, episode, GIF_FRAMES))


def save_gif(path: Path, pictures: Sequence[np.ndarray], seconds: float) -> Picture:
    """Writes pictures [height, width, 3] as a looping GIF, with `seconds` between two of them. Returns its path."""
    from PIL import Image

    images = [Image.fromarray(picture) for picture in pictures]
    film = BytesIO()
    options = {"append_images": images[1:], "duration": round(1000 * seconds)}
    images[0].save(film, "GIF", save_all=True, loop=0, optimize=False, **options)
    replace_output(path, film.getbuffer())
    return Picture(path)


def write_mp4(path: Path, env: Env, episode: Episode, most: int = MP4_FRAMES) -> Picture:
    """Writes an episode as an MP4 that plays everywhere (H.264), with at most `most` frames per second.

    Returns its path.
    """
    return save_mp4(path, *frames(env, episode, most))


def save_mp4(path: Path, pictures: Sequence[np.ndarray], seconds: float) -> Picture:
    """Writes pictures [height, width, 3] as an MP4, with `seconds` between two of them. Returns its path."""
    height, width = (size // 2 * 2 for size in pictures[0].shape[:2])  # the encoder needs even sizes
    make_folder(path.parent, parents=True)
    source = ["-f", "rawvideo", "-pix_fmt", "rgb24", "-s", f"{width}x{height}", "-r", f"{1.0 / seconds:g}", "-i", "-"]
    target = ["-c:v", "libx264", "-crf", QUALITY, "-pix_fmt", "yuv420p", "-f", "mp4", f"file:{partial_path(path)}"]
    command = [_ffmpeg(), "-y", "-loglevel", "error", *source, *target]
    film = b"".join(picture[:height, :width].tobytes() for picture in pictures)
    with replacing(path):
        done = subprocess.run(command, input=film, capture_output=True, check=False)
        require(done.returncode == 0, f"The film can't be written: {done.stderr.decode(errors='replace').strip()}")
    return Picture(path)


def save_film(path: Path, pictures: Sequence[np.ndarray], seconds: float) -> Picture:
    """Writes pictures as an MP4 or a GIF, by the file's ending; without an ending, as an MP4 if ffmpeg works here.

    Args:
        path: The file.
        pictures: Pictures [height, width, 3], uint8.
        seconds: Seconds between two pictures.

    Returns:
        The path of the file, with its ending.

    Raises:
        CoveyError: There is no such kind of film, or a package for it is missing.

    Example:
        >>> save_film(Path("media/skills"), pictures, seconds=0.04)
        Picture('media/skills.mp4')
    """
    if path.suffix:
        require_film(path)
        return (save_mp4 if path.suffix == ".mp4" else save_gif)(path, pictures, seconds)
    try:
        return save_mp4(path.with_suffix(".mp4"), pictures, seconds)
    except CoveyError:  # without imageio-ffmpeg, or with one whose ffmpeg does not work here
        return save_gif(path.with_suffix(".gif"), pictures, seconds)


def require_film(path: Path) -> None:
    """Raises a CoveyError unless pictures can be written to a file with this ending here: an MP4 or a GIF."""
    require(
        path.suffix in SAVED, f"`out` must name an MP4 or a GIF, for example {path.with_suffix('.mp4')}, not {path}."
    )
    if path.suffix == ".mp4":
        _ffmpeg()


def write_html(path: Path, env: Env, episode: Episode) -> Path:
    """Writes a page that replays an episode in a browser; it loads its viewer from the web. Returns its path."""
    described = isinstance(env, Described)
    below = env.env if described else env
    inner = innermost(below)
    if not isinstance(inner, Replayable):
        raise CoveyError(
            f"Only Brax has a page that replays an episode. Give an `out` such as {path.with_suffix('.mp4')}."
        )
    states = [inner_state(below, state.env if described else state) for state in episode.states]
    replace_output(path, inner.replay(states).encode())
    return path


def frames(env: Env | HostEnv, episode: Episode, most: float) -> tuple[list[np.ndarray], float]:
    """Returns pictures of an episode and the seconds between two of them.

    A bar at the top of a picture shows the mean of each annotation of the policy since the picture before, for example
    how often the action was repeated.

    Args:
        env: The environment.
        episode: The episode; of a host environment it holds pictures instead of states.
        most: Pictures per second, at most.
    """
    every = frame_interval(env, most)
    pictures = []
    for t in range(0, len(episode.states), every):
        picture = np.array(episode.states[t] if isinstance(env, HostEnv) else env.frame(episode.states[t]))
        height, width = max(2, picture.shape[0] // 40), picture.shape[1]
        for row, values in enumerate(episode.annotations.values()):
            share = float(np.clip(np.mean(values[max(0, t - every) : t]), 0.0, 1.0)) if t else 0.0
            picture[row * height : (row + 1) * height, : round(share * width)] = ANNOTATION_COLOUR
        pictures.append(picture)
    return pictures, every / env.spec.frames_per_second


def _ffmpeg() -> str:
    """Returns the path of ffmpeg. (The writer of imageio-ffmpeg starts it in a way that jax warns about.)"""
    try:
        import imageio_ffmpeg
    except ImportError as error:
        raise CoveyError(
            "An MP4 needs the package imageio-ffmpeg. Write a GIF, with an `out` such as policy.gif, or install it:\n"
            f"  {install_command('video')}"
        ) from error
    with warnings.catch_warnings(action="ignore"):
        return imageio_ffmpeg.get_ffmpeg_exe()


WRITERS: dict[str, Writer] = {".mp4": write_mp4, ".gif": write_gif, ".html": write_html}
