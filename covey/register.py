"""How your own environments, networks and agents get a name that the command line and config files can use."""

from collections.abc import Callable

from covey import agents, envs
from covey.agent import Entry
from covey.errors import require
from covey.nn.networks import ACTOR_HEADS, CRITIC_HEADS, TORSOS, register


def register_env(name: str, factory: Callable[[], envs.Env], summary: str = "") -> None:
    """Adds an environment; `factory()` makes it."""
    envs.register(name, factory, summary)


def register_agent(name: str, entry: Entry) -> None:
    """Adds an algorithm."""
    require(name not in agents.REGISTRY, f"There is already an agent called {name!r}.")
    agents.REGISTRY[name] = entry


def register_torso(name: str) -> Callable[[type], type]:
    """Class decorator: a flax module that can be an encoder or a torso."""
    return register(TORSOS, name)


def register_actor_head(name: str) -> Callable[[type], type]:
    """Class decorator: a flax module from features to an action in [-1, 1]."""
    return register(ACTOR_HEADS, name)


def register_critic_head(name: str) -> Callable[[type], type]:
    """Class decorator: a flax module from features to one value."""
    return register(CRITIC_HEADS, name)
