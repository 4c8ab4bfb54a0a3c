"""Finds the parts of an observation that a policy uses, by tracing it."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from covey.observation import OBS, Obs, Observation
from covey.training.jaxprs import used_inputs
from covey.types import Array


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


def with_zeros(form: Observation, given: Mapping[str, Array]) -> Obs:
    """Returns one observation from some of its parts, with zeros in place of the others."""
    zeros = {name: jnp.zeros(part.shown, part.dtype) for name, part in form.named if name not in given}
    return form.of_names({**zeros, **given})
