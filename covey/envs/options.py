"""Options of an environment besides its name: arguments, wrappers, time limit, parts of the reward, and pictures."""

import inspect
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

from covey.envs.base import HostEnv
from covey.envs.host.described import Describable
from covey.envs.pixels import Pixels, check_size
from covey.envs.stack import Stacked, StackedHost
from covey.envs.wrappers import TimeLimit
from covey.errors import CoveyError, require
from covey.plugins import import_allowed

PIXEL_FRAMES = 3
"""Frames of a picture of the environment, by default: two show its velocity, three its acceleration."""
KEYWORDS = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


@dataclass(frozen=True)
class EnvOptions:
    """Options of an environment besides its name.

    Args:
        kwargs: Keyword arguments of the environment, as JSON values.
        wrappers: `MODULE:NAME` of callables from environment to environment, applied in this order.
        episode_length: Time limit in steps; 0 for the environment's own.
        reward_parts: Host environments: the keys of `info` that hold the parts of the reward.
        pixels: Width and height of a picture of the environment that becomes the observation; 0 for none.
        pixels_beside: Whether to keep the environment's own observation beside the picture.
        stack: Frames of each image in an observation; 0 for 3 with `pixels` and 1 without.
        descriptor: Gymnasium's environments: sources of the state descriptor (see `covey.envs.host.descriptor`).
        descriptor_low: Lower limits of the descriptor: one for each number, or one for all; () for -10.
        descriptor_high: Upper limits, likewise; () for 10.

    Example:
        >>> covey.envs.make_from_config("pendulum", EnvOptions(pixels=64)).spec.observation.parts["obs"].shown
        (64, 64, 9)
    """

    kwargs: Mapping[str, Any] = field(default_factory=dict)
    wrappers: tuple[str, ...] = ()
    episode_length: int = 0
    reward_parts: tuple[str, ...] = ()
    pixels: int = 0
    pixels_beside: bool = False
    stack: int = 0
    descriptor: tuple[str, ...] = ()
    descriptor_low: tuple[float, ...] = ()
    descriptor_high: tuple[float, ...] = ()

    @property
    def frames(self) -> int:
        """Frames of each image in an observation."""
        return self.stack or (PIXEL_FRAMES if self.pixels else 1)


@runtime_checkable
class Adjustable(Protocol):
    """A host environment that covey can wrap, limit and read the parts of the reward from."""

    def adjusted(
        self, wrappers: tuple[Callable[[Any], Any], ...], episode_length: int, reward_parts: tuple[str, ...]
    ) -> HostEnv:
        """Returns the environment with these options."""
        ...


@runtime_checkable
class Pictured(Protocol):
    """A host environment that covey can draw."""

    def drawn(self, size: int, beside: bool) -> HostEnv:
        """Returns the environment with a picture as its observation, or beside it."""
        ...


def adjusted(env: Any, options: EnvOptions, name: str) -> Any:
    """Returns an environment with all options but its arguments, with which it was made already.

    Args:
        env: The environment.
        options: Its options.
        name: Its full name, for error messages.
    """
    return _stacked(_described(_drawn(_wrapped(env, options, name), options, name), options, name), options.frames)


def _drawn(env: Any, options: EnvOptions, name: str) -> Any:
    """Returns an environment with `env_pixels` and `env_pixels_beside`."""
    if not options.pixels:
        require(
            not options.pixels_beside,
            "`env_pixels_beside` needs a picture: give its size in pixels, such as `env_pixels` 64.",
        )
        return env
    check_size(options.pixels)
    if not isinstance(env, HostEnv):
        return Pixels(env, options.pixels, options.pixels_beside)
    require(
        isinstance(env, Pictured),
        f"`env_pixels` needs an environment with Gymnasium's interface, and {name} has its own batches. Give it an "
        "observation that is an image.",
    )
    return env.drawn(options.pixels, options.pixels_beside)  # type: ignore[attr-defined]


def _described(env: Any, options: EnvOptions, name: str) -> Any:
    """Returns an environment with `env_descriptor`."""
    low, high = options.descriptor_low, options.descriptor_high
    if not options.descriptor:
        require(
            not (low or high),
            "`env_descriptor_low` and `env_descriptor_high` are limits of an `env_descriptor`: give that too.",
        )
        return env
    require(
        isinstance(env, HostEnv),
        f"`env_descriptor` is for Gymnasium's environments, and {name} is compiled. Give it a descriptor in Python: "
        "covey.WithDescriptor(env, about, function).",
    )
    require(
        isinstance(env, Describable),
        f"`env_descriptor` needs an environment with Gymnasium's interface, and {name} has its own batches.",
    )
    return env.describing(options.descriptor, low, high)


def _stacked(env: Any, frames: int) -> Any:
    """Returns an environment with `env_stack`."""
    require(frames >= 1, f"`env_stack` must be at least 1 frame, not {frames}.")
    if frames == 1:
        return env
    return StackedHost(env, frames) if isinstance(env, HostEnv) else Stacked(env, frames)


