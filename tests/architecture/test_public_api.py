"""The public names of covey: visible, documented, and the same for Python and for type checkers."""

import ast
import dataclasses
import inspect
import subprocess
import sys
from types import ModuleType

import pytest

import covey
from covey.api import ResumeOptions, RunOptions, TrainOptions
from covey.launch import RESUMABLE
from covey.run.config import RunConfig
from covey.run.config_text import SHORTHANDS
from tests.architecture.source import MODULES, tree_of

NAMES = [name for name in dir(covey) if not name.startswith("_")]


def test_dir_shows_the_library():
    expected = {"train", "evolve", "resume", "load", "envs", "agents", "SAC", "TD3Config", "TAACHyper", "DADS_SPACE"}
    expected |= {"Replay", "make_trainer", "DeviceLoop", "HostLoop", "evaluate", "PBT", "exchange", "draw_hypers"}
    expected |= {"RunConfig", "Run", "register_agent", "register_env", "register_adapter", "register_sink"}
    assert expected <= set(dir(covey))


def test_type_checkers_see_the_same_names():
    """The imports under TYPE_CHECKING name every public name, from the module that it really comes from."""
    (block,) = [node for node in tree_of("__init__").body if isinstance(node, ast.If) and "TYPE" in ast.dump(node.test)]
    found = {alias.name: node.module for node in block.body if isinstance(node, ast.ImportFrom) for alias in node.names}
    real = dict(covey._MODULE_OF) | dict.fromkeys(covey._MODULES, "covey")
    assert found == real


@pytest.mark.parametrize("name", NAMES)
def test_every_public_name_is_documented(name: str):
    value = getattr(covey, name)
    if name.endswith("_SPACE") or name == "Space":  # a dictionary
        return
    text = inspect.getdoc(value) or ""
    assert text, f"{name} has no docstring"
    assert not text.startswith(("What ", "Where ")), text
    if isinstance(value, ModuleType):
        return
    function = value if inspect.isfunction(value) else None
    if function and inspect.signature(function).parameters:
        assert "Args:" in text and "Example" in text, f"{name} documents no arguments or no example"


@pytest.mark.parametrize("name", [name for name in NAMES if inspect.isclass(getattr(covey, name))])
def test_public_classes_document_their_fields(name: str):
    """By `Args:` in the docstring, or by a docstring of each field, which the command line shows."""
    kind = getattr(covey, name)
    text = inspect.getdoc(kind) or ""
    fields = (
        getattr(kind, "_fields", ()) or tuple(f.name for f in dataclasses.fields(kind))
        if hasattr(kind, "__dataclass_fields__") or hasattr(kind, "_fields")
        else ()
    )
    if not fields or "Args:" in text:
        return
    source = inspect.getsource(kind)
    documented = source.count('"""') // 2 - 1
    assert documented >= len(fields) // 2, f"{name}: {documented} of {len(fields)} fields are documented"


@pytest.mark.parametrize("module", MODULES)
def test_no_docstring_begins_with_what_or_where(module: str):
    for node in ast.walk(tree_of(module)):
        if isinstance(node, ast.FunctionDef | ast.ClassDef | ast.Module):
            text = ast.get_docstring(node) or ""
            assert not text.startswith(("What ", "Where ")), f"{module}: {text.splitlines()[0]}"


def test_options_are_typed():
    """Type checkers know every option of `train`, `evolve` and `resume`."""
    fields = {each.name for each in dataclasses.fields(RunConfig)}
    population = {"algorithm", "members", "pbt", "space", "engine", "islands"}
    assert set(RunOptions.__annotations__) == fields - population | set(SHORTHANDS)
    assert set(TrainOptions.__annotations__) == set(RunOptions.__annotations__) | {"seeds"}
    assert set(ResumeOptions.__annotations__) == {*RESUMABLE, "lr"}


def test_help_is_fast():
    """`covey --help` imports neither jax nor anything else that is heavy."""
    code = "import sys; from covey.cli import main; main(['--help']); assert 'jax' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)
