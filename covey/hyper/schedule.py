"""Hyper-parameters that follow a schedule over environment steps."""

import math
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, Literal, cast, get_args

import jax
import jax.numpy as jnp
import numpy as np

from covey.errors import CoveyError, require, unknown
from covey.hyper.names import by_name, field_of, with_values
from covey.types import Array

Kind = Literal["constant", "linear", "exponential", "cosine"]


@dataclass(frozen=True)
class Schedule:
    """A value that moves from `start` to `end` over the first `steps` environment steps, then stays constant.

    On the command line it is written `KIND:START:END[:STEPS]`; without STEPS it lasts the whole run.

    Args:
        kind: `constant`, `linear`, `exponential` or `cosine`.
        start: The value at the first step.
        end: The value after `steps` steps.
        steps: Its length in environment steps.

    Example:
        >>> trainer = covey.make_trainer(agent, env, TD3Hyper(exploration_noise=Schedule("linear", 0.3, 0.05, 20_000)))
    """

    kind: Kind
    start: float
    end: float
    steps: int = 0

    def __call__(self, step: Array) -> Array:
        """Returns the value at an environment step."""
        share = jnp.clip(step.astype(jnp.float32) / self.steps, 0.0, 1.0)
        if self.kind == "exponential":
            return self.start * jnp.exp(share * math.log(self.end / self.start))
        if self.kind == "cosine":
            share = 0.5 - 0.5 * jnp.cos(jnp.pi * share)
        return self.start + share * (self.end - self.start)

    def __str__(self) -> str:
        return repr(self.start) if self.kind == "constant" else f"{self.kind}:{self.start}:{self.end}:{self.steps}"


def parse_schedule(name: str, text: str | float, total: int) -> Schedule:
    """Parses a number or `KIND:START:END[:STEPS]`; without STEPS the schedule lasts `total` steps."""
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


def as_schedules(hyper: Any) -> Any:
    """Returns the Hyper with every number replaced by a constant Schedule; Schedules stay as they are."""

    def schedule(value: Any) -> Schedule:
        return value if isinstance(value, Schedule) else Schedule("constant", float(value), float(value))

    return jax.tree.map(schedule, hyper)


def hyper_at(hyper: Any, schedules: Any, step: Array) -> Any:
    """Returns the hyper-parameters at a step: scheduled ones follow their schedule, the others are the member's own."""
    return jax.tree.map(lambda plan, value: value if plan.kind == "constant" else plan(step), schedules, hyper)


def initial_hyper(schedules: Any) -> Any:
    """Returns the hyper-parameters before the first step, as Python floats."""
    return jax.tree.map(lambda plan: plan.start, schedules)


def reconfigured(hyper: Any, schedules: Any, changed: Collection[str]) -> Any:
    """Returns stored hyper-parameters, with those whose fields were `changed` at their configured values."""
    stored = by_name(hyper)
    new = {name: np.full_like(stored[name], x) for name, x in by_name(initial_hyper(schedules)).items()}
    return with_values(hyper, {name: x for name, x in new.items() if field_of(name) in changed})
