"""Gymnasium's environments, and your own with its interface: `gymnasium:ID`, `gymnasium:MODULE:CLASS`.

Images stay as they are, a Dict or Tuple becomes a dictionary of parts, and everything else is flattened to float32
(`covey.envs.host.parts`). Actions in [-1, 1] are rescaled to the action space.
"""

import math
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from importlib.util import find_spec
from types import FunctionType
from typing import Any

import numpy as np

from covey.backend import silence_mujoco, use_headless_rendering
from covey.envs.base import HostBatch
from covey.envs.host.answers import Answers
from covey.envs.host.batch import LocalBatch
from covey.envs.host.descriptor import describing, descriptor_of, parse_sources, sizes_of
from covey.envs.host.guard import EnvError, Guard
from covey.envs.host.parts import Leaf, leaves_of, observation_of
from covey.envs.host.state import UnsavableError, save_env
from covey.envs.host.workers import WorkerBatch
from covey.envs.options import as_arguments, called, check_names, parameters
from covey.errors import CoveyError, require, unknown
from covey.install import install_command
from covey.plugins import import_allowed
from covey.types import EnvSpec

ROBOTS = ("Ant", "HalfCheetah", "Hopper", "Humanoid", "HumanoidStandup", "InvertedDoublePendulum", "InvertedPendulum")
ROBOTS += ("Pusher", "Reacher", "Swimmer", "Walker2d")
UNLIMITED = 100_000
"""The episode length of an environment that is registered without `max_episode_steps`: it must end its episodes."""
SIDE = 240
"""Width and height of MuJoCo's pictures, in pixels."""
WELL_KNOWN = (
    *(f"{robot}-v{version}" for robot in ROBOTS for version in (4, 5)),
    *("Pendulum-v1", "MountainCarContinuous-v0", "BipedalWalker-v3", "LunarLanderContinuous-v3", "CarRacing-v3"),
)
"""IDs that are suggested even if Gymnasium is not installed."""
OLD_GYM = ("GymV21Environment", "GymV26Environment")
"""Prefixes of IDs that make environments of the old gym from their argument `env_id`, which may be MODULE:ID."""
EXTRAS = {"mujoco": "mujoco", "Box2D": "box2d"}
"""Packages that environments need -> the extra of covey that installs them."""


@dataclass(frozen=True)
class GymnasiumEnv:
    """A `HostEnv` whose environments follow Gymnasium's interface.

    Args:
        name: The full name, such as `gymnasium:ID`.
        spec: Sizes and limits.
        state_size: Bytes of a saved state; 0 if states can't be saved.
        unsaved: The reason why they can't be saved, or "".
        factory: Makes one environment; takes the keywords of `gymnasium.make`.
        leaves: The spaces of which its observations consist, for `covey check-env`.
        described: The same environment with the state descriptor in its observations, if it has one.
    """

    name: str
    spec: EnvSpec
    state_size: int
    unsaved: str
    factory: Callable[..., Any] = field(compare=False)
    leaves: tuple[Leaf, ...] = field(default=(), compare=False)
    described: "GymnasiumEnv | None" = None

    def open(self, count: int, workers: int = 0, draws: bool = False) -> HostBatch:
        make = partial(_drawing, self.factory, self.name) if draws else self.factory
        open_local = partial(LocalBatch, make, self.spec, self.state_size, self.name)
        if not workers:
            return open_local(count)
        return WorkerBatch(open_local, count, workers, self.name, parts=len(self.spec.rewards))

    def adjusted(
        self, wrappers: tuple[Callable[[Any], Any], ...], episode_length: int, reward_parts: tuple[str, ...]
    ) -> "GymnasiumEnv":
        """Returns the environment with wrappers, another time limit, and the parts of its reward from `info`."""
        return probed(
            self.name, partial(_wrapped, self.factory, wrappers, episode_length), episode_length, reward_parts
        )

    def drawn(self, size: int, beside: bool) -> "GymnasiumEnv":
        """Returns the environment with a picture of `size` pixels as its observation, or beside it."""
        factory = partial(_pictured, self.factory, size, beside, self.name)
        return probed(self.name, factory, self.spec.episode_length, self.spec.rewards)

    def describing(
        self, descriptor: tuple[str, ...], low: tuple[float, ...], high: tuple[float, ...]
    ) -> "GymnasiumEnv":
        """Returns the environment with a state descriptor (see `covey.envs.host.descriptor`)."""
        sources = parse_sources(descriptor, self.name)
        with silence_mujoco():
            env = _made(self.factory, self.name)
        try:
            with Guard(self.name).calling("reset"):
                sizes = sizes_of(env, sources, self.name)
        finally:
            env.close()
        about = descriptor_of(sources, sizes, low, high, self.spec.observation.is_vector)
        factory = partial(describing, self.factory, sources, sizes, self.name)
        described = probed(self.name, factory, self.spec.episode_length, self.spec.rewards)
        return replace(self, spec=replace(self.spec, descriptor=about), described=described)


