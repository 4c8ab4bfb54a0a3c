"""What the documents show is run: examples, Python in the README and the docs, and the README's commands."""

import os
import re
import runpy
import shlex
import subprocess
import sys
from pathlib import Path

import gymnasium
import pytest

import covey
from covey import agents, envs
from covey.cli import main
from covey.nn.parts import TORSOS
from tests.runs import FLAGS, TINY

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
ALL_PAGES = [*PAGES, *(page for page in sorted((ROOT / "docs").glob("*/*.md")) if "_build" not in page.parts)]


@pytest.mark.parametrize("name", ["own_agent", "own_environment", "own_gymnasium", "own_network", "own_loop"])
def test_examples(name: str, tmp_path: Path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    train = covey.train
    monkeypatch.setattr(covey, "train", lambda *a, **k: train(*a, **(k | {"steps": 1200})), raising=False)
    try:
        runpy.run_path(str(ROOT / "examples" / f"{name}.py"), run_name="__main__")
    finally:
        agents.REGISTRY.pop("dpg", None)
        envs.ENVS.pop("cart", None)
        gymnasium.registry.pop("Cart-v0", None)
        TORSOS.pop("residual", None)
    out = capsys.readouterr().out
    assert "return" in out
    if name == "own_loop":
        returns = [float(line.rpartition(" ")[2]) for line in out.splitlines()]
        assert returns[-1] > returns[0] / 2, "it learns"


def test_a_population_in_memory(tmp_path: Path):
    """The example of the library tier loads nothing that touches the disk, writes no file, and improves."""
    code = (
        "import runpy, sys\n"
        f"names = runpy.run_path({str(ROOT / 'examples' / 'own_population.py')!r})\n"
        "found = [name for name in sys.modules if name.startswith(('covey.storage', 'covey.run', 'covey.plots'))]\n"
        "assert not found, found\n"
        "assert names['returns'].mean(axis=1).max() > -20, names['returns']\n"
    )
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "generation 5: mean returns" in done.stdout and "copies" in done.stdout
    assert not list(tmp_path.iterdir())


def test_the_example_of_an_environment_keeps_the_contract(monkeypatch, capsys):
    monkeypatch.chdir(ROOT)
    monkeypatch.delitem(sys.modules, "examples.own_environment", raising=False)
    try:
        assert main(["--plugin", "examples.own_environment", "check-env", "cart"]) == 0, capsys.readouterr().out
    finally:
        envs.ENVS.pop("cart", None)


@pytest.mark.parametrize("page", [p for p in PAGES if "```python" in p.read_text()], ids=lambda p: p.name)
def test_python_in_the_documents(page: Path, tmp_path: Path, monkeypatch):
    """As written, but shorter, and with the options of the README's commands, so that the same programs serve."""
    monkeypatch.chdir(tmp_path)
    for block in re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL):
        short = re.sub(r"steps=[\d_]+", "**(TINY | {'env': 'pendulum'})", re.sub(r'env="\w+", ', "", block))
        exec(compile(short, str(page), "exec"), {"TINY": TINY})


def test_commands_in_the_readme(tmp_path: Path, monkeypatch, capsys):
    """In their order, with a tiny network and fewer steps; a later command uses what an earlier one made."""
    monkeypatch.chdir(tmp_path)
    commands = re.findall(r"^covey ([a-z]+(?: .*?)?)(?: +#.*)$", (ROOT / "README.md").read_text(), re.MULTILINE)
    assert len(commands) == 12
    for command in commands:
        arguments = shlex.split(command)
        if arguments[0] in ("train", "evolve"):
            small = [f for f in FLAGS if f not in ("--env", "point")]
            kept = [a for a in arguments[2:] if a not in ("--steps", "1e5")]
            arguments = [*arguments[:2], *small, *kept]
        fewer = {"4e4": "1600", "8": "4"} if "--members" in arguments else {"4e4": "1600"}
        assert main([fewer.get(a, a) for a in arguments]) == 0, command
    assert (tmp_path / "curves.png").exists()


@pytest.mark.parametrize("page", ALL_PAGES, ids=lambda p: p.name)
def test_links_lead_somewhere(page: Path):
    for target in re.findall(r"\]\(([^)#]+)[^)]*\)", page.read_text()):
        if not target.startswith("http"):
            assert (page.parent / target).exists(), f"{page.name}: {target}"
