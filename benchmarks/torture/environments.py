"""Faulty Gymnasium environments: one class per fault, `gymnasium:benchmarks.torture.environments:NAME`.

    from benchmarks.torture.environments import FAULTS

Each class has three attributes: `at`, when the fault occurs; `says`, a regular expression for covey's message; and
`ends`, whether it ends the process or never returns.
"""

import ctypes
import datetime
import fractions
import os
import signal
import sys
import time
from collections.abc import Callable
from typing import Any, Literal

import gymnasium
import numpy as np
from gymnasium import spaces

HEALTHY_STEPS = 5
"""Correct steps before the first faulty one."""

Answer = tuple[Any, ...]
When = Literal["make", "step", "train"]


class Healthy(gymnasium.Env):
    """Three numbers, one action, episodes of 20 steps."""

    observation_space: Any = spaces.Box(-10.0, 10.0, (3,), np.float32)
    action_space: Any = spaces.Box(-1.0, 1.0, (1,), np.float32)
    at: When = "step"
    says, ends = "", False
    taken, clock = 0, 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.clock = 0
        return self.observe(), {}

    def step(self, action: np.ndarray) -> Any:
        self.taken += 1
        self.clock += 1
        return self.observe(), -float(abs(action[0])), False, self.clock >= 20, {}

    def observe(self) -> Any:
        return np.array([self.clock, 0.0, 1.0], np.float32)


class Nested(Healthy):
    """A Dict space with a Box, a Discrete and a Tuple."""

    observation_space = spaces.Dict(
        {
            "arm": spaces.Box(-10.0, 10.0, (2,), np.float64),
            "mode": spaces.Discrete(3),
            "pair": spaces.Tuple((spaces.Box(0.0, 1.0, (1,), np.float32), spaces.MultiBinary(2))),
        }
    )

    def observe(self) -> Any:
        return {"arm": np.zeros(2), "mode": 1, "pair": (np.zeros(1, np.float32), np.zeros(2, np.int8))}


class Whole(Healthy):
    """Integer observations."""

    observation_space = spaces.Box(0, 10, (3,), np.int64)

    def observe(self) -> Any:
        return np.zeros(3, np.int64)


FAULTS: dict[str, type[Healthy]] = {}
"""Environments by the name of their fault."""
ODD: dict[str, type[Healthy]] = {}
"""Environments that return unusual but correct values."""


def _add(name: str, base: type[Healthy], methods: dict[str, Any], registry: dict[str, type[Healthy]], **about: Any):
    """Makes a class and adds it to this module, so that covey can import it by name."""
    title = "".join(word.capitalize() for word in name.replace("-", " ").split())
    made = type(title, (base,), methods | about | {"__doc__": f"{name}.", "__module__": __name__})
    globals()[title] = registry[name] = made


def returns(
    name: str, change: Callable[[Answer], Any], says: str, base: type[Healthy] = Healthy, odd: bool = False
) -> None:
    """Adds an environment whose `step` returns something else after some steps."""

    def step(self: Any, action: np.ndarray) -> Any:
        answer = base.step(self, action)
        return change(answer) if self.taken > HEALTHY_STEPS else answer

    _add(name, base, {"step": step}, ODD if odd else FAULTS, says=says)


def _shows(name: str, shown: Any, says: str, base: type[Healthy] = Healthy, odd: bool = False) -> None:
    returns(name, lambda a: (shown, *a[1:]), says, base, odd)


def _pays(name: str, reward: Any, says: str, odd: bool = False) -> None:
    returns(name, lambda a: (a[0], reward, *a[2:]), says, odd=odd)


def _ends(name: str, place: Literal[2, 3], flag: Any, says: str, odd: bool = False) -> None:
    returns(name, lambda a: (*a[:place], flag, *a[place + 1 :]), says, odd=odd)


def resets(name: str, reset: Callable[..., Any], says: str, base: type[Healthy] = Healthy) -> None:
    """Adds an environment with another `reset`."""
    _add(name, base, {"reset": reset}, FAULTS, says=says, at="make")


def does(name: str, what: Callable[[], Any], says: str, ends: bool = False, at: When = "step") -> None:
    """Adds an environment that does something after some steps, or when it is made."""

    def step(self: Any, action: np.ndarray) -> Any:
        if self.taken >= HEALTHY_STEPS:
            what()
        return Healthy.step(self, action)

    methods = {"step": step} if at == "step" else {"__init__": lambda self: what()}
    _add(name, Healthy, methods, FAULTS, says=says, ends=ends, at=at)


def _raise(error: BaseException) -> None:
    raise error


def _spin() -> None:
    while True:
        pass


