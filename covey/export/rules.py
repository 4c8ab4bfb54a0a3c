"""How each operation of JAX is written with the operations of a graph."""

import math
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np

from covey.errors import CoveyError, require
from covey.export.graph import BATCH, Graph, Operand

Shape = tuple[int, ...]
Rule = Callable[[Graph, list[Operand], dict[str, Any], Shape, str], Operand]
"""`rule(graph, inputs, params, shape, dtype)`: inputs and parameters of an equation; shape and type of its result."""

ELEMENTWISE = {
    "neg": "negative",
    "abs": "abs",
    "sign": "sign",
    "exp": "exp",
    "log": "log",
    "log1p": "log1p",
    "expm1": "expm1",
    "tanh": "tanh",
    "logistic": "logistic",
    "sqrt": "sqrt",
    "sin": "sin",
    "cos": "cos",
    "floor": "floor",
    "ceil": "ceil",
    "erf": "erf",
    "is_finite": "isfinite",
    "add": "add",
    "add_any": "add",
    "sub": "subtract",
    "mul": "multiply",
    "div": "divide",
    "max": "maximum",
    "min": "minimum",
    "pow": "power",
    "eq": "equal",
    "ne": "not_equal",
    "lt": "less",
    "le": "less_equal",
    "gt": "greater",
    "ge": "greater_equal",
    "and": "logical_and",
    "or": "logical_or",
    "not": "logical_not",
}
"""Operations of JAX on each element, and their names in a graph."""
REDUCTIONS = {"reduce_sum": "reduce_sum", "reduce_max": "reduce_max", "reduce_min": "reduce_min"}
SAME = ("stop_gradient", "copy", "copy_p", "optimization_barrier", "sharding_constraint")
RULES: dict[str, Rule] = {}


def rule(name: str) -> Callable[[Rule], Rule]:
    """Decorator: registers the rule of an operation of JAX."""

    def register(function: Rule) -> Rule:
        RULES[name] = function
        return function

    return register


def result(
    graph: Graph, name: str, inputs: list[Operand], params: dict[str, Any], output: Any, where: str = ""
) -> Operand:
    """Adds one equation to a graph.

    Args:
        graph: The graph.
        name: The operation of JAX.
        inputs: Its inputs.
        params: Its parameters.
        output: Shape and type of its result.
        where: The part of the policy that uses it, for errors.

    Returns:
        Its result.
    """
    shape, dtype = shape_of(output), dtype_of(output)
    if name in SAME:
        made = inputs[0]
    elif name in ELEMENTWISE:
        require(name != "div" or dtype == "float32", "A policy that divides whole numbers can't be exported.")
        bits = name in ("and", "or", "not") and dtype != "bool"
        require(not bits, "A policy that works on the bits of numbers can't be exported.")
        made = graph.emit(ELEMENTWISE[name], inputs, shape, dtype)
    elif name in REDUCTIONS:
        made = graph.emit(REDUCTIONS[name], inputs, shape, dtype, axes=list(map(int, params["axes"])))
    elif name in RULES:
        made = RULES[name](graph, inputs, params, shape, dtype)
    else:
        known = sorted({*ELEMENTWISE, *REDUCTIONS, *RULES, *SAME})
        raise CoveyError(
            f"The policy uses the operation {name!r} of JAX{where and f' in {where}'}, which only the format jax can "
            f"store. The other formats know: {', '.join(known)}."
        )
    if output.dtype == jnp.bfloat16 and not isinstance(made, np.ndarray):
        return graph.emit("bfloat16", (made,), shape, "float32")
    return made


def shape_of(x: Any) -> Shape:
    """Returns a shape with -1 for the batch."""
    shape = tuple(int(size) if isinstance(size, int | np.integer) else BATCH for size in x.shape)
    require(shape.count(BATCH) <= 1, f"A policy with an array of shape {x.shape} can't be exported.")
    return shape


def dtype_of(x: Any) -> str:
    """Returns the type in which a value is computed: bfloat16 is float32, rounded after each operation."""
    return "float32" if x.dtype == jnp.bfloat16 else str(x.dtype)


