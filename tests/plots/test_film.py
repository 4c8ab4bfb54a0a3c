"""`covey video`, and a run on an environment that can't be drawn."""

import re
import subprocess
import sys
from pathlib import Path

import imageio_ffmpeg
import pytest

from covey.cli import main
from covey.envs.builtin.point import Point
from covey.errors import CoveyError
from covey.install import install_command
from tests.runs import tiny


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return tiny(tmp_path_factory.mktemp("video") / "run")


def test_mp4(run, capsys):
    assert main(["video", str(run.path), "--steps", "30"]) == 0
    file = run.path / "media" / "policy.mp4"
    assert capsys.readouterr().out.strip() == str(file)
    program = next((Path(imageio_ffmpeg.__file__).parent / "binaries").glob("ffmpeg*"))
    read = [str(program), "-i", str(file), "-f", "null", "-"]
    said = subprocess.run(read, check=True, capture_output=True, text=True).stderr
    assert "Video: h264" in said and "256x256" in said and "10 fps" in said
    assert re.findall(r"frame= *(\d+)", said)[-1] == "31"


def test_gif_and_wrong_kinds(run, tmp_path, capsys):
    assert main(["video", str(run.path), "--out", str(tmp_path / "a.gif"), "--steps", "5"]) == 0
    assert main(["video", str(run.path), "--out", str(tmp_path / "a.mp5")]) == 1
    assert "'.mp4'" in capsys.readouterr().err
    assert main(["video", str(run.path), "--out", str(tmp_path / "a.html"), "--steps", "5"]) == 1
    assert "Only Brax" in capsys.readouterr().err


def test_without_the_package(run, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "imageio_ffmpeg", None)
    assert main(["video", str(run.path)]) == 1
    assert install_command("video") in capsys.readouterr().err


def test_a_run_ends_well_where_nothing_can_be_drawn(monkeypatch, tmp_path, capsys):
    def frame(self, state):
        raise CoveyError("There is no screen.")

    monkeypatch.setattr(Point, "frame", frame)
    from covey.launch import start_run
    from covey.run.config import default_config
    from covey.run.console import Reporter
    from tests.runs import TINY

    start_run(default_config("td3", **TINY), tmp_path / "run", Reporter())
    assert "animation:      none: There is no screen." in capsys.readouterr().out


def test_drawing_is_arranged_before_mujoco_is_imported():
    """Without a screen, and where the library is there, the command line draws with EGL."""
    code = (
        "import os, sys, ctypes; [os.environ.pop(n, None) for n in ('DISPLAY', 'WAYLAND_DISPLAY', 'MUJOCO_GL')]\n"
        "from covey.backend import use_cache; use_cache(); assert 'mujoco' not in sys.modules\n"
        "ctypes.CDLL('libEGL.so.1'); assert os.environ['MUJOCO_GL'] == 'egl'"
    )
    found = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True)
    assert found.returncode == 0 or "libEGL.so.1" in found.stderr, found.stderr
