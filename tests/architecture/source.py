"""The source of covey as syntax trees: imports, closures, code lines."""

import ast
from functools import cache
from pathlib import Path

import covey

ROOT = Path(covey.__file__).parent
MODULES = sorted(p.relative_to(ROOT).with_suffix("").as_posix() for p in ROOT.rglob("*.py"))
"""Modules as paths without their ending: `agents/sac`, `agents/__init__`."""


@cache
def tree_of(module: str) -> ast.Module:
    return ast.parse((ROOT / f"{module}.py").read_text())


def module_of(name: str) -> str | None:
    """The module that a dotted name below `covey` is, if it is one."""
    path = name.replace(".", "/")
    return next((each for each in (path, f"{path}/__init__" if path else "__init__") if each in MODULES), None)


@cache
def imports(module: str) -> frozenset[str]:
    """The modules of covey that a module imports, at any depth; not those for type checkers alone."""
    tree = tree_of(module)
    skipped = {
        id(node)
        for block in ast.walk(tree)
        if isinstance(block, ast.If) and "TYPE_CHECKING" in ast.dump(block.test)
        for node in ast.walk(block)
    }
    names: set[str] = set()
    for node in ast.walk(tree):
        if id(node) in skipped:
            continue
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            inner = {f"{node.module}.{alias.name}" for alias in node.names}
            submodules = {name for name in inner if module_of(name.removeprefix("covey").removeprefix("."))}
            names |= submodules | ({node.module} if submodules != inner else set())
    own = (name.removeprefix("covey").removeprefix(".") for name in names if name.split(".")[0] == "covey")
    return frozenset(found for found in map(module_of, own) if found)


def closure(module: str) -> set[str]:
    """The module and all modules that it imports, directly or not."""
    found: set[str] = set()
    todo = [module]
    while todo:
        each = todo.pop()
        if each not in found:
            found.add(each)
            todo += imports(each)
    return found


def code_lines(module: str) -> int:
    """Lines that are not blank, not a comment and not a docstring."""
    strings = {
        line
        for node in ast.walk(tree_of(module))
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
        for line in range(node.lineno, (node.end_lineno or node.lineno) + 1)
    }
    lines = enumerate((ROOT / f"{module}.py").read_text().splitlines(), 1)
    return sum(1 for number, line in lines if number not in strings and line.strip() and line.strip()[0] != "#")


def calls(module: str) -> set[str]:
    """The dotted names that a module calls or uses as a decorator, such as `jax.jit`."""
    found = set()
    for node in ast.walk(tree_of(module)):
        if isinstance(node, ast.Attribute | ast.Name) and isinstance(node.ctx, ast.Load):
            found.add(ast.unparse(node))
    return found