THREE = r"as the observation, which must be float32\[3\]"
_shows("a number as observation", np.float32(7), rf"returned float32\[\] {THREE}")
_shows("a float as observation", 7.0, rf"returned 7\.0 \(float\) {THREE}")
_shows("one number as observation", np.array([7.0], np.float32), rf"returned float32\[1\] {THREE}")
_shows("too few numbers", np.zeros(2, np.float32), rf"returned float32\[2\] {THREE}")
_shows("too many numbers", np.zeros(5, np.float32), rf"returned float32\[5\] {THREE}")
_shows("a row as observation", np.zeros((1, 3), np.float32), rf"returned float32\[1, 3\] {THREE}")
_shows("a column as observation", np.zeros((3, 1), np.float32), rf"returned float32\[3, 1\] {THREE}")
_shows("no numbers", np.zeros(0, np.float32), rf"returned float32\[0\] {THREE}")
_shows("numbers as text", np.array(["1", "2", "3"]), rf"returned <U1\[3\] {THREE}")
_shows("numbers as bytes", np.array([b"1", b"2", b"3"]), rf"returned \|S1\[3\] {THREE}")
_shows("text as observation", "abc", rf"returned 'abc' \(str\) {THREE}")
_shows("none as observation", None, f"returned None {THREE}")
_shows("objects as observation", np.array([1.0, None, 3.0]), rf"returned object\[3\] {THREE}")
_shows("complex observation", np.zeros(3, np.complex64), rf"returned complex64\[3\] {THREE}")
_shows("dates as observation", np.zeros(3, "datetime64[s]"), rf"returned datetime64\[s\]\[3\] {THREE}")
_shows("a ragged list", [[1.0], [1.0, 2.0], 3.0], f"returned a list of 3 {THREE}")
_shows("a dictionary as observation", {"x": 1.0}, f"returned {{'x': 1.0}} \\(dict\\) {THREE}")
_shows("a pair as observation", (np.zeros(3, np.float32), {}), f"returned a tuple of 2 {THREE}")
_shows("an object as observation", object(), rf"\(object\) {THREE}")
_shows("a function as observation", len, THREE)
_shows("fractions of whole numbers", np.full(3, 0.5), r"returned float64\[3\] as .* must be int64\[3\]", Whole)

NUMBER = "as its reward: it must be one number"
_pays("no reward", None, f"returned None {NUMBER}")
_pays("text as reward", "1.0", rf"returned '1\.0' \(str\) {NUMBER}")
_pays("one reward in an array", np.array([1.0]), rf"returned float64\[1\] {NUMBER}")
_pays("three rewards", np.zeros(3), rf"returned float64\[3\] {NUMBER}")
_pays("a list as reward", [1.0], f"returned a list of 1 {NUMBER}")
_pays("complex reward", 1j, rf"returned 1j \(complex\) {NUMBER}")
_pays("a reward too large", 10**400, NUMBER)
_pays("a fraction as reward", fractions.Fraction(1, 3), NUMBER)
_pays("a dictionary as reward", {"total": 1.0}, NUMBER)
_pays("a date as reward", datetime.datetime(2020, 1, 1), NUMBER)

FLAG = "it must be True or False"
_ends("terminated none", 2, None, f"returned None as terminated: {FLAG}")
_ends("terminated nan", 2, float("nan"), rf"returned nan \(float\) as terminated: {FLAG}")
_ends("terminated text", 2, "False", f"as terminated: {FLAG}")
_ends("terminated array", 2, np.array([True]), rf"returned bool\[1\] as terminated: {FLAG}")
_ends("terminated two", 2, 2, rf"returned 2 \(int\) as terminated: {FLAG}")
_ends("terminated half", 2, 0.5, f"as terminated: {FLAG}")
_ends("terminated dictionary", 2, {}, f"as terminated: {FLAG}")
_ends("truncated none", 3, None, f"returned None as truncated: {FLAG}")
_ends("truncated list", 3, [False], f"returned a list of 1 as truncated: {FLAG}")
_ends("truncated nan", 3, np.float32("nan"), rf"returned float32\[\] as truncated: {FLAG}")

FIVE = r"from step: it must return \(obs, reward, terminated, truncated, info\)"
returns("old step", lambda a: (a[0], a[1], a[2], a[4]), f"returned a tuple of 4 {FIVE}")
returns("six values", lambda a: (*a, {}), f"returned a tuple of 6 {FIVE}")
returns("nothing from step", lambda a: None, f"returned None {FIVE}")
returns("an observation from step", lambda a: a[0], rf"returned float32\[3\] {FIVE}")
returns("a dictionary from step", lambda a: dict(enumerate(a)), FIVE)

TWO = r"it must return \(obs, info\)"


def _old_reset(self: Any) -> Any:
    return np.zeros(3, np.float32)