def names() -> tuple[str, ...]:
    """Returns the IDs that `make` accepts here: with a box of real actions, and all that they need installed."""
    gymnasium = _gymnasium()
    with warnings.catch_warnings(action="ignore"), silence_mujoco():
        return tuple(name for name in ids() if _is_usable(gymnasium, name))


def ids() -> tuple[str, ...]:
    """Returns all IDs that are registered in Gymnasium."""
    return tuple(sorted(_gymnasium().registry))


def known_names() -> tuple[str, ...]:
    """Returns the IDs in Gymnasium's registry; without Gymnasium, those that everybody knows."""
    return ids() if find_spec("gymnasium") else WELL_KNOWN


def make(name: str, kwargs: Mapping[str, Any] | None = None) -> GymnasiumEnv:
    """Makes an environment.

    Args:
        name: An ID of Gymnasium (`Hopper-v5`), or `MODULE:NAME` with a class of that module, or a function of it that
            returns an environment, or an ID that the module registers when it is imported.
        kwargs: Keyword arguments of the environment.

    Returns:
        The environment. Raises a CoveyError if it can't be made, or if its action space is not a bounded box.
    """
    return probed(f"gymnasium:{name}", _factory(name, kwargs or {}))


def probed(
    name: str, factory: Callable[..., Any], episode_length: int = 0, rewards: tuple[str, ...] = ()
) -> GymnasiumEnv:
    """Returns the environment that a factory makes.

    One environment is opened to learn its sizes and whether its state can be saved, and closed again.

    Args:
        name: The full name.
        factory: Makes one environment.
        episode_length: Its time limit; 0 if its own spec has it.
        rewards: The keys of `info` that hold the parts of the reward, if it has several.
    """
    with silence_mujoco():
        env = _made(factory, name)
    try:
        leaves = leaves_of(env.observation_space, name)
        spec = replace(_spec(env, leaves, name), rewards=rewards, reward_weights=(1.0,) * len(rewards))
        spec = replace(spec, episode_length=episode_length or spec.episode_length)
        answers = Answers(env.observation_space, name, rewards)
        with Guard(name).calling("reset"):
            answers.reset(env, 0)
        size, unsaved = _state_size(env)
        if rewards:  # a key that is not there is an error now, not after the start of the run
            box = env.action_space
            with Guard(name).calling("step"):
                answers.step(env.step(((box.low + box.high) / 2).astype(box.dtype)))
    finally:
        env.close()
    return GymnasiumEnv(name, spec, size, unsaved, factory, leaves)


def _is_usable(gymnasium: Any, name: str) -> bool:
    try:
        env = gymnasium.make(name, disable_env_checker=True)
        env.close()
        return bool(action_box(env.action_space, name))
    except Exception:  # a package is missing, or it was moved elsewhere, or its actions are not a box
        return False


def _gymnasium() -> Any:
    try:
        import gymnasium
    except ImportError:
        raise CoveyError(
            f"Gymnasium is not installed. Install it, here with MuJoCo's robots:\n  {install_command('mujoco')}"
        ) from None
    return gymnasium


def _factory(name: str, kwargs: Mapping[str, Any]) -> Callable[..., Any]:
    gymnasium = _gymnasium()
    module, colon, rest = name.rpartition(":")
    if colon:
        loaded = import_allowed(module, f"The environment gymnasium:{name}")
        kind = getattr(loaded, rest, None)
        if isinstance(kind, FunctionType) or (isinstance(kind, type) and issubclass(kind, gymnasium.Env)):
            return partial(made_by, kind, kwargs, f"gymnasium:{name}")
        if rest not in gymnasium.registry:
            own = [n for n, x in vars(loaded).items() if isinstance(x, type) and issubclass(x, gymnasium.Env)]
            has = f"It has: {', '.join(sorted(own))}." if own else "It has none."
            raise CoveyError(
                f"The module {module!r} has no gymnasium.Env called {rest!r}, no function that returns one, and "
                f"registers no such ID. {has}"
            )
    if rest not in gymnasium.registry:
        raise unknown("Gymnasium environment", rest, gymnasium.registry)
    registered = gymnasium.registry[rest]
    if kwargs:
        require(
            not rest.startswith(OLD_GYM),
            f"`env_kwargs`: {rest} makes environments of another library from a name, which could import any module. "
            "Write a function that makes it, and name that: gymnasium:MODULE:FUNCTION.",
        )
        check_names(kwargs, _registered_parameters(registered.entry_point), f"gymnasium:{name}")
    return partial(gymnasium.make, registered, disable_env_checker=True, **as_arguments(kwargs))


