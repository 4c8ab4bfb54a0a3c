"""A stranger's files are never imported: neither if a run folder names them, nor from the current folder."""

import ast
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import covey
from covey import envs
from covey.cli import main
from covey.cli.arguments import import_plugins
from covey.errors import CoveyError
from covey.plugins import allow, allowed, import_allowed, module_of
from covey.run.config import default_config
from covey.run.config_text import to_json
from covey.storage.folder import RunFolder
from covey.storage.store import Store
from tests.architecture.source import MODULES, calls, tree_of

SPY = "import os, pathlib\npathlib.Path(os.environ['COVEY_TEST_MARK']).touch()\n"
ENVIRONMENT = SPY + "import gymnasium\nfrom tests.host_tasks import Counted\nclass X(Counted): pass\n"
VERBS = (["eval"], ["video"], ["replay"], ["skills"], ["resume"], ["resume", "--steps", "9000"])


@pytest.fixture
def gift(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A stranger's run in the current folder; its config.json names a module that is there too."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COVEY_TEST_MARK", str(tmp_path / "ran"))
    monkeypatch.setattr(sys, "path", sys.path.copy())
    (tmp_path / "evil.py").write_text(ENVIRONMENT)
    run = RunFolder(tmp_path / "gift")
    run.create(to_json(default_config("td3", steps=2000).resolved()))
    (run.path / "evil.py").write_text(ENVIRONMENT)
    names(run, "gymnasium:evil:X")
    arrays = {"replay/data": np.zeros((1, 1, 1, 1), np.float32), "replay/written": np.ones((), np.int32)}
    for kind in ("step", "best"):
        Store(run.checkpoints, kind).write(100, arrays, {"step": 100})
    return run.path


def imported_names(module: str, package: str) -> set[str]:
    """Returns the names that a module of covey imports from a package."""
    nodes = [x for x in ast.walk(tree_of(module)) if isinstance(x, ast.ImportFrom) and x.module == package]
    return {alias.name for node in nodes for alias in node.names}


def names(run: RunFolder, env: str, **options: Any) -> None:
    values = json.loads(run.config.read_text()) | {"env": env} | options
    values.pop("digest", None)  # as a stranger would
    run.config.write_text(json.dumps(values))


@pytest.mark.parametrize("verb", VERBS, ids=" ".join)
@pytest.mark.parametrize("module", ["evil", "gift.evil"])
def test_no_verb_imports_what_a_run_folder_names(
    verb: list[str], module: str, gift: Path, capsys: pytest.CaptureFixture
):
    names(RunFolder(gift), f"gymnasium:{module}:X")
    sys.path.append(str(gift.parent))  # although it could be found
    assert main([verb[0], "gift", *verb[1:]]) == 1
    said = capsys.readouterr().err
    assert not (gift.parent / "ran").exists() and module not in sys.modules
    assert f"'{module}'" in said and f"--plugin {module}" in said, said


def test_a_config_file_names_no_module_either(gift: Path, capsys: pytest.CaptureFixture):
    sys.path.append(str(gift.parent))
    assert main(["train", "td3", "--config", "gift/config.json", "--out", "new"]) == 1
    assert "--plugin evil" in capsys.readouterr().err and not (gift.parent / "ran").exists()


@pytest.mark.parametrize("options", [{"wrappers": ["evil:X"]}, {"eval_env": "gymnasium:evil:X"}], ids=str)
def test_wrappers_and_evaluation_environments_import_nothing_either(options: dict[str, Any], gift: Path):
    sys.path.append(str(gift.parent))
    names(RunFolder(gift), "gymnasium:Pendulum-v1", **options)
    with pytest.raises(CoveyError, match="imports no module"):
        _ = covey.load(gift).best
    assert not (gift.parent / "ran").exists() and "evil" not in sys.modules


def test_objects_are_in_no_file(gift: Path):
    names(RunFolder(gift), "object:evil.X")
    with pytest.raises(CoveyError, match="was passed from Python"):
        _ = covey.load(gift).best


def test_arguments_name_no_module(gift: Path):
    """Gymnasium's adapter to old gym makes an environment from a name, `MODULE:ID`, which imports the module."""
    names(RunFolder(gift), "gymnasium:GymV26Environment-v0", env_kwargs={"env_id": "evil:X"})
    with pytest.raises(CoveyError, match="could import any module"):
        _ = covey.load(gift).best


def test_a_typed_wrapper_is_allowed():
    import_plugins(["train", "td3", "--wrappers", "json.tool:main", "gymnasium.wrappers:X", "--env", "point"])
    assert "json.tool" in allowed() and "gymnasium.wrappers" not in allowed(), "which needs no permission"


def test_python_imports_only_the_plugins_that_are_named(gift: Path):
    sys.path.append(str(gift.parent))
    with pytest.raises(CoveyError, match=r"plugins=\['evil'\]"):
        _ = covey.load(gift).best
    with pytest.raises(CoveyError, match="must be a list of modules"):
        covey.load(gift, plugins="evil")
    assert not (gift.parent / "ran").exists()


def test_a_name_from_a_file_imports_nothing(gift: Path):
    """`make` trusts its caller; `make_from_config`, and all of covey that reads files, does not."""
    sys.path.append(str(gift.parent))
    before = allowed()
    with pytest.raises(CoveyError, match="imports no module"):
        envs.make_from_config("gymnasium:evil:X")
    with pytest.raises(CoveyError, match="imports no module"):
        _ = covey.load(gift).best
    assert allowed() == before and not (gift.parent / "ran").exists()


@pytest.mark.parametrize("module", [m for m in MODULES if not m.startswith("envs/") and m != "cli/catalogue"])
def test_names_from_files_never_reach_make(module: str):
    """Only `covey check-env` and `covey envs`, whose environments are typed or registered, call `envs.make`."""
    assert not {name for name in calls(module) if name in ("envs.make", "covey.envs.make")}
    assert "make" not in imported_names(module, "covey.envs")


def test_a_module_that_was_named_is_imported(gift: Path):
    """By --plugin, by a typed --env, and in Python by `plugins=` or a call of `make`: each in its own process."""
    start = "import covey, sys; sys.path.append('.'); "
    python = f"{start}covey.load({str(gift)!r}, plugins=['evil']).program"
    made = f"{start}from covey import envs; assert envs.make('gymnasium:evil:X').spec.obs_size == 2"
    ways = (
        ["-m", "covey", "replay", "gift", "--plugin", "evil"],
        ["-m", "covey", "resume", "gift", "--env", "gymnasium:evil:X"],
        ["-c", python],
        ["-c", made],
    )
    for way in ways:
        found = subprocess.run([sys.executable, *way], check=False, capture_output=True, text=True)
        assert (gift.parent / "ran").exists(), found.stderr
        assert "imports no module" not in found.stderr
        (gift.parent / "ran").unlink()


def test_a_module_must_be_named_exactly():
    allow("tests")
    with pytest.raises(CoveyError, match="imports no module"):
        import_allowed("tests.not_there", "gymnasium:tests.not_there:X")
    allow("tests.not_there")
    with pytest.raises(CoveyError, match=r"'tests.not_there' can't be imported: ModuleNotFoundError"):
        import_allowed("tests.not_there", "gymnasium:tests.not_there:X")
    assert module_of("gymnasium:a.b:C") == "a.b" and module_of("gymnasium:a:b:C") == "a:b"
    assert module_of("gymnasium:Hopper-v5") == module_of("envpool:a:B") == module_of("point") == ""


@pytest.mark.parametrize("library", ["envpool", "brax", "gymnax", "playground"])
def test_no_other_library_takes_a_module(library: str, gift: Path):
    sys.path.append(str(gift.parent))
    names(RunFolder(gift), f"{library}:evil:X")
    with pytest.raises(CoveyError):
        _ = covey.load(gift).best
    assert not (gift.parent / "ran").exists()


@pytest.mark.parametrize("verb", ["plot", "resume"])
def test_the_current_folder_shadows_no_package(verb: str, gift: Path):
    """jax, matplotlib and the standard library are imported from where they are installed."""
    names(RunFolder(gift), "point")
    shadows = ("jax", "matplotlib", "json", "typing", "tyro", "numpy", "socket", "pickle", "multiprocessing")
    for name in shadows:
        (gift.parent / f"{name}.py").write_text(SPY)
    (gift / "metrics.jsonl").write_text('{"step": 0, "wall": 0, "member": 0, "name": "eval/return", "value": 1.0}\n')
    safe = os.environ | {"PYTHONSAFEPATH": ""}
    script = Path(sys.executable).with_name("covey")
    for command in ([sys.executable, "-m", "covey"], [sys.executable, str(script)]):
        if not Path(command[1]).exists() and command[1] != "-m":
            continue
        found = subprocess.run([*command, verb, "gift"], check=False, capture_output=True, text=True, env=safe)
        assert not (gift.parent / "ran").exists(), found.stderr
        assert "gift" in found.stdout + found.stderr  # it got as far as the run


def test_workers_find_nothing_in_the_current_folder_first(gift: Path):
    """A worker is a new Python process, which by default searches the current folder first."""
    for name in ("multiprocessing", "pickle", "socket", "cloudpickle"):
        (gift.parent / f"{name}.py").write_text(SPY)
    code = (
        "import sys, os; sys.path.pop(0)\n"
        "import numpy as np\nfrom covey import envs\n"
        "def main():\n"
        "    env = envs.make('gymnasium:Pendulum-v1').open(2, workers=1)\n"
        "    assert env.reset(np.array([1, 2], np.uint32)).shape == (2, 3)\n"
        "    env.close()\n"
        "    assert 'PYTHONSAFEPATH' not in os.environ\n"
        "if __name__ == '__main__': main()\n"
    )
    clean = {name: value for name, value in os.environ.items() if name != "PYTHONSAFEPATH"}
    found = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True, env=clean)
    assert found.returncode == 0 and not (gift.parent / "ran").exists(), found.stderr
