"""Environments by name: `make`, and the registries behind it.

A name without a colon is a registered environment (`pendulum`). A name with a prefix (`gymnasium:Hopper-v5`,
`brax:ant`) belongs to an adapter, which makes the environments of another library. `register` adds an environment,
`register_adapter` a prefix.
"""

import importlib
from collections.abc import Callable
from typing import Any, NamedTuple

from covey.envs.base import Env, HostBatch, HostEnv, HostStep, Outcome
from covey.envs.builtin.cartpole_swingup import CartpoleSwingup
from covey.envs.builtin.mountaincar import MountainCar
from covey.envs.builtin.pendulum import Pendulum
from covey.envs.builtin.point import Point
from covey.envs.builtin.pointmaze import PointMaze
from covey.envs.builtin.reacher import Reacher
from covey.errors import CoveyError, require, unknown
from covey.install import install_command
from covey.plugins import allow, module_of

__all__ = [
    "ADAPTERS",
    "ENVS",
    "Adapter",
    "Env",
    "EnvEntry",
    "HostBatch",
    "HostEnv",
    "HostStep",
    "Outcome",
    "adapter",
    "make",
    "make_from_config",
    "names",
    "register",
    "register_adapter",
]


class EnvEntry(NamedTuple):
    """A registered environment: a function that makes it, and a one-line summary."""

    make: Callable[[], Env | HostEnv]
    summary: str


class Adapter(NamedTuple):
    """A registered adapter: it makes the environments of one prefix."""

    source: str | Callable[[str], Env | HostEnv]
    """A module with the functions `make(name)` and, optionally, `names()`; or `make` itself."""
    summary: str
    extra: str

    @property
    def install(self) -> str:
        """The command that installs the library, or "" if covey has no extra for it."""
        return install_command(self.extra) if self.extra else ""

    def make(self, name: str) -> Env | HostEnv:
        """Makes the environment `prefix:name`."""
        if not isinstance(self.source, str):
            return self.source(name)
        module = importlib.import_module(self.source)
        require(hasattr(module, "make"), f"The adapter {self.source!r} has no function make(name).")
        return module.make(name)

    def names(self) -> tuple[str, ...]:
        """Returns the names that `make` accepts; none if the adapter does not list them."""
        if not isinstance(self.source, str):
            return ()
        module = importlib.import_module(self.source)
        return tuple(module.names()) if hasattr(module, "names") else ()


ENVS: dict[str, EnvEntry] = {}
"""Environments by name."""
ADAPTERS: dict[str, Adapter] = {}
"""Adapters by prefix."""


def make(name: str) -> Any:
    """Makes an environment.

    Args:
        name: A registered name, such as `pendulum`, or `prefix:NAME` of another library, such as `gymnasium:Hopper-v5`.

            `gymnasium:MODULE:CLASS` imports a module of yours. Don't pass such a name on from a file that you don't
            trust.

    Returns:
        An `Env` (compiled, in JAX) or a `HostEnv` (stepped outside of JAX).

    Example:
        >>> env = covey.envs.make("pendulum")
        >>> state, obs = env.reset(jax.random.key(0))
        >>> state, outcome = env.step(state, jnp.zeros(env.spec.action_size), jax.random.key(1))
    """
    allow(module_of(name))
    return make_from_config(name)


def make_from_config(name: str) -> Any:
    """Makes an environment whose name may come from a file, and so may not import code.

    As `make`, but `gymnasium:MODULE:NAME` raises a CoveyError unless the user has named MODULE (`covey.plugins`). All
    of covey that reads run folders or --config files uses this one.
    """
    if name in ENVS:
        return ENVS[name].make()
    prefix, colon, rest = name.partition(":")
    if colon:
        return adapter(prefix).make(rest)
    raise CoveyError(
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


def register(name: str, factory: Callable[[], Env | HostEnv], summary: str = "") -> None:
    """Registers an environment, so that `make(name)` and `--env name` find it.

    Args:
        name: A new name without a colon: colons separate the prefixes of adapters.
        factory: Makes the environment. It takes no arguments; a class or a lambda will do.
        summary: One line for `covey envs`.

    Example:
        >>> covey.envs.register("small-point", lambda: Point(arena=3.0), "A point in a small arena.")
        >>> covey.train("sac", env="small-point")
    """
    require(name not in ENVS, f"There is already an environment called {name!r}. Choose another name.")
    require(bool(name) and ":" not in name, f"{name!r} can't name an environment: use a word without a colon.")
    ENVS[name] = EnvEntry(factory, summary)


def register_adapter(
    prefix: str, source: str | Callable[[str], Env | HostEnv], summary: str = "", extra: str = ""
) -> None:
    """Registers an adapter to another library: `make("prefix:NAME")` then makes that library's environments.

    Args:
        prefix: A new prefix without a colon.
        source: The name of a module, which is imported when the prefix is first used. It has a function `make(name)`
            that returns an `Env` or a `HostEnv`, and may have `names()`, which lists what `make` accepts. Or the
            function `make` itself.
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
register("point-free", lambda: Point(goal=False), "Move a point with no goal and no reward: for skill discovery.")
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
