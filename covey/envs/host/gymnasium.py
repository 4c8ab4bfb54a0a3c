"""Gymnasium's environments, and your own with its interface: `gymnasium:ID`, `gymnasium:MODULE:CLASS`.

Observations are flattened by `gymnasium.spaces.flatten` and converted to float32: a Box row by row, a Dict in the order
of its space (sorted by key, unless the space was made with another order), a Discrete as one-hot. Actions in [-1, 1]
are rescaled to the action space.
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
from covey.install import install_command
from covey.plugins import import_allowed
from covey.types import EnvSpec

UNLIMITED = 100_000
"""The episode length of an environment that is registered without `max_episode_steps`: it must end its episodes."""
SIDE = 240
"""Width and height of MuJoCo's pictures, in pixels."""
EXTRAS = {"mujoco": "mujoco", "Box2D": "box2d"}
"""Packages that environments need -> the extra of covey that installs them."""


@dataclass(frozen=True)
class GymnasiumEnv:
    """A `HostEnv` whose environments follow Gymnasium's interface.

    Args:
        name: The name without the prefix: `ID`, `MODULE:CLASS` or `MODULE:ID`.
        spec: Sizes and limits.
        state_size: Bytes of a saved state; 0 if states can't be saved.
        unsaved: The reason why they can't be saved, or "".
        factory: Makes one environment; takes the keywords of `gymnasium.make`.
    """

    name: str
    spec: EnvSpec
    state_size: int
    unsaved: str
    factory: Callable[..., Any] = field(compare=False)

    def open(self, count: int, workers: int = 0, draws: bool = False) -> HostBatch:
        make = partial(_drawing, self.factory, self.name) if draws else self.factory
        open_local = partial(LocalBatch, make, self.spec, self.state_size, self.name)
        return WorkerBatch(open_local, count, workers, self.name) if workers else open_local(count)


def names() -> tuple[str, ...]:
    """Returns the IDs that are registered in Gymnasium."""
    return tuple(sorted(_gymnasium().registry))


def make(name: str) -> GymnasiumEnv:
    """Makes an environment.

    One environment is opened to learn its sizes and whether its state can be saved, and closed again.

    Args:
        name: An ID of Gymnasium (`Hopper-v5`), or `MODULE:NAME` with a class of that module, or an ID that the module
            registers when it is imported.

    Returns:
        The environment. Raises a CoveyError if it can't be made, or if its action space is not a bounded box.
    """
    factory = _factory(name)
    full = f"gymnasium:{name}"
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
        raise CoveyError(
            f"Gymnasium is not installed. Install it, here with MuJoCo's robots:\n  {install_command('mujoco')}"
        ) from None
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
            has = f"It has: {', '.join(sorted(own))}." if own else "It has none."
            raise CoveyError(
                f"The module {module!r} has no gymnasium.Env called {rest!r}, and registers no such ID. {has}"
            )
    if rest not in gymnasium.registry:
        raise unknown("Gymnasium environment", rest, gymnasium.registry)
    return partial(gymnasium.make, gymnasium.registry[rest], disable_env_checker=True)


def _of_class(kind: type, **options: Any) -> Any:
    return kind(**options)


def _drawing(factory: Callable[..., Any], name: str) -> Any:
    """Makes an environment that can draw. MuJoCo's pictures are small: without a graphics card, drawing is slow."""
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
        remedy = f". Install what it needs:\n  {install_command(extra)}" if extra else ""
        raise EnvError(f"gymnasium:{name} can't be made: {type(error).__name__}: {error}{remedy}") from error


def action_box(box: Any, name: str) -> dict[str, Any]:
    """Returns the fields of an EnvSpec that describe an action space; raises a CoveyError if it is no bounded box."""
    from gymnasium import spaces

    require(
        isinstance(box, spaces.Box) and box.dtype.kind == "f",
        f"{name} has the actions {box}. covey's agents act in a box of real numbers (spaces.Box of float32): "
        "choose the environment's continuous version, if there is one.",
    )
    require(
        bool(np.isfinite(box.low).all() and np.isfinite(box.high).all()),
        f"{name} has the actions {box}, without finite limits: [-1, 1] can't be rescaled to them. Give the action "
        "space a finite low and high.",
    )
    limits = {"action_low": box.low, "action_high": box.high}
    return {"action_size": math.prod(box.shape)} | {k: tuple(map(float, x.ravel())) for k, x in limits.items()}


def _spec(env: Any, name: str) -> EnvSpec:
    from gymnasium import spaces

    box = action_box(env.action_space, f"gymnasium:{name}")
    shown = env.observation_space
    try:
        size = spaces.flatdim(shown)
    except (ValueError, NotImplementedError):
        raise CoveyError(
            f"gymnasium:{name} has the observations {shown}, which have no fixed size when they are flattened."
        ) from None
    limit = env.spec.max_episode_steps if env.spec else None
    return EnvSpec(
        obs_size=size,
        episode_length=limit or UNLIMITED,
        frames_per_second=float(env.metadata.get("render_fps") or 30.0),
        **box,
    )


def _state_size(env: Any) -> tuple[int, str]:
    """Returns the bytes to reserve for a state; or 0, and the reason why it can't be saved.

    Twice the size after a reset, because some attributes are only set later.
    """
    try:
        return 2 * len(save_env(env)) + 1024, ""
    except UnsavableError as error:
        return 0, str(error)
