"""Environments by name. `ENVS` holds those that come with covey; `register` adds your own.

A name with a prefix, as in `gymnasium:Hopper-v5`, is another library's, and its adapter makes the environment.
"""

import importlib
from collections.abc import Callable
from typing import Any, NamedTuple

from covey.envs.base import Env, HostEnv, Outcome
from covey.envs.builtin.cartpole_swingup import CartpoleSwingup
from covey.envs.builtin.mountaincar import MountainCar
from covey.envs.builtin.pendulum import Pendulum
from covey.envs.builtin.point import Point
from covey.envs.builtin.pointmaze import PointMaze
from covey.envs.builtin.reacher import Reacher
from covey.errors import CoveyError, require, unknown

__all__ = ["ADAPTERS", "ENVS", "Env", "EnvEntry", "HostEnv", "Outcome", "adapter", "make", "names", "register"]


class EnvEntry(NamedTuple):
    """How to make an environment, and what it is in one line."""

    make: Callable[[], Env]
    summary: str


ENVS: dict[str, EnvEntry] = {}
ADAPTERS: dict[str, str] = {
    "gymnasium": "covey.envs.host.gymnasium",
    "envpool": "covey.envs.host.envpool",
    "brax": "covey.envs.compiled.brax",
    "gymnax": "covey.envs.compiled.gymnax",
    "playground": "covey.envs.compiled.playground",
}
"""Prefix -> the module that makes `prefix:NAME` with its functions `make(name)` and `names()`. It is imported when
asked for; the first line of its docstring says what it is, and `pip install 'covey[prefix]'` installs its library."""


def register(name: str, factory: Callable[[], Env], summary: str) -> None:
    """Adds an environment under a new name. A colon is kept for adapters to other libraries."""
    require(name not in ENVS, f"There is already an environment called {name!r}. Choose another name.")
    require(bool(name) and ":" not in name, f"{name!r} can't name an environment: use a word without a colon.")
    ENVS[name] = EnvEntry(factory, summary)


def names() -> tuple[str, ...]:
    """The names that `make` knows, in alphabetical order."""
    return tuple(sorted(ENVS))


def adapter(prefix: str) -> Any:
    """The module that makes the environments of another library."""
    if prefix not in ADAPTERS:
        raise unknown("library of environments", prefix, ADAPTERS)
    return importlib.import_module(ADAPTERS[prefix])


def make(name: str) -> Any:
    """The environment of that name, an Env or a HostEnv: a registered one, or `prefix:NAME` of another library."""
    if name in ENVS:
        return ENVS[name].make()
    prefix, colon, rest = name.partition(":")
    if colon:
        return adapter(prefix).make(rest)
    raise CoveyError(f"{unknown('environment', name, ENVS)} One of your own: add --plugin MODULE.")


register("pendulum", Pendulum, "Swing a pendulum up and hold it there (Gymnasium's Pendulum-v1).")
register("mountaincar", MountainCar, "Drive a weak car out of a valley (Gymnasium's MountainCarContinuous-v0).")
register("cartpole-swingup", CartpoleSwingup, "Swing up a pole by moving its cart, and balance it.")
register("reacher", Reacher, "Bring the tip of a two-link arm to a random goal.")
register("point", Point, "Move a point to a random goal: learned within seconds.")
register("point-free", lambda: Point(goal=False), "Move a point with no goal and no reward: for skill discovery.")
register("pointmaze", PointMaze, "Move a point around a wall to a goal behind it.")
