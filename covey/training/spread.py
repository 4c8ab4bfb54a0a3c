"""Members on several devices of one process: the leading axis P of a program's arrays, cut into equal parts."""

from collections.abc import Callable
from typing import Any, Literal

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

Axis = Literal["map", "vmap"]
MEMBERS = "members"
"""The name of that axis."""
SPLIT, WHOLE = PartitionSpec(MEMBERS), PartitionSpec()
"""How an array lies on the devices: cut along its leading axis, or whole on each."""


def spread(function: Callable[..., Any], devices: int, inputs: Any, outputs: Any) -> Callable[..., Any]:
    """The function on each device's part of the members. Parts don't talk to each other."""
    if devices == 1:
        return function
    return jax.shard_map(function, mesh=mesh(devices), in_specs=inputs, out_specs=outputs, check_vma=False)


def each(function: Callable[..., Any], axis: Axis, devices: int) -> Callable[..., Any]:
    """A function of one member for all of them [P]: in turn (map) or in lock-step (vmap), on so many devices."""

    def all_of_them(*members: Any) -> Any:
        if axis == "vmap":
            return jax.vmap(function)(*members)
        return jax.lax.map(lambda one: function(*one), members)

    return spread(all_of_them, devices, SPLIT, SPLIT)


def place(tree: Any, devices: int, how: Any) -> Any:
    """The tree's arrays on the devices; `how` is a tree of SPLIT and WHOLE, or the beginning of one."""
    if devices == 1:
        return jax.device_put(tree)
    shardings = jax.tree.map(lambda spec: NamedSharding(mesh(devices), spec), how)
    return jax.device_put(tree, shardings)


def mesh(devices: int) -> Mesh:
    return Mesh(np.array(jax.local_devices()[:devices]), (MEMBERS,))
