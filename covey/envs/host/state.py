"""Converts the state of a Gymnasium environment to bytes and back.

The bytes hold only numbers and names (JSON and safetensors), so loading them never runs code.

The attributes of the environment and of its wrappers are visited. Numbers, strings, arrays, random generators and
MuJoCo's data are saved, also inside lists, tuples and dictionaries. Spaces, models, functions and renderers are not:
loading keeps those of the environment. Anything else could hide a part of the state, so an environment that has it
can't be saved.
"""

import json
import struct
from collections.abc import Iterator
from enum import Enum
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np
from safetensors.numpy import load, save

KEPT = (
    "gymnasium.spaces.",
    "gymnasium.envs.registration.",
    "gymnasium.envs.mujoco.mujoco_rendering.",
    "mujoco._structs.MjModel",
    "pygame.",
)
"""Prefixes of the full names of types that are not saved: they don't change between steps, or only draw."""
KEPT_TYPES = (FunctionType, BuiltinFunctionType, MethodType, ModuleType, type, Enum)
KEEP = {"kept": True}
"""The JSON node of a value that is not saved."""
LENGTH = struct.Struct("<I")
"""The length of the safetensors text, which comes before it: saved states are padded to a fixed size."""


class UnsavableError(Exception):
    """An attribute can't be saved; the message names it."""


def save_env(env: Any) -> bytes:
    """Returns the state of an environment and its wrappers; raises an UnsavableError if it can't be saved."""
    arrays: dict[str, np.ndarray] = {}
    layers = [
        {name: _encode(value, f"{type(layer).__name__}.{name}", arrays) for name, value in _attributes(layer)}
        for layer in _layers(env)
    ]
    body = save(arrays, {"layers": json.dumps(layers)})
    return LENGTH.pack(len(body)) + body


def load_env(env: Any, data: bytes) -> None:
    """Restores a state in an environment of the same type."""
    body = data[LENGTH.size : LENGTH.size + LENGTH.unpack_from(data)[0]]
    arrays = load(body)
    layers = json.loads(_header(body)["__metadata__"]["layers"])
    for layer, saved in zip(_layers(env), layers, strict=True):
        for name, node in saved.items():
            if node != KEEP:
                setattr(layer, name, _decode(node, arrays, vars(layer).get(name)))


def _header(body: bytes) -> dict[str, Any]:
    """Returns the header of a safetensors text: 8 bytes with its length, then JSON."""
    (size,) = struct.unpack_from("<Q", body)
    return json.loads(body[8 : 8 + size])


def _layers(env: Any) -> Iterator[Any]:
    """Yields the wrappers, from the outermost, and then the environment itself."""
    while env is not env.unwrapped:
        yield env
        env = env.env
    yield env


def _attributes(layer: Any) -> list[tuple[str, Any]]:
    return [(name, value) for name, value in vars(layer).items() if name != "env"]


def _encode(value: Any, path: str, arrays: dict[str, np.ndarray]) -> Any:
    """Converts a value to JSON. Arrays are added to `arrays` under their path."""
    if value is None or type(value) in (bool, int, float, str):
        return value
    if type(value).__module__ == "numpy" and np.asarray(value).dtype.kind in "biuf":
        arrays[path] = np.array(value, order="C")
        return {"array" if isinstance(value, np.ndarray) else "number": path}
    if type(value) in (list, tuple):
        return {type(value).__name__: [_encode(x, f"{path}[{i}]", arrays) for i, x in enumerate(value)]}
    if type(value) is dict and all(type(key) is str for key in value):
        return {"dict": {key: _encode(x, f"{path}[{key}]", arrays) for key, x in value.items()}}
    return _encode_object(value, path, arrays)


def _encode_object(value: Any, path: str, arrays: dict[str, np.ndarray]) -> Any:
    kind = f"{type(value).__module__}.{type(value).__qualname__}"
    if isinstance(getattr(value, "bit_generator", None), np.random.PCG64):
        return {"generator": value.bit_generator.state}
    if kind == "mujoco._structs.MjData":
        fields = {name: _encode(x, f"{path}.{name}", arrays) for name, x in _physics(value).items()}
        return {"physics": fields | {"time": value.time}}
    if isinstance(value, KEPT_TYPES) or kind.startswith(KEPT):
        return KEEP
    raise UnsavableError(f"{path} is a {kind}, which covey can't save")


def _physics(data: Any) -> dict[str, np.ndarray]:
    """Returns the arrays of MuJoCo's data that have a fixed size.

    Derived quantities are included, because some rewards read them before the next step updates them. Contacts and
    constraints, whose number varies, are not: every step computes them.
    """
    fresh = type(data)(data.model)
    names = [n for n in dir(fresh) if not n.startswith("_") and isinstance(getattr(fresh, n, None), np.ndarray)]
    return {name: getattr(data, name) for name in names if getattr(fresh, name).size}


def _decode(node: Any, arrays: dict[str, np.ndarray], old: Any) -> Any:
    """Converts a JSON node back to a value.

    Args:
        node: The JSON node.
        arrays: The saved arrays by path.
        old: The environment's present value in this place. It is kept if it was not saved; MuJoCo's data are
            overwritten in place.
    """
    if not isinstance(node, dict):
        return node
    ((kind, inner),) = node.items()
    match kind:
        case "array":
            value = arrays[inner].copy()
        case "number":
            value = arrays[inner][()]
        case "list" | "tuple":
            olds = list(old) if isinstance(old, list | tuple) and len(old) == len(inner) else [None] * len(inner)
            values = [_decode(x, arrays, before) for x, before in zip(inner, olds, strict=True)]
            value = values if kind == "list" else tuple(values)
        case "dict":
            olds = old if isinstance(old, dict) else {}
            value = {key: _decode(x, arrays, olds.get(key)) for key, x in inner.items()}
        case "generator":
            value = np.random.Generator(np.random.PCG64())
            value.bit_generator.state = inner
        case "physics":
            value = old
            for name, each in inner.items():
                if name == "time":
                    value.time = each
                else:
                    getattr(value, name)[...] = arrays[each["array"]]
        case _:
            value = old
    return value
