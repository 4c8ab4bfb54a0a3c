"""The state of a Gymnasium environment as bytes, and back: numbers and names alone, so that loading never runs code.

The attributes of the environment and of its wrappers are walked through. Numbers, texts, arrays, random generators and
MuJoCo's data are taken down, in lists, tuples and dictionaries too; spaces, models, functions and what draws are left
as they are. Anything else could hide a part of the state, so such an environment counts as one that can't be saved.
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
"""What does not change from step to step, or draws: the beginnings of full names of types."""
KEPT_TYPES = (FunctionType, BuiltinFunctionType, MethodType, ModuleType, type, Enum)
KEEP = {"kept": True}
LENGTH = struct.Struct("<I")


class UnsavableError(Exception):
    """Names the attribute that can't be taken down."""


def save_env(env: Any) -> bytes:
    """The state of an environment, wrappers included."""
    arrays: dict[str, np.ndarray] = {}
    layers = [
        {name: _down(value, f"{type(layer).__name__}.{name}", arrays) for name, value in _attributes(layer)}
        for layer in _layers(env)
    ]
    body = save(arrays, {"layers": json.dumps(layers)})
    return LENGTH.pack(len(body)) + body


def load_env(env: Any, data: bytes) -> None:
    """Puts a state into an environment of the same kind."""
    body = data[LENGTH.size : LENGTH.size + LENGTH.unpack_from(data)[0]]
    arrays = load(body)
    layers = json.loads(_header(body)["__metadata__"]["layers"])
    for layer, saved in zip(_layers(env), layers, strict=True):
        for name, node in saved.items():
            if node != KEEP:
                setattr(layer, name, _up(node, arrays, vars(layer).get(name)))


def _header(body: bytes) -> dict[str, Any]:
    """The header of a safetensors text: its length in 8 bytes, then JSON."""
    (size,) = struct.unpack_from("<Q", body)
    return json.loads(body[8 : 8 + size])


def _layers(env: Any) -> Iterator[Any]:
    """The wrappers, from the outermost, and the environment itself."""
    while env is not env.unwrapped:
        yield env
        env = env.env
    yield env


def _attributes(layer: Any) -> list[tuple[str, Any]]:
    return [(name, value) for name, value in vars(layer).items() if name != "env"]


def _down(value: Any, path: str, arrays: dict[str, np.ndarray]) -> Any:
    """A value as JSON; arrays are put among `arrays`, under their path."""
    if value is None or type(value) in (bool, int, float, str):
        return value
    if type(value).__module__ == "numpy" and np.asarray(value).dtype.kind in "biuf":
        arrays[path] = np.array(value, order="C")
        return {"array" if isinstance(value, np.ndarray) else "number": path}
    if type(value) in (list, tuple):
        return {type(value).__name__: [_down(x, f"{path}[{i}]", arrays) for i, x in enumerate(value)]}
    if type(value) is dict and all(type(key) is str for key in value):
        return {"dict": {key: _down(x, f"{path}[{key}]", arrays) for key, x in value.items()}}
    return _object_down(value, path, arrays)


def _object_down(value: Any, path: str, arrays: dict[str, np.ndarray]) -> Any:
    kind = f"{type(value).__module__}.{type(value).__qualname__}"
    if isinstance(getattr(value, "bit_generator", None), np.random.PCG64):
        return {"generator": value.bit_generator.state}
    if kind == "mujoco._structs.MjData":
        fields = {name: _down(x, f"{path}.{name}", arrays) for name, x in _physics(value).items()}
        return {"physics": fields | {"time": value.time}}
    if isinstance(value, KEPT_TYPES) or kind.startswith(KEPT):
        return KEEP
    raise UnsavableError(f"{path} is a {kind}, which is more than numbers")


def _physics(data: Any) -> dict[str, np.ndarray]:
    """The arrays of MuJoCo's data whose sizes are the model's, derived ones included: some rewards read those before
    the next step computes them anew. Contacts and constraints are computed at every step."""
    fresh = type(data)(data.model)
    names = [n for n in dir(fresh) if not n.startswith("_") and isinstance(getattr(fresh, n, None), np.ndarray)]
    return {name: getattr(data, name) for name in names if getattr(fresh, name).size}


def _up(node: Any, arrays: dict[str, np.ndarray], old: Any) -> Any:
    """The value of a JSON node. What was kept is the `old` value in its place, and so is MuJoCo's data, filled anew."""
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
            values = [_up(x, arrays, before) for x, before in zip(inner, olds, strict=True)]
            value = values if kind == "list" else tuple(values)
        case "dict":
            olds = old if isinstance(old, dict) else {}
            value = {key: _up(x, arrays, olds.get(key)) for key, x in inner.items()}
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
