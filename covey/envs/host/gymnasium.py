"""Gymnasium's environments, and your own that follow its interface: `gymnasium:ID`, `gymnasium:MODULE:CLASS`.

Observations are flattened by `gymnasium.spaces.flatten`: a box row by row, a Dict in the order of its space (sorted by
key unless the space was made with another), a Discrete as one-hot; all as float32. Actions in [-1, 1] are rescaled to
the box.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from importlib.util import find_spec
from typing import Any

import numpy as np

from covey.backend import silence_mujoco
from covey.envs.base import HostBatch
from covey.envs.host.answers import Answers
from covey.envs.host.batch import LocalBatch
from covey.envs.host.guard import EnvError, Guard
from covey.envs.host.state import UnsavableError, save_env
from covey.envs.host.workers import WorkerBatch
from covey.errors import CoveyError, require, unknown
from covey.plugins import import_allowed
from covey.types import EnvSpec

UNLIMITED = 100_000
"""The episode length of an environment that is registered without `max_episode_steps`: it must end by itself."""
SIDE = 240
"""Width and height of MuJoCo's pictures."""
EXTRAS = {"mujoco": "mujoco", "Box2D": "box2d"}
"""Packages that environments need -> the extra of covey that brings them."""


@dataclass(frozen=True)
class GymnasiumEnv:
    """One kind of environment: how to make it, its sizes and limits, and how its state is saved."""

    name: str
    spec: EnvSpec
    state_size: int
    unsaved: str
    factory: Callable[..., Any] = field(compare=False)

    def open(self, count: int, workers: int = 0, draws: bool = False) -> HostBatch:
        make = partial(_drawing, self.factory, self.name) if draws else self.factory
        one = partial(LocalBatch, make, self.spec, self.state_size, self.name)
        return WorkerBatch(one, count, workers, self.name) if workers else one(count)


def names() -> tuple[str, ...]:
    """What is registered in Gymnasium, and has not been replaced by a later version."""
    return tuple(sorted(_gymnasium().registry))


def make(name: str) -> GymnasiumEnv:
    """The environment of an ID, or of a module and a class or an ID that the module registers."""
    factory, full = _factory(name), f"gymnasium:{name}"
    with silence_mujoco():
        env = _made(factory, name)
    try:
        spec = _spec(env, name)
        with Guard(full).calling("reset"):
            Answers(env.observation_space, full).reset(env, 0)
        size, unsaved = _state_size(env)
    finally:
        env.close()
    return GymnasiumEnv(name, spec, size, unsaved, factory)


def _gymnasium() -> Any:
    try:
        import gymnasium
    except ImportError:
        raise CoveyError("Gymnasium is not installed: pip install 'covey[mujoco]', or gymnasium alone.") from None
    return gymnasium


def _factory(name: str) -> Callable[..., Any]:
    gymnasium = _gymnasium()
    module, colon, rest = name.rpartition(":")
    if colon:
        loaded = import_allowed(module, f"gymnasium:{name}")
        kind = getattr(loaded, rest, None)
        if isinstance(kind, type) and issubclass(kind, gymnasium.Env):
            return partial(_of_class, kind)
        if rest not in gymnasium.registry:
            own = [n for n, x in vars(loaded).items() if isinstance(x, type) and issubclass(x, gymnasium.Env)]
            has = f"It has: {', '.join(sorted(own))}." if own else "It has none at all."
            raise CoveyError(f"The module {module!r} has no gymnasium.Env called {rest!r}, nor registers one. {has}")
    if rest not in gymnasium.registry:
        raise unknown("Gymnasium environment", rest, gymnasium.registry)
    return partial(gymnasium.make, gymnasium.registry[rest], disable_env_checker=True)


def _of_class(kind: type, **options: Any) -> Any:
    return kind(**options)


def _drawing(factory: Callable[..., Any], name: str) -> Any:
    """The environment ready to draw; MuJoCo's smaller than by default, because without a graphics card it is slow."""
    try:
        env = factory(render_mode="rgb_array")
        if "mujoco_renderer" in vars(env.unwrapped):
            env.close()
            env = factory(render_mode="rgb_array", width=SIDE, height=SIDE)
        return env
    except Exception as error:
        raise CoveyError(f"gymnasium:{name} can't be drawn: {type(error).__name__}: {error}") from error


def _made(factory: Callable[..., Any], name: str) -> Any:
    with Guard(f"gymnasium:{name}").calling("__init__"):
        return _tried(factory, name)


def _tried(factory: Callable[..., Any], name: str) -> Any:
    try:
        return factory()
    except Exception as error:
        extra = next((x for package, x in EXTRAS.items() if package in str(error) and not find_spec(package)), None)
        remedy = f" Its packages come with: pip install 'covey[{extra}]'." if extra else ""
        raise EnvError(f"gymnasium:{name} can't be made: {type(error).__name__}: {error}{remedy}") from error


def action_box(box: Any, name: str) -> dict[str, Any]:
    """The size and the limits of an action space, as a spec has them; an error where it is no box that has them."""
    from gymnasium import spaces

    require(
        isinstance(box, spaces.Box) and box.dtype.kind == "f",
        f"{name} has the actions {box}. covey's agents act in a box of real numbers (spaces.Box of float32): "
        "choose the environment's continuous version.",
    )
    require(
        bool(np.isfinite(box.low).all() and np.isfinite(box.high).all()),
        f"{name} has the actions {box}, without finite limits, so that [-1, 1] can't be rescaled to them. "
        "Give the box a low and a high, for example with gymnasium.wrappers.RescaleAction's inner environment.",
    )
    limits = {"action_low": box.low, "action_high": box.high}
    return {"action_size": math.prod(box.shape)} | {k: tuple(map(float, x.ravel())) for k, x in limits.items()}


def _spec(env: Any, name: str) -> EnvSpec:
    from gymnasium import spaces

    box, shown = action_box(env.action_space, f"gymnasium:{name}"), env.observation_space
    try:
        size = spaces.flatdim(shown)
    except (ValueError, NotImplementedError):
        raise CoveyError(
            f"gymnasium:{name} shows {shown}, which has no fixed number of numbers to flatten it to."
        ) from None
    limit = env.spec.max_episode_steps if env.spec else None
    return EnvSpec(
        obs_size=size,
        episode_length=limit or UNLIMITED,
        frames_per_second=float(env.metadata.get("render_fps") or 30.0),
        **box,
    )


def _state_size(env: Any) -> tuple[int, str]:
    """Twice what the state takes at first, because some attributes get their value later; 0 and why it has none."""
    try:
        return 2 * len(save_env(env)) + 1024, ""
    except UnsavableError as error:
        return 0, str(error)
