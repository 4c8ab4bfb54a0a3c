"""The layout of a checkpoint: the names of its arrays, and how a population becomes arrays and back.

    members/...                every array of the members [P, ...], for example `members/agent/actor/...`, `members/key`
    replay/data                the filled part of the replay [P, rows, N, width]
    replay/frames/PART         the same of a part of the observation that has an array of its own, such as an image
    replay/written             rows written since the first step
    block                      blocks done
    best/agent/...             the best policy so far, without the axis P
    best/hyper/...             its hyper-parameters

A checkpoint called `step_*` holds all of these, one called `best_*` only the last two. A name is the path to an array
in its tree, joined by `/`.
"""

import hashlib
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from covey.errors import require

MEMBERS = "members/"
AGENT = "members/agent/"
HYPER = "members/hyper/"
REPLAY = "replay/data"
FRAMES = "replay/frames/"
WRITTEN = "replay/written"
BEST = "best/"
BEST_HYPER = "best/hyper/"
BEST_AGENT = "best/agent/"
"""Names, or the beginnings of names, of arrays in a checkpoint."""
Arrays = dict[str, np.ndarray]


def pack(population: Mapping[str, Any], best: Arrays) -> Arrays:
    """Copies a population to the host as the arrays of a checkpoint.

    Args:
        population: `{"members": tree, "replay": {"data": array, "written": array, "frames": arrays by name}, "block":
            array}`.
        best: The arrays of the best policy (see `pack_best`); empty if there is none yet.

    Returns:
        Arrays by name. Of the replay, only the rows that were written.
    """
    replay = population["replay"]
    filled = min(int(replay["written"]), replay["data"].shape[1])
    records = {name: replay[name] for name in ("data", "frames")}
    return snapshot({**population, "replay": {**replay, **_rows(records, filled)}}) | best


def unpack(template: Mapping[str, Any], arrays: Arrays) -> dict[str, Any]:
    """Returns the population in a checkpoint, as `pack` took it.

    Args:
        template: The population's tree with `jax.ShapeDtypeStruct` leaves.
        arrays: The arrays of a checkpoint.

    Returns:
        The tree of the template. `["replay"]` has NumPy arrays with the written rows only.

    Raises:
        CoveyError: The arrays don't fit the template.
    """
    require(REPLAY in arrays, "The checkpoint holds no replay.")
    data, frames = stored_replay(arrays)
    filled = data.shape[1:2]
    like = template["replay"]
    found = [(data, like["data"]), *((x, like["frames"].get(name, like["data"])) for name, x in frames.items())]
    fits = frames.keys() == like["frames"].keys()
    for x, expected in found:
        fits &= x.shape[:1] == expected.shape[:1] and x.shape[2:] == expected.shape[2:] and x.dtype == expected.dtype
        fits &= x.shape[1:2] == filled <= expected.shape[1:2]
    require(fits, "The replay in the checkpoint does not match this program.")
    others = {name: x for name, x in arrays.items() if not name.startswith((REPLAY, FRAMES, BEST))}
    rest = restore({**template, "replay": {"written": like["written"]}}, others)
    return rest | {"replay": {"data": data, "frames": frames, **rest["replay"]}}


def stored_replay(arrays: Arrays) -> tuple[np.ndarray, Arrays]:
    """Returns the rows of the replay in a checkpoint, and its frames by name of part."""
    frames = {name.removeprefix(FRAMES): x for name, x in arrays.items() if name.startswith(FRAMES)}
    return arrays[REPLAY], frames


def _rows(tree: Any, filled: int) -> Any:
    """Returns the first rows of arrays [P, rows, ...], on the host."""
    if isinstance(tree, Mapping):
        return {name: _rows(x, filled) for name, x in tree.items()}
    return np.asarray(tree)[:, :filled]


def pack_best(agent: Any, hyper: Any) -> Arrays:
    """Copies a policy to the host as the arrays of a checkpoint.

    Args:
        agent: The agent's state; its arrays have a leading axis of 1.
        hyper: Its hyper-parameters, with the same axis.
    """
    arrays = snapshot({"best": {"agent": agent, "hyper": hyper}})
    return {name: np.asarray(x[0]) for name, x in arrays.items()}


def unpack_best(agent: Any, hyper: Any, arrays: Arrays) -> tuple[Any, Any]:
    """Returns the agent's state and the hyper-parameters of the best policy in a checkpoint.

    Args:
        agent: The state's tree with `jax.ShapeDtypeStruct` leaves, without an axis of members.
        hyper: The same of the hyper-parameters.
        arrays: The arrays of a checkpoint, of either kind.
    """
    found = restore({"best": {"agent": agent, "hyper": hyper}}, best_arrays(arrays))["best"]
    return found["agent"], found["hyper"]


