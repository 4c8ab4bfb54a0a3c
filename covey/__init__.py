"""covey: continuous-control agents, their skills and their populations in one compiled JAX program."""

import importlib
import os
from typing import Any

__version__ = "0.1.0"

# XLA logs a page per program that it loads from its cache, about tuning flags that do not matter. It reads this
# before its first import; what goes wrong is raised as an exception all the same.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

_PUBLIC = {
    "train": "covey.run.api",
    "load": "covey.run.api",
    "Run": "covey.run.api",
    "CoveyError": "covey.errors",
    "register_env": "covey.register",
    "register_agent": "covey.register",
    "register_torso": "covey.register",
    "register_actor_head": "covey.register",
    "register_critic_head": "covey.register",
}

__all__ = [*_PUBLIC, "__version__"]


def __getattr__(name: str) -> Any:
    """Public names are imported when they are used: `import covey` stays instant and touches no device."""
    if name in _PUBLIC:
        return getattr(importlib.import_module(_PUBLIC[name]), name)
    raise AttributeError(f"module 'covey' has no attribute {name!r}")
