"""A policy as a graph of simple array operations, which the writers of files turn into their own format.

The operations are those of `covey.export.runner`, named as in NumPy. A dimension of -1 is the batch.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from covey.export.runner import OPS

BATCH = -1
ELEMENTWISE = {name for name, op in OPS.items() if isinstance(op, np.ufunc)} - {"matmul"}
ELEMENTWISE |= {"where", "logistic", "erf", "cast", "bfloat16"}
"""Operations that act on each element, and broadcast as NumPy does."""


class Value(NamedTuple):
    """An array of the graph that is known only when the policy runs.

    Args:
        name: Its name.
        shape: Its shape; -1 is the batch.
        dtype: Its type: float32, int32, uint8 or bool.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str


Operand = Value | np.ndarray


class Node(NamedTuple):
    """One operation.

    Args:
        op: A name in `covey.export.runner.OPS`.
        inputs: Names of its inputs.
        output: Its result.
        attributes: Its static arguments.
    """

    op: str
    inputs: tuple[str, ...]
    output: Value
    attributes: dict[str, Any]


@dataclass
class Graph:
    """A graph that is being built.

    Args:
        inputs: Inputs: first the parts of the observation, then `memory.*` and `noise.*`.
        nodes: Operations, in the order in which they can be computed.
        constants: Constants by name.
        outputs: Names of the results by output: `action`, and `memory.*`.
        kinds: For each noise input, its distribution: `normal` or `uniform` (on [0, 1)).
    """

    inputs: dict[str, Value] = field(default_factory=dict)
    nodes: list[Node] = field(default_factory=list)
    constants: dict[str, np.ndarray] = field(default_factory=dict)
    outputs: dict[str, str] = field(default_factory=dict)
    kinds: dict[str, str] = field(default_factory=dict)
    _shared: dict[tuple[Any, ...], str] = field(default_factory=dict)
    _made: dict[str, Node] = field(default_factory=dict)

    def input(self, name: str, shape: tuple[int, ...], dtype: str) -> Value:
        """Adds an input."""
        self.inputs[name] = Value(name, shape, dtype)
        return self.inputs[name]

    def noise(self, kind: str, shape: tuple[int, ...]) -> Value:
        """Adds an input for random numbers."""
        name = f"noise.{len(self.kinds)}"
        self.kinds[name] = kind
        return self.input(name, shape, "float32")

    def emit(
        self, op: str, inputs: Iterable[Operand], shape: tuple[int, ...], dtype: str, **attributes: Any
    ) -> Operand:
        """Adds an operation, or computes it at once if all its inputs are known.

        Args:
            op: A name in `covey.export.runner.OPS`.
            inputs: Its inputs.
            shape: Shape of its result.
            dtype: Type of its result.
            **attributes: Its static arguments.

        Returns:
            Its result.
        """
        operands = list(inputs)
        if all(isinstance(x, np.ndarray) for x in operands):
            with np.errstate(all="ignore"):
                return np.asarray(OPS[op](*operands, **attributes)).astype(dtype)
        if op in ELEMENTWISE:
            operands = self._without_expansion(operands, shape)
        names = tuple(self.name(x) for x in operands)
        key = (op, names, repr(attributes))
        if key not in self._shared:
            node = Node(op, names, Value(f"v{len(self.nodes)}", shape, dtype), attributes)
            self.nodes.append(node)
            self._made[node.output.name] = node
            self._shared[key] = node.output.name
        return self._made[self._shared[key]].output

    def expand(self, x: Operand, shape: tuple[int, ...]) -> Operand:
        """Broadcasts to a shape of the same rank."""
        if BATCH not in shape and isinstance(x, np.ndarray):
            return np.ascontiguousarray(np.broadcast_to(x, shape)).reshape(shape)
        if isinstance(x, Value) and x.shape == shape:
            return x
        first = next(iter(self.inputs.values()))  # a part of the observation, which knows the size of the batch
        return self.emit("expand", (x, first), shape, str(x.dtype), to=list(shape))

    def name(self, x: Operand) -> str:
        """Returns the name of a value; a constant is stored, once if it is used twice."""
        if isinstance(x, Value):
            return x.name
        key = (str(x.dtype), x.shape, x.tobytes())
        if key not in self._shared:
            self._shared[key] = f"c{len(self.constants)}"
            self.constants[self._shared[key]] = x
        return self._shared[key]

    def value(self, name: str) -> Value:
        """Returns an input or a result by its name."""
        return self.inputs[name] if name in self.inputs else self._made[name].output

    def finish(self, outputs: dict[str, Operand]) -> "Graph":
        """Sets the outputs, and removes what none of them needs."""
        for name, x in outputs.items():
            self.outputs[name] = self.name(x)
        needed = set(self.outputs.values())
        kept: list[Node] = []
        for node in reversed(self.nodes):
            if node.output.name in needed:
                needed |= set(node.inputs)
                kept.append(node)
        self.nodes = kept[::-1]
        self.constants = {name: x for name, x in self.constants.items() if name in needed}
        self.inputs = {name: x for name, x in self.inputs.items() if name in needed or not name.startswith("noise.")}
        self.kinds = {name: kind for name, kind in self.kinds.items() if name in self.inputs}
        return self

    def _without_expansion(self, operands: list[Operand], shape: tuple[int, ...]) -> list[Operand]:
        """Replaces broadcast inputs by what they were made of, if the operation broadcasts to the same shape itself."""
        found = list(operands)
        for i, x in enumerate(operands):
            made = self._made.get(x.name) if isinstance(x, Value) else None
            if made and made.op == "expand":
                source = made.inputs[0]
                shorter = self.constants[source] if source in self.constants else self.value(source)
                trial = [*found[:i], shorter, *found[i + 1 :]]
                if broadcast(*(each.shape for each in trial)) == shape:
                    found = trial
        return found


def broadcast(*shapes: tuple[int, ...]) -> tuple[int, ...] | None:
    """Returns the shape that NumPy broadcasts shapes to; the batch is a size of its own. None if they do not fit."""
    rank = max(map(len, shapes))
    result = []
    for sizes in zip(*((1,) * (rank - len(shape)) + tuple(shape) for shape in shapes), strict=True):
        distinct = set(sizes) - {1}
        if len(distinct) > 1:
            return None
        result.append(distinct.pop() if distinct else 1)
    return tuple(result)
