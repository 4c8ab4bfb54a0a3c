"""The search space: ranges by the name of a hyper-parameter, drawn from and moved in on their own scales."""

import math
from typing import Any, cast, get_args

import jax
import numpy as np

from covey.agent import Range, Scale
from covey.errors import CoveyError, require, unknown

Space = dict[str, Range]
"""The hyper-parameters that are searched, by name; within a nested Hyper by its path, as in `sac.actor_lr`."""
FACTOR = 1.25
"""A perturbation multiplies by this or its inverse: on the scale `one_minus`, 1 - value."""
PART = 0.1
"""On a linear scale it adds or takes away this part of the range, because a product would never leave 0."""


def named(hyper: Any) -> dict[str, Any]:
    """The leaves of a Hyper by their names."""
    leaves, _ = jax.tree.flatten_with_path(hyper)
    return {jax.tree_util.keystr(path, simple=True, separator="."): leaf for path, leaf in leaves}


def renamed(hyper: Any, values: dict[str, Any]) -> Any:
    """The Hyper with the named leaves replaced."""
    return jax.tree.unflatten(jax.tree.structure(hyper), list((named(hyper) | values).values()))


def parse(flag: str, text: str, allowed: Range) -> Range | None:
    """The range that a text `LOW:HIGH[:SCALE]` describes, or None for `off`."""
    if text == "off":
        return None
    low, _, rest = text.partition(":")
    high, _, scale = rest.partition(":")
    scale = scale or allowed.scale
    if scale not in get_args(Scale):
        raise unknown("scale", scale, get_args(Scale))
    try:
        found = allowed._replace(low=float(low), high=float(high), scale=cast(Scale, scale), searched=True)
    except ValueError:
        raise CoveyError(f"{flag} must be LOW:HIGH, LOW:HIGH:SCALE or off, as in 1e-5:1e-2, not {text!r}.") from None
    require(
        allowed.least <= found.low < found.high <= allowed.most and math.isfinite(found.high - found.low),
        f"{flag} {text}: the range must go up, between {allowed.least:g} and {allowed.most:g}.",
    )
    require(
        (scale != "log" or found.low > 0) and (scale != "one_minus" or found.high < 1),
        f"{flag} {text}: the scale {scale} needs values {'above 0' if scale == 'log' else 'below 1'}.",
    )
    return found


def text(space: Range) -> str:
    """What `parse` reads."""
    return f"{space.low!r}:{space.high!r}:{space.scale}" if space.searched else "off"


def draw(space: Range, random: np.random.Generator) -> float:
    """A value, uniform on the range's scale."""
    low, high = _inner(space, space.low), _inner(space, space.high)
    return clip(space, _outer(space, low + random.random() * (high - low)))


def perturb(space: Range, value: float, random: np.random.Generator) -> float:
    """The value moved up or down by one step of its scale, within its range."""
    step = PART * (space.high - space.low) if space.scale == "linear" else math.log(FACTOR)
    sign = 1.0 if random.random() < 0.5 else -1.0
    return clip(space, _outer(space, _inner(space, clip(space, value)) + sign * step))


def explore(space: Space, values: dict[str, float], resample: float, random: np.random.Generator) -> dict[str, float]:
    """The values of a donor, each perturbed or, with a probability, drawn anew."""
    return {
        name: draw(range_, random) if random.random() < resample else perturb(range_, values[name], random)
        for name, range_ in space.items()
    }


def clip(space: Range, value: float) -> float:
    return min(max(value, space.low), space.high)


def _inner(space: Range, value: float) -> float:
    if space.scale == "linear":
        return value
    return math.log(value if space.scale == "log" else 1.0 - value)


def _outer(space: Range, inner: float) -> float:
    if space.scale == "linear":
        return inner
    return math.exp(inner) if space.scale == "log" else 1.0 - math.exp(inner)
