"""Converts Gymnasium's observation spaces to the parts of an `Observation`.

A Box of rank 3 is an image, if it holds floats or uint8. Every other space is flattened to a vector of float32 by
`gymnasium.spaces.flatten`: a Box row by row, a Discrete as one-hot. A Dict has a part for each of its keys, a Tuple for
each of its indices; the names inside of another Dict or Tuple are joined, such as `arm/joint`.
"""

from collections import Counter
from collections.abc import Hashable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from covey.errors import CoveyError, require
from covey.observation import DESCRIPTOR, OBS, RETURN, Obs, Observation, Part

RESERVED = (DESCRIPTOR, RETURN)
"""Names that a part of an environment's own observation can't have: `covey.envs.Described` adds such parts."""
SEPARATOR = "/"


class Leaf(NamedTuple):
    """One space inside an observation space, which is no Dict or Tuple.

    Args:
        name: The name of its part; "obs" if the observation is this space alone.
        path: Keys and indices that lead to it.
        space: The space.
        part: The form of its values as a part of an `Observation`.
    """

    name: str
    path: tuple[Hashable, ...]
    space: Any
    part: Part

    @property
    def note(self) -> str:
        """A remark on how it is converted, for `covey check-env`; empty if it is used as it is."""
        kind = type(self.space).__name__
        if kind in ("Discrete", "MultiDiscrete"):
            return f"one-hot of {self.space}"
        shape = self.space.shape or ()
        flattened = len(shape) > 1 and not self.part.is_image
        return f"flattened from {self.space.dtype}{list(shape)}" if flattened else ""

    @property
    def is_flattened_image(self) -> bool:
        """True for uint8 of another rank than 3, such as (height, width): probably an image, but not recognised."""
        space = self.space
        return type(space).__name__ == "Box" and space.dtype == np.uint8 and len(space.shape) in (2, 4)


def leaves_of(space: Any, name: str) -> tuple[Leaf, ...]:
    """Returns the leaves of an observation space.

    Args:
        space: The observation space.
        name: The environment's full name, for error messages.

    Returns:
        One leaf without a path if the space is no Dict and no Tuple; otherwise all that it holds, in its order. Raises
        a CoveyError if a part has no fixed size or a name that is not allowed.

    Example:
        >>> arm = spaces.Dict({"arm": spaces.Tuple([spaces.Box(0, 1, (2,)), spaces.Discrete(3)])})
        >>> [(leaf.name, leaf.part.shape) for leaf in leaves_of(arm, "mine")]
        [('arm/0', (2,)), ('arm/1', (3,))]
    """
    found = tuple(
        Leaf(SEPARATOR.join(map(str, path)) or OBS, path, inner, _part(inner, space, name))
        for path, inner in _walked(space, ())
    )
    require(bool(found), f"{name} has the observations {space}, which are empty.")
    times = Counter(leaf.name for leaf in found)
    for leaf in found:
        require(
            leaf.name not in RESERVED,
            f"{name} has an observation called {leaf.name!r}, a name that covey adds itself for agents that learn "
            "skills. Choose another key.",
        )
        require(times[leaf.name] == 1, f"{name} has two observations called {leaf.name!r}. Rename one of the keys.")
    return found


def observation_of(leaves: tuple[Leaf, ...]) -> Observation:
    """Returns the form of the observations that these leaves make up."""
    if not leaves[0].path:
        return Observation.of(leaves[0].part)
    return Observation.of({leaf.name: leaf.part for leaf in leaves})


def joined(batches: Sequence[Obs]) -> Obs:
    """Concatenates observations [N, ...] of several batches."""
    if isinstance(batches[0], dict):
        return {name: np.concatenate([each[name] for each in batches]) for name in batches[0]}
    return np.concatenate(batches)


class Rows:
    """Observations of N environments, set one after the other: a dictionary of arrays [N, ...].

    Args:
        observation: The form of an observation, a dictionary.
        count: N.

    Example:
        >>> rows = Rows(Observation.of({"speed": Part((2,))}), 4)
        >>> rows[0] = {"speed": [1.0, 2.0]}
        >>> rows.arrays["speed"].shape
        (4, 2)
    """

    def __init__(self, observation: Observation, count: int) -> None:
        self.arrays = {name: np.empty((count, *part.shape), part.dtype) for name, part in observation.named}

    def __setitem__(self, index: int, parts: dict[str, Any]) -> None:
        for name, rows in self.arrays.items():
            rows[index] = parts[name]


def _walked(space: Any, path: tuple[Hashable, ...]) -> Iterator[tuple[tuple[Hashable, ...], Any]]:
    """Yields the paths and spaces of all leaves."""
    from gymnasium import spaces

    if isinstance(space, spaces.Dict):
        inner = list(space.spaces.items())
    elif isinstance(space, spaces.Tuple):
        inner = list(enumerate(space.spaces))
    else:
        yield path, space
        return
    for key, each in inner:
        yield from _walked(each, (*path, key))


def _part(space: Any, whole: Any, name: str) -> Part:
    from gymnasium import spaces

    if isinstance(space, spaces.Box) and len(space.shape) == 3:
        if space.dtype == np.uint8:
            return Part(space.shape, "uint8")
        if space.dtype.kind == "f":
            return Part(space.shape)
    try:
        size = spaces.flatdim(space)
    except (ValueError, NotImplementedError):
        raise CoveyError(
            f"{name} has the observations {whole}, and {space} has no fixed size when it is flattened."
        ) from None
    return Part((size,))
