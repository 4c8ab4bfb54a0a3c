"""Starts a run from the best policy of another run: `--init-from RUN[:part]`.

Arrays are matched by name and shape, so another algorithm, environment or size of a network gives what fits. Only
arrays and JSON are read from the other run; nothing in it is executed.
"""

import hashlib
import json
import os
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from covey.errors import CoveyError, require, unknown
from covey.storage.atomic import replace_text
from covey.storage.best import read_best_checkpoint
from covey.storage.folder import RunFolder
from covey.storage.layout import BEST_AGENT, Arrays, array_name, is_key, not_finite

PARTS = {
    "": "",
    "actor": r"(\w+/)?((target_)?actor|actor_statistics|statistics/observations|"
    r"(target_)?critic/(online/|target/)?encoder)/",
    "critic": r"(\w+/)?((target_)?critic/(?!optimiser)|statistics/(observations|returns)/)",
    "encoder": r"(?!.*optimiser/).*\bencoder/|(\w+/)?statistics/observations/",
}
"""The parts of an agent's state, by the names of its arrays. The statistics of observations belong to each of them: a
network without the normaliser that it was trained with computes something else. So does an actor without its shared
encoder."""
WHOLE_GROUPS = re.compile(r"(.*?optimiser|(?:.*/)?statistics/\w+)/")
"""Arrays that make sense together only, such as the moments of an optimiser and its count."""
EPISODE = re.compile(r"(.*/)?statistics/running")
"""The return so far of an unfinished episode, which the new run does not continue."""
SHOWN = 12
"""Lines about arrays that were not loaded."""


@dataclass(frozen=True)
class Source:
    """The run and the part of it that `init_from` names.

    Example:
        >>> Source.parse("runs/pendulum-sac-0:actor")
        Source(path=PosixPath('runs/pendulum-sac-0'), part='actor')
    """

    path: Path
    part: str

    @staticmethod
    def parse(text: str) -> "Source":
        """Parses RUN[:part]. Needs no file, so that a run can be loaded after the other one was deleted."""
        run, colon, part = text.rpartition(":")
        if not colon or os.path.isdir(text):
            return Source(Path(text), "")
        if part not in PARTS:
            raise CoveyError(f"`init_from` {text}: {unknown('part', part, [name for name in PARTS if name])}")
        require(bool(run), f"`init_from` {text!r} names no run. Write RUN or RUN:part, such as runs/point-sac-0:actor.")
        return Source(Path(run), part)

    @property
    def has_policy(self) -> bool:
        """Whether the part includes the actor."""
        return self.part in ("", "actor")

    def __str__(self) -> str:
        return f"{self.path.absolute()}{':' if self.part else ''}{self.part}"


@dataclass(frozen=True)
class Transfer:
    """The arrays that a run takes from another one, and those that it does not.

    Args:
        source: The run, and the part of it.
        about: The run's algorithm and environment, the step of its best policy, and the digest of its arrays.
        agent: The run's agent options, as JSON.
        loaded: Arrays by their name in the new agent's state.
        left: The names of its other arrays, and why each was not loaded.
        unused: Names of arrays of the other run that the new agent does not have.
    """

    source: Source
    about: dict[str, Any]
    agent: dict[str, Any]
    loaded: Arrays
    left: dict[str, str]
    unused: list[str]

    @property
    def has_actor(self) -> bool:
        """Whether the whole actor was loaded."""
        return not any(re.match(r"(\w+/)?actor/", name) for name in self.left)

    def into(self, agents: Any) -> Any:
        """Returns states of agents [P] with the loaded arrays in place of their own."""

        def choose(path: Any, own: Any) -> Any:
            array = self.loaded.get(array_name(path))
            return own if array is None else jnp.broadcast_to(jnp.asarray(array), own.shape)

        return jax.tree.map_with_path(choose, agents)

    def lines(self, algorithm: str = "", agent: dict[str, Any] | None = None) -> list[str]:
        """Returns what was loaded and what was not, one line each.

        Args:
            algorithm: The new run's algorithm. If it is the other's, options of the agents that differ are listed.
            agent: The new run's agent options.
        """
        names = [*self.loaded, *self.left]
        of_what = f"{self.about['algorithm']} on {self.about['env']}, best policy at step {self.about['step']:,}"
        loaded = ", ".join(_collapsed(self.loaded, names))
        found = [
            f"Started from {self.source} ({of_what}): {len(self.loaded)} of {len(names)} arrays.",
            f"  loaded: {loaded}",
        ]
        rest = self._reasons()
        if self.unused:
            rest.append(f"  not used: {', '.join(_collapsed(self.unused, self.unused, depth=1))} (only there)")
        more = [f"  and {len(rest) - SHOWN} more, listed in init_from.json"] if len(rest) > SHOWN else []
        same = algorithm == self.about["algorithm"]
        differing = _differing(self.agent, json.loads(json.dumps(agent))) if same else []
        options = [f"  agent options that differ: {', '.join(differing)}"] if differing else []
        return [*found, *rest[:SHOWN], *more, *options]

    def _reasons(self) -> list[str]:
        """Returns a line for every reason why arrays were not loaded; what was not asked for comes last."""
        names = [*self.loaded, *self.left]
        reasons = sorted(dict.fromkeys(self.left.values()), key=lambda reason: reason == _not_in(self.source.part))
        groups = {why: _collapsed([n for n, x in self.left.items() if x == why], names) for why in reasons}
        return [f"  not loaded: {', '.join(found)} ({why})" for why, found in groups.items()]

    def record(self, folder: RunFolder) -> None:
        """Writes what the run started from into its folder."""
        values = {"source": str(self.source)} | self.about
        values |= {"loaded": sorted(self.loaded), "not_loaded": self.left, "not_used": self.unused}
        replace_text(folder.init_from, json.dumps(values, indent=2) + "\n")


