"""Parsing helpers that the commands share."""

import difflib
import json
from collections.abc import Sequence
from typing import Any

import tyro

from covey import plugins
from covey.cli.help import command_help, option_rows
from covey.cli.options import SCHEDULE, Option, options_of
from covey.errors import CoveyError
from covey.synonyms import suggestion


class UsageError(CoveyError):
    """A command line that can't be understood."""

    exit_code = 2


def usage(condition: bool, message: str) -> None:
    """Raises a UsageError unless the condition holds."""
    if not condition:
        raise UsageError(message)


def import_plugins(arguments: list[str]) -> list[str]:
    """Imports the modules of --plugin, and allows those that are typed in an environment, a wrapper or a descriptor.

    They are also searched in the current folder, after all installed packages. Returns the other arguments.
    """
    named, arguments = take_all(arguments, "--plugin")
    envs = arguments[1:2] if arguments[:1] == ["check-env"] else []
    envs += take_all(arguments, "--env")[0] + take_all(arguments, "--eval-env")[0]
    wrappers = map(plugins.module_of_wrapper, values_of(arguments, "--wrappers"))
    sources = map(plugins.module_of_source, values_of(arguments, "--env-descriptor"))
    typed = [module for module in (*map(plugins.module_of, envs), *wrappers, *sources) if module]
    if named or typed:
        plugins.append_current_folder()
    plugins.import_plugins(named)
    plugins.allow(*typed)
    return arguments


def asks_for_help(arguments: list[str]) -> bool:
    """Whether -h, --help or --help-all is among the arguments."""
    return bool({"-h", "--help", "--help-all"} & set(arguments))


def first(arguments: list[str], what: str, example: str) -> tuple[str, list[str]]:
    """Takes the first argument, which must not be a flag."""
    usage(bool(arguments) and not arguments[0].startswith("-"), f"Name {what} first, for example: {example}")
    return arguments[0], arguments[1:]


def take(arguments: list[str], flag: str) -> tuple[str | None, list[str]]:
    """Takes out a flag that is needed before the others can be parsed. Returns its value and the other arguments."""
    at = next((i for i, text in enumerate(arguments) if text.partition("=")[0] == flag), None)
    if at is None:
        return None, arguments
    if "=" in arguments[at]:
        return arguments[at].partition("=")[2], arguments[:at] + arguments[at + 1 :]
    follows = at + 1 < len(arguments) and not arguments[at + 1].startswith("--")
    usage(follows, f"{flag} needs a value, for example {flag} NAME.")
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


def parse(kind: Any, arguments: list[str], verb: str) -> Any:
    """Parses the arguments of a command into a dataclass, whose docstring is the help of the command."""
    options = list(options_of(kind))
    if asks_for_help(arguments):
        positional = [each for each in options if not each.flags]
        flags = [each for each in options if each.flags]
        names = " ".join(each.metavar for each in positional)
        text = " ".join((kind.__doc__ or "").split())
        sections = ("arguments:", option_rows(positional)), ("options:", option_rows(flags))
        print(command_help(verb, f"covey {verb} {names} [options]", text, *sections))
        raise SystemExit(0)
    return parse_rest(kind, arguments, f"covey {verb}", options)


def parse_part(kind: Any, arguments: list[str], prog: str) -> tuple[Any, list[str]]:
    """Parses the options of a dataclass. Returns it and the other arguments."""
    check_values(arguments, list(options_of(kind)))
    return tyro.cli(kind, args=arguments, prog=prog, return_unknown_args=True, add_help=False)