resets("old reset", _old_reset, "has a reset without seed and options: since Gymnasium 0.26")
resets("bare observation from reset", lambda self, *, seed=None, options=None: np.zeros(3, np.float32), TWO)
resets("nothing from reset", lambda self, *, seed=None, options=None: None, f"returned None from reset: {TWO}")
resets("three values from reset", lambda self, *, seed=None, options=None: (np.zeros(3, np.float32), {}, 0), TWO)
resets("reset too short", lambda self, *, seed=None, options=None: (np.zeros(2, np.float32), {}), THREE)
resets("reset none", lambda self, *, seed=None, options=None: (None, {}), THREE)
resets("reset raises", lambda self, *, seed=None, options=None: _raise(ValueError("no arm")), "failed:(.|\n)*no arm")
resets("reset exits", lambda self, *, seed=None, options=None: sys.exit(3), r"called sys\.exit\(3\)")

PAIR = (np.zeros(1, np.float32), np.zeros(2, np.int8))
ARM = {"arm": np.zeros(2), "mode": 1, "pair": PAIR}
_shows("a part missing", {"arm": np.zeros(2), "pair": PAIR}, "the observation without 'mode'", Nested)
_shows("a number as part", ARM | {"arm": 7.0}, r"the observation\['arm'\], which must be float64\[2\]", Nested)
_shows("an array as dictionary", np.zeros(7), "must be a dictionary", Nested)
_shows("a part beyond its range", ARM | {"mode": -1}, r"the observation\['mode'\], .* Discrete\(3\)", Nested)
_shows("a broken part", ARM | {"mode": 0.5}, r"the observation\['mode'\], .* Discrete\(3\)", Nested)
_shows("a short pair", ARM | {"pair": PAIR[:1]}, r"the observation\['pair'\], which must be a tuple of 2", Nested)
_shows("text in a pair", ARM | {"pair": (np.array(["1"]), PAIR[1])}, r"\['pair'\]\[0\], .* float32\[1\]", Nested)
_shows("twos for bits", ARM | {"pair": (PAIR[0], np.full(2, 2))}, r"\['pair'\]\[1\], .* MultiBinary\(2\)", Nested)

_shows("NaN as observation", np.full(3, np.nan, np.float32), "observation of member 0 was not finite")
_pays("NaN as reward", float("nan"), "reward of member 0 was not finite")
_pays("an infinite reward", float("inf"), "reward of member 0 was not finite")
for _name in ("NaN as observation", "NaN as reward", "an infinite reward"):
    FAULTS[_name].at = "train"

does("an error", lambda: _raise(ValueError("the arm fell off")), "failed:(.|\n)*the arm fell off")
does("a stop", lambda: _raise(StopIteration()), "failed:(.|\n)*StopIteration")
does("an exit", lambda: sys.exit(0), r"called sys\.exit\(0\)")
does("a hard exit", lambda: os._exit(0), r"called os\._exit\(0\)")
does("an error where it is made", lambda: _raise(ValueError("no arm")), "can't be made: ValueError: no arm", at="make")
does("an exit where it is made", lambda: sys.exit(3), r"called sys\.exit\(3\)", at="make")
does("a hard exit where it is made", lambda: os._exit(0), r"called os\._exit\(0\)", at="make")
does("a hang", lambda: time.sleep(3600), "has not returned from step", ends=True)
does("a busy hang", _spin, "has not returned from step", ends=True)
does("a segmentation fault", lambda: ctypes.string_at(0), "", ends=True)
does("a kill", lambda: os.kill(os.getpid(), signal.SIGKILL), "", ends=True)

_shows("a list of numbers", [1.0, 2.0, 3.0], "", odd=True)
_shows("float64", np.zeros(3), "", odd=True)
_shows("whole numbers", np.zeros(3, np.uint8), "", odd=True)
_shows("beyond the limits", np.full(3, 1e3, np.float32), "", odd=True)
_pays("a whole reward", 1, "", odd=True)
_pays("a reward without axes", np.array(1.0), "", odd=True)
_ends("numpy flag", 2, np.bool_(False), "", odd=True)
_ends("flag of 0", 2, 0, "", odd=True)
_ends("flag without axes", 3, np.array(False), "", odd=True)
returns("a list from step", list, "", odd=True)


class Registered(Healthy):
    """Returns the old four values from `step`, inside the wrappers of `gymnasium.make`."""

    def step(self, action: np.ndarray) -> Any:
        answer = super().step(action)
        return (answer[0], answer[1], answer[2], answer[4]) if self.taken > HEALTHY_STEPS else answer


def _registered(**options: Any) -> gymnasium.Env:
    return Registered()


gymnasium.register("TortureOld-v0", _registered, max_episode_steps=50)
