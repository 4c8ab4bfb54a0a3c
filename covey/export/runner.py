"""Runs a policy that `covey export --format numpy` has written. Needs NumPy and nothing else: copy this file.

from runner import Policy

policy = Policy("policy.npz")
policy.reset()
action = policy(obs)  # one observation, or a batch of N with a leading axis; the action is in the robot's own units

An observation is an array, or a dictionary of arrays if the policy takes several: see policy.about["observation"].
"""

import json
import math

import numpy as np


def _bfloat16(x):
    """Rounds float32 to the nearest bfloat16, ties to even."""
    bits = np.ascontiguousarray(x, np.float32).reshape(np.shape(x)).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) & np.uint32(0xFFFF0000)).view(np.float32)


def _windows(x, window, strides, padding, fill):
    """Returns the windows [N, rows, columns, C, *window] of images [N, H, W, C]."""
    x = np.pad(x, ((0, 0), *padding, (0, 0)), constant_values=fill) if np.any(padding) else x
    found = np.lib.stride_tricks.sliding_window_view(x, window, (1, 2))
    return found[:, :: strides[0], :: strides[1]]


def _conv(x, kernel, strides, padding):
    """Convolves images [N, H, W, C] with kernels [rows, columns, C, outputs]."""
    return np.tensordot(_windows(x, kernel.shape[:2], strides, padding, 0.0), kernel, ((4, 5, 3), (0, 1, 2)))


NAMES = """
add subtract multiply divide maximum minimum power negative abs sign exp log log1p expm1 tanh sqrt
sin cos floor ceil rint isfinite equal not_equal less less_equal greater greater_equal where matmul
logical_and logical_or logical_not transpose take
"""
OPS = {name: getattr(np, name) for name in NAMES.split()} | {
    "logistic": lambda x: 0.5 * (np.tanh(0.5 * x) + np.float32(1.0)),
    "erf": np.vectorize(math.erf, otypes=[np.float32]),
    "cast": lambda x, to: x.astype(to),
    "bfloat16": _bfloat16,
    "reshape": lambda x, to: x.reshape(to),
    "expand": lambda x, batch, to: np.broadcast_to(x, [len(batch) if size < 0 else size for size in to]),
    "concatenate": lambda *x, axis: np.concatenate(x, axis),
    "slice": lambda x, start, stop, step: x[tuple(map(slice, start, stop, step))],
    "reduce_sum": lambda x, axes: np.sum(x, tuple(axes)),
    "reduce_max": lambda x, axes: np.max(x, tuple(axes)),
    "reduce_min": lambda x, axes: np.min(x, tuple(axes)),
    "argmax": lambda x, axis: np.argmax(x, axis).astype(np.int32),
    "argmin": lambda x, axis: np.argmin(x, axis).astype(np.int32),
    "conv": _conv,
    "max_pool": lambda x, window, strides, padding: _windows(x, window, strides, padding, -np.inf).max((4, 5)),
    "sum_pool": lambda x, window, strides, padding: _windows(x, window, strides, padding, 0.0).sum((4, 5)),
}


def run(nodes, values):
    """Computes all nodes. `values` holds the inputs and the constants by name, batched; it receives the results."""
    with np.errstate(all="ignore"):
        for op, inputs, output, attributes in nodes:
            values[output] = OPS[op](*(values[name] for name in inputs), **attributes)
    return values


class Policy:
    """A policy with its memory: call it with an observation; call `reset` at the start of each episode."""

    def __init__(self, path, seed=0):
        with np.load(path, allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
        self.about = json.loads(str(arrays.pop("about")))
        self.nodes, self.outputs = json.loads(str(arrays.pop("graph")))
        self.constants = arrays
        self.random = np.random.default_rng(seed)
        self.reset()

    def reset(self):
        """Starts a new episode: the memory takes its first value."""
        self.memory = {each["name"]: np.array(each["start"], each["dtype"])[None] for each in self.about["memory"]}

    def __call__(self, obs):
        batch, count = self._read(obs)
        rows = count or 1
        noise = {each["name"]: getattr(self, f"_{each['kind']}")(rows, each) for each in self.about["noise"]}
        memory = {name: np.broadcast_to(x, (rows, *x.shape[1:])) for name, x in self.memory.items()}
        values = run(self.nodes, batch | memory | noise | self.constants)
        self.memory = {name: values[self.outputs[name]] for name in memory}
        action = values[self.outputs["action"]]
        return action if count else action[0]

    def _read(self, obs):
        """Returns the inputs by name, with a leading axis, and the size of the batch; 0 for one observation."""
        parts = self.about["observation"]
        parts = [parts] if isinstance(parts, dict) else parts
        names = [each.get("part", each["name"]) for each in parts]
        given = obs if isinstance(obs, dict) else {names[0]: obs}
        if any(name not in given for name in names):
            raise ValueError(f"An observation is a dictionary with the parts {names}.")
        batch = {}
        counts = set()
        for each in parts:
            name, shape = each.get("part", each["name"]), tuple(each["shape"])
            x = np.asarray(given[name])
            if each["dtype"] == "uint8" and (x.dtype.kind not in "iu" or x.min() < 0 or x.max() > 255):
                raise ValueError(f"{name} must be whole numbers from 0 to 255, such as uint8, not {x.dtype}.")
            if x.shape != shape and x.shape[1:] != shape:
                raise ValueError(f"{name} must have shape {shape}, or a batch (N, *{shape}), not {x.shape}.")
            counts.add(0 if x.shape == shape else len(x))
            batch[each["name"]] = (x[None] if x.shape == shape else x).astype(each["dtype"], copy=False)
        if len(counts) > 1:
            raise ValueError(f"The parts of an observation have different numbers of rows: {sorted(counts)}.")
        return batch, counts.pop()

    def _normal(self, count, noise):
        return self.random.standard_normal((count, *noise["shape"]), np.float32)

    def _uniform(self, count, noise):
        return self.random.random((count, *noise["shape"]), np.float32)
