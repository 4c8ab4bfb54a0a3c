"""Which module may import which, and where certain things may happen (docs/architecture.md)."""

import ast
import subprocess
import sys

import pytest

from tests.architecture.source import MODULES, calls, imports, tree_of

LAYERS = (
    "errors",
    "observation",
    "types inputs install",
    "devices",
    "backend plugins signals synonyms",
    "agent hyper nn envs",
    "agents replay",
    "training storage",
    "population evaluation",
    "plots callbacks export doctor",
    "run",
    "islands publish web",
    "launch",
    "api",
    "__init__",
    "cli",
    "__main__",
)
"""From bottom to top. A module imports only from layers below its own, or from its own package."""
LEVEL = {package: level for level, layer in enumerate(LAYERS) for package in layer.split()}
PEERS = {("hyper", "types"), ("nn", "hyper"), ("agent", "hyper")}
BELOW_TRAINING = [m for m in MODULES if LEVEL[m.split("/")[0]] < LEVEL["training"]]
FORBIDDEN = ("jax.jit", "jax.lax.cond", "print", "open", "time", "os", "pathlib")


def package(module: str) -> str:
    return module.split("/", maxsplit=1)[0]


@pytest.mark.parametrize("module", MODULES)
def test_imports_point_down(module: str):
    own = package(module)
    for imported in imports(module):
        other = package(imported)
        allowed = other == own or LEVEL[other] < LEVEL[own]
        if other == "__init__":  # the version
            allowed = own in ("cli",)
        assert allowed, f"{module} imports {imported}, which is not below it"


@pytest.mark.parametrize("module", [m for m in BELOW_TRAINING if package(m) not in ("backend", "plugins", "signals")])
def test_no_jit_files_or_clock_below_the_trainer(module: str):
    exceptions = {"envs/check": {"jax.jit"}, "envs/host/guard": {"os", "time"}}.get(module, set())
    roots = {name.split(".")[0] for name in calls(module)}
    for forbidden in set(FORBIDDEN) - exceptions:
        found = calls(module) if "." in forbidden else roots
        assert forbidden not in found, f"{module} uses {forbidden}"


@pytest.mark.parametrize(
    "module",
    [m for m in MODULES if package(m) in ("storage", "plots", "run", "islands", "web", "launch", "api", "cli")],
)
def test_programs_are_compiled_below_the_run(module: str):
    assert "jax.jit" not in calls(module)


@pytest.mark.parametrize("module", [m for m in MODULES if m.startswith("agents/") or m == "agent"])
def test_agents_compose_and_never_inherit(module: str):
    for node in ast.walk(tree_of(module)):
        if isinstance(node, ast.ClassDef):
            bases = {ast.unparse(base).split("[")[0] for base in node.bases}
            assert bases <= {"NamedTuple", "Protocol", "Policy", "Agent"}, f"{node.name} inherits from {bases}"


@pytest.mark.parametrize("package_", ["population", "training", "evaluation", "storage"])
def test_nothing_generic_names_an_algorithm(package_: str):
    for module in (m for m in MODULES if package(m) == package_):
        algorithms = {
            "agents/td3",
            "agents/sac",
            "agents/taac",
            "agents/skills/diayn",
            "agents/skills/dads",
            "agents/skills/metra",
            "agents/__init__",
        }
        assert not algorithms & imports(module), module


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