def best_arrays(arrays: Arrays) -> Arrays:
    """Returns the arrays that belong to the best policy."""
    return {name: x for name, x in arrays.items() if name.startswith(BEST)}


def with_hypers(arrays: Arrays, prefix: str, values: Mapping[str, float]) -> Arrays:
    """Returns the arrays of a checkpoint with the hyper-parameters of a program, which may have been changed since.

    Args:
        arrays: The arrays of a checkpoint.
        prefix: The beginning of the names of its hyper-parameters, such as `best/hyper/`.
        values: The hyper-parameters by name. Those that the checkpoint lacks take this value; others are dropped.
    """
    shape = next((x.shape for name, x in arrays.items() if name.startswith(prefix)), None)
    if shape is None:
        return arrays
    wanted = {f"{prefix}{name.replace('.', '/')}": np.full(shape, x, np.float32) for name, x in values.items()}
    rest = {name: x for name, x in arrays.items() if not name.startswith(prefix)}
    return rest | {name: arrays.get(name, x) for name, x in wanted.items()}


def is_per_member(name: str) -> bool:
    """Returns whether the first axis of an array is that of the members."""
    return name.startswith((MEMBERS, FRAMES)) or name == REPLAY


def snapshot(tree: Any) -> Arrays:
    """Copies every array of a tree to the host.

    It is a copy because the next compiled program reuses the buffers of the arrays it is given.

    Args:
        tree: Any tree of arrays and random keys.

    Returns:
        NumPy arrays by the path to them, joined by `/`. A random key becomes its raw data (uint32).

    Example:
        >>> snapshot({"agent": {"weights": jnp.ones(2)}})
        {'agent/weights': array([1., 1.], dtype=float32)}
    """
    leaves, _ = jax.tree.flatten_with_path(tree)
    arrays = {array_name(path): np.array(jax.random.key_data(leaf) if is_key(leaf) else leaf) for path, leaf in leaves}
    require(len(arrays) == len(leaves), "Two arrays of a checkpoint have the same name: a key holds a '/'.")
    return arrays


def restore(template: Any, arrays: Arrays) -> Any:
    """Returns the tree that `snapshot` copied.

    Args:
        template: The tree with `jax.ShapeDtypeStruct` leaves.
        arrays: Arrays by name, exactly those of the template.

    Raises:
        CoveyError: A name, shape or type differs.

    Example:
        >>> restore(jax.eval_shape(lambda: tree), snapshot(tree))  # equals `tree`
    """
    leaves, structure = jax.tree.flatten_with_path(template)
    names = [array_name(path) for path, _ in leaves]
    wrong = sorted(set(names) ^ set(arrays))
    require(not wrong, f"The checkpoint does not match this program: it differs in {', '.join(wrong[:3])}.")
    found = [_restore_leaf(name, leaf, arrays[name]) for name, (_, leaf) in zip(names, leaves, strict=True)]
    return jax.tree.unflatten(structure, found)


def digest(tree: Any) -> str:
    """Returns the SHA-256 of every array of a tree, with their names, shapes and types."""
    found = hashlib.sha256()
    for name, x in snapshot(tree).items():
        found.update(f"{name} {x.dtype} {x.shape}".encode())
        found.update(x.tobytes())
    return found.hexdigest()


def not_finite(arrays: Arrays, prefix: str = "") -> list[str]:
    """Returns the names, of those that start with `prefix`, whose arrays hold NaN or an infinity."""
    chosen = {name: x for name, x in arrays.items() if name.startswith(prefix)}
    return [n for n, x in chosen.items() if jnp.issubdtype(x.dtype, jnp.inexact) and not np.isfinite(x).all()]


def array_name(path: Any) -> str:
    """Returns the name of an array, from the path to it in its tree."""
    return jax.tree_util.keystr(path, simple=True, separator="/")


def is_key(leaf: Any) -> bool:
    """Returns whether a leaf is a random key."""
    return jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def _restore_leaf(name: str, like: Any, array: np.ndarray) -> Any:
    """Returns an array on the device, as a random key where the template has one."""
    expected = jax.eval_shape(jax.random.key_data, like) if is_key(like) else like
    require(
        array.shape == expected.shape and array.dtype == expected.dtype,
        f"The checkpoint does not match this program: {name} is {array.dtype}{list(array.shape)} in it, "
        f"and should be {expected.dtype}{list(expected.shape)}.",
    )
    return jax.random.wrap_key_data(jnp.asarray(array)) if is_key(like) else jnp.asarray(array)
