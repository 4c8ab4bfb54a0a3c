"""Rules that recognise runs that look wrong, each with one sentence for the user. Healthy runs trigger none of them.

A rule is a function from `Facts` to a sentence, or to "" if it has nothing to say. To add one, write the function and
append it to `RULES`.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from covey.evaluation.stats import Interval
from covey.hyper.names import field_of
from covey.hyper.range import Range

FAR = 30.0
"""A value is far outside of a logarithmic range from this factor on."""
SAME = 4
"""This many equal evaluations in a row are no coincidence."""
SATURATED = 0.99
"""An action beyond this share of its range is at its limit."""


class Facts(NamedTuple):
    """Known facts about a run; those that are not known yet are empty.

    Args:
        hyper: The start and the end of each hyper-parameter's schedule, by name.
        space: The search range of each.
        evaluations: Returns [P, E] of all evaluations since learning began, in order.
        untrained: The mean return of the evaluation before training.
        final: The mean return of the best policy at the end.
        actions: Greedy actions [T, A] of one episode of the best policy, in [-1, 1].
    """

    hyper: Mapping[str, tuple[float, float]] = {}
    space: Mapping[str, Range] = {}
    evaluations: Sequence[np.ndarray] = ()
    untrained: Interval | None = None
    final: Interval | None = None
    actions: np.ndarray | None = None


def far_outside(facts: Facts) -> str:
    """Hyper-parameters far outside of their search range. Zero is a choice: it switches something off."""
    found = []
    for name, values in facts.hyper.items():
        space = facts.space[field_of(name)]
        far = [value for value in values if value != 0 and _is_far(value, space)]
        if far:
            found.append(f"{name} {far[0]:g} (usual: {space.low:g} to {space.high:g})")
    return f"far outside of the usual range: {', '.join(found)}. The run may not learn." if found else ""


def _is_far(value: float, space: Range) -> bool:
    if space.scale == "linear":
        width = space.high - space.low
        return not space.low - width <= value <= space.high + width
    value, low, high = (
        (1 - value, 1 - space.high, 1 - space.low) if space.scale == "one_minus" else (value, space.low, space.high)
    )
    return not low / FAR <= value <= high * FAR


def never_changes(facts: Facts) -> str:
    """Evaluations that are equal, episode by episode. Where all episodes have one return, nothing can be said."""
    last = facts.evaluations[-SAME:]
    if len(last) < SAME or np.ptp(last[-1]) == 0:
        return ""
    if not all(np.array_equal(last[0], each) for each in last[1:]):
        return ""
    return (
        f"the last {SAME} evaluations are equal, episode by episode: the greedy policy does not change. Its actions "
        "may be at their limits, or its learning rates too high or too low."
    )


def no_better_than_untrained(facts: Facts) -> str:
    """A best policy whose return is not significantly above that of the untrained one."""
    if facts.final is None or facts.untrained is None:
        return ""
    gain = facts.final.centre - facts.untrained.centre
    error = np.hypot(facts.final.high - facts.final.centre, facts.untrained.high - facts.untrained.centre)
    if np.isnan(error) or gain > error:
        return ""
    text = f"the best policy is not clearly better than the untrained one, whose return was {facts.untrained}."
    is_saturated = facts.actions is not None and bool(np.all(np.abs(facts.actions) > SATURATED))
    return f"{text} All its actions are at their limits." if is_saturated else text


RULES: tuple[Callable[[Facts], str], ...] = (far_outside, never_changes, no_better_than_untrained)


def notes(facts: Facts) -> list[str]:
    """Returns a sentence for each rule that applies.

    Args:
        facts: What is known about the run.

    Example:
        >>> notes(Facts(hyper={"actor_lr": (10.0, 10.0)}, space={"actor_lr": Range(1e-5, 3e-3)}))
        ['far outside of the usual range: actor_lr 10 (usual: 1e-05 to 0.003). The run may not learn.']
    """
    return [text for text in (rule(facts) for rule in RULES) if text]
