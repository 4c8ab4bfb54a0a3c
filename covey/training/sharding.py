"""Members on several devices of one process: the leading axis P of a program's arrays, cut into equal parts.

Each device runs the program of a single one on its own part, and all run at the same time. One program for all of them
(`shard_map`) would be compiled once, but not to the same arithmetic: the last bit of a member's numbers would depend on
the number of devices.
"""

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


def over_devices(
    function: Callable[..., Any], devices: int, inputs: tuple[Any, ...], outputs: Any
) -> Callable[..., Any]:
    """The function on each device's part of its inputs. Parts don't talk to each other.

    `inputs` and `outputs` are trees of SPLIT and WHOLE, or the beginnings of such trees.
    """
    if devices == 1:
        return function

    def on_each(*arguments: Any) -> Any:
        parts = _apart(place(arguments, devices, inputs), devices)
        return _together([function(*part) for part in parts], outputs, mesh(devices))

    return on_each


def each(function: Callable[..., Any], axis: Axis) -> Callable[..., Any]:
    """A function of one member for all of them [P]: in turn (map) or in lock-step (vmap)."""

    def all_of_them(*members: Any) -> Any:
        if axis == "vmap":
            return jax.vmap(function)(*members)
        return jax.lax.map(lambda one: function(*one), members)

    return all_of_them


def place(tree: Any, devices: int, how: Any) -> Any:
    """The tree's arrays on the devices; `how` is a tree of SPLIT and WHOLE, or the beginning of one."""
    if devices == 1:
        return jax.device_put(tree)
    shardings = jax.tree.map(lambda spec: NamedSharding(mesh(devices), spec), how)
    return jax.device_put(tree, shardings)


def mesh(devices: int) -> Mesh:
    return Mesh(np.array(jax.local_devices()[:devices]), (MEMBERS,))


def _apart(tree: Any, devices: int) -> list[Any]:
    """Each device's part of the arrays, where it lies."""
    leaves, structure = jax.tree.flatten(tree)
    shards = [[shard.data for shard in leaf.addressable_shards] for leaf in leaves]
    return [jax.tree.unflatten(structure, [shard[i] for shard in shards]) for i in range(devices)]


def _together(parts: list[Any], how: Any, devices: Mesh) -> Any:
    """The arrays whose parts lie on the devices."""

    def joined(spec: PartitionSpec, *parts: Any) -> Any:
        def one(*shards: Any) -> Any:
            first = shards[0]
            shape = (len(shards) * first.shape[0], *first.shape[1:]) if spec == SPLIT else first.shape
            return jax.make_array_from_single_device_arrays(shape, NamedSharding(devices, spec), list(shards))

        return jax.tree.map(one, *parts)

    return jax.tree.map(joined, how, *parts, is_leaf=lambda x: isinstance(x, PartitionSpec))
