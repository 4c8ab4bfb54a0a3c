"""The search range of a hyper-parameter."""

from typing import Literal, NamedTuple

Scale = Literal["linear", "log", "one_minus"]


class Range(NamedTuple):
    """The search range of a hyper-parameter, and the values that are valid at all.

    Args:
        low: Smallest value that is searched.
        high: Largest value that is searched.
        scale: `log` or `linear`; `one_minus` is logarithmic in 1 - value, which suits a discount.
        least: Smallest valid value.
        most: Largest valid value.
        searched: With False the value is tuned only if the user asks for it. Example: a new reward scale would
            invalidate the critics.

    Example:
        >>> Range(1e-5, 1e-2)
        Range(low=1e-05, high=0.01, scale='log', least=0.0, most=1000000.0, searched=True)
    """

    low: float
    high: float
    scale: Scale = "log"
    least: float = 0.0
    most: float = 1e6
    searched: bool = True


Space = dict[str, Range]
"""A search space: ranges by the name of the hyper-parameter, for example `{"tau": Range(0.001, 0.1)}`.

Names in a nested Hyper are paths, such as `sac.actor_lr`.
"""