@rule("square")
def _square(graph: Graph, inputs: list[Operand], params: dict[str, Any], shape: Shape, dtype: str) -> Operand:
    return graph.emit("multiply", (inputs[0], inputs[0]), shape, dtype)


@rule("rsqrt")
def _rsqrt(graph: Graph, inputs: list[Operand], params: dict[str, Any], shape: Shape, dtype: str) -> Operand:
    return graph.emit("divide", (np.ones((), dtype), graph.emit("sqrt", inputs, shape, dtype)), shape, dtype)


@rule("integer_pow")
def _integer_pow(graph: Graph, inputs: list[Operand], params: dict[str, Any], shape: Shape, dtype: str) -> Operand:
    power = inputs[0]
    for _ in range(abs(params["y"]) - 1):
        power = graph.emit("multiply", (power, inputs[0]), shape, dtype)
    return power if params["y"] > 0 else graph.emit("divide", (np.ones((), dtype), power), shape, dtype)


@rule("erfc")
def _erfc(graph: Graph, inputs: list[Operand], params: dict[str, Any], shape: Shape, dtype: str) -> Operand:
    return graph.emit("subtract", (np.ones((), dtype), graph.emit("erf", inputs, shape, dtype)), shape, dtype)


@rule("rev")
def _rev(graph: Graph, inputs: list[Operand], params: dict[str, Any], shape: Shape, dtype: str) -> Operand:
    x = inputs[0]
    for axis in params["dimensions"]:
        x = _taken(graph, x, np.arange(shape[axis], dtype=np.int32)[::-1].copy(), int(axis))
    return x


@rule("dynamic_slice")
def _dynamic_slice(graph: Graph, inputs: list[Operand], params: dict[str, Any], shape: Shape, dtype: str) -> Operand:
    """Takes one element along some axes: what x[i] means."""
    x, *starts = inputs
    for axis, (start, size) in enumerate(zip(starts, params["slice_sizes"], strict=True)):
        if size != x.shape[axis]:
            require(size == 1, "The policy slices an array in a way that only the format jax can store.")
            x = _taken(graph, x, _reshaped(graph, start, (1,)), axis)
    return x


@rule("clamp")
def _clamp(graph: Graph, inputs: list[Operand], params: dict[str, Any], shape: Shape, dtype: str) -> Operand:
    low, x, high = inputs
    return graph.emit("minimum", (graph.emit("maximum", (x, low), shape, dtype), high), shape, dtype)


@rule("round")
def _round(graph: Graph, inputs: list[Operand], params: dict[str, Any], shape: Shape, dtype: str) -> Operand:
    require(
        int(params["rounding_method"]) == 1,
        "A policy that rounds halves away from zero can't be exported: use jnp.round.",
    )
    return graph.emit("rint", inputs, shape, dtype)


@rule("select_n")
def _select_n(graph: Graph, inputs: list[Operand], params: dict[str, Any], shape: Shape, dtype: str) -> Operand:
    which, *cases = inputs
    if isinstance(which, np.ndarray) and which.size and (which == which.flat[0]).all():
        return graph.expand(cases[int(which.flat[0])], shape)
    chosen = cases[0]
    for number, case in enumerate(cases[1:], 1):
        is_case = which
        if str(which.dtype) != "bool":
            is_case = graph.emit("equal", (which, np.array(number, which.dtype)), which.shape, "bool")
        chosen = graph.emit("where", (is_case, case, chosen), shape, dtype)
    return chosen


@rule("convert_element_type")
def _convert(graph: Graph, inputs: list[Operand], params: dict[str, Any], shape: Shape, dtype: str) -> Operand:
    (x,) = inputs
    return x if str(x.dtype) == dtype else graph.emit("cast", (x,), shape, dtype, to=dtype)


@rule("broadcast_in_dim")
def _broadcast(graph: Graph, inputs: list[Operand], params: dict[str, Any], shape: Shape, dtype: str) -> Operand:
    x = inputs[0]
    ones = [1] * len(shape)
    for size, axis in zip(x.shape, params["broadcast_dimensions"], strict=True):
        ones[int(axis)] = size
    return graph.expand(_reshaped(graph, x, tuple(ones)), shape)


