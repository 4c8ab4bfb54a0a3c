"""Checks the return values of a Gymnasium environment against its spaces, and converts its observations to parts.

Without these checks NumPy would broadcast one number to a whole observation, read text as numbers, and None as False.
Correct values take a fast path: a few comparisons, no conversion.
"""

import inspect
import reprlib
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from covey.envs.host.guard import EnvError
from covey.envs.host.parts import Leaf, leaves_of
from covey.observation import Obs

REAL = "fiub"
"""NumPy's dtype kinds of real numbers: floats, signed and unsigned integers, booleans."""
NUMBERS = frozenset({float, np.float64, np.float32})
"""Types of a reward that need no further check. A Python int needs one: it may be too large for any float."""
FLAGS = frozenset({bool, np.bool_})
"""Types of `terminated` and `truncated` that need no further check."""


class Answers:
    """Checks the answers of environments with the same observation space, and converts their observations.

    Args:
        space: The observation space.
        name: The environment's full name, for error messages.
        rewards: The keys of `info` that hold the parts of the reward; empty if the reward has one part.
    """

    def __init__(self, space: Any, name: str, rewards: tuple[str, ...] = ()) -> None:
        self.name = name
        self.space = space
        self._rewards = rewards
        self._readers = [Reader(leaf, self._subject) for leaf in leaves_of(space, name)]
        only = None if self._readers[0].leaf.path else self._readers[0]
        self._only = only
        # The fast path: an observation that is one vector takes three comparisons.
        self._shape = only.shape if only and not only.leaf.part.is_image else None
        self._kinds = only.kinds if only else ""

    def reset(self, env: Any, seed: int | None) -> Obs:
        """Starts an episode and returns its first observation, converted."""
        try:
            answer = env.reset(seed=seed)
        except TypeError:
            missing = [word for word in ("seed", "options") if not _accepts(env.unwrapped.reset, word)]
            if not missing:
                raise
            raise EnvError(
                f"{self._subject} has a reset without {' and '.join(missing)}: since Gymnasium 0.26, reset must take "
                "the keywords seed and options and return (obs, info)."
            ) from None
        if not isinstance(answer, tuple | list) or len(answer) != 2:
            raise EnvError(
                f"{self._subject} returned {described(answer)} from reset: it must return (obs, info), as since "
                "Gymnasium 0.26."
            )
        return self.read(answer[0])

    def step(self, answer: Any) -> tuple[Obs, Any, Any, Any]:
        """Checks the return value of `step`.

        Returns:
            The converted observation, the reward (a list of its parts if there are several), terminated and truncated.
        """
        if not isinstance(answer, tuple | list) or len(answer) != 5:
            raise EnvError(
                f"{self._subject} returned {described(answer)} from step: it must return (obs, reward, terminated, "
                "truncated, info), as since Gymnasium 0.26."
            )
        shown, reward, terminated, truncated, info = answer
        if type(reward) not in NUMBERS:
            self._check_reward(reward)
        if type(terminated) not in FLAGS:
            self._check_flag("terminated", terminated)
        if type(truncated) not in FLAGS:
            self._check_flag("truncated", truncated)
        return self.read(shown), self._parts(info) if self._rewards else reward, terminated, truncated

    def read(self, shown: Any) -> Obs:
        """Converts an observation to an array, or to arrays by name of part.

        Raises an EnvError if it does not belong to the space.
        """
        if type(shown) is np.ndarray and shown.shape == self._shape and shown.dtype.kind in self._kinds:
            return shown.ravel()
        if self._only is not None:
            return self._part(self._only, shown, shown)
        return {each.leaf.name: self._part(each, _inside(shown, each.leaf.path), shown) for each in self._readers}

    def _part(self, reader: "Reader", value: Any, shown: Any) -> np.ndarray:
        """Converts one part of the observation `shown`."""
        found = reader.fast(value)
        if found is not None:
            return found
        fault = fault_of(self.space, shown)
        if fault:
            raise EnvError(
                f"{self._subject} returned {fault}. Its observation space is {reprlib.repr(self.space)}: return what "
                "the space says, or correct the space."
            )
        return reader.slow(value)

    @property
    def _subject(self) -> str:
        return f"The environment {self.name}"

    def _check_reward(self, reward: Any) -> None:
        array = _array(reward)
        if array is None or array.shape or array.dtype.kind not in REAL:
            raise EnvError(f"{self._subject} returned {described(reward)} as its reward: it must be one number.")

    def _parts(self, info: Any) -> list[Any]:
        """Returns the parts of the reward from `info`."""
        for name in self._rewards:
            part = _array(info.get(name))
            if part is None or part.shape or part.dtype.kind not in REAL:
                known = [key for key, x in info.items() if np.ndim(x) == 0 and _array(x).dtype.kind in REAL]  # type: ignore[union-attr]
                has = f"Its numbers are: {', '.join(known)}." if known else "It has no numbers."
                raise EnvError(f"{self._subject} has no number {name!r} (`reward_parts`) in the info of step. {has}")
        return [info[name] for name in self._rewards]

    def _check_flag(self, what: str, flag: Any) -> None:
        array = _array(flag)
        if array is None or array.shape or array.dtype.kind not in "iub" or array not in (0, 1):
            raise EnvError(f"{self._subject} returned {described(flag)} as {what}: it must be True or False.")


