"""Option names in error messages: fields in backticks become flags with their full path.

Below the command line an error names a field, such as `batch_size`, and the type of the configuration that has it. Only
the command line knows where that configuration is mounted: `--agent.batch-size` for SAC, `--agent.sac.batch-size` for
DIAYN, whose SAC is a part of it.
"""

import dataclasses
import re
from collections.abc import Iterator
from typing import Any, get_type_hints

from covey.errors import CoveyError

FIELD = re.compile(r"`([a-z_][a-z0-9_]*(?:\.[a-z0-9_]+)*)`")
COMMAND_OPTIONS = {"out", "config", "preset", "recipe", "goal", "random", "radius", "lr", "hidden", "seeds"}
COMMAND_OPTIONS |= {"skill", "member", "explore", "within", "skills"}
COMMAND_OPTIONS |= {"host", "port", "allow_remote"}
COMMAND_OPTIONS |= {"coordinator", "processes", "process", "ray_address"}
"""Options of commands that are no fields of a configuration."""


def with_flags(error: CoveyError, arguments: list[str]) -> str:
    """Returns the message of an error with flags in place of fields.

    Args:
        error: The error.
        arguments: The command line, which tells the agent and which flags were given.
    """
    command = arguments[0] if arguments else ""
    paths = list(_paths(error.owner, arguments)) if error.owner else [""]
    typed = {text.partition("=")[0] for text in arguments}
    names = FIELD.findall(str(error))
    # A type may be mounted more than once, as the optimisers are: that with a flag of this message in use comes first.
    paths.sort(key=lambda path: not any(_flag(f"{path}.{name}") in typed for name in names))

    def flag(match: re.Match[str]) -> str:
        name = match[1]
        if error.owner:
            if not _has_field(error.owner, name):
                return match[0]
            return _flag(f"{paths[0]}.{name}") if paths else match[0]
        return _flag(_renamed(name, command)) if _is_run_option(name) else match[0]

    return FIELD.sub(flag, str(error))


def _flag(path: str) -> str:
    return f"--{path.replace('_', '-')}"


def _renamed(name: str, command: str) -> str:
    """The members of a single agent's run are its seeds."""
    return "seeds" if name == "members" and command != "evolve" else name


def _is_run_option(name: str) -> bool:
    from covey.run.config import RunConfig

    first = name.partition(".")[0]
    return first in COMMAND_OPTIONS or first in {each.name for each in dataclasses.fields(RunConfig)}


def _has_field(owner: type, name: str) -> bool:
    return name.partition(".")[0] in {each.name for each in dataclasses.fields(owner)}  # type: ignore[arg-type]


def _paths(owner: type, arguments: list[str]) -> Iterator[str]:
    """Yields the paths at which a configuration type is mounted, those of the named agent first."""
    from covey import agents
    from covey.agents.skills.goals import Planning
    from covey.population.pbt import PBT

    named = [agents.REGISTRY[text] for text in arguments if text in agents.REGISTRY]
    for entry in (*named, *agents.REGISTRY.values()):
        yield from _mounts(entry.config, owner, "agent")
    yield from _mounts(PBT, owner, "pbt")
    yield from _mounts(Planning, owner, "planning")


def _mounts(kind: Any, owner: type, path: str) -> Iterator[str]:
    if kind is owner:
        yield path
    if isinstance(kind, type) and dataclasses.is_dataclass(kind):
        hints = get_type_hints(kind)
        for each in dataclasses.fields(kind):
            yield from _mounts(hints[each.name], owner, f"{path}.{each.name}")
