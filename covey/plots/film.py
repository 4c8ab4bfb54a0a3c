"""Films of an episode: MP4 and GIF from the drawings of the environment, and Brax's page that replays it."""

import subprocess
import warnings
from collections.abc import Callable
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np

from covey.envs.base import Env, HostEnv
from covey.envs.described import Described
from covey.errors import CoveyError, require, unknown
from covey.evaluation.record import GIF_FRAMES, frame_interval
from covey.evaluation.rollout import Episode
from covey.storage.atomic import make_folder, partial_of, replace_output, replacing

MP4_FRAMES = 50
"""Frames per second, at most."""
ANNOTATION_COLOUR = (214, 69, 65)
"""The colour of the bars that show a policy's annotations."""
QUALITY = "20"
"""Of the film: 0 loses nothing, 23 is ffmpeg's default, 51 is the worst."""

Writer = Callable[[Path, Env, Episode], Path]


def film_writer(path: Path) -> Writer:
    """What writes a film of the kind that a file's name says; an error before anything is computed if there is none."""
    if path.suffix not in WRITERS:
        raise unknown("kind of film", path.suffix or path.name, WRITERS)
    if path.suffix == ".mp4":
        _ffmpeg()
    return WRITERS[path.suffix]


def write_gif(path: Path, env: Env | HostEnv, episode: Episode) -> Path:
    """Draws an episode into a looping GIF."""
    from PIL import Image

    pictures, seconds = frames(env, episode, GIF_FRAMES)
    images = [Image.fromarray(picture) for picture in pictures]
    film, more = BytesIO(), {"append_images": images[1:], "duration": round(1000 * seconds)}
    images[0].save(film, "GIF", save_all=True, loop=0, optimize=False, **more)
    replace_output(path, film.getbuffer())
    return path


def write_mp4(path: Path, env: Env, episode: Episode) -> Path:
    """Draws an episode into an MP4 that plays everywhere (H.264)."""
    pictures, seconds = frames(env, episode, MP4_FRAMES)
    height, width = (size // 2 * 2 for size in pictures[0].shape[:2])  # the encoder asks for even sizes
    make_folder(path.parent, parents=True)
    given = ["-f", "rawvideo", "-pix_fmt", "rgb24", "-s", f"{width}x{height}", "-r", f"{1.0 / seconds:g}", "-i", "-"]
    made = ["-c:v", "libx264", "-crf", QUALITY, "-pix_fmt", "yuv420p", "-f", "mp4", f"file:{partial_of(path)}"]
    command = [_ffmpeg(), "-y", "-loglevel", "error", *given, *made]
    film = b"".join(picture[:height, :width].tobytes() for picture in pictures)
    with replacing(path):
        done = subprocess.run(command, input=film, capture_output=True, check=False)
        require(done.returncode == 0, f"The film can't be written: {done.stderr.decode(errors='replace').strip()}")
    return path


def write_html(path: Path, env: Env, episode: Episode) -> Path:
    """Writes the page of Brax that replays an episode in a browser, which loads its viewer from the network."""
    from covey.envs.compiled.brax import Brax

    inner: Any = env.env if isinstance(env, Described) else env
    if not isinstance(inner, Brax):
        raise CoveyError(f"Only Brax has a page that replays an episode. Give --out {path.with_suffix('.mp4')}.")
    states = [state.env for state in episode.states] if isinstance(env, Described) else episode.states
    replace_output(path, inner.replay(states).encode())
    return path


def frames(env: Env | HostEnv, episode: Episode, most: int) -> tuple[list[np.ndarray], float]:
    """Pictures of an episode, at most so many per second, and the seconds from one to the next.

    A bar at the top shows for each mark how much of it there was, for example that the action was repeated.
    """
    every, pictures = frame_interval(env, most), []
    for t in range(0, len(episode.states), every):
        picture = np.array(episode.states[t] if isinstance(env, HostEnv) else env.frame(episode.states[t]))
        height, width = max(2, picture.shape[0] // 40), picture.shape[1]
        for row, values in enumerate(episode.annotations.values()):
            share = float(np.clip(np.mean(values[max(0, t - every) : t]), 0.0, 1.0)) if t else 0.0
            picture[row * height : (row + 1) * height, : round(share * width)] = ANNOTATION_COLOUR
        pictures.append(picture)
    return pictures, every / env.spec.frames_per_second


def _ffmpeg() -> str:
    """The program that makes films. (Its own package starts it in a way that jax warns of.)"""
    try:
        import imageio_ffmpeg
    except ImportError as error:
        raise CoveyError(
            "An MP4 needs the package imageio-ffmpeg. Install it: pip install 'covey[video]'. Or write a GIF: "
            "--out policy.gif."
        ) from error
    with warnings.catch_warnings(action="ignore"):
        return imageio_ffmpeg.get_ffmpeg_exe()


WRITERS: dict[str, Writer] = {".mp4": write_mp4, ".gif": write_gif, ".html": write_html}
