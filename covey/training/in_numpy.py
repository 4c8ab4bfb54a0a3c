"""Computes small functions in NumPy instead of XLA.

The policy of one environment takes a fifth of the processor's time in NumPy: a compiled program is handed to another
thread, and XLA does not vectorise the product of a matrix and a vector well.
"""

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

MOST_PRODUCTS = 2**18
"""Larger matrix products are left to XLA: OpenBLAS would divide them among threads, which the learner needs."""
ELEMENTWISE = {
    "abs": np.abs,
    "add": np.add,
    "and": np.bitwise_and,
    "atanh": np.arctanh,
    "div": np.divide,
    "eq": np.equal,
    "exp": np.exp,
    "expm1": np.expm1,
    "floor": np.floor,
    "ge": np.greater_equal,
    "gt": np.greater,
    "is_finite": np.isfinite,
    "le": np.less_equal,
    "log": np.log,
    "log1p": np.log1p,
    "logistic": lambda x: np.float32(1) / (np.float32(1) + np.exp(-x)),
    "lt": np.less,
    "max": np.maximum,
    "min": np.minimum,
    "mul": np.multiply,
    "ne": np.not_equal,
    "neg": np.negative,
    "not": np.bitwise_not,
    "or": np.bitwise_or,
    "rsqrt": lambda x: np.float32(1) / np.sqrt(x),
    "sign": np.sign,
    "sqrt": np.sqrt,
    "square": np.square,
    "stop_gradient": lambda x: x,
    "sub": np.subtract,
    "tanh": np.tanh,
}
"""Operations of JAX that need no parameters. NumPy computes them with the same types."""
TYPES = ("float32", "int32", "uint32", "uint8", "bool")
Operation = Callable[..., Any]


def operations(equation: Any) -> list[Operation] | None:
    """Returns a NumPy function for each result of an equation; None if there is none, or if XLA computes it faster."""
    name = equation.primitive.name
    shapes = [atom.aval.shape for atom in equation.invars]
    out = equation.outvars[0].aval
    types = {str(atom.aval.dtype) for atom in (*equation.invars, *equation.outvars)}
    if not types.issubset(TYPES) or (name == "dot_general" and len(types) > 1):
        return None
    if name == "split":
        return _split(equation.params, shapes[0])
    if name in ELEMENTWISE and (name != "div" or out.dtype == np.float32):  # integers are divided otherwise
        return [ELEMENTWISE[name]]
    found = RULES[name](equation.params, shapes, out) if name in RULES else None
    return [found] if found else None


def _split(params: dict[str, Any], shape: Sequence[int]) -> list[Operation]:
    ends = np.cumsum(params["sizes"])
    parts = [[slice(None)] * len(shape) for _ in ends]
    for part, size, end in zip(parts, params["sizes"], ends, strict=True):
        part[params["axis"]] = slice(end - size, end)
    return [partial(_part, place=tuple(part)) for part in parts]


def _part(x: Any, place: tuple[slice, ...]) -> Any:
    return x[place]


def _broadcast(params: dict[str, Any], shapes: Sequence[Any], out: Any) -> Operation:
    aligned = [1] * len(out.shape)
    for size, axis in zip(shapes[0], params["broadcast_dimensions"], strict=True):
        aligned[axis] = size
    if tuple(aligned) == out.shape:
        return _reshape(params, shapes, out)
    return lambda x: np.broadcast_to(np.reshape(x, aligned), out.shape)


def _reshape(params: dict[str, Any], shapes: Sequence[Any], out: Any) -> Operation:
    shape = out.shape
    return lambda x: x.reshape(shape)


def _dot(params: dict[str, Any], shapes: Sequence[Any], out: Any) -> Operation | None:
    """Products of stacks of matrices, whatever the order of the axes."""
    (left, right), (left_batch, right_batch) = params["dimension_numbers"]
    sides = []
    for shape, contracted, batch in zip(shapes, (left, right), (left_batch, right_batch), strict=True):
        free = [a for a in range(len(shape)) if a not in (*contracted, *batch)]
        sizes = [math.prod(shape[a] for a in axes) for axes in (batch, free, contracted)]
        sides.append((batch, free, contracted, sizes))
    (b1, f1, c1, (count, rows, inner)), (b2, f2, c2, (_, columns, _)) = sides
    if rows * inner * columns > MOST_PRODUCTS:
        return None
    order, other = (*b1, *f1, *c1), (*b2, *c2, *f2)

    def product(x: Any, y: Any) -> Any:
        x = x.transpose(order).reshape(count, rows, inner)
        y = y.transpose(other).reshape(count, inner, columns)
        return np.matmul(x, y).reshape(out.shape)

    return product


