"""The rules of the contract that compiled environments and host environments share."""

from typing import Any, NamedTuple

import jax
import numpy as np

from covey.envs.base import Outcome
from covey.types import Array, EnvSpec

EPISODES = 8
"""Random episodes that a check runs."""
STEPS = 200
"""The most steps of each."""


class Finding(NamedTuple):
    """The result of one rule.

    Args:
        rule: A short name of the rule.
        wrong: The violation and its remedy; empty if the rule holds.
        remark: A remark on an environment that follows the rule.
        warning: A reason why training may go badly although the environment follows the rule.
    """

    rule: str
    wrong: str = ""
    remark: str = ""
    warning: str = ""


class Probe(NamedTuple):
    """Episodes of N environments under given actions.

    Args:
        start: The start states and their observations, [N, ...].
        outcome: The outcomes of all steps, [T, N, ...].
        descriptor: The descriptors after all steps, [T, N, size].
    """

    start: tuple[Any, Array]
    outcome: Outcome
    descriptor: Array


def random_actions(spec: EnvSpec) -> np.ndarray:
    """Draws actions [T, N, A]: every other environment gets corners of the box, each held for 10 steps."""
    random = np.random.default_rng(0)
    steps = min(STEPS, spec.episode_length)
    actions = random.uniform(-1.0, 1.0, (steps, EPISODES, spec.action_size))
    held = np.repeat(np.sign(actions[::10]), 10, axis=0)[:steps]
    return np.where(np.arange(EPISODES)[None, :, None] % 2, held, actions).astype(np.float32)


def check_limits(spec: EnvSpec) -> Finding:
    """Checks the sizes and limits of a spec."""
    return Finding("sizes and limits", _limits(spec))


def _limits(spec: EnvSpec) -> str:
    boxes = [("action", spec.action_low, spec.action_high, spec.action_size)]
    if spec.descriptor is not None:
        boxes.append(("descriptor", spec.descriptor.low, spec.descriptor.high, spec.descriptor.size))
    for name, low, high, size in boxes:
        if not len(low) == len(high) == size:
            return f"the {name} has {size} numbers, {len(low)} lower limits and {len(high)} upper limits."
        if not all(np.isfinite([*low, *high])) or any(a >= b for a, b in zip(low, high, strict=True)):
            return f"the limits of the {name} must be finite, and low below high: they are {low} to {high}."
    for name in ("action_size", "episode_length", "steps_per_start", "frames_per_second"):
        if getattr(spec, name) <= 0:
            return f"spec.{name} must be positive, not {getattr(spec, name)}."
    return ""


def check_finite(probe: Probe) -> Finding:
    """Checks that all values are finite."""
    values: list[tuple[str, Any]] = [("observation of a start", x) for x in jax.tree.leaves(probe.start[1])]
    values += [("observation", x) for x in jax.tree.leaves(probe.outcome.obs)]
    values += [("reward", probe.outcome.reward), ("descriptor", probe.descriptor)]
    for name, x in values:
        bad = np.argwhere(~np.isfinite(x))
        if len(bad):
            step = "" if name.endswith("start") else f" at step {bad[:, 0].min() + 1} of random actions"
            return Finding("finite values", f"the {name} is not finite (NaN or infinite){step}.")
    return Finding("finite values")


def check_repeatable(first: Probe, again: Probe) -> Finding:
    """Checks that the same seed and actions give the same outcomes."""
    pairs = zip(jax.tree.leaves(first.outcome), jax.tree.leaves(again.outcome), strict=True)
    same = all(np.array_equal(a, b, equal_nan=True) for a, b in pairs)
    differs = "two runs with the same seed and actions differ: draw every random number from the key or the seed."
    return Finding("same seed, same episode", "" if same else differs)


def check_starts(probe: Probe) -> Finding:
    """Remarks on environments that always start with the same observation."""
    same = all((x == x[:1]).all() for x in jax.tree.leaves(probe.start[1]))
    return Finding("start states", remark="every episode starts with the same observation" if same else "")


def check_picture(picture: Any) -> Finding:
    """Checks that a frame is a picture [height, width, 3] of uint8."""
    fits = isinstance(picture, np.ndarray) and picture.dtype == np.uint8 and picture.ndim == 3
    if not fits or picture.shape[2] != 3:
        shape = f"{picture.dtype}{list(picture.shape)}" if isinstance(picture, np.ndarray) else type(picture).__name__
        return Finding("frame", f"the picture is {shape} and must be uint8[height, width, 3].")
    return Finding("frame", remark=f"{picture.shape[1]} x {picture.shape[0]} pixels")