def _registered_parameters(entry_point: Any) -> tuple[str, ...] | None:
    """Returns the arguments of a registered environment; None if they are not known."""
    from gymnasium.envs.registration import load_env_creator

    try:
        return parameters(load_env_creator(entry_point) if isinstance(entry_point, str) else entry_point)
    except Exception:  # a package is missing: making the environment says which
        return None


def made_by(make: Callable[..., Any], kwargs: Mapping[str, Any], name: str, **options: Any) -> Any:
    """Calls a class or function that makes an environment.

    Args:
        make: The class or function.
        kwargs: Its keyword arguments.
        name: The environment's full name, for error messages.
        **options: Options of `gymnasium.make`, such as render_mode; those that it does not take are left out.
    """
    known = parameters(make)
    env = called(make, dict(kwargs) | {n: x for n, x in options.items() if known is None or n in known}, name)
    require(hasattr(env, "action_space"), f"{name} made {env!r}, which is no gymnasium.Env.")
    return env


def _wrapped(
    factory: Callable[..., Any], wrappers: tuple[Callable[[Any], Any], ...], episode_length: int, **options: Any
) -> Any:
    """Makes an environment with wrappers. Another time limit replaces its own, outside of the wrappers."""
    from gymnasium.wrappers import TimeLimit

    env = factory(**options)
    if episode_length:
        env = _without_limit(env, TimeLimit)
    for wrapper in wrappers:
        env = wrapper(env)
        require(
            hasattr(env, "action_space"),
            f"`wrappers`: {getattr(wrapper, '__name__', wrapper)} returned {env!r}, which is no gymnasium.Env.",
        )
    return TimeLimit(env, episode_length) if episode_length else env


def _without_limit(env: Any, kind: type) -> Any:
    """Removes the time limits among the wrappers of an environment."""
    if env is env.unwrapped:
        return env
    if isinstance(env, kind):
        return _without_limit(env.env, kind)
    env.env = _without_limit(env.env, kind)
    return env


def _pictured(factory: Callable[..., Any], size: int, beside: bool, name: str, **options: Any) -> Any:
    """Makes an environment whose observation is its picture. `options` are those of a film, which it draws anyway."""
    from covey.envs.host.pixels import Drawn

    return Drawn(_drawing(factory, name, size), size, beside, name)


def _drawing(factory: Callable[..., Any], name: str, side: int = SIDE) -> Any:
    """Makes an environment that can draw. MuJoCo's pictures are small: without a graphics card, drawing is slow."""
    use_headless_rendering()
    try:
        with warnings.catch_warnings(action="ignore"):
            env = factory(render_mode="rgb_array")
        if "mujoco_renderer" in vars(env.unwrapped):
            env.close()
            env = factory(render_mode="rgb_array", width=side, height=side)
        return env
    except Exception as error:
        raise CoveyError(f"{name} can't be drawn: {type(error).__name__}: {error}") from error


def _made(factory: Callable[..., Any], name: str) -> Any:
    with Guard(name).calling("__init__"):
        return _tried(factory, name)


def _tried(factory: Callable[..., Any], name: str) -> Any:
    try:
        return factory()
    except CoveyError as error:
        raise EnvError(str(error), error.owner) from error
    except Exception as error:
        extra = next((x for package, x in EXTRAS.items() if package in str(error) and not find_spec(package)), None)
        remedy = f". Install what it needs:\n  {install_command(extra)}" if extra else ""
        raise EnvError(f"{name} can't be made: {type(error).__name__}: {error}{remedy}") from error


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


def _spec(env: Any, leaves: tuple[Leaf, ...], name: str) -> EnvSpec:
    box = action_box(env.action_space, name)
    limit = env.spec.max_episode_steps if env.spec else None
    return EnvSpec(
        observation=observation_of(leaves),
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