@rule("reshape")
@rule("squeeze")
@rule("expand_dims")
def _reshape(graph: Graph, inputs: list[Operand], params: dict[str, Any], shape: Shape, dtype: str) -> Operand:
    return _reshaped(graph, inputs[0], shape)


@rule("transpose")
def _transpose(graph: Graph, inputs: list[Operand], params: dict[str, Any], shape: Shape, dtype: str) -> Operand:
    return _transposed(graph, inputs[0], [int(axis) for axis in params["permutation"]])


@rule("concatenate")
def _concatenate(graph: Graph, inputs: list[Operand], params: dict[str, Any], shape: Shape, dtype: str) -> Operand:
    return graph.emit("concatenate", inputs, shape, dtype, axis=int(params["dimension"]))


@rule("slice")
def _slice(graph: Graph, inputs: list[Operand], params: dict[str, Any], shape: Shape, dtype: str) -> Operand:
    steps = params["strides"] or [1] * len(shape)
    return sliced(graph, inputs[0], params["start_indices"], params["limit_indices"], steps, shape)


@rule("argmax")
def _argmax(graph: Graph, inputs: list[Operand], params: dict[str, Any], shape: Shape, dtype: str) -> Operand:
    return graph.emit("argmax", inputs, shape, dtype, axis=int(params["axes"][0]))


@rule("argmin")
def _argmin(graph: Graph, inputs: list[Operand], params: dict[str, Any], shape: Shape, dtype: str) -> Operand:
    return graph.emit("argmin", inputs, shape, dtype, axis=int(params["axes"][0]))


@rule("reduce_and")
def _reduce_and(graph: Graph, inputs: list[Operand], params: dict[str, Any], shape: Shape, dtype: str) -> Operand:
    return _reduced_logic(graph, "reduce_min", inputs[0], params, shape)


@rule("reduce_or")
def _reduce_or(graph: Graph, inputs: list[Operand], params: dict[str, Any], shape: Shape, dtype: str) -> Operand:
    return _reduced_logic(graph, "reduce_max", inputs[0], params, shape)


@rule("gather")
def _gather(graph: Graph, inputs: list[Operand], params: dict[str, Any], shape: Shape, dtype: str) -> Operand:
    """Gathers whole slices along one axis: what x[..., indices] means."""
    x, indices = inputs
    numbers = params["dimension_numbers"]
    sizes = [int(size) if isinstance(size, int | np.integer) else BATCH for size in params["slice_sizes"]]
    chosen = [int(a) for a in numbers.start_index_map]
    axis, *more = [a for a in chosen if sizes[a] != x.shape[a]] or chosen  # elsewhere, only 0 can be meant
    whole = all(size == (1 if a == axis else x.shape[a]) for a, size in enumerate(sizes))
    simple = not more and not numbers.operand_batching_dims and set(numbers.collapsed_slice_dims) <= {axis}
    require(simple and whole, "The policy indexes an array in a way that only the format jax can store.")
    *batch, columns = indices.shape
    column = chosen.index(axis)
    first, last = [0] * len(batch) + [column], [*batch, column + 1]
    if columns > 1:
        indices = sliced(graph, indices, first, last, [1] * len(last), (*batch, 1))
    indices = _reshaped(graph, indices, tuple(batch))
    taken = _taken(graph, x, indices, axis)
    # `take` puts the axes of the indices at `axis`; JAX may want them elsewhere, and keep an axis of one element.
    kept = [a for a in range(len(x.shape)) if a not in numbers.collapsed_slice_dims]
    offsets = [place for place, a in zip(numbers.offset_dims, kept, strict=True) if a != axis]
    rank = len(indices.shape)
    others = [p for p in range(len(taken.shape)) if not axis <= p < axis + rank]
    places = dict(
        zip([a for a in range(len(shape)) if a not in numbers.offset_dims], range(axis, axis + rank), strict=True)
    )
    places |= dict(zip(offsets, others, strict=True))
    return _reshaped(graph, _transposed(graph, taken, [places[a] for a in sorted(places)]), shape)


