"""Labels and titles of learning curves, from the configurations of their runs."""

from collections.abc import Mapping, Sequence
from typing import Any

HIDDEN = ("name", "digest", "changes", "pbt", "space")
"""Fields of config.json that no label shows: they are not options, or too long."""
SECONDARY = ("seed", "steps", "members", "capacity", "evaluations", "episodes", "devices", "workers", "islands")
"""Options that a label shows only if no other differs."""
MOST_SHOWN = 3
"""Differing options in a label; more are only counted."""

Config = Mapping[str, Any]
"""The JSON values of a configuration."""


def labels(configs: Sequence[Config], folders: Sequence[str]) -> list[str]:
    """Returns a label for each run: its name, or the options in which the runs differ, or its folder.

    Args:
        configs: The configurations; an empty one is unknown.
        folders: The names of the run folders.

    Example:
        >>> labels([{"algorithm": "sac", "seed": 0}, {"algorithm": "td3", "seed": 0}], ["a", "b"])
        ['sac', 'td3']
    """
    flat = [_flat(config) for config in configs]
    shared = [name for name in flat[0] if all(name in each for each in flat)] if all(flat) else []
    differing = [name for name in shared if len({str(each[name]) for each in flat}) > 1]
    others = [name for name in differing if name not in SECONDARY]
    texts = [_label(each, others or differing) for each in flat]
    names = [str(config.get("name", "")) for config in configs]
    found = [name or text or folder for name, text, folder in zip(names, texts, folders, strict=True)]
    is_ambiguous = [found.count(each) > 1 for each in found]
    return [
        f"{each} ({folder})" if twice and each != folder else each
        for each, folder, twice in zip(found, folders, is_ambiguous, strict=True)
    ]


def _label(values: Mapping[str, Any], names: Sequence[str]) -> str:
    texts = [_text(name, values[name]) for name in names[:MOST_SHOWN]]
    more = [f"{len(names) - MOST_SHOWN} more"] if len(names) > MOST_SHOWN else []
    return ", ".join([*texts, *more])


def _text(name: str, value: Any) -> str:
    """Returns an option in short; the names of agents and environments speak for themselves."""
    if name in ("algorithm", "env"):
        return str(value)
    words = ".".join(name.removeprefix("agent.").removeprefix("hyper.").split(".")[-2:])
    return f"{words} {' '.join(map(str, value)) if isinstance(value, list) else value}"


def _flat(values: Config, path: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in values.items():
        if path or name not in HIDDEN:
            found |= _flat(value, f"{path}{name}.") if isinstance(value, dict) else {f"{path}{name}": value}
    return found


def title(configs: Sequence[Config], metric: str = "eval/return") -> str:
    """Returns the title of a figure: agent, environment, number of seeds, and what the line and the band are.

    Args:
        configs: The configurations of the runs. What differs between them is left to the labels.
        metric: The metric that is shown.

    Example:
        >>> title([{"algorithm": "sac", "env": "point", "members": 5}])
        'sac on point, 5 seeds: interquartile mean, 95 % bootstrap interval'
    """
    agents, tasks, members = ([*{str(c.get(n)): c[n] for c in configs if n in c}.values()] for n in _SHOWN)
    agent = agents[0] if len(agents) == 1 else f"{len(agents)} agents"
    task = tasks[0] if len(tasks) == 1 else f"{len(tasks)} environments"
    if not agents or not tasks or not members:
        return metric
    what = "members" if any(c.get("pbt") for c in configs) else "seeds"
    number = str(members[0]) if len(members) == 1 else f"{min(members)} to {max(members)}"
    many = f"{number} {what if number != '1' else what[:-1]}"
    return f"{agent} on {task}, {many}{_statistic(configs, metric, members)}"


_SHOWN = ("algorithm", "env", "members")


def _statistic(configs: Sequence[Config], metric: str, members: Sequence[int]) -> str:
    """Says what is drawn, if it is the same for all runs."""
    if min(members) > 1:
        return ": interquartile mean, 95 % bootstrap interval"
    episodes = {config.get("episodes") for config in configs}
    if max(members) == 1 and metric == "eval/return" and len(episodes) == 1:
        return f": mean of {episodes.pop()} episodes, 95 % interval"
    return ""
