"""Hyper-parameters that follow a schedule over environment steps."""

import math
from dataclasses import dataclass
from typing import Any, Literal, cast, get_args

import jax
import jax.numpy as jnp

from covey.errors import CoveyError, require, unknown
from covey.types import Array

Kind = Literal["constant", "linear", "exponential", "cosine"]


@dataclass(frozen=True)
class Schedule:
    """A value that moves from `start` to `end` over the first `steps` environment steps, and stays there.

    Written `0.3`, or `KIND:START:END[:STEPS]`, for example `linear:0.3:0.05`; without STEPS it lasts the whole run.
    """

    kind: Kind
    start: float
    end: float
    steps: int = 0

    def __call__(self, step: Array) -> Array:
        share = jnp.clip(step.astype(jnp.float32) / self.steps, 0.0, 1.0)
        if self.kind == "exponential":
            return self.start * jnp.exp(share * math.log(self.end / self.start))
        if self.kind == "cosine":
            share = 0.5 - 0.5 * jnp.cos(jnp.pi * share)
        return self.start + share * (self.end - self.start)

    def __str__(self) -> str:
        return repr(self.start) if self.kind == "constant" else f"{self.kind}:{self.start}:{self.end}:{self.steps}"


def parse(name: str, text: str | float, total: int) -> Schedule:
    """The schedule that a text describes; `total` is how long it lasts where the text does not say."""
    kind, *rest = str(text).split(":") if ":" in str(text) else ("constant", str(text))
    if kind not in get_args(Kind):
        raise unknown("schedule", kind, get_args(Kind))
    try:
        numbers = [float(x) for x in rest]
    except ValueError:
        raise CoveyError(f"{name} must be a number or KIND:START:END[:STEPS], not {text!r}.") from None
    if kind == "constant":
        numbers = [*numbers, *numbers, 0.0]
    elif len(numbers) == 2:
        numbers = [*numbers, float(total)]
    require(
        len(numbers) == 3 and all(map(math.isfinite, numbers)),
        f"{name} must be a finite number or KIND:START:END[:STEPS], not {text!r}.",
    )
    start, end, steps = numbers
    require(
        1 <= steps < 2**31 or kind == "constant",
        f"{name}: a schedule must last at least one step and less than {2**31}, not {steps:g}.",
    )
    require(
        kind != "exponential" or start * end > 0,
        f"{name}: an exponential schedule needs two values of the same sign and not 0, not {text!r}.",
    )
    return Schedule(cast(Kind, kind), start, end, int(steps))


def constant(hyper: Any) -> Any:
    """Schedules that keep every hyper-parameter at its value."""
    return jax.tree.map(lambda value: Schedule("constant", value, value), hyper)


def at(hyper: Any, schedules: Any, step: Array) -> Any:
    """The hyper-parameters at a step: those with a schedule follow it, the others are the member's own."""
    return jax.tree.map(lambda plan, value: value if plan.kind == "constant" else plan(step), schedules, hyper)


def initial(schedules: Any) -> Any:
    """The hyper-parameters before the first step, as Python floats."""
    return jax.tree.map(lambda plan: plan.start, schedules)
