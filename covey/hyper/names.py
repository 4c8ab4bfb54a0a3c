"""Access to hyper-parameters by name. The leaves of a nested Hyper are named by their path: `sac.actor_lr`.

A field may hold several numbers, a tuple such as one weight per reward: they are named `reward_weights.0`,
`reward_weights.1` and so on. A field that is None has no number and no name.
"""

from collections.abc import Mapping
from typing import Any

import jax


def by_name(hyper: Any) -> dict[str, Any]:
    """Returns the leaves of a Hyper by name."""
    leaves, _ = jax.tree.flatten_with_path(hyper)
    return {jax.tree_util.keystr(path, simple=True, separator="."): leaf for path, leaf in leaves}


def field_of(name: str) -> str:
    """Returns the field that a name belongs to: `reward_weights` for `reward_weights.0`."""
    field, _, index = name.rpartition(".")
    return field if index.isdecimal() else name


def with_values(hyper: Any, values: Mapping[str, Any]) -> Any:
    """Returns the Hyper with the named leaves replaced."""
    return jax.tree.unflatten(jax.tree.structure(hyper), list((by_name(hyper) | dict(values)).values()))
