"""Search spaces: drawing values, perturbing them, and writing them as text."""

import math
from collections.abc import Iterable
from typing import cast, get_args

import numpy as np

from covey.errors import CoveyError, require, unknown
from covey.hyper.range import Range, Scale, Space

PERTURB_FACTOR = 1.25
"""A perturbation multiplies a value by this factor or its inverse; on the scale `one_minus` it multiplies 1 - value."""
PERTURB_SHARE = 0.1
"""On a linear scale a perturbation adds or subtracts this share of the range: a product would never leave 0."""


def searched(space: Space) -> Space:
    """Returns the ranges that are searched."""
    return {name: range_ for name, range_ in space.items() if range_.searched}


def parse_range(option: str, text: str, allowed: Range) -> Range | None:
    """Parses `LOW:HIGH[:SCALE]`; returns None for `off`. Errors name the `option`."""
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
        raise CoveyError(f"{option} must be LOW:HIGH, LOW:HIGH:SCALE or off, as in 1e-5:1e-2, not {text!r}.") from None
    require(
        allowed.least <= found.low < found.high <= allowed.most and math.isfinite(found.high - found.low),
        f"{option} {text}: LOW must be less than HIGH, and both must lie between {allowed.least:g} and "
        f"{allowed.most:g}.",
    )
    require(
        (scale != "log" or found.low > 0) and (scale != "one_minus" or found.high < 1),
        f"{option} {text}: the scale {scale} needs values {'above 0' if scale == 'log' else 'below 1'}.",
    )
    return found


def range_text(space: Range) -> str:
    """Returns the text that `parse_range` reads."""
    return f"{space.low!r}:{space.high!r}:{space.scale}" if space.searched else "off"


def draw(space: Range, random: np.random.Generator) -> float:
    """Draws a value, uniformly on the range's scale."""
    low = _to_scale(space, space.low)
    high = _to_scale(space, space.high)
    return clip(space, _from_scale(space, low + random.random() * (high - low)))


def perturb(space: Range, value: float, random: np.random.Generator) -> float:
    """Moves a value up or down by one step of its scale, within its range."""
    step = PERTURB_SHARE * (space.high - space.low) if space.scale == "linear" else math.log(PERTURB_FACTOR)
    sign = 1.0 if random.random() < 0.5 else -1.0
    return clip(space, _from_scale(space, _to_scale(space, clip(space, value)) + sign * step))


def explore(space: Space, values: dict[str, float], resample: float, random: np.random.Generator) -> dict[str, float]:
    """Perturbs each value of a donor, or draws it anew with probability `resample`."""
    return {
        name: draw(range_, random) if random.random() < resample else perturb(range_, values[name], random)
        for name, range_ in space.items()
    }


def clip(space: Range, value: float) -> float:
    """Clips a value to its range."""
    return min(max(value, space.low), space.high)


def _to_scale(space: Range, value: float) -> float:
    if space.scale == "linear":
        return value
    return math.log(value if space.scale == "log" else 1.0 - value)


def _from_scale(space: Range, scaled: float) -> float:
    if space.scale == "linear":
        return scaled
    return math.exp(scaled) if space.scale == "log" else 1.0 - math.exp(scaled)


def member_random(seed: int, *numbers: int) -> np.random.Generator:
    """Returns the random generator of one member in one generation. It is the same on every process."""
    return np.random.default_rng([seed % 2**32, *numbers])


def draw_hypers(space: Space, seed: int, members: int | Iterable[int]) -> dict[str, np.ndarray]:
    """Draws the initial hyper-parameters of a population.

    Args:
        space: The ranges to draw from; those with `searched=False` are left out.
        seed: The seed of the population.
        members: The number of members, or their indices (a process draws only for its own members).

    Returns:
        For each searched name, one value per member, float32.

    Example:
        >>> values = covey.draw_hypers(covey.SAC_SPACE, seed=0, members=8)
        >>> values["actor_lr"].shape
        (8,)
    """
    chosen = searched(space)
    indices = range(members) if isinstance(members, int) else members
    drawn = []
    for member in indices:
        random = member_random(seed, 0, member)
        drawn.append({name: draw(each, random) for name, each in chosen.items()})
    return {name: np.array([values[name] for values in drawn], np.float32) for name in chosen}
