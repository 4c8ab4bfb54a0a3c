"""Functions as JAX has traced them: what their results depend on, and what can be computed of them in advance."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax

from covey.training import in_numpy

CALLS = ("jit", "pjit", "closed_call", "core_call", "custom_jvp_call", "custom_vjp_call", "remat2")
"""Equations that contain others."""


@dataclass(frozen=True)
class Divided:
    """A function `f(early, late)` in two parts, of which the first needs only `early`.

    Args:
        early: `early(early)` computes what depends on this argument alone: arrays for `late`.
        late: `late(arrays, late)` computes the rest. Leaves that are not `used` may be None.
        used: For each leaf of `late`, whether the result depends on it.
        in_numpy: `late` in NumPy, to the rounding of float32; None if it is not simple or too large.

    Example:
        >>> divided = divide(lambda key, x: x + jax.random.normal(key), key, 1.0)
        >>> divided.late(divided.early(key), 2.0)  # the same as the function of key and 2.0
    """

    early: Callable[[Any], list[Any]]
    late: Callable[[list[Any], Any], Any]
    used: Any
    in_numpy: Callable[[list[Any], Any], Any] | None


def divide(function: Callable[[Any, Any], Any], early: Any, late: Any) -> Divided:
    """Divides a function into what can be computed before `late` is known, and the rest.

    Args:
        function: `function(early, late)`, of trees of arrays. JAX traces it.
        early: The shapes of the argument that is known first, or arrays with these shapes.
        late: Those of the other one.

    Returns:
        The two parts. What depends on neither argument is computed by the late one.
    """
    first, form = jax.tree.flatten(early)
    second, late_form = jax.tree.flatten(late)

    def of_leaves(*leaves: Any) -> Any:
        return function(form.unflatten(leaves[: len(first)]), late_form.unflatten(leaves[len(first) :]))

    traced, shapes = jax.make_jaxpr(of_leaves, return_shape=True)(*first, *second)
    closed = jax.make_jaxpr(lambda *leaves: _inlined(traced.jaxpr, traced.consts, leaves))(*first, *second)
    jaxpr = closed.jaxpr
    constants = dict(zip(jaxpr.constvars, closed.consts, strict=True))
    firsts, seconds = jaxpr.invars[: len(first)], jaxpr.invars[len(first) :]
    used = late_form.unflatten(used_inputs(jaxpr)[len(first) :])
    on_first = _dependents(jaxpr, firsts)
    on_second = _dependents(jaxpr, seconds)
    equations = needed_equations(jaxpr)
    before = [each for each in equations if not on_second & set(each.outvars)]
    after = [each for each in equations if on_second & set(each.outvars) or not on_first & set(each.outvars)]
    needed = [atom for each in after for atom in each.invars] + jaxpr.outvars
    passed = [x for x in dict.fromkeys(filter(_is_variable, needed)) if x in on_first - on_second]

    def compute_early(given: Any) -> list[Any]:
        values = _computed(before, constants | dict(zip(firsts, jax.tree.leaves(given), strict=True)))
        return [values[x] for x in passed]

    def compute_late(arrays: list[Any], given: Any) -> Any:
        values = constants | dict(zip(passed, arrays, strict=True))
        values |= dict(zip(seconds, late_form.flatten_up_to(given), strict=True))
        values = _computed(after, values)
        return jax.tree.structure(shapes).unflatten([_read(values, atom) for atom in jaxpr.outvars])

    run = in_numpy.compute(after, constants, (*passed, *seconds), jaxpr.outvars)

    def compute_in_numpy(arrays: list[Any], given: Any) -> Any:
        assert run
        return jax.tree.structure(shapes).unflatten(run([*arrays, *late_form.flatten_up_to(given)]))

    return Divided(compute_early, compute_late, used, compute_in_numpy if run else None)


def _dependents(jaxpr: Any, inputs: Sequence[Any]) -> set[Any]:
    """Returns the variables that depend on some inputs, and these themselves."""
    found = set(inputs)
    for equation in jaxpr.eqns:
        if any(_is_variable(atom) and atom in found for atom in equation.invars):
            found |= set(equation.outvars)
    return found


def _is_variable(atom: Any) -> bool:
    return not hasattr(atom, "val")


def _read(values: dict[Any, Any], atom: Any) -> Any:
    return values[atom] if _is_variable(atom) else atom.val


def _computed(equations: Sequence[Any], values: dict[Any, Any]) -> dict[Any, Any]:
    """Computes equations in their order. Returns the values with the results."""
    values = dict(values)
    for equation in equations:
        inputs = [_read(values, atom) for atom in equation.invars]
        if equation.primitive.name in CALLS:
            found = _inlined(*inner_jaxpr(equation), inputs)
        else:
            found = equation.primitive.bind(*inputs, **equation.params)
        found = found if equation.primitive.multiple_results else [found]
        values |= dict(zip(equation.outvars, found, strict=True))
    return values


def _inlined(jaxpr: Any, constants: Sequence[Any], inputs: Sequence[Any]) -> list[Any]:
    """Computes a jaxpr, and the calls in it as if their equations were its own."""
    given = (*zip(jaxpr.constvars, constants, strict=True), *zip(jaxpr.invars, inputs, strict=True))
    values = _computed(jaxpr.eqns, dict(given))
    return [_read(values, atom) for atom in jaxpr.outvars]


def used_inputs(jaxpr: Any, wanted: Sequence[bool] | None = None) -> list[bool]:
    """Returns for each input of a jaxpr whether its results depend on it.

    Args:
        jaxpr: The jaxpr. It looks into calls, such as those of `jax.jit`; of a loop it takes all inputs as used.
        wanted: The results that count, by default all.
    """
    wanted = wanted or [True] * len(jaxpr.outvars)
    needed = {id(atom) for atom, counts in zip(jaxpr.outvars, wanted, strict=True) if counts}
    for equation in reversed(jaxpr.eqns):
        outputs = [id(variable) in needed for variable in equation.outvars]
        if any(outputs):
            flags = [True] * len(equation.invars)
            if equation.primitive.name in CALLS:
                flags = used_inputs(inner_jaxpr(equation)[0], outputs)
            needed |= {id(atom) for atom, is_used in zip(equation.invars, flags, strict=True) if is_used}
    return [id(variable) in needed for variable in jaxpr.invars]


def inner_jaxpr(equation: Any) -> tuple[Any, Sequence[Any]]:
    """Returns the jaxpr inside of an equation of `CALLS`, and its constants."""
    params = equation.params
    inner = next(params[each] for each in ("jaxpr", "call_jaxpr", "fun_jaxpr") if each in params)
    return getattr(inner, "jaxpr", inner), getattr(inner, "consts", ())


def needed_equations(jaxpr: Any) -> list[Any]:
    """Returns the equations that the results depend on, in their order.

    An agent also computes numbers for its replay, perhaps with operations that no exported file can store.
    """
    needed = {atom for atom in jaxpr.outvars if not hasattr(atom, "val")}
    kept = []
    for equation in reversed(jaxpr.eqns):
        if needed & set(equation.outvars):
            needed |= {atom for atom in equation.invars if not hasattr(atom, "val")}
            kept.append(equation)
    return kept[::-1]
