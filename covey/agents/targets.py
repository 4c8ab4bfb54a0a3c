"""The targets of TAAC, by name: how a multi-step return continues or bootstraps at each step of a window.

To add one of your own, register it:

    @covey.register_target("td-lambda")
    def td_lambda(inputs, key):
        keep = jnp.full_like(inputs.value, 0.9)
        return keep, (1.0 - keep) * inputs.value
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp

from covey.errors import CoveyError, require, unknown
from covey.types import Array, Key


class TargetInputs(NamedTuple):
    """The inputs of a target, at every step of the windows, [B, T, rewards] or [B, T, 1].

    Args:
        old: Value of continuing the old trajectory, by the target critics.
        new: Value of the new trajectory, by the target critics.
        beta: Probability beta_1 of the new trajectory.
        repeated: True where the behaviour continued the old trajectory.
    """

    old: Array
    new: Array
    beta: Array
    repeated: Array

    @property
    def value(self) -> Array:
        """The value of the current policy: (1 - beta) old + beta new."""
        return (1.0 - self.beta) * self.old + self.beta * self.new


Target = Callable[[TargetInputs, Key], tuple[Array, Array]]
"""Returns `keep` and `instead` of `compare_through`: acc_t = keep_t y_t + instead_t."""


def _through_repetitions(inputs: TargetInputs, keep: Array, instead: Array) -> tuple[Array, Array]:
    """Continues where the behaviour repeated; elsewhere a target bootstraps from the value."""
    return jnp.where(inputs.repeated, keep, 0.0), jnp.where(inputs.repeated, instead, inputs.value)


def _expected(inputs: TargetInputs, key: Key) -> tuple[Array, Array]:
    return _through_repetitions(inputs, 1.0 - inputs.beta, inputs.beta * inputs.new)


def _sampled(inputs: TargetInputs, key: Key) -> tuple[Array, Array]:
    keep = 1.0 - jax.random.bernoulli(key, inputs.beta).astype(inputs.beta.dtype)
    return _through_repetitions(inputs, keep, (1.0 - keep) * inputs.new)


def _alf(inputs: TargetInputs, key: Key) -> tuple[Array, Array]:
    keep = 1.0 - jax.random.bernoulli(key, inputs.beta).astype(inputs.beta.dtype)
    return _through_repetitions(inputs, keep, (1.0 - keep) * inputs.value)


TARGETS: dict[str, Target] = {"expected": _expected, "sampled": _sampled, "alf": _alf}


def register_target(name: str) -> Callable[[Target], Target]:
    """Decorator: registers a function as a target of TAAC, for `TAACConfig.target` and the command line.

    The targets of a window follow backwards from `y_t = r_t + discount_t acc_{t+1}` and `acc_t = keep_t y_t +
    instead_t`. The function returns `keep` and `instead`; `target(inputs, key)` receives `TargetInputs` and a random
    key. At the end of a window and of an episode, covey bootstraps from `inputs.value` whatever it returns.

    Args:
        name: Its name, as in `--agent.target NAME`.

    Returns:
        The decorator, which returns the function unchanged.

    Example:
        >>> @covey.register_target("td-lambda")
        ... def td_lambda(inputs, key):
        ...     keep = jnp.full_like(inputs.value, 0.9)
        ...     return keep, (1.0 - keep) * inputs.value
    """
    require(name not in TARGETS, f"There is already a target called {name!r}.")

    def add(target: Target) -> Target:
        TARGETS[name] = target
        return target

    return add


def target_named(name: str) -> Target:
    """Returns the target of a name; a CoveyError if there is none."""
    if name not in TARGETS:
        raise CoveyError(
            f"{unknown('target', name, TARGETS)} Register a target of your own first: import its module, or on the "
            "command line add --plugin MODULE."
        )
    return TARGETS[name]
