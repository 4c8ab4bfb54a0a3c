"""Environments by name: `make`, and the registries behind it.

A name without a colon is a registered environment (`pendulum`). A name with a prefix (`gymnasium:Hopper-v5`,
`brax:ant`) belongs to an adapter, which makes the environments of another library. `register` adds an environment,
`register_adapter` a prefix.
"""

import difflib
import importlib
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

from covey.envs.base import Env, HostBatch, HostEnv, HostStep, Outcome
from covey.envs.builtin import CartpoleSwingup, MountainCar, Pendulum, Point, PointMaze, Reacher
from covey.envs.described import Described
from covey.envs.host.described import DescribedHost
from covey.envs.host.descriptor import limit_numbers, preset_sources, source_texts
from covey.envs.objects import hold, is_object, make_object, release
from covey.envs.options import EnvOptions, adjusted, called, wrapper_text
from covey.envs.pixels import Drawable, Pixels
from covey.envs.stack import Stacked
from covey.envs.wrappers import TimeLimit, WithDescriptor
from covey.errors import CoveyError, require, unknown
from covey.install import install_command
from covey.plugins import allow, module_of, module_of_source, module_of_wrapper

__all__ = [
    "ADAPTERS",
    "ENVS",
    "Adapter",
    "Described",
    "DescribedHost",
    "Drawable",
    "Env",
    "EnvEntry",
    "EnvOptions",
    "HostBatch",
    "HostEnv",
    "HostStep",
    "Outcome",
    "Pixels",
    "Stacked",
    "TimeLimit",
    "WithDescriptor",
    "adapter",
    "hold",
    "is_object",
    "make",
    "make_from_config",
    "names",
    "preset_sources",
    "register",
    "register_adapter",
    "release",
]


class EnvEntry(NamedTuple):
    """A registered environment: a function that makes it from keyword arguments, and a one-line summary."""

    make: Callable[..., Env | HostEnv]
    summary: str


class Adapter(NamedTuple):
    """A registered adapter: it makes the environments of one prefix."""

    source: str | Callable[..., Env | HostEnv]
    """A module with the functions `make(name)` or `make(name, kwargs=None)` and perhaps `names()`; or `make` itself."""
    summary: str
    extra: str

    @property
    def install(self) -> str:
        """The command that installs the library, or "" if covey has no extra for it."""
        return install_command(self.extra) if self.extra else ""

    def make(self, name: str, kwargs: Mapping[str, Any] | None = None) -> Env | HostEnv:
        """Makes the environment `prefix:name`, with keyword arguments if the adapter's `make` takes them."""
        make = self.source
        if isinstance(make, str):
            module = importlib.import_module(make)
            require(hasattr(module, "make"), f"The adapter {make!r} has no function make(name).")
            make = module.make
        if not kwargs:
            return make(name)
        takes = len(inspect.signature(make).parameters) > 1
        require(takes, f"`env_kwargs`: the adapter of {name} takes none: its make(name) has no second argument.")
        return make(name, kwargs)

    def names(self) -> tuple[str, ...]:
        """Returns the names that `make` accepts; none if the adapter does not list them."""
        if not isinstance(self.source, str):
            return ()
        module = importlib.import_module(self.source)
        return tuple(module.names()) if hasattr(module, "names") else ()

    def known_names(self) -> tuple[str, ...]:
        """Returns the names that the library has, as far as they are known without it; for suggestions."""
        if not isinstance(self.source, str):
            return ()
        module = importlib.import_module(self.source)
        try:
            return tuple(getattr(module, "known_names", module.names)())
        except (AttributeError, CoveyError):  # it lists none, or is not installed
            return ()


PLAIN = EnvOptions()
"""An environment as it is by default."""
ENVS: dict[str, EnvEntry] = {}
"""Environments by name."""
ADAPTERS: dict[str, Adapter] = {}
"""Adapters by prefix."""


