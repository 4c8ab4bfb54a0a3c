"""The options of a command, read from the dataclass that tyro parses: flags, types, texts and defaults.

tyro parses. The help, the check for unknown options and shell completion need the options as a list.
"""

import ast
import dataclasses
import inspect
import itertools
import re
import textwrap
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, NamedTuple, Union, get_args, get_origin, get_type_hints

import tyro

WORDS = {int: "INT", float: "FLOAT", str: "TEXT", Path: "PATH", bool: ""}
SCHEDULE = "FLOAT|SCHEDULE"
METAVARS = {"env": "ENV", "replay": "FILE", "out": "PATH", "config": "FILE", "plugin": "MODULE", "lr": SCHEDULE}
METAVARS |= {"coordinator": "HOST:PORT", "ray_address": "HOST:PORT", "run": "RUN", "runs": "RUN..."}
METAVARS |= {"goal": "X,Y", "shell": "[SHELL]", "recipe": "RECIPE", "folder": "[FOLDER]"}
"""Types that say more than TEXT or PATH, by the name of the option."""


class Option(NamedTuple):
    """An option of a command.

    Args:
        path: The dotted name of its field, such as `agent.batch_size`.
        flags: What is typed: `--agent.batch-size`; two for a switch. Empty for a positional argument.
        metavar: The type of its value; empty for a switch.
        choices: The values that it takes, if they are few.
        text: What it does.
        default: Its default as text; empty if there is none.
    """

    path: str
    flags: tuple[str, ...]
    metavar: str
    choices: tuple[str, ...]
    text: str
    default: str

    @property
    def group(self) -> str:
        """The dotted name of the configuration that it belongs to; empty for a run's own."""
        return self.path.rpartition(".")[0]


def options_of(kind: Any, values: Any = None, prefix: str = "") -> Iterator[Option]:
    """Yields the options of a dataclass, nested ones too.

    Args:
        kind: The dataclass.
        values: An instance of it with the defaults; by default those of its fields.
        prefix: The dotted name of the dataclass in the whole configuration, with a dot at its end.
    """
    kind = get_origin(kind) or kind
    hints = get_type_hints(kind, include_extras=True)
    texts = field_texts(kind)
    for each in dataclasses.fields(kind):
        hint, marks = _unpacked(hints[each.name])
        if tyro.conf.Suppress in marks:
            continue
        renamed = [mark.name for mark in marks if getattr(mark, "name", None) is not None]
        name = (renamed or [each.name])[0]
        value = _default(each) if values is None else getattr(values, each.name)
        if dataclasses.is_dataclass(value):
            yield from options_of(type(value), value, f"{prefix}{name}." if name else prefix)
            continue
        path = f"{prefix}{name}"
        # A flag that may be repeated takes one value at a time.
        kind_of_value = get_args(hint)[0] if tyro.conf.UseAppendAction in marks else hint
        own = [mark.metavar for mark in marks if isinstance(mark, tyro.constructors.PrimitiveConstructorSpec)]
        metavar = METAVARS.get(path) or (own or [_metavar(kind_of_value)])[0]
        flags = () if tyro.conf.Positional in marks else _flags(path, hint is bool)
        yield Option(path, flags, metavar, _choices(hint), texts.get(each.name, ""), default_text(value))


def default_text(value: Any) -> str:
    """Returns a default as the command line takes it; empty if there is none."""
    if value is None or value == () or value is dataclasses.MISSING:
        return ""
    if isinstance(value, bool):
        return "on" if value else "off"
    return " ".join(map(str, value)) if isinstance(value, tuple) else str(value)


@cache
def field_texts(kind: type) -> dict[str, str]:
    """Returns the text of each field: of its own docstring, or of `Args:` in the docstring of the dataclass."""
    found = _argument_texts(inspect.cleandoc(kind.__doc__ or ""))
    try:
        (tree,) = ast.parse(textwrap.dedent(inspect.getsource(kind))).body
    except (OSError, TypeError):  # made by make_dataclass, or typed into a console
        return found
    body = getattr(tree, "body", [])
    for before, after in itertools.pairwise(body):
        if isinstance(before, ast.AnnAssign) and isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant):
            found[ast.unparse(before.target)] = " ".join(str(after.value.value).split())
    return found


def _argument_texts(docstring: str) -> dict[str, str]:
    section = re.search(r"^Args:\n((?:[ ]+.*\n?|\n)*)", docstring, re.MULTILINE)
    items = re.findall(r"^ {4}(\w+): (.*(?:\n {5,}.*)*)", section[1], re.MULTILINE) if section else []
    return {name: " ".join(text.split()) for name, text in items}


def _unpacked(hint: Any) -> tuple[Any, tuple[Any, ...]]:
    """Returns a type and what it is annotated with."""
    if get_origin(hint) is Annotated:
        kind, *marks = get_args(hint)
        return kind, tuple(marks)
    return hint, ()


def _default(each: dataclasses.Field[Any]) -> Any:
    return each.default if each.default_factory is dataclasses.MISSING else each.default_factory()


def _flags(path: str, switch: bool) -> tuple[str, ...]:
    flag = f"--{path.replace('_', '-')}"
    group, dot, name = flag.removeprefix("--").rpartition(".")
    return (flag, f"--{group}{dot}no-{name}") if switch else (flag,)


def _metavar(hint: Any) -> str:
    if get_origin(hint) in (Union, UnionType):
        return "|".join(_metavar(each) for each in get_args(hint) if each is not NoneType)
    if get_origin(hint) is tuple:
        return f"{_metavar(get_args(hint)[0])} ..."
    choices = _choices(hint)
    return f"{{{','.join(choices)}}}" if choices else WORDS.get(hint, "TEXT")


def _choices(hint: Any) -> tuple[str, ...]:
    if get_origin(hint) in (Union, UnionType):
        return tuple(choice for each in get_args(hint) for choice in _choices(each))
    return tuple(map(str, get_args(hint))) if get_origin(hint) is Literal else ()
