"""Parsing helpers that the commands share."""

import json
from typing import Any

import tyro

from covey import plugins
from covey.errors import CoveyError, require


def import_plugins(arguments: list[str]) -> list[str]:
    """Imports the modules of --plugin, and allows those that are typed as `gymnasium:MODULE:NAME` or as wrappers.

    They are also searched in the current folder, after all installed packages. Returns the other arguments.
    """
    named, arguments = take_all(arguments, "--plugin")
    envs = arguments[1:2] if arguments[:1] == ["check-env"] else []
    envs += take_all(arguments, "--env")[0] + take_all(arguments, "--eval-env")[0]
    wrappers = map(plugins.module_of_wrapper, values_of(arguments, "--wrappers"))
    typed = [module for module in (*map(plugins.module_of, envs), *wrappers) if module]
    if named or typed:
        plugins.append_current_folder()
    plugins.import_plugins(named)
    plugins.allow(*typed)
    return arguments


def asks_for_help(arguments: list[str]) -> bool:
    """Whether -h or --help is among the arguments."""
    return "-h" in arguments or "--help" in arguments


def first(arguments: list[str], what: str, example: str) -> tuple[str, list[str]]:
    """Takes the first argument, which must not be a flag."""
    require(bool(arguments) and not arguments[0].startswith("-"), f"Name {what} first, for example: {example}")
    return arguments[0], arguments[1:]


def take(arguments: list[str], flag: str) -> tuple[str | None, list[str]]:
    """Takes out a flag that is needed before the others can be parsed. Returns its value and the other arguments."""
    at = next((i for i, text in enumerate(arguments) if text.partition("=")[0] == flag), None)
    if at is None:
        return None, arguments
    if "=" in arguments[at]:
        return arguments[at].partition("=")[2], arguments[:at] + arguments[at + 1 :]
    follows = at + 1 < len(arguments) and not arguments[at + 1].startswith("--")
    require(follows, f"{flag} needs a value, for example {flag} NAME.")
    return arguments[at + 1], arguments[:at] + arguments[at + 2 :]


def take_all(arguments: list[str], flag: str) -> tuple[list[str], list[str]]:
    """Takes a flag out that may be given several times. Returns its values and the other arguments."""
    values: list[str] = []
    value, arguments = take(arguments, flag)
    while value is not None:
        values.append(value)
        value, arguments = take(arguments, flag)
    return values, arguments


def values_of(arguments: list[str], flag: str) -> list[str]:
    """Returns the values of a flag that takes several, up to the next flag. The arguments keep them."""
    found: list[str] = []
    inside = False
    for text in arguments:
        name, _, value = text.partition("=")
        if text.startswith("-"):
            inside = name == flag
            found += [value] if inside and value else []
        elif inside:
            found.append(text)
    return found


def take_kwargs(arguments: list[str], flag: str) -> tuple[dict[str, Any], list[str]]:
    """Takes out the arguments of an environment, `--env-kwargs.NAME VALUE`, whose names no parser knows in advance.

    Args:
        arguments: The command line.
        flag: The flag without the name, `--env-kwargs`.

    Returns:
        The arguments by name (numbers, true, false, null and lists as in JSON, anything else as text), and the rest of
        the command line.
    """
    found: dict[str, Any] = {}
    while names := [text.partition("=")[0] for text in arguments if text.startswith(f"{flag}.")]:
        value, arguments = take(arguments, names[0])
        found[names[0].removeprefix(f"{flag}.").replace("-", "_")] = _json_value(value or "")
    return found, arguments


def _json_value(text: str) -> Any:
    try:
        return json.loads({"True": "true", "False": "false", "None": "null"}.get(text, text))
    except json.JSONDecodeError:
        return text


def parse(kind: Any, arguments: list[str], prog: str, **options: Any) -> Any:
    """Parses the remaining arguments into a dataclass."""
    return tyro.cli(kind, args=arguments, prog=prog, **options)


def joined(arguments: list[str], flag: str) -> list[str]:
    """Writes `flag value` as `flag=value`, so that a value may begin with a minus."""
    found = []
    for argument in arguments:
        if found and found[-1] == flag:
            found[-1] = f"{flag}={argument}"
        else:
            found.append(argument)
    return found


def numbers(text: str) -> list[float]:
    """Parses numbers that are separated by commas."""
    try:
        return [float(x) for x in text.split(",")]
    except ValueError:
        raise CoveyError(f"--goal must be numbers separated by commas, as in --goal 3,4, not {text!r}.") from None