@rule("dot_general")
def _dot_general(graph: Graph, inputs: list[Operand], params: dict[str, Any], shape: Shape, dtype: str) -> Operand:
    """Writes a product over any axes as a matrix product [batch, rows, inner] @ [batch, inner, columns]."""
    (left_inner, right_inner), (left_batch, right_batch) = params["dimension_numbers"]
    left, right = inputs
    left_free = [a for a in range(len(left.shape)) if a not in (*left_inner, *left_batch)]
    right_free = [a for a in range(len(right.shape)) if a not in (*right_inner, *right_batch)]
    left = _transposed(graph, left, [*left_batch, *left_free, *left_inner])
    right = _transposed(graph, right, [*right_batch, *right_inner, *right_free])
    batch = left.shape[: len(left_batch)]
    rows = left.shape[len(left_batch) : len(left_batch) + len(left_free)]
    columns = right.shape[len(right_batch) + len(right_inner) :]
    inner = _size(left.shape[len(left.shape) - len(left_inner) :])
    left = _reshaped(graph, left, (*batch, _size(rows), inner))
    right = _reshaped(graph, right, (*right.shape[: len(right_batch)], inner, _size(columns)))
    product = graph.emit("matmul", (left, right), (*batch, _size(rows), _size(columns)), dtype)
    return _reshaped(graph, product, shape)


@rule("conv_general_dilated")
def _conv(graph: Graph, inputs: list[Operand], params: dict[str, Any], shape: Shape, dtype: str) -> Operand:
    """Writes a convolution in one or two dimensions as one of images [N, H, W, C] with kernels [h, w, C, O]."""
    x, kernel = inputs
    numbers = params["dimension_numbers"]
    padding = [[int(low), int(high)] for low, high in params["padding"]]
    strides = [int(step) for step in params["window_strides"]]
    plain = (
        {*params["lhs_dilation"], *params["rhs_dilation"], params["feature_group_count"], params["batch_group_count"]}
        == {1}
        and min(min(each) for each in padding) >= 0
        and len(strides) <= 2
        and dtype == str(x.dtype) == "float32"
    )
    require(plain, "The policy has a convolution with groups or dilation, which only the format jax can store.")
    x = _transposed(graph, x, [numbers.lhs_spec[0], *numbers.lhs_spec[2:], numbers.lhs_spec[1]])
    kernel = _transposed(graph, kernel, [*numbers.rhs_spec[2:], numbers.rhs_spec[1], numbers.rhs_spec[0]])
    places = [numbers.out_spec[0], *numbers.out_spec[2:], numbers.out_spec[1]]
    natural = tuple(shape[axis] for axis in places)
    made_shape = natural
    if len(strides) == 1:
        x = _reshaped(graph, x, (x.shape[0], 1, *x.shape[1:]))
        kernel = _reshaped(graph, kernel, (1, *kernel.shape))
        padding, strides, made_shape = [[0, 0], *padding], [1, *strides], (natural[0], 1, *natural[1:])
    made = graph.emit("conv", (x, kernel), made_shape, dtype, strides=strides, padding=padding)
    return _transposed(graph, _reshaped(graph, made, natural), [places.index(axis) for axis in range(len(places))])


@rule("reduce_window_max")
def _max_pool(graph: Graph, inputs: list[Operand], params: dict[str, Any], shape: Shape, dtype: str) -> Operand:
    return _pooled(graph, "max_pool", inputs[0], params, shape, dtype)


@rule("reduce_window_sum")
def _sum_pool(graph: Graph, inputs: list[Operand], params: dict[str, Any], shape: Shape, dtype: str) -> Operand:
    return _pooled(graph, "sum_pool", inputs[0], params, shape, dtype)


