"""State descriptors of Gymnasium's environments: what `env_descriptor` names, and how it is read.

A source is `info:KEY`, `obs:INDEX`, `obs:PART:INDEX`, `qpos:INDEX` (MuJoCo) or `MODULE:FUNCTION`; `NAME=` before it
names its numbers.
"""

import inspect
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from covey.envs.host.guard import EnvError
from covey.errors import require
from covey.plugins import import_allowed
from covey.types import Descriptor

HELD = "state descriptor"
"""The name of the descriptor in the observation space, inside of the batch: `DescribedHost` renames it."""
LIMIT = 10.0
"""The limits of a descriptor are plus and minus this, unless `env_descriptor_low` and `env_descriptor_high` say."""
FORMS = "info:KEY, obs:INDEX, obs:PART:INDEX, qpos:INDEX or MODULE:FUNCTION"
PLANE, LINE = ("x=qpos:0", "y=qpos:1"), ("x=qpos:0",)
PRESETS = {"Ant": PLANE, "Humanoid": PLANE, "Swimmer": PLANE, "HalfCheetah": LINE, "Hopper": LINE, "Walker2d": LINE}
"""The descriptors of Gymnasium's robots, if an agent learns skills and none is given: where they are."""
VERSIONS = ("v4", "v5")


@dataclass(frozen=True)
class Source:
    """One source of numbers in a descriptor.

    Args:
        text: The source as it was given, for error messages.
        name: The name of its numbers.
        kind: `info`, `obs`, `qpos` or `function`.
        key: The key in `info`, or the part of the observation; "" for a whole observation.
        index: The index of the number; -1 for all numbers.
        function: The function of the environment, or of (environment, observation, info).
        takes: The number of arguments of the function: 1 or 3.
    """

    text: str
    name: str
    kind: str
    key: str = ""
    index: int = -1
    function: Callable[..., Any] | None = None
    takes: int = 0

    def read(self, env: Any, obs: Any, info: Mapping[str, Any], name: str) -> np.ndarray:
        """Returns the numbers as float32 [n]; an EnvError if they are not there.

        Args:
            env: The Gymnasium environment.
            obs: Its observation.
            info: The info of `reset` or `step`.
            name: The environment's full name, for error messages.
        """
        value = self._value(env, obs, info, name)
        try:
            numbers = np.asarray(value, np.float32).ravel()
            return numbers if self.index < 0 else numbers[self.index : self.index + 1]
        except (TypeError, ValueError):
            raise EnvError(f"`env_descriptor` {self.text} of {name} is {value!r}: it must hold real numbers.") from None

    def _value(self, env: Any, obs: Any, info: Mapping[str, Any], name: str) -> Any:
        match self.kind:
            case "info":
                if self.key not in info:
                    raise EnvError(
                        f"`env_descriptor` {self.text}: {name} has no {self.key!r} in the info of reset and step. "
                        f"It has: {', '.join(map(str, info)) or 'none'}. Name another source: {FORMS}."
                    )
                return info[self.key]
            case "obs":
                if not self.key:
                    return obs
                if not isinstance(obs, Mapping) or self.key not in obs:
                    has = f"It has: {', '.join(map(str, obs))}." if isinstance(obs, Mapping) else "It has no parts."
                    raise EnvError(f"`env_descriptor` {self.text}: no such part in the observation of {name}. {has}")
                return obs[self.key]
            case "qpos":
                data = getattr(env.unwrapped, "data", None)
                if not hasattr(data, "qpos"):
                    raise EnvError(f"`env_descriptor` {self.text}: {name} is no MuJoCo environment with data.qpos.")
                return data.qpos  # type: ignore[union-attr]
        assert self.function is not None
        return self.function(env.unwrapped, obs, info) if self.takes > 1 else self.function(env.unwrapped)


def parse_sources(texts: tuple[str, ...], env: str) -> tuple[Source, ...]:
    """Returns sources from their texts; imports the modules of functions, as far as the user has named them.

    Args:
        texts: The sources.
        env: The environment's full name, for error messages.

    Example:
        >>> [source.name for source in parse_sources(("info:x_position", "y=qpos:1"), "gymnasium:Ant-v5")]
        ['x_position', 'y']
    """
    return tuple(_parsed(text, env) for text in texts)