def _wrapped(env: Any, options: EnvOptions, name: str) -> Any:
    """Returns an environment with wrappers, a time limit, and parts of the reward."""
    wrappers = tuple(_wrapper(text, name) for text in options.wrappers)
    if not (wrappers or options.episode_length or options.reward_parts):
        return env
    if isinstance(env, Adjustable):
        return env.adjusted(wrappers, options.episode_length, options.reward_parts)
    require(
        not isinstance(env, HostEnv),
        f"`wrappers`, `episode_length` and `reward_parts` need an environment with Gymnasium's interface, and {name} "
        "has its own batches. Build the options into it.",
    )
    require(
        not options.reward_parts,
        f"`reward_parts` are keys of `info`, and {name} is compiled: name the parts in its spec.rewards.",
    )
    for text, wrapper in zip(options.wrappers, wrappers, strict=True):
        try:
            env = wrapper(env)
        except Exception as error:  # the wrapper is the user's, or one for Gymnasium's environments
            raise CoveyError(f"`wrappers`: {text} can't wrap {name}: {type(error).__name__}: {error}") from error
        require(hasattr(env, "spec"), f"`wrappers`: {text} returned {env!r}, which is no environment.")
    return TimeLimit(env, options.episode_length) if options.episode_length else env


def wrapper_text(wrapper: Any) -> str:
    """Returns `MODULE:NAME` of a wrapper that is given as text or as a callable of a module."""
    if isinstance(wrapper, str):
        return wrapper
    module, name = (getattr(wrapper, each, "") for each in ("__module__", "__qualname__"))
    require(
        callable(wrapper) and str(name).isidentifier(),
        f"`wrappers` must be functions or classes at the top level of a module, or their names, MODULE:NAME; not "
        f"{wrapper!r}. Or pass a factory of the wrapped environment: env=lambda: wrap(MyEnv()).",
    )
    return f"{module}:{name}"


def _wrapper(text: str, env: str) -> Callable[[Any], Any]:
    module, colon, name = text.rpartition(":")
    require(bool(colon and module and name), f"`wrappers` must be MODULE:NAME, not {text!r}.")
    loaded = import_allowed(module, f"The wrapper {text} of the environment {env}")
    found = getattr(loaded, name, None)
    require(callable(found), f"`wrappers`: the module {module!r} has no function or class called {name!r}.")
    return found  # type: ignore[return-value]


def called(make: Callable[..., Any], kwargs: Mapping[str, Any], name: str) -> Any:
    """Calls a class or function with keyword arguments; a CoveyError says which ones it takes.

    Args:
        make: Makes an environment.
        kwargs: The arguments, as JSON values. Lists become tuples.
        name: The environment's full name, for the error message.
    """
    check_names(kwargs, parameters(make) if kwargs else (), name)
    return make(**as_arguments(kwargs))


def as_arguments(kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Returns JSON values as Python arguments: lists become tuples, which can be hashed."""
    return {name: _as_argument(value) for name, value in kwargs.items()}


def _as_argument(value: Any) -> Any:
    return tuple(_as_argument(each) for each in value) if isinstance(value, list | tuple) else value


def check_names(kwargs: Iterable[str], known: tuple[str, ...] | None, name: str) -> None:
    """Raises a CoveyError if an environment does not take an argument.

    Args:
        kwargs: Names of arguments.
        known: Those that the environment takes; None if that is not known.
        name: The environment's full name.
    """
    for each in kwargs:
        if known is None or each in known:
            continue
        require(bool(known), f"`env_kwargs.{each}`: the environment {name} takes no arguments.")
        hint = " Its time limit is `episode_length`." if each == "max_episode_steps" else ""
        raise CoveyError(
            f"`env_kwargs.{each}`: the environment {name} takes no such argument. It takes: {', '.join(known)}.{hint}"
        )


def parameters(make: Callable[..., Any]) -> tuple[str, ...] | None:
    """Returns the names of the keyword arguments of a class or function; None if they are not known.

    A class that passes `**kwargs` on also takes those of the class that it inherits from.
    """
    found: list[str] = []
    functions = _initialisers(make) if isinstance(make, type) else [make]
    for function in functions:
        try:
            kinds = {n: p.kind for n, p in inspect.signature(function).parameters.items() if n != "self"}
        except (TypeError, ValueError):
            return None
        found += [name for name, kind in kinds.items() if kind in KEYWORDS]
        if inspect.Parameter.VAR_KEYWORD not in kinds.values():
            return tuple(dict.fromkeys(found))
    return None if functions else ()


def _initialisers(kind: type) -> list[Callable[..., Any]]:
    """Returns the functions `__init__` of a class and of the classes that it inherits from."""
    return [vars(each)["__init__"] for each in kind.__mro__ if "__init__" in vars(each) and each is not object]


def check_kwargs(kwargs: Any, field_name: str) -> dict[str, Any]:
    """Returns arguments as JSON values; raises a CoveyError if they can't be written to `config.json`."""
    require(
        isinstance(kwargs, Mapping) and all(isinstance(name, str) for name in kwargs),
        f"`{field_name}` must be a dictionary of arguments by name, not {kwargs!r}.",
    )
    for name, value in kwargs.items():
        try:
            json.dumps(value, allow_nan=False)
        except (TypeError, ValueError):
            raise CoveyError(
                f"`{field_name}.{name}` must be a number, text, true, false or a list of them, which config.json can "
                f"hold, not {value!r}. For anything else, pass a factory: env=lambda: MyEnv(...)."
            ) from None
    return json.loads(json.dumps(dict(kwargs)))