def make(
    name: str,
    kwargs: Mapping[str, Any] | None = None,
    *,
    wrappers: Sequence[str | Callable[[Any], Any]] = (),
    episode_length: int = 0,
    reward_parts: Sequence[str] = (),
    pixels: int = 0,
    pixels_beside: bool = False,
    stack: int = 0,
    descriptor: str | Callable[..., Any] | Sequence[str | Callable[..., Any]] = (),
    descriptor_low: float | Sequence[float] = (),
    descriptor_high: float | Sequence[float] = (),
) -> Any:
    """Makes an environment.

    Args:
        name: A registered name, such as `pendulum`, or `prefix:NAME` of another library, such as `gymnasium:Hopper-v5`.

            `gymnasium:MODULE:CLASS` imports a module of yours. Don't pass such a name on from a file that you don't
            trust.
        kwargs: Keyword arguments of the environment.
        wrappers: Functions or classes from environment to environment, or their names `MODULE:NAME`, which import the
            module.
        episode_length: Time limit in steps; 0 for the environment's own.
        reward_parts: Host environments: the keys of `info` that hold the parts of the reward.
        pixels: The observation becomes a picture of the environment with this width and height; 0 for none.
        pixels_beside: Whether to keep the environment's own observation beside the picture, which is then the part
            "pixels" of a dictionary.
        stack: Frames of each image in an observation; 0 for 3 with `pixels` and 1 without.
        descriptor: Gymnasium's environments: what describes the state in a few numbers, for agents that learn skills.
            A function of the environment, or of (environment, observation, info), that returns numbers; or texts:
            `info:KEY`, `obs:INDEX`, `obs:PART:INDEX`, `qpos:INDEX` (MuJoCo) or `MODULE:FUNCTION`.
        descriptor_low: Lower limits of the descriptor: one for each number, or one for all; by default -10.
        descriptor_high: Upper limits, likewise; by default 10.

    Returns:
        An `Env` (compiled, in JAX) or a `HostEnv` (stepped outside of JAX).

    Example:
        >>> env = covey.envs.make("pendulum")
        >>> state, obs = env.reset(jax.random.key(0))
        >>> state, outcome = env.step(state, jnp.zeros(env.spec.action_size), jax.random.key(1))
        >>> covey.envs.make("pendulum", pixels=64).reset(jax.random.key(0))[1].shape
        (64, 64, 9)
        >>> standing = covey.envs.make("gymnasium:Hopper-v5", {"terminate_when_unhealthy": False}, episode_length=200)
    """
    texts = tuple(map(wrapper_text, wrappers))
    sources = source_texts(descriptor)
    allow(module_of(name), *map(module_of_wrapper, texts), *map(module_of_source, sources))
    options = EnvOptions(kwargs or {}, texts, episode_length, tuple(reward_parts), pixels, pixels_beside, stack)
    limits = {"descriptor_low": limit_numbers(descriptor_low), "descriptor_high": limit_numbers(descriptor_high)}
    return make_from_config(name, replace(options, descriptor=sources, **limits))


def make_from_config(name: str, options: EnvOptions = PLAIN) -> Any:
    """Makes an environment whose name and options may come from a file, and so may not import code.

    As `make`, but `gymnasium:MODULE:NAME` and wrappers raise a CoveyError unless the user has named MODULE
    (`covey.plugins`). All of covey that reads run folders or --config files uses this one.
    """
    prefix, colon, rest = name.partition(":")
    if name in ENVS:
        env = called(ENVS[name].make, options.kwargs, name)
    elif is_object(name):
        env = make_object(name, options.kwargs)
    elif colon:
        env = adapter(prefix).make(rest, options.kwargs)
    else:
        raise _unknown_env(name)
    return adjusted(env, options, name)


def _unknown_env(name: str) -> CoveyError:
    """Returns the error for a name that is not registered. Unless one is near, the other libraries are searched too."""
    found = []
    if not difflib.get_close_matches(name, ENVS, n=1, cutoff=0.8):
        others = {
            f"{prefix}:{each}": each.lower() for prefix, known in ADAPTERS.items() for each in known.known_names()
        }
        near = difflib.get_close_matches(name.lower(), set(others.values()), n=1, cutoff=0.8)
        found = [full for full, each in others.items() if each in near]
    if found:
        return CoveyError(
            f"There is no environment called {name!r}. Did you mean {' or '.join(map(repr, found))}? The names of "
            "other libraries have a prefix."
        )
    return CoveyError(
        f"{unknown('environment', name, ENVS)} If a module of yours registers it, import that module first; the "
        "command line does so with --plugin MODULE."
    )


