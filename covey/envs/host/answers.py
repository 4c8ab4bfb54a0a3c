"""Checks the return values of a Gymnasium environment against its spaces, and flattens its observations.

Without these checks NumPy would broadcast one number to a whole observation, read text as numbers, and None as False.
Correct values take a fast path: a few comparisons, no conversion.
"""

import inspect
import reprlib
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from covey.envs.host.guard import EnvError

REAL = "fiub"
"""NumPy's dtype kinds of real numbers: floats, signed and unsigned integers, booleans."""
NUMBERS = frozenset({float, np.float64, np.float32})
"""Types of a reward that need no further check. A Python int needs one: it may be too large for any float."""
FLAGS = frozenset({bool, np.bool_})
"""Types of `terminated` and `truncated` that need no further check."""


class Answers:
    """Checks and flattens the answers of environments with the same observation space.

    Args:
        space: The observation space.
        name: The environment's full name, for error messages.
        rewards: The keys of `info` that hold the parts of the reward; empty if the reward has one part.
    """

    def __init__(self, space: Any, name: str, rewards: tuple[str, ...] = ()) -> None:
        from gymnasium import spaces

        self.name = name
        self.space = space
        self._rewards = rewards
        self._kinds = REAL if space.dtype is None or space.dtype.kind == "f" else "iub"
        self._shape = space.shape
        self._is_box = isinstance(space, spaces.Box)
        self._flatten: Callable[[Any, Any], Any] = spaces.flatten

    def reset(self, env: Any, seed: int | None) -> np.ndarray:
        """Starts an episode and returns its first observation, flattened."""
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
        return self.flat(answer[0])

    def step(self, answer: Any) -> tuple[np.ndarray, Any, Any, Any]:
        """Checks the return value of `step`.

        Returns:
            The flattened observation, the reward (a list of its parts if there are several), terminated and truncated.
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
        return self.flat(shown), self._parts(info) if self._rewards else reward, terminated, truncated

    def flat(self, shown: Any) -> np.ndarray:
        """Flattens an observation; raises an EnvError if it does not belong to the space."""
        array = self._is_box and type(shown) is np.ndarray
        if array and shown.shape == self._shape and shown.dtype.kind in self._kinds:
            return shown.ravel()
        fault = fault_of(self.space, shown)
        if fault:
            raise EnvError(
                f"{self._subject} returned {fault}. Its observation space is {reprlib.repr(self.space)}: return what "
                "the space says, or correct the space."
            )
        return np.ravel(shown) if self._is_box else self._flatten(self.space, shown)

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
