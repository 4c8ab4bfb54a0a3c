"""Traces a policy with JAX, and turns its equations into a graph of simple operations.

An equation whose inputs are all known is computed at once. This removes the parameters, the square roots of the
normaliser, and the random numbers that a greedy policy draws but does not use.
"""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import export

from covey.errors import require
from covey.export.graph import Graph, Operand, Value
from covey.export.names import input_name
from covey.export.rules import dtype_of, result, shape_of, sliced
from covey.observation import Observation, Part
from covey.training.jaxprs import CALLS, inner_jaxpr, needed_equations

KEY = object()
"""Stands for a random key that is not known, and for the keys made of it."""
DRAWS = {"_normal_real": "normal", "_uniform": "uniform"}
"""Functions of jax.random, and the distribution of the input that takes their place."""


def trace(
    function: Callable[..., Any],
    observation: int | Part | Observation,
    memory: Any,
    key: Any,
    *,
    batched: bool = True,
    explore: bool = False,
) -> Graph:
    """Traces a policy.

    Args:
        function: `function(obs, memory, key)` returns the action and the new memory in one environment.
        observation: The form of an observation; the size of a vector is enough.
        memory: The memory at the start of an episode.
        key: A random key. Without `explore` the graph holds what the policy does with this key.
        batched: The graph takes a batch of any size; otherwise one observation.
        explore: Random numbers are inputs of the graph.

    Returns:
        The graph, with inputs for the observation (`obs`, or the names of its parts), `memory.*` and `noise.*`, and the
        outputs `action` and `memory.*`.
    """
    leaves, structure = jax.tree.flatten(memory)
    names = memory_names(memory)
    form = Observation.of(observation)
    parts = form.parts

    def policy(values: Sequence[Any], key: Any) -> list[Any]:
        obs = form.of_names(dict(zip(parts, values[: len(parts)], strict=True)))
        action, new = function(obs, jax.tree.unflatten(structure, values[len(parts) :]), key)
        return [action, *jax.tree.leaves(new)]

    batch = export.symbolic_shape("batch") if batched else ()
    arrays = [*(jax.ShapeDtypeStruct(part.shown, part.dtype) for part in parts.values()), *map(jnp.asarray, leaves)]
    inputs = [jax.ShapeDtypeStruct((*batch, *x.shape), x.dtype) for x in arrays]
    keys = jax.ShapeDtypeStruct((*batch,), key.dtype) if explore else key
    many = jax.vmap(policy, (0, 0 if explore else None)) if batched else policy
    closed, shapes = jax.make_jaxpr(many, return_shape=True)(inputs, keys)
    graph = Graph()
    values = [
        graph.input(n, shape_of(x), dtype_of(x)) for n, x in zip((*map(input_name, parts), *names), inputs, strict=True)
    ]
    found = _walk(graph, closed.jaxpr, closed.consts, [*values, KEY if explore else key])
    outputs = [graph.expand(x, shape_of(shape)) for x, shape in zip(found, shapes, strict=True)]
    return graph.finish(dict(zip(("action", *names), outputs, strict=True)))


def memory_names(memory: Any) -> tuple[str, ...]:
    """Returns the names `memory.*` of the arrays of a memory."""
    paths = [path for path, _ in jax.tree.flatten_with_path(memory)[0]]
    return tuple("memory." + (jax.tree_util.keystr(path, simple=True, separator=".") or "0") for path in paths)


def _walk(graph: Graph, jaxpr: Any, constants: Sequence[Any], inputs: Sequence[Any]) -> list[Any]:
    """Adds equations to a graph, in their order. Returns the results."""
    values: dict[Any, Any] = dict(zip(jaxpr.constvars, map(_concrete, constants), strict=True))
    values |= dict(zip(jaxpr.invars, inputs, strict=True))

    def read(atom: Any) -> Any:
        return _concrete(atom.val) if hasattr(atom, "val") else values[atom]

    for equation in needed_equations(jaxpr):
        found = _equation(graph, equation, [read(atom) for atom in equation.invars])
        values |= dict(zip(equation.outvars, found, strict=True))
    return [read(atom) for atom in jaxpr.outvars]


def _equation(graph: Graph, equation: Any, inputs: list[Any]) -> list[Any]:
    """Adds one equation. Returns its results."""
    name = equation.primitive.name
    outputs = [variable.aval for variable in equation.outvars]
    if name in CALLS:
        draw = _draw(graph, equation, inputs, outputs)
        if draw is not None:
            return [draw]
        return _walk(graph, *inner_jaxpr(equation), inputs)
    is_known = not any(isinstance(x, Value) or x is KEY for x in inputs)
    if is_known and all(isinstance(size, int | np.integer) for x in outputs for size in x.shape):
        return _computed(equation, inputs)
    if any(x is KEY for x in inputs):
        require(
            all(_is_key(x) for x in outputs),
            f"The policy draws random numbers with {name!r} of JAX, which only the format jax can store.",
        )
        return [KEY] * len(outputs)
    if name == "split":
        return _split(graph, inputs[0], int(equation.params["axis"]), outputs)
    where = str(equation.source_info.name_stack)
    return [result(graph, name, inputs, equation.params, outputs[0], where)]


def _computed(equation: Any, inputs: list[Any]) -> list[Any]:
    """Computes an equation with JAX."""
    types = [atom.aval.dtype for atom in equation.invars]
    values = [jnp.asarray(x, t) if isinstance(x, np.ndarray) else x for x, t in zip(inputs, types, strict=True)]
    found = equation.primitive.bind(*values, **equation.params)
    return [_concrete(x) for x in (found if equation.primitive.multiple_results else [found])]


def _concrete(x: Any) -> Any:
    """Returns a known value as NumPy; a key stays as it is."""
    if _is_key(x):
        return x
    x = np.asarray(x)
    return x.astype(np.float32) if x.dtype in (jnp.bfloat16, np.float64) else x


def _is_key(x: Any) -> bool:
    return jnp.issubdtype(getattr(x, "dtype", np.float32), jax.dtypes.prng_key)


def _draw(graph: Graph, equation: Any, inputs: list[Any], outputs: list[Any]) -> Operand | None:
    """Returns an input of the graph in place of random numbers; None if the equation does not draw any."""
    kind = DRAWS.get(equation.params.get("name", ""))
    if kind is None or inputs[0] is not KEY:
        return None
    shape = shape_of(outputs[0])
    noise = graph.noise(kind, shape)
    if kind == "normal":
        return noise
    low, high = inputs[1:3]
    width = graph.emit("subtract", (high, low), (), "float32")
    return graph.emit("add", (graph.emit("multiply", (noise, width), shape, "float32"), low), shape, "float32")


def _split(graph: Graph, x: Operand, axis: int, outputs: list[Any]) -> list[Operand]:
    """Writes a split as slices."""
    parts = []
    start = 0
    for output in outputs:
        shape = shape_of(output)
        begin = [start if a == axis else 0 for a in range(len(shape))]
        end = [start + shape[axis] if a == axis else size for a, size in enumerate(shape)]
        parts.append(sliced(graph, x, begin, end, [1] * len(shape), shape))
        start += shape[axis]
    return parts