def _select(params: dict[str, Any], shapes: Sequence[Any], out: Any) -> Operation | None:
    return (lambda which, no, yes: np.where(which, yes, no)) if len(shapes) == 3 else None


def _slice(params: dict[str, Any], shapes: Sequence[Any], out: Any) -> Operation:
    strides = params["strides"] or (1,) * len(shapes[0])
    place = tuple(map(slice, params["start_indices"], params["limit_indices"], strides))
    return partial(_part, place=place)


def _reduction(reduce: Callable[..., Any]) -> Callable[..., Operation]:
    def rule(params: dict[str, Any], shapes: Sequence[Any], out: Any) -> Operation:
        axes = tuple(params["axes"])
        return lambda x: reduce(x, axis=axes, dtype=out.dtype) if reduce is np.sum else reduce(x, axis=axes)

    return rule


def _argmax(params: dict[str, Any], shapes: Sequence[Any], out: Any) -> Operation:
    (axis,) = params["axes"]
    return lambda x: np.argmax(x, axis).astype(out.dtype)


RULES: dict[str, Callable[[dict[str, Any], Sequence[Any], Any], Operation | None]] = {
    "argmax": _argmax,
    "broadcast_in_dim": _broadcast,
    "clamp": lambda params, shapes, out: lambda low, x, high: np.minimum(np.maximum(x, low), high),
    "concatenate": lambda params, shapes, out: lambda *x: np.concatenate(x, params["dimension"]),
    "convert_element_type": lambda params, shapes, out: lambda x: np.asarray(x).astype(out.dtype),
    "copy": lambda params, shapes, out: lambda x: x,
    "dot_general": _dot,
    "expand_dims": _reshape,
    "integer_pow": lambda params, shapes, out: lambda x: x ** params["y"],
    "reduce_max": _reduction(np.max),
    "reduce_min": _reduction(np.min),
    "reduce_sum": _reduction(np.sum),
    "reshape": _reshape,
    "select_n": _select,
    "slice": _slice,
    "squeeze": _reshape,
    "transpose": lambda params, shapes, out: lambda x: x.transpose(params["permutation"]),
}
"""`rule(params, shapes of the inputs, shape and type of the result)` returns the NumPy function of an equation."""


def compute(
    equations: Sequence[Any], constants: dict[Any, Any], inputs: Sequence[Any], outputs: Sequence[Any]
) -> Callable[[Sequence[Any]], list[Any]] | None:
    """Returns a function in NumPy that computes equations; None if one of them has no operation in NumPy.

    Args:
        equations: The equations, in their order.
        constants: Values of variables.
        inputs: The variables that the function receives as arrays, in this order.
        outputs: The variables or literals that it returns.
    """
    if any(str(atom.aval.dtype) not in TYPES for atom in (*inputs, *outputs)):
        return None
    values: list[Any] = [None] * len(inputs)
    slots: dict[Any, int] = {variable: i for i, variable in enumerate(inputs)}
    known = set()

    def slot(atom: Any) -> int:
        """Returns the place of an atom in `values`."""
        if not hasattr(atom, "val") and atom in slots:
            return slots[atom]
        value = atom.val if hasattr(atom, "val") else constants[atom]
        values.append(np.asarray(value, atom.aval.dtype))
        known.add(len(values) - 1)
        return len(values) - 1

    steps = []
    for equation in equations:
        found = operations(equation)
        if found is None:
            return None
        places = [slot(atom) for atom in equation.invars]
        is_known = known.issuperset(places)  # the same at every call
        for function, variable in zip(found, equation.outvars, strict=True):
            values.append(np.asarray(function(*(values[i] for i in places))) if is_known else None)
            slots[variable] = len(values) - 1
            if is_known:
                known.add(slots[variable])
            else:
                steps.append((function, places, slots[variable]))
    results = [slot(atom) for atom in outputs]

    def run(arrays: Sequence[Any]) -> list[Any]:
        own = values.copy()
        own[: len(arrays)] = arrays
        with np.errstate(all="ignore"):
            for function, places, place in steps:
                own[place] = function(*[own[i] for i in places])
        return [own[i] for i in results]

    return run