@rule("pad")
def _pad(graph: Graph, inputs: list[Operand], params: dict[str, Any], shape: Shape, dtype: str) -> Operand:
    """Writes padding as concatenation."""
    x, value = inputs
    for axis, (low, high, inner) in enumerate(params["padding_config"]):
        require(
            inner == 0 and low >= 0 and high >= 0,
            "The policy pads an array between its elements or by less than 0, which only the format jax can store.",
        )
        if low == high == 0:
            continue
        before, after = x.shape[:axis], x.shape[axis + 1 :]
        one = _reshaped(graph, value, (1,) * len(x.shape))
        ends = [graph.expand(one, (*before, int(size), *after)) if size else None for size in (low, high)]
        blocks = [each for each in (ends[0], x, ends[1]) if each is not None]
        x = graph.emit("concatenate", blocks, (*before, x.shape[axis] + int(low + high), *after), dtype, axis=axis)
    return x


def _pooled(graph: Graph, op: str, x: Operand, params: dict[str, Any], shape: Shape, dtype: str) -> Operand:
    """Writes a reduction over windows along one or two neighbouring axes as one of images [N, H, W, C]."""
    window, strides = ([int(size) for size in params[f"window_{each}"]] for each in ("dimensions", "strides"))
    padding = [[int(low), int(high)] for low, high in params["padding"]]
    moved = [a for a in range(len(shape)) if (window[a], strides[a], padding[a]) != (1, 1, [0, 0])]
    if not moved:
        return x
    first, last = moved[0], moved[-1]
    plain = {*params["base_dilation"], *params["window_dilation"]} == {1} and last - first <= 1 and dtype == "float32"
    require(plain, "The policy reduces windows of several axes or with dilation, which only the format jax can store.")
    axes = slice(first, last + 1)
    more = 1 - (last - first)  # a window along one axis has a second one of one element

    def as_images(sizes: Shape) -> Shape:
        return (_size(sizes[:first]), *sizes[axes], *[1] * more, _size(sizes[last + 1 :]))

    made = graph.emit(
        op,
        (_reshaped(graph, x, as_images(tuple(x.shape))),),
        as_images(shape),
        dtype,
        window=window[axes] + [1] * more,
        strides=strides[axes] + [1] * more,
        padding=padding[axes] + [[0, 0]] * more,
    )
    return _reshaped(graph, made, shape)


def sliced(graph: Graph, x: Operand, start: Any, stop: Any, steps: Any, shape: Shape) -> Operand:
    """Returns x[start:stop:step] along every axis; the batch stays whole."""
    ends = [None if size == BATCH else int(end) for size, end in zip(x.shape, stop, strict=True)]
    begins = [int(begin) if isinstance(begin, int | np.integer) else 0 for begin in start]
    return graph.emit("slice", (x,), shape, str(x.dtype), start=begins, stop=ends, step=[int(s) for s in steps])


def _taken(graph: Graph, x: Operand, indices: Operand, axis: int) -> Operand:
    """Returns the elements of an array at indices along an axis; an index beyond its end means the last one."""
    last = np.array(x.shape[axis] - 1, indices.dtype)
    indices = graph.emit("minimum", (indices, last), tuple(indices.shape), str(indices.dtype))
    shape = (*x.shape[:axis], *indices.shape, *x.shape[axis + 1 :])
    return graph.emit("take", (x, indices), shape, str(x.dtype), axis=axis)


def _size(sizes: Shape) -> int:
    """Returns the product of sizes; -1 if the batch is among them."""
    return BATCH if BATCH in sizes else math.prod(sizes)


def _reshaped(graph: Graph, x: Operand, shape: Shape) -> Operand:
    return x if tuple(x.shape) == shape else graph.emit("reshape", (x,), shape, str(x.dtype), to=list(shape))


def _transposed(graph: Graph, x: Operand, axes: list[int]) -> Operand:
    axes = [int(axis) for axis in axes]
    if axes == sorted(axes):
        return x
    shape = tuple(x.shape[axis] for axis in axes)
    return graph.emit("transpose", (x,), shape, str(x.dtype), axes=axes)


def _reduced_logic(graph: Graph, op: str, x: Operand, params: dict[str, Any], shape: Shape) -> Operand:
    numbers = graph.emit("cast", (x,), tuple(x.shape), "int32", to="int32")
    found = graph.emit(op, (numbers,), shape, "int32", axes=[int(axis) for axis in params["axes"]])
    return graph.emit("cast", (found,), shape, "bool", to="bool")
