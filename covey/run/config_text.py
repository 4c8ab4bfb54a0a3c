"""Configurations as text and JSON: for the command line, `config.json`, and dictionaries in Python."""

import dataclasses
import functools
import json
from dataclasses import field
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

from tyro.constructors import PrimitiveConstructorSpec

from covey import agents
from covey.errors import CoveyError, require, unknown
from covey.hyper.schedule import parse_schedule
from covey.hyper.space import range_text


def parse_count(texts: list[str]) -> int:
    """Parses a whole number, also as 1e6 or 20_000."""
    try:
        value = float(texts[0].replace("_", ""))
        if value.is_integer():
            return int(value)
    except ValueError:
        pass
    raise ValueError(f"{texts[0]} is not a whole number, such as 20000, 20_000 or 2e4")


Count = Annotated[
    int,
    PrimitiveConstructorSpec(
        nargs=1,
        metavar="INT",
        instance_from_str=parse_count,
        is_instance=lambda x: isinstance(x, int),
        str_from_instance=lambda x: [str(x)],
    ),
]
"""A whole number that the command line also takes as 1e6."""


NONE = "none"
"""The text of a hyper-parameter that is not given."""


@functools.cache
def hyper_text(hyper: Any) -> Any:
    """Returns the dataclass of texts for a Hyper type: every field is a number or a schedule, as text, or several."""
    defaults = {name: _as_text(value) for name, value in hyper()._asdict().items()}
    kinds = {name: tuple[str, ...] if isinstance(value, tuple) else type(value) for name, value in defaults.items()}
    fields = [(name, kinds[name], field(default=value)) for name, value in defaults.items()]
    # The docstring has a line for each hyper-parameter, which the command line shows as its help.
    return dataclasses.make_dataclass(
        f"{hyper.__name__}Text", fields, frozen=True, namespace={"__doc__": hyper.__doc__}
    )


def _as_text(value: Any) -> Any:
    """Returns a hyper-parameter as text, several as a tuple, or a nested Hyper as the dataclass of its texts."""
    if value is None:
        return NONE
    if not hasattr(value, "_asdict"):
        return tuple(map(repr, value)) if isinstance(value, tuple) else repr(value)
    return hyper_text(type(value))(**{name: _as_text(each) for name, each in value._asdict().items()})


@functools.cache
def space_text(algorithm: str) -> Any:
    """Returns an algorithm's search ranges as texts, LOW:HIGH:SCALE or off, with the same fields as its Hyper."""
    entry = agents.entry(algorithm)
    return _space_text(entry.hyper(), {name: range_text(space) for name, space in entry.space.items()}, "")


def _space_text(hyper: Any, texts: dict[str, str], path: str) -> Any:
    values = {
        name: _space_text(value, texts, f"{path}{name}.") if hasattr(value, "_asdict") else texts[f"{path}{name}"]
        for name, value in hyper._asdict().items()
    }
    fields = [(name, type(value), field(default=value)) for name, value in values.items()]
    return dataclasses.make_dataclass(f"{type(hyper).__name__}Space", fields, frozen=True)()


def _parse(where: str, text: Any, steps: int) -> Any:
    """Parses the text of a hyper-parameter: a Schedule, None, or a tuple of Schedules."""
    if isinstance(text, tuple):
        return tuple(parse_schedule(f"`{where}`", each, steps) for each in text)
    return None if text.lower() == NONE else parse_schedule(f"`{where}`", text, steps)


def _written_out(parsed: Any) -> Any:
    """Returns the text that `_parse` reads."""
    if isinstance(parsed, tuple):
        return tuple(map(str, parsed))
    return NONE if parsed is None else str(parsed)


def schedules_of(default: Any, texts: Any, steps: int, path: str = "hyper") -> Any:
    """Parses the texts of a Hyper into Schedules; those without a length last `steps`."""
    parts = []
    for name, value in default._asdict().items():
        text = getattr(texts, name)
        nested = hasattr(value, "_asdict")
        where = f"{path}.{name}"
        found = schedules_of(value, text, steps, where) if nested else _parse(where, text, steps)
        require(found is not None or value is None, f"`{where}` must be a number or a schedule, not {text!r}.")
        parts.append(found)
    return type(default)(*parts)


def with_lengths(texts: Any, steps: int, path: str = "hyper") -> Any:
    """Writes out the length of every schedule, so that a longer run does not stretch it."""
    changes = {}
    for each in dataclasses.fields(texts):
        value = getattr(texts, each.name)
        where = f"{path}.{each.name}"
        nested = dataclasses.is_dataclass(value)
        changes[each.name] = with_lengths(value, steps, where) if nested else _written_out(_parse(where, value, steps))
    return dataclasses.replace(texts, **changes)


