"""Environments that a Python program passes as objects, classes or factories instead of names.

A configuration records such an environment as `object:NAME`. That name makes nothing by itself: the object is in this
table, in this process, because the user passed it to `covey.train`, `covey.load` or `covey.resume`.
"""

import copy
import re
import sys
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from covey.envs.base import HostEnv
from covey.envs.options import called
from covey.envs.wrappers import innermost
from covey.errors import CoveyError, require
from covey.types import EnvSpec

PREFIX = "object"
_HELD: dict[str, Any] = {}


def hold(env: Any, name: str = "") -> str:
    """Keeps an environment for this process. Returns its name, `object:NAME`.

    Args:
        env: An environment (covey's `Env` or `HostEnv`, or Gymnasium's), or a class or function that makes one.
        name: The name to keep it under; by default that of its class or function.
    """
    name = name or f"{PREFIX}:{_name(env)}"
    require(
        _is_gymnasium(env) or _is_covey(env) or callable(env),
        f"`env` must be a name, such as 'pendulum' or 'gymnasium:Hopper-v5', an environment, or a class or function "
        f"that makes one, not {env!r}.",
    )
    _HELD[name] = env
    return name


def release(name: str) -> None:
    """Forgets an environment that was passed before."""
    _HELD.pop(name, None)


def is_object(name: str) -> bool:
    """Whether a name is that of an environment which was passed as an object."""
    return name.startswith(f"{PREFIX}:")


def make_object(name: str, kwargs: Mapping[str, Any]) -> Any:
    """Makes the environment that was passed under a name, `object:NAME`, with keyword arguments for its factory."""
    require(
        name in _HELD,
        f"The environment of this run was passed from Python ({name}), and a run folder does not hold it. Pass it "
        "again: covey.load(path, env=...) or covey.resume(path, env=...).",
    )
    env = _HELD[name]
    is_instance = _is_covey(env) or _is_gymnasium(env)
    require(
        not (is_instance and kwargs),
        f"`env_kwargs` are arguments of a class or a factory, and `env` is an environment already ({name}).",
    )
    made = env if is_instance else called(env, kwargs, name)
    if _is_gymnasium(made):
        from covey.envs.host.gymnasium import made_by, probed

        if is_instance:
            return probed(name, _copies(made, name))
        made.close()
        return probed(name, partial(made_by, env, kwargs, name))
    require(_is_covey(made), f"`env`: {name} made {made!r}, which is no environment of covey or Gymnasium.")
    return made


def _name(env: Any) -> str:
    inner = env.unwrapped if _is_gymnasium(env) else innermost(env)
    named = inner if hasattr(inner, "__qualname__") else type(inner)
    return re.sub(r"[^\w.-]", "", named.__qualname__.replace("<locals>.", ""))


def _is_covey(env: Any) -> bool:
    if isinstance(env, type):
        return False
    return isinstance(env, HostEnv) or isinstance(getattr(env, "spec", None), EnvSpec)


def _is_gymnasium(env: Any) -> bool:
    gymnasium: Any = sys.modules.get("gymnasium")  # who passes one of its environments has imported it
    return gymnasium is not None and isinstance(env, gymnasium.Env)


def _copies(env: Any, name: str) -> Callable[..., Any]:
    """Returns a factory of environments like this one: training and evaluation need several."""
    import gymnasium

    if env.spec is not None:
        try:
            gymnasium.make(env.spec).close()
        except Exception:  # its wrappers or arguments were not recorded
            pass
        else:
            return partial(gymnasium.make, env.spec)
    try:
        copy.deepcopy(env)
    except Exception as error:  # an environment may hold anything
        raise CoveyError(
            f"covey needs several environments, and this one ({name}) can't be copied: {type(error).__name__}: "
            f"{error}. Pass a factory instead, such as env=lambda: {name.partition(':')[2]}()."
        ) from None
    return partial(_copied, env)


def _copied(env: Any, **options: Any) -> Any:
    return copy.deepcopy(env)
