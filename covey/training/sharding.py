"""Maps programs over members, and shares members among the devices of one process.

Each device runs the program of a single device on its part of the members, and all devices run at the same time. One
program for all of them (`shard_map`) would be compiled once, but not to the same arithmetic: the last bit of a member's
numbers would depend on the number of devices.
"""

from collections.abc import Callable
from typing import Any, Literal

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from covey.devices import devices as local_devices

Axis = Literal["map", "vmap"]
"""How members are mapped: `map` (one after the other) or `vmap` (in lock-step)."""
MEMBERS = "members"
"""The name of the leading axis P, of the members."""
SPLIT = PartitionSpec(MEMBERS)
"""The layout of an array that is split along its leading axis, in equal parts."""
WHOLE = PartitionSpec()
"""The layout of an array that every device has a copy of."""


def over_devices(
    function: Callable[..., Any], devices: int, inputs: tuple[Any, ...], outputs: Any
) -> Callable[..., Any]:
    """Returns a function that runs `function` on every device, with the device's part of the arguments.

    Args:
        function: A compiled function. The devices do not communicate.
        devices: The number of devices; with 1, `function` itself is returned.
        inputs: The layouts of its arguments: trees of SPLIT and WHOLE, or prefixes of such trees.
        outputs: The layout of its result.
    """
    if devices == 1:
        return function

    def on_each(*arguments: Any) -> Any:
        parts = _split(place(arguments, devices, inputs), devices)
        return _join([function(*part) for part in parts], outputs, mesh(devices))

    return on_each


def over_members(function: Callable[..., Any], axis: Axis) -> Callable[..., Any]:
    """Returns a function of all members [P] from a function of one."""

    def mapped(*members: Any) -> Any:
        if axis == "vmap":
            return jax.vmap(function)(*members)
        return jax.lax.map(lambda one: function(*one), members)

    return mapped


def place(tree: Any, devices: int, layout: Any) -> Any:
    """Moves a tree of arrays to the devices; `layout` is a tree of SPLIT and WHOLE, or a prefix of one."""
    if devices == 1:
        return jax.device_put(tree)
    shardings = jax.tree.map(lambda spec: NamedSharding(mesh(devices), spec), layout)
    return jax.device_put(tree, shardings)


def row(tree: Any, index: int) -> Any:
    """Returns row `index` of arrays [P, ...], on the device that has it. Copies nothing else."""
    leaves, structure = jax.tree.flatten(tree)
    parts, place, _ = _parts(leaves, index)
    return jax.tree.unflatten(structure, _taken(parts, place))


def row_in_numpy(tree: Any, index: int) -> Any:
    """Returns row `index` of arrays [P, ...] in NumPy. Copies nothing else from the devices."""
    leaves, structure = jax.tree.flatten(tree)
    if not isinstance(leaves[0], jax.Array):
        return jax.tree.map(lambda x: x[index], tree)
    parts, place, size = _parts(leaves, index)
    if size == 1:  # all of a part: nothing to take, and nothing to compile
        return jax.tree.unflatten(structure, [x[0] for x in jax.device_get(parts)])
    return jax.tree.unflatten(structure, jax.device_get(_taken(parts, place)))


def _parts(leaves: list[jax.Array], index: int) -> tuple[list[jax.Array], int, int]:
    """Returns the parts of arrays on the device that has row `index`, its place there, and how many rows they have."""
    size = len(leaves[0].addressable_shards[0].data)
    return [x.addressable_shards[index // size].data for x in leaves], index % size, size


@jax.jit
def _taken(arrays: list[jax.Array], index: jax.Array) -> list[jax.Array]:
    """Returns a row of each array, in one call: dispatching one per array would take longer than the copies."""
    return [jax.lax.dynamic_index_in_dim(x, index, keepdims=False) for x in arrays]


def mesh(devices: int) -> Mesh:
    """Returns the mesh of the first devices of this process."""
    return Mesh(np.array(local_devices()[:devices]), (MEMBERS,))


def _split(tree: Any, devices: int) -> list[Any]:
    """Returns each device's part of the arrays, without moving it."""
    leaves, structure = jax.tree.flatten(tree)
    shards = [[shard.data for shard in leaf.addressable_shards] for leaf in leaves]
    return [jax.tree.unflatten(structure, [shard[i] for shard in shards]) for i in range(devices)]


def _join(parts: list[Any], layout: Any, devices: Mesh) -> Any:
    """Returns the arrays whose parts are on the devices, without moving them."""

    def join(spec: PartitionSpec, *parts: Any) -> Any:
        def one(*shards: Any) -> Any:
            first = shards[0]
            shape = (len(shards) * first.shape[0], *first.shape[1:]) if spec == SPLIT else first.shape
            return jax.make_array_from_single_device_arrays(shape, NamedSharding(devices, spec), list(shards))

        return jax.tree.map(one, *parts)

    return jax.tree.map(join, layout, *parts, is_leaf=lambda x: isinstance(x, PartitionSpec))