def flat_texts(texts: Any, path: str = "") -> dict[str, str]:
    """Returns the texts of a nested dataclass by their dotted names."""
    found = {}
    for each in dataclasses.fields(texts):
        value = getattr(texts, each.name)
        nested = dataclasses.is_dataclass(value)
        found |= flat_texts(value, f"{path}{each.name}.") if nested else {f"{path}{each.name}": value}
    return found


def as_texts(values: Any) -> dict[str, Any]:
    """Returns hyper-parameters from Python, a dictionary or a Hyper, as nested dictionaries of texts."""
    values = values._asdict() if hasattr(values, "_asdict") else values
    return {name: _value_text(x) for name, x in values.items()}


def _value_text(value: Any) -> Any:
    """Returns one value of `as_texts`."""
    if isinstance(value, dict) or hasattr(value, "_asdict"):
        return as_texts(value)
    return [str(each) for each in value] if isinstance(value, list | tuple) else str(value)


def to_json(config: Any) -> Any:
    """Returns a dataclass as JSON values."""
    return json.loads(json.dumps(dataclasses.asdict(config)))


def from_json(kind: Any, data: Any, path: str, default: Any = None) -> Any:
    """Returns the dataclass of type `kind` that JSON values describe; an error names the field that does not fit.

    Args:
        kind: The type: a dataclass, or the type of one of its fields.
        data: JSON values.
        path: The dotted name of this value in the whole configuration, for errors.
        default: An instance of `kind`: the values that `data` does not mention. By default `kind()`.
    """
    if isinstance(kind, type) and dataclasses.is_dataclass(kind):
        return _dataclass_from_json(kind, data, path, default)
    if get_origin(kind) is tuple:
        require(isinstance(data, list | tuple), f"`{path}` must be a list, not {data!r}.")
        return tuple(from_json(get_args(kind)[0], x, path) for x in data)
    if get_origin(kind) is Literal:
        require(data in get_args(kind), f"`{path}` must be one of {', '.join(map(str, get_args(kind)))}, not {data!r}.")
        return data
    if kind is float and isinstance(data, int) and not isinstance(data, bool):
        return float(data)
    require(type(data) is kind, f"`{path}` must be {kind.__name__}, not {data!r}.")
    return data


def _dataclass_from_json(kind: Any, data: Any, path: str, default: Any) -> Any:
    if isinstance(data, kind):
        return data
    require(isinstance(data, dict), f"`{path}` must be an object with fields, not {data!r}.")
    hints = get_type_hints(kind)
    names = {each.name for each in dataclasses.fields(kind)}
    data = _with_optimisers(data, names)
    for name in data:
        if name not in names:
            raise unknown(f"field of {path}", name, names)
    start = kind() if default is None else default
    values = {n: from_json(hints[n], value, f"{path}.{n}", getattr(start, n)) for n, value in data.items()}
    try:
        return dataclasses.replace(start, **values)
    except CoveyError as error:
        if error.owner is not kind:
            raise
        raise CoveyError(with_path(str(error), path, names)) from error


def _with_optimisers(data: dict[str, Any], names: set[str]) -> dict[str, Any]:
    """Reads the field `optimiser` of older files, which was that of the actor and the critics."""
    old = data.get("optimiser")
    if "optimiser" in names or "optimisers" not in names or not isinstance(old, dict):
        return data
    old = {"kind": "adamw" if old.get("weight_decay") else "adam"} | old
    rest = {name: value for name, value in data.items() if name != "optimiser"}
    return {"optimisers": {"actor": old, "critic": old}} | rest


def with_path(message: str, path: str, names: set[str]) -> str:
    """Puts a path before the fields in backticks that a message names."""
    for name in names:
        message = message.replace(f"`{name}`", f"`{path}.{name}`")
    return message


def differences(old: Any, new: Any, path: str = "") -> list[tuple[str, Any, Any]]:
    """Lists the fields in which two configurations differ: name, old value, new value."""
    found = []
    for each in dataclasses.fields(old):
        before = getattr(old, each.name)
        after = getattr(new, each.name)
        name = f"{path}{each.name}"
        if dataclasses.is_dataclass(before) and type(before) is type(after):
            found += differences(before, after, f"{name}.")
        elif before != after:
            found.append((name, before, after))
    return found