def names() -> tuple[str, ...]:
    """Returns the registered names (without those of adapters), sorted."""
    return tuple(sorted(ENVS))


def adapter(prefix: str) -> Adapter:
    """Returns the adapter of a prefix; raises a CoveyError if there is none."""
    if prefix not in ADAPTERS:
        raise unknown("library of environments", prefix, ADAPTERS)
    return ADAPTERS[prefix]


def register(name: str, factory: Callable[..., Env | HostEnv], summary: str = "") -> None:
    """Registers an environment, so that `make(name)` and `--env name` find it.

    Args:
        name: A new name without a colon: colons separate the prefixes of adapters.
        factory: Makes the environment; a class or a lambda will do. If it takes arguments, `env_kwargs` sets them.
        summary: One line for `covey envs`.

    Example:
        >>> covey.envs.register("small-point", lambda: Point(arena=3.0), "A point in a small arena.")
        >>> covey.train("sac", env="small-point")
    """
    require(name not in ENVS, f"There is already an environment called {name!r}. Choose another name.")
    require(bool(name) and ":" not in name, f"{name!r} can't name an environment: use a word without a colon.")
    ENVS[name] = EnvEntry(factory, summary)


def register_adapter(
    prefix: str, source: str | Callable[..., Env | HostEnv], summary: str = "", extra: str = ""
) -> None:
    """Registers an adapter to another library: `make("prefix:NAME")` then makes that library's environments.

    Args:
        prefix: A new prefix without a colon.
        source: The name of a module, which is imported when the prefix is first used. It has a function `make(name)`
            that returns an `Env` or a `HostEnv`, and may have `names()`, which lists what `make` accepts. Or the
            function `make` itself. `make(name, kwargs=None)` also gets the
            environment's keyword arguments (`env_kwargs`).
        summary: One line for `covey envs`.
        extra: The extra of covey that installs the library, if there is one.

    Example:
        >>> covey.envs.register_adapter("robots", "my_robots.adapter", "Our own robots.")
        >>> env = covey.envs.make("robots:arm")
    """
    require(prefix not in ADAPTERS, f"There is already an adapter for {prefix!r}. Choose another prefix.")
    require(bool(prefix) and ":" not in prefix, f"{prefix!r} can't be a prefix: use a word without a colon.")
    require(
        isinstance(source, str) or callable(source),
        f"The adapter for {prefix!r} must be the name of a module or a function make(name), not {source!r}.",
    )
    ADAPTERS[prefix] = Adapter(source, summary, extra)


register("pendulum", Pendulum, "Swing a pendulum up and hold it there (Gymnasium's Pendulum-v1).")
register("mountaincar", MountainCar, "Drive a weak car out of a valley (Gymnasium's MountainCarContinuous-v0).")
register("cartpole-swingup", CartpoleSwingup, "Swing up a pole by moving its cart, and balance it.")
register("reacher", Reacher, "Bring the tip of a two-link arm to a random goal.")
register("point", Point, "Move a point to a random goal: learned within seconds.")
register("point-free", partial(Point, goal=False), "Move a point with no goal and no reward: for skill discovery.")
register("pointmaze", PointMaze, "Move a point around a wall to a goal behind it.")

register_adapter(
    "gymnasium",
    "covey.envs.host.gymnasium",
    "Gymnasium's environments, and your own with its interface.",
    extra="gymnasium",
)
register_adapter(
    "envpool", "covey.envs.host.envpool", "Gymnasium's and other environments, stepped in C++.", extra="envpool"
)
register_adapter("brax", "covey.envs.compiled.brax", "Robots of MuJoCo's benchmarks, simulated in JAX.", extra="brax")
register_adapter("gymnax", "covey.envs.compiled.gymnax", "Small tasks in JAX, with continuous actions.", extra="gymnax")
register_adapter(
    "playground",
    "covey.envs.compiled.playground",
    "MuJoCo Playground: the DeepMind Control Suite and robots, simulated by MJX in JAX.",
    extra="playground",
)
