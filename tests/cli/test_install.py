"""The install command of an extra: for this interpreter, from a clone and from a wheel."""

import json
import shlex
import sys
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from types import SimpleNamespace

import pytest

from covey import install
from covey.install import install_command

REQUIRES = [
    "jax>=0.9",
    "gymnasium[mujoco]>=1.2; extra == 'mujoco'",
    'mujoco>=3.3 ; extra == "mujoco"',
    "mujoco>=3.17; extra == 'brax'",
]


@pytest.fixture
def installed(monkeypatch):
    """Pretends that covey was installed from somewhere."""

    def pretend(origin: dict | None) -> None:
        text = None if origin is None else json.dumps(origin)
        found = SimpleNamespace(requires=REQUIRES, read_text=lambda name: text)
        monkeypatch.setattr(install, "distribution", lambda name: found)

    return pretend


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    folder = tmp_path / "my clone"
    folder.mkdir()
    (folder / "pyproject.toml").touch()
    (folder / "constraints.txt").touch()
    return folder


PIP = [sys.executable, "-m", "pip", "install"]


def test_from_a_clone(clone: Path, installed, monkeypatch):
    installed({"url": clone.as_uri(), "dir_info": {"editable": True}})
    constraints = str(clone / "constraints.txt")
    assert shlex.split(install_command("mujoco")) == [*PIP, "-c", constraints, "-e", f"{clone}[mujoco]"]
    monkeypatch.chdir(clone)
    assert install_command("mujoco").endswith("pip install -c constraints.txt -e '.[mujoco]'")
    installed({"url": clone.as_uri(), "dir_info": {}})
    assert install_command("mujoco").endswith("pip install -c constraints.txt '.[mujoco]'")


def test_from_a_wheel_or_a_clone_that_is_gone(clone: Path, installed):
    packages = [*PIP, "gymnasium[mujoco]>=1.2", "mujoco>=3.3"]
    for origin in (
        None,
        {"url": "file:///wheels/covey.whl", "archive_info": {}},
        {"url": (clone / "gone").as_uri(), "dir_info": {"editable": True}},
    ):
        installed(origin)
        assert shlex.split(install_command("mujoco")) == packages


def test_from_sources_that_are_not_installed(monkeypatch):
    def missing(name: str) -> None:
        raise PackageNotFoundError(name)

    monkeypatch.setattr(install, "distribution", missing)
    root = Path(install.__file__).parents[1]
    assert f"{root}[video]" in shlex.split(install_command("video")) or "'.[video]'" in install_command("video")