def parse_rest(kind: Any, arguments: list[str], prog: str, options: Sequence[Option], **more: Any) -> Any:
    """Parses all remaining arguments into a dataclass.

    Args:
        kind: The dataclass.
        arguments: The arguments.
        prog: The command, for messages.
        options: All options of the command, also those that were parsed before. A flag that is not among them is an
            error, which names the option that was probably meant.
        **more: For tyro.
    """
    flags = {flag: each.path for each in options for flag in each.flags}
    for text in arguments:
        flag = text.partition("=")[0].replace("_", "-")
        if flag.startswith("--") and flag not in flags:
            raise unknown_flag(flag, flags, prog)
    others = check_values(arguments, options)
    positional = [each for each in options if not each.flags]
    most = len(arguments) if any(each.metavar.endswith("...") for each in positional) else len(positional)
    usage(len(others) <= most, f"`{prog}` does not take {' '.join(others[most:])}. `{prog} --help` explains it.")
    needed = [each for each in positional if not each.choices and not each.default]
    usage(
        bool(others) or not needed,
        f"`{prog}` needs {' '.join(each.metavar for each in needed)}. `{prog} --help` explains it.",
    )
    return tyro.cli(kind, args=arguments, prog=prog, **more)


def check_values(arguments: list[str], options: Sequence[Option]) -> list[str]:
    """Raises a UsageError for a value that its option does not take. Returns the arguments that belong to no option.

    Args:
        arguments: The arguments.
        options: The options to check; values of other flags are left alone.
    """
    known = {flag: each for each in options for flag in each.flags}
    others = []
    rest = list(arguments)
    while rest:
        text = rest.pop(0)
        flag, equals, value = text.partition("=")
        option = known.get(flag.replace("_", "-")) if text.startswith("--") else None
        if option is None:
            others += [] if text.startswith("-") else [text]
            continue
        most = len(rest) if option.metavar.endswith("...") else int(bool(option.metavar))
        end = next((i for i, each in enumerate(rest) if each.startswith("--")), len(rest))
        values = [value] if equals else rest[: min(most, end)]
        usage(bool(values) or not option.metavar, f"{flag} needs a value: {flag} {option.metavar}")
        rest = rest if equals else rest[len(values) :]
        for each in values:
            _check_value(flag, each, option)
    return others


def _check_value(flag: str, text: str, option: Option) -> None:
    choices = option.choices
    usage(not choices or text in choices, f"{flag} must be {' or '.join(choices)}, not {text}.")
    word = option.metavar.removesuffix(" ...")
    usage(word != "INT" or _is_digits(text), f"{flag} must be a whole number, such as 5, not {text}.")
    whole = _is_digits(text) or (_is_number(text) and float(text).is_integer())
    usage(word != "COUNT" or whole, f"{flag} must be a whole number, such as 20000, 20_000 or 2e4, not {text}.")
    usage(word != "FLOAT" or _is_number(text), f"{flag} must be a number, not {text}.")
    if word == "RATIO":
        from covey.run.config_text import parse_ratio

        try:
            parse_ratio([text])
        except ValueError as error:
            raise UsageError(f"{flag} {error}.") from None
    if word == SCHEDULE:
        from covey.hyper.schedule import parse_schedule

        try:
            parse_schedule(flag, text, 1)
        except CoveyError as error:
            raise UsageError(str(error)) from None


def _is_digits(text: str) -> bool:
    return text.lstrip("+-").replace("_", "").isdigit()


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def unknown_flag(flag: str, flags: dict[str, str], prog: str) -> UsageError:
    """Returns the error for a flag that does not exist.

    Args:
        flag: What the user typed.
        flags: The flags that exist, and the dotted names of their fields.
        prog: The command.
    """
    meant = suggestion(flag, flags.values())
    near = difflib.get_close_matches(flag, flags, n=3, cutoff=0.6)
    ends = [each for each in flags if each.rpartition(".")[2] == flag.removeprefix("--")]
    if not meant and (ends or near):
        meant = f"Did you mean {' or '.join((ends or near)[:3])}?"
    return UsageError(f"There is no option {flag}. {meant or f'`{prog} --help` lists the options.'}")


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
        raise UsageError(f"--goal must be numbers separated by commas, as in --goal 3,4, not {text!r}.") from None