def read_transfer(source: Source, template: Any) -> Transfer:
    """Reads the best policy of a run, and finds the arrays that fit another agent.

    Args:
        source: The run, and the part of it.
        template: The state of the new agent with `jax.ShapeDtypeStruct` leaves, without an axis of members.

    Raises:
        CoveyError: There is no such run, its checkpoints are damaged, or nothing in them fits.
    """
    folder = RunFolder(source.path)
    try:
        config = folder.read_config()
        arrays, step = read_best_checkpoint(folder)
    except CoveyError as error:
        raise CoveyError(f"`init_from` {source}: {error}") from error
    given = {name.removeprefix(BEST_AGENT): x for name, x in arrays.items() if name.startswith(BEST_AGENT)}
    faulty = not_finite(given)
    require(not faulty, f"`init_from` {source}: its best policy holds NaN or infinite values: {''.join(faulty[:1])}.")
    wanted = {array_name(path): leaf for path, leaf in jax.tree.flatten_with_path(template)[0]}
    found = _matched(_aligned(given, wanted), wanted, source.part)
    about = {"algorithm": config["algorithm"], "env": config.get("env"), "step": step, "digest": _digest(given)}
    transfer = Transfer(source, about, config.get("agent", {}), *found)
    require(
        any(_is_matrix(x) and not WHOLE_GROUPS.match(name) for name, x in transfer.loaded.items()),
        f"`init_from` {source}: no weights of {config['algorithm']} on {config.get('env')} fit this run: "
        + "; ".join(line.strip() for line in transfer.lines()[2:5]),
    )
    return transfer


def _aligned(given: Arrays, wanted: dict[str, Any]) -> Arrays:
    """Returns the given arrays by the names that they have in the new agent.

    An agent may hold another one as a part of its state, as DIAYN holds a SAC (`sac/actor/...`). Of the ways to put one
    into the other, the one with the most equal names and shapes is taken.
    """
    inner = [f"{name.split('/')[0]}/" for name in (*given, *wanted) if "/" in name]
    ways = [given]
    for prefix in dict.fromkeys(inner):
        ways.append({f"{prefix}{name}": x for name, x in given.items()})
        ways.append({name.removeprefix(prefix): x for name, x in given.items() if name.startswith(prefix)})
    return max(ways, key=lambda way: sum(name in wanted and wanted[name].shape == x.shape for name, x in way.items()))


def _matched(given: Arrays, wanted: dict[str, Any], part: str) -> tuple[Arrays, dict[str, str], list[str]]:
    """Returns the arrays to load, the reasons why the others are not loaded, and the names that are not used."""
    chosen = re.compile(PARTS[part])
    left = {name: reason for name, leaf in wanted.items() if (reason := _reason(name, given.get(name), leaf, part))}
    for group in {match[1] for name in left if chosen.match(name) and (match := WHOLE_GROUPS.match(name))}:
        names = [name for name in wanted if name.startswith(f"{group}/")]
        fault = next((name for name in names if left.get(name)), "")
        of_what = "" if all(left.get(name) == left[fault] for name in names) else fault.removeprefix(f"{group}/")
        left |= dict.fromkeys(names, f"{of_what} {left[fault]}".strip())
    loaded = {name: given[name] for name in wanted if name not in left}
    unused = [name for name in given if name not in wanted and chosen.match(name)]
    return loaded, left, unused


def _reason(name: str, array: np.ndarray | None, leaf: Any, part: str) -> str:
    """Returns why an array is not loaded; empty if it is."""
    if not re.match(PARTS[part], name):
        return _not_in(part)
    if EPISODE.fullmatch(name):
        return "of an unfinished episode there"
    if array is None or is_key(leaf):
        return "missing there"
    if array.shape != leaf.shape:
        return f"shape {list(array.shape)} there, {list(leaf.shape)} here"
    return "" if array.dtype == leaf.dtype else f"{array.dtype} there, {leaf.dtype} here"


def _is_matrix(array: np.ndarray) -> bool:
    """Returns whether an array can be the weights of a layer. A bias may fit any network of the same outputs."""
    return array.ndim >= 2 and min(array.shape[-2:]) > 1


def _not_in(part: str) -> str:
    return f"not in {part}"


def _collapsed(names: Iterable[str], everything: Iterable[str], depth: int = 0) -> list[str]:
    """Returns names with the shortest common beginnings that belong to these names alone, such as `actor`."""
    names = list(names)
    others = set(everything) - set(names)
    found = {}
    for name in names:
        steps = name.split("/")
        starts = ["/".join(steps[:i]) for i in range(1, len(steps) + 1)]
        own = (s for s in starts if not any(o == s or o.startswith(f"{s}/") for o in others))
        found[starts[0] if depth else next(own)] = None
    return list(found)


def _differing(old: Any, new: Any, path: str = "") -> list[str]:
    """Lists the values in which two JSON objects differ."""
    if isinstance(old, dict) and isinstance(new, dict):
        return [text for name in new for text in _differing(old.get(name), new[name], f"{path}.{name}".strip("."))]
    return [] if old == new else [f"{path} {old} there, {new} here"]


def _digest(arrays: Arrays) -> str:
    digest = hashlib.sha256()
    for name in sorted(arrays):
        digest.update(f"{name} {arrays[name].dtype} {arrays[name].shape}\n".encode())
        digest.update(np.ascontiguousarray(arrays[name]).tobytes())
    return digest.hexdigest()
