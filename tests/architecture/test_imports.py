"""What may import what, and where certain things may happen at all (docs/architecture.md)."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import covey

ROOT = Path(covey.__file__).parent
MODULES = sorted(p.relative_to(ROOT).with_suffix("").as_posix() for p in ROOT.rglob("*.py"))

ALLOWED = {
    "errors": set(),
    "types": set(),
    "trust": {"errors"},
    "nn": {"errors", "types", "nn"},
    "agent": {"types"},
    "agents": {"errors", "types", "nn", "agent", "agents"},
    "replay": {"errors", "types", "agent"},
    "envs": {"errors", "types", "trust", "envs"},
    "training": {"errors", "types", "agent", "replay", "envs.base", "training"},
    "population": {"errors", "agent", "population"},
    "register": {"errors", "agent", "agents", "envs", "nn"},
    "storage": {"errors", "storage"},
    "run": {"errors", "types", "trust", "agent", "agents", "replay", "envs", "training", "population"}
    | {"storage", "run"},
    "cli": {"errors", "trust", "agents", "envs", "population", "storage", "run", "cli", "__init__"},
    "__init__": {"errors", "register", "run"},
    "__main__": {"cli"},
}


def imports(path: Path) -> list[str]:
    """The covey modules that a file imports, at any depth, without the leading `covey.`."""
    found = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found += [a.name for a in node.names if a.name.split(".")[0] == "covey"]
        elif isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "covey":
            names = [f"{node.module}.{a.name}" for a in node.names] if node.module == "covey" else [node.module]
            found += names
    return [name.removeprefix("covey.") for name in found]


@pytest.mark.parametrize("module", MODULES)
def test_dependencies_point_one_way(module: str):
    allowed = ALLOWED[module.split("/", maxsplit=1)[0]]
    for imported in imports(ROOT / f"{module}.py"):
        name = imported.replace("__version__", "__init__")
        fits = any(name == a or name.startswith(a + ".") for a in allowed)
        assert fits, f"{module} imports covey.{name}; it may import {sorted(allowed)}"


@pytest.mark.parametrize(
    "module", [m for m in MODULES if m.split("/")[0] in ("agents", "nn", "envs", "replay", "agent")]
)
def test_no_jit_files_or_clock_below_the_trainer(module: str):
    source = (ROOT / f"{module}.py").read_text()
    source = source.replace("def open(", "").replace("().open(", "")  # environments are opened too
    if module == "envs/guard":  # which watches over the code of others
        return
    for forbidden in ("jax.jit", "lax.cond", "print(", "import time", "import os", "pathlib", "open("):
        assert forbidden not in source, f"{module} has {forbidden}"


@pytest.mark.parametrize("module", [m for m in MODULES if m.split("/")[0] in ("run", "cli", "register")])
def test_programs_are_compiled_in_training_alone(module: str):
    assert "jax.jit" not in (ROOT / f"{module}.py").read_text()


@pytest.mark.parametrize("module", [m for m in MODULES if m.startswith("agents/") or m == "agent"])
def test_agents_compose_and_never_inherit(module: str):
    for node in ast.walk(ast.parse((ROOT / f"{module}.py").read_text())):
        if isinstance(node, ast.ClassDef):
            bases = {ast.unparse(base).split("[")[0] for base in node.bases}
            assert bases <= {"NamedTuple", "Protocol", "Policy", "Agent"}, f"{node.name} inherits from {bases}"


def test_import_touches_no_device_and_is_light():
    """A worker of a cluster must be able to import covey before it joins; heavy libraries wait for their use."""
    code = (
        "import sys, covey, covey.agents, covey.envs, covey.training.device\n"
        "from jax._src import xla_bridge\n"
        "assert not xla_bridge._backends, 'a backend was initialised'\n"
        "heavy = {'matplotlib', 'PIL', 'tensorboard', 'tyro', 'gymnasium'} & set(sys.modules)\n"
        "assert not heavy, heavy"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
