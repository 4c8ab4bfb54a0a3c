"""covey: continuous-control agents, their skills and their populations in one compiled JAX program."""

import sys

# `python -m covey` puts the current folder before all packages, where a jax.py would be taken for jax. Nothing but
# `sys`, which is built in, may be imported before this. (While Python looks for a module, `sys.argv[0]` is "-m".)
if sys.argv[:1] == ["-m"] and sys.orig_argv[-len(sys.argv)].removeprefix("-m") == "covey" and not sys.flags.safe_path:
    del sys.path[0]

import importlib
import os
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

# XLA logs a page for each program that it loads from its cache, about tuning flags that do not matter. It reads this
# at its first import (`covey.backend.silence_xla` helps where jax came first); what goes wrong is raised all the same.
if "jax" not in sys.modules:
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

if TYPE_CHECKING:
    from covey.api import (
        evolve,
        load,
        register_actor_head,
        register_agent,
        register_critic_head,
        register_env,
        register_torso,
        train,
    )
    from covey.errors import CoveyError
    from covey.run.run import Run

_HOME = {"CoveyError": "covey.errors", "Run": "covey.run.run"}

__all__ = [
    "CoveyError",
    "Run",
    "__version__",
    "evolve",
    "load",
    "register_actor_head",
    "register_agent",
    "register_critic_head",
    "register_env",
    "register_torso",
    "train",
]


def __dir__() -> list[str]:
    """The public names, which completion shows before they are imported."""
    return sorted(__all__)


def __getattr__(name: str) -> Any:
    """Public names are imported when they are used: `import covey` stays instant and touches no device."""
    if name in __all__:
        return getattr(importlib.import_module(_HOME.get(name, "covey.api")), name)
    raise AttributeError(f"module 'covey' has no attribute {name!r}")