class Reader:
    """Converts the values of one leaf of an observation space.

    Args:
        leaf: The leaf.
        subject: The subject of error messages.
    """

    def __init__(self, leaf: Leaf, subject: str) -> None:
        from gymnasium import spaces

        space = leaf.space
        self.leaf = leaf
        self.kinds = REAL if space.dtype is None or space.dtype.kind == "f" else "iub"
        self.shape: tuple[int, ...] | None = space.shape if isinstance(space, spaces.Box) else None
        self._subject = subject
        self._is_image = leaf.part.is_image
        self._is_bytes = leaf.part.dtype == "uint8"
        self._flatten: Callable[[Any, Any], Any] = spaces.flatten

    def fast(self, value: Any) -> np.ndarray | None:
        """Returns an array that needs no further check: an image as it is, another Box flattened; otherwise None."""
        if type(value) is not np.ndarray or value.shape != self.shape or value.dtype.kind not in self.kinds:
            return None
        if self._is_bytes and value.dtype != np.uint8:
            return None
        return value if self._is_image else value.ravel()

    def slow(self, value: Any) -> np.ndarray:
        """Converts a value that belongs to the space."""
        if self.shape is None:
            return self._flatten(self.leaf.space, value)
        array = np.asarray(value)
        if self._is_bytes and (array.min() < 0 or array.max() > 255):
            raise EnvError(
                f"{self._subject} returned an image with values from {array.min()} to {array.max()}; those of uint8 "
                "are from 0 to 255."
            )
        return array if self._is_image else array.ravel()


def _inside(shown: Any, path: tuple[Any, ...]) -> Any:
    """Returns what a path of keys and indices leads to; None if it leads nowhere."""
    try:
        for key in path:
            shown = shown[key]
    except (KeyError, IndexError, TypeError):
        return None
    return shown


def fault_of(space: Any, shown: Any, place: str = "") -> str:
    """Returns what is wrong with an observation; empty if it has the shape and dtype kind of its space.

    Values outside the limits of a box are allowed: many environments exceed them.

    Args:
        space: The observation space, or a part of it.
        shown: The observation, or its part.
        place: The path to the part, such as `['arm']`.
    """
    from gymnasium import spaces

    where = f"the observation{place}"
    if isinstance(space, spaces.Dict):
        if not isinstance(shown, Mapping):
            return f"{described(shown)} as {where}, which must be a dictionary"
        for key, part in space.spaces.items():
            fault = fault_of(part, shown[key], f"{place}[{key!r}]") if key in shown else f"{where} without {key!r}"
            if fault:
                return fault
        return ""
    if isinstance(space, spaces.Tuple):
        if not isinstance(shown, tuple | list) or len(shown) != len(space.spaces):
            return f"{described(shown)} as {where}, which must be a tuple of {len(space.spaces)}"
        parts = zip(space.spaces, shown, strict=True)
        return next((f for i, part in enumerate(parts) if (f := fault_of(*part, f"{place}[{i}]"))), "")
    fits = space.contains(shown) if not isinstance(space, spaces.Box | spaces.Discrete) else _fits(space, shown)
    return "" if fits else f"{described(shown)} as {where}, which must be {_expected(space)}"


def _fits(space: Any, shown: Any) -> bool:
    array = _array(shown)
    if array is None or array.shape != space.shape:
        return False
    if array.dtype.kind not in (REAL if space.dtype.kind == "f" else "iub"):
        return False
    return not hasattr(space, "n") or bool(space.start <= array < space.start + space.n)


def _expected(space: Any) -> str:
    return f"{space.dtype}{list(space.shape)}" if type(space).__name__ == "Box" else str(space)


def described(value: Any) -> str:
    """Describes a value for a message: dtype and shape of an array, a shortened repr and the type of anything else."""
    if isinstance(value, np.ndarray | np.generic):
        return f"{value.dtype}{list(value.shape)}"
    if isinstance(value, tuple | list):
        return f"a {type(value).__name__} of {len(value)}"
    return "None" if value is None else f"{reprlib.repr(value)} ({type(value).__name__})"


def _array(value: Any) -> np.ndarray | None:
    try:
        return np.asarray(value)
    except Exception:  # the conversion of an unknown object may raise anything
        return None


def _accepts(function: Callable[..., Any], keyword: str) -> bool:
    parameters = inspect.signature(function).parameters.values()
    return any(p.name == keyword or p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters)
