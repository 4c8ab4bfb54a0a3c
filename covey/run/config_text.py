"""Configurations as text and JSON: for the command line, `config.json`, and dictionaries in Python."""

import dataclasses
import functools
import json
from dataclasses import field
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

from tyro.constructors import PrimitiveConstructorSpec

from covey import agents
from covey.errors import CoveyError, require, unknown
from covey.hyper.names import by_name
from covey.hyper.schedule import parse_schedule
from covey.hyper.space import range_text
from covey.nn.parts import Torso
from covey.synonyms import suggestion

SHORTHANDS = ("lr", "hidden")
"""Options that stand for several others (see `expanded`)."""


def parse_count(texts: list[str]) -> int:
    """Parses a whole number, also as 1e6 or 20_000."""
    try:
        value = float(texts[0].replace("_", ""))
        if value.is_integer():
            return int(value)
    except ValueError:
        pass
    raise ValueError(f"must be a whole number, such as 20000, 20_000 or 2e4, not {texts[0]!r}")


Count = Annotated[
    int,
    PrimitiveConstructorSpec(
        nargs=1,
        metavar="COUNT",
        instance_from_str=parse_count,
        is_instance=lambda x: isinstance(x, int),
        str_from_instance=lambda x: [str(x)],
    ),
]
"""A whole number that the command line also takes as 1e6."""


def parse_ratio(texts: list[str]) -> float:
    """Parses a number, also as a fraction such as 8/1024."""
    above, slash, below = texts[0].partition("/")
    try:
        return float(above) / float(below) if slash else float(above)
    except (ValueError, ZeroDivisionError):
        raise ValueError(f"must be a number or a fraction, such as 0.25 or 8/1024, not {texts[0]!r}") from None


Ratio = Annotated[
    float,
    PrimitiveConstructorSpec(
        nargs=1,
        metavar="RATIO",
        instance_from_str=parse_ratio,
        is_instance=lambda x: isinstance(x, float),
        str_from_instance=lambda x: [str(x)],
    ),
]
"""A number that the command line also takes as a fraction."""


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


def expanded(algorithm: str, options: dict[str, Any]) -> dict[str, Any]:
    """Returns options with the shorthands `lr` and `hidden` written out. An option that is named itself wins.

    `lr` sets every learning rate of the agent; in a population those are then fixed, not searched. `hidden` sets the
    hidden layers of every network, except of an encoder, which an agent has only if its own option gives it layers.

    Args:
        algorithm: The agent.
        options: Options in the form that `covey.train` takes.
    """
    rest = {name: value for name, value in options.items() if name not in SHORTHANDS}
    written: dict[str, Any] = {}
    if options.get("lr") is not None:
        lr = str(options["lr"])
        parse_schedule("`lr`", lr, 1)
        _require_dictionary("lr", "hyper", rest)
        written["hyper"] = learning_rates(algorithm, lr)
        if rest.get("pbt") is not None:
            written["space"] = learning_rates(algorithm, "off")
    if options.get("hidden") is not None:
        given = options["hidden"]
        sizes = list(given) if isinstance(given, list | tuple) else [given]
        whole = all(isinstance(size, int) and size > 0 for size in sizes)
        require(
            whole and bool(sizes),
            f"`hidden` must be positive whole numbers, as in 256 256, not {' '.join(map(str, sizes))}.",
        )
        _require_dictionary("hidden", "agent", rest)
        written["agent"] = _widths(agents.entry(algorithm).config(), sizes)
    return merged(written, rest)


def learning_rates(algorithm: str, value: str) -> dict[str, Any]:
    """Returns every learning rate of an algorithm with the same value, nested like its Hyper."""
    names = [name for name in by_name(agents.entry(algorithm).hyper()) if name.endswith("_lr")]
    require(bool(names), f"{algorithm} has no learning rate that `lr` could set.")
    return functools.reduce(merged, (_nested(name, value) for name in names))


def _nested(name: str, value: Any) -> dict[str, Any]:
    first, _, rest = name.partition(".")
    return {first: _nested(rest, value) if rest else value}


def _widths(config: Any, sizes: list[int]) -> dict[str, Any]:
    found = {}
    for each in dataclasses.fields(config):
        value = getattr(config, each.name)
        if isinstance(value, Torso) and value.hidden:
            found[each.name] = {"hidden": sizes}
        elif dataclasses.is_dataclass(value) and (inner := _widths(value, sizes)):
            found[each.name] = inner
    return found


def _require_dictionary(shorthand: str, name: str, options: dict[str, Any]) -> None:
    require(
        isinstance(options.get(name, {}), dict),
        f"`{shorthand}` and a whole {type(options.get(name)).__name__} as `{name}` exclude each other: set it there.",
    )


def merged(old: dict[str, Any], new: dict[str, Any]) -> dict[str, Any]:
    """Returns `old` with the values of `new` in place of its own, nested ones too."""
    both = {n: merged(old[n], x) for n, x in new.items() if isinstance(x, dict) and isinstance(old.get(n), dict)}
    return old | new | both


def flat(values: dict[str, Any], path: str = "") -> dict[str, Any]:
    """Flattens nested dictionaries; the keys are dotted names."""
    found = {}
    for name, value in values.items():
        found |= flat(value, f"{path}{name}.") if isinstance(value, dict) else {f"{path}{name}": value}
    return found


def check_names(options: dict[str, Any], known: list[str]) -> None:
    """Raises a CoveyError for options that do not exist, which names the option that was probably meant.

    Args:
        options: Options in the form that `covey.train` takes.
        known: The dotted names of all options.
    """
    groups = {path.rpartition(".")[0] for path in known} | {"space", "pbt"}
    groups |= {group.rpartition(".")[0] for group in groups}
    for path in flat(options):
        group, _, name = path.rpartition(".")
        if path in known or path in groups or path.partition(".")[0] in ("space", "pbt"):
            continue
        meant = suggestion(name, known) if group in groups else ""
        if meant:
            raise CoveyError(f"There is no option `{path}`. {meant}")
        if not group:
            raise unknown("option", name, [each for each in known if "." not in each])


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
