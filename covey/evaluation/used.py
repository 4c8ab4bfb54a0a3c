"""Finds the parts of an observation that a policy uses, by tracing it."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from covey.observation import OBS, Obs, Observation
from covey.types import Array

CALLS = ("jit", "pjit", "closed_call", "core_call", "custom_jvp_call", "custom_vjp_call", "remat2")
"""Equations that contain others."""


def used_parts(function: Callable[[Obs], Any], form: Observation) -> tuple[str, ...]:
    """Returns the names of the parts of an observation that the results of a function depend on.

    An agent may have privileged parts, which only its critic receives. Its policy then acts without them.

    Args:
        function: A function of one observation that JAX can trace; it is not computed.
        form: The form of an observation.

    Returns:
        The names, sorted; all of them if the function depends on none.

    Example:
        >>> form = Observation.of({"camera": Part((8, 8, 3), "uint8"), "state": Part((4,))})
        >>> used_parts(lambda obs: obs["state"].sum(), form)
        ('state',)
    """
    if form.is_array:
        return (OBS,)
    names = tuple(form.parts)
    shapes = [jax.ShapeDtypeStruct(part.shown, part.dtype) for part in form.parts.values()]

    def of_values(values: Sequence[Array]) -> Any:
        return function(form.of_names(dict(zip(names, values, strict=True))))

    flags = used_inputs(jax.make_jaxpr(of_values)(shapes).jaxpr)
    return tuple(name for name, is_used in zip(names, flags, strict=True) if is_used) or names


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


def with_zeros(form: Observation, given: Mapping[str, Array]) -> Obs:
    """Returns one observation from some of its parts, with zeros in place of the others."""
    zeros = {name: jnp.zeros(part.shown, part.dtype) for name, part in form.named if name not in given}
    return form.of_names({**zeros, **given})