def _parsed(text: str, env: str) -> Source:
    name, _, rest = text.rpartition("=")
    kind, colon, key = rest.partition(":")
    require(bool(colon and kind and key), f"`env_descriptor` must be {FORMS}, not {text!r}.")
    if kind == "info":
        return Source(text, name or key, kind, key)
    if kind in ("obs", "qpos"):
        part, _, index = key.rpartition(":")
        if kind == "obs" and not index.isdecimal():
            part, index = key, "-1"
        require(
            index == "-1" or (index.isdecimal() and not (kind == "qpos" and part)),
            f"`env_descriptor` must be {FORMS}, not {text!r}.",
        )
        return Source(text, name or rest.replace(":", ""), kind, part, int(index))
    module, _, attribute = rest.rpartition(":")
    loaded = import_allowed(module, f"The descriptor {rest} of the environment {env}")
    function: Any = getattr(loaded, attribute, None)
    require(callable(function), f"`env_descriptor`: the module {module!r} has no function called {attribute!r}.")
    count = len(inspect.signature(function).parameters)
    require(
        count in (1, 3),
        f"`env_descriptor` {rest} takes {count} arguments: it must take the environment, or (environment, observation, "
        "info).",
    )
    return Source(text, name or attribute, "function", function=function, takes=count)


def source_texts(given: Any) -> tuple[str, ...]:
    """Returns sources as text, from one or several texts or functions of a module."""
    several = (given,) if isinstance(given, str) or callable(given) else tuple(given)
    return tuple(each if isinstance(each, str) else _text(each) for each in several)


def _text(function: Any) -> str:
    module, name = (getattr(function, each, "") for each in ("__module__", "__qualname__"))
    require(
        callable(function) and str(name).isidentifier(),
        f"`env_descriptor` must be a function at the top level of a module, or text ({FORMS}), not {function!r}.",
    )
    return f"{module}:{name}"


def limit_numbers(given: Any) -> tuple[float, ...]:
    """Returns limits of a descriptor as numbers, from one number or several."""
    return (float(given),) if isinstance(given, int | float) else tuple(map(float, given))


def descriptor_of(
    sources: tuple[Source, ...], sizes: tuple[int, ...], low: tuple[float, ...], high: tuple[float, ...], vector: bool
) -> Descriptor:
    """Returns the descriptor that sources make up.

    Args:
        sources: The sources.
        sizes: The number of numbers of each.
        low: Lower limits: one for each number, or one for all; () for -10.
        high: Upper limits, likewise; () for 10.
        vector: Whether the environment's observation is one vector, of which `obs:INDEX` can be hidden from the policy.
    """
    pairs = tuple(zip(sources, sizes, strict=True))
    names = [f"{s.name}{i}" if size > 1 else s.name for s, size in pairs for i in range(size)]
    require(
        len(set(names)) == len(names),
        f"`env_descriptor` has two numbers with the same name: {', '.join(names)}. Name them, such as x=obs:0.",
    )
    low, high = (_limits(which, given, len(names)) for which, given in (("low", low), ("high", high)))
    require(
        all(a < b for a, b in zip(low, high, strict=True)),
        f"`env_descriptor_low` {low} must be below `env_descriptor_high` {high}.",
    )
    numbered = vector and all(s.kind == "obs" and not s.key and s.index >= 0 for s in sources)
    return Descriptor(tuple(names), low, high, coordinates=tuple(s.index for s in sources) if numbered else ())


def _limits(which: str, given: tuple[float, ...], size: int) -> tuple[float, ...]:
    given = tuple(given) or (-LIMIT if which == "low" else LIMIT,)
    require(
        len(given) in (1, size) and all(math.isfinite(x) for x in given),
        f"`env_descriptor_{which}` must be one finite number, or {size}, not {given}.",
    )
    return tuple(map(float, given)) * (size if len(given) == 1 else 1)


def sizes_of(env: Any, sources: tuple[Source, ...], name: str) -> tuple[int, ...]:
    """Returns the number of numbers of each source, at the start of an episode of an environment."""
    obs, info = env.reset(seed=0)
    sizes = tuple(len(source.read(env, obs, info, name)) for source in sources)
    for source, size in zip(sources, sizes, strict=True):
        if not size:
            raise EnvError(f"`env_descriptor` {source.text}: {name} has no such number.")
    return sizes


def describing(
    factory: Callable[..., Any], sources: tuple[Source, ...], sizes: tuple[int, ...], name: str, **options: Any
) -> Any:
    """Makes an environment whose observation also has its state descriptor (see `Describer`)."""
    from covey.envs.host.describer import Describer

    return Describer(factory(**options), sources, sizes, name)


def preset_sources(env: str) -> tuple[str, ...]:
    """Returns the sources for a robot of Gymnasium by the environment's full name; () if it is none of them."""
    prefix, _, rest = env.partition(":")
    robot, _, version = rest.partition("-")
    return PRESETS.get(robot, ()) if prefix == "gymnasium" and version in VERSIONS else ()
