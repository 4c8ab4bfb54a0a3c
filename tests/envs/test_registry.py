"""`covey.envs`: names, and adapters with their prefixes."""

import subprocess
import sys
from pathlib import Path

import pytest

from covey import envs
from covey.cli import main
from covey.envs.builtin.point import Point
from covey.errors import CoveyError
from covey.install import install_command

MODULE = """
from covey.envs.builtin.point import Point

def make(name):
    return Point(arena=float(name))

def names():
    return ["3", "4"]
"""


@pytest.fixture(autouse=True)
def registries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(envs, "ENVS", dict(envs.ENVS))
    monkeypatch.setattr(envs, "ADAPTERS", dict(envs.ADAPTERS))


def test_names_and_summaries():
    assert envs.names() == tuple(sorted(envs.ENVS))
    built_in = {"pendulum", "mountaincar", "cartpole-swingup", "reacher", "point", "point-free", "pointmaze"}
    assert built_in <= set(envs.ENVS)
    for entry in (*envs.ENVS.values(), *envs.ADAPTERS.values()):
        assert entry.summary.endswith(".") and len(entry.summary) < 100


def test_unknown_names():
    with pytest.raises(CoveyError, match=r"no environment called 'pendulun'.*'pendulum'"):
        envs.make("pendulun")
    with pytest.raises(CoveyError, match=r"no library of environments called 'bracks'.*'brax'"):
        envs.make("bracks:ant")


def test_register():
    envs.register("mine", lambda: Point(arena=3.0), "Mine.")
    assert envs.make("mine") == Point(arena=3.0) and "mine" in envs.names()
    for name in ("mine", "a:b", ""):
        with pytest.raises(CoveyError):
            envs.register(name, Point, "Again.")


def test_an_adapter_that_is_a_function(capsys: pytest.CaptureFixture[str]):
    envs.register_adapter("arena", lambda name: Point(arena=float(name)), "Arenas of any size.")
    assert envs.make("arena:3") == Point(arena=3.0)
    assert envs.adapter("arena").names() == () and envs.adapter("arena").install == ""
    assert main(["envs"]) == 0
    assert "Arenas of any size." in capsys.readouterr().out
    assert main(["envs", "arena"]) == 1 and "does not list" in capsys.readouterr().err


def test_an_adapter_that_is_a_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys):
    """It is imported when its prefix is first used, and not before."""
    (tmp_path / "covey_test_adapter.py").write_text(MODULE)
    monkeypatch.syspath_prepend(tmp_path)
    envs.register_adapter("arena", "covey_test_adapter", "Arenas of any size.", extra="arena")
    assert "covey_test_adapter" not in sys.modules
    assert envs.make("arena:4") == Point(arena=4.0) and envs.adapter("arena").names() == ("3", "4")
    assert envs.adapter("arena").install == install_command("arena")
    assert main(["envs", "arena"]) == 0 and capsys.readouterr().out == "arena:3\narena:4\n"


def test_adapters_that_can_not_be_registered():
    for prefix in ("brax", "a:b", ""):
        with pytest.raises(CoveyError, match="prefix"):
            envs.register_adapter(prefix, Point)
    with pytest.raises(CoveyError, match="must be the name of a module or a function"):
        envs.register_adapter("mine", 3)  # type: ignore[arg-type]
    envs.register_adapter("json", "json")
    with pytest.raises(CoveyError, match=r"'json' has no function make"):
        envs.make("json:x")


def test_a_run_with_the_environment_of_an_adapter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    from covey.run.config import default_config
    from covey.run.program import build

    envs.register_adapter("arena", lambda name: Point(arena=float(name)))
    assert build(default_config("td3", env="arena:3", steps=20_000).resolved()).policy.env == Point(arena=3.0)


def test_import_is_light():
    """Neither drawing nor Gymnasium nor a device is touched until it is needed."""
    code = (
        "import sys, covey.envs; [covey.envs.make(n).spec for n in covey.envs.names()];"
        "from jax._src import xla_bridge; assert not xla_bridge.backends_are_initialized();"
        "heavy = {'PIL', 'gymnasium', 'matplotlib'} & set(sys.modules); assert not heavy, heavy"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
