"""Access to hyper-parameters by name. The leaves of a nested Hyper are named by their path: `sac.actor_lr`."""

from collections.abc import Mapping
from typing import Any

import jax


def by_name(hyper: Any) -> dict[str, Any]:
    """Returns the leaves of a Hyper by name."""
    leaves, _ = jax.tree.flatten_with_path(hyper)
    return {jax.tree_util.keystr(path, simple=True, separator="."): leaf for path, leaf in leaves}


def with_values(hyper: Any, values: Mapping[str, Any]) -> Any:
    """Returns the Hyper with the named leaves replaced."""
    return jax.tree.unflatten(jax.tree.structure(hyper), list((by_name(hyper) | dict(values)).values()))
