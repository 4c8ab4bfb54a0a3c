"""Checks a host environment against the contract of covey/envs/base.py by running random episodes."""

from collections.abc import Iterator
from typing import Any

import jax
import numpy as np

from covey.envs.base import HostBatch, HostEnv, HostStep, Outcome
from covey.envs.check_parts import check_form, check_parts
from covey.envs.rules import (
    EPISODES,
    Finding,
    Probe,
    check_finite,
    check_limits,
    check_picture,
    check_repeatable,
    check_starts,
    random_actions,
)
from covey.errors import CoveyError
from covey.observation import Obs
from covey.types import EnvSpec

AHEAD = 20
"""Steps before a state is saved, and steps that are then taken twice from it."""


def check_host(env: HostEnv) -> Iterator[Finding]:
    """Checks a host environment, rule by rule. Stops early if it is too broken to run.

    Args:
        env: The environment.

    Yields:
        One `Finding` per rule.
    """
    spec = env.spec
    yield (limits := check_limits(spec))
    if limits.wrong:
        return
    actions = random_actions(spec)
    batch = env.open(EPISODES)
    try:
        start, first = _run(batch, actions)
        start_again, again = _run(batch, actions)
        yield (shapes := Finding("shapes and types", _shapes(start, first, spec)))
        if shapes.wrong:
            return
        probe = _probe(start, first)
        yield from check_parts(spec, probe, env)
        yield check_finite(probe)
        yield check_repeatable(probe, _probe(start_again, again))
        yield check_starts(probe)
        yield _ends(first)
        yield _saved(env, batch, actions)
    finally:
        batch.close()
    yield _frame(env)


def _run(batch: HostBatch, actions: np.ndarray) -> tuple[Obs, HostStep]:
    """Returns the first observations [N, ...], and the results of all steps [T, N, ...]."""
    start = jax.tree.map(np.array, batch.reset(np.arange(EPISODES, dtype=np.uint32)))
    steps = [jax.tree.map(np.array, batch.step(action)) for action in actions]
    return start, jax.tree.map(lambda *column: np.stack(column), *steps)


def _probe(start: Obs, found: HostStep) -> Probe:
    """Converts results to the type that the shared rules take."""
    nothing: Any = np.zeros((*found.reward.shape, 0), np.float32)
    outcome: Any = Outcome(found.obs, found.reward, found.terminated)  # type: ignore[arg-type]
    return Probe((None, start), outcome, nothing)  # type: ignore[arg-type]


def _shapes(start: Obs, found: HostStep, spec: EnvSpec) -> str:
    count = found.reward.shape[:2]
    wrong = check_form(start, found.obs, spec, count)
    if wrong:
        return wrong
    expected = [
        ("reward", found.reward, (*count, *spec.reward_shape), np.float32),
        ("terminated", found.terminated, count, np.bool_),
        ("truncated", found.truncated, count, np.bool_),
    ]
    for name, x, shape, dtype in expected:
        if x.shape != shape or x.dtype != dtype:
            return f"the {name} is {x.dtype}{list(x.shape)} and must be {np.dtype(dtype)}{list(shape)}."
    return ""


def _ends(found: HostStep) -> Finding:
    """Checks next-step resets: the step after an end starts the next episode and has no reward."""
    over = found.terminated | found.truncated
    after = over[:-1]
    if (over[1:] & after).any() or found.reward[1:][after].any():
        return Finding(
            "episode ends", "the step after an end must start the next episode, with a reward of 0, and not end it."
        )
    share = over.any(axis=0).mean()
    return Finding(
        "episode ends", remark=f"{share:.0%} of {over.shape[1]} random episodes end within {len(over)} steps"
    )


def _saved(env: HostEnv, batch: HostBatch, actions: np.ndarray) -> Finding:
    rule = "continues from a saved state"
    if env.unsaved:
        return Finding(rule, remark=f"no: a resumed run starts new episodes ({env.unsaved})")
    _run(batch, actions[:AHEAD])
    state = batch.save()
    one = [jax.tree.map(np.array, batch.step(action).obs) for action in actions[:AHEAD]]
    batch.load(state)
    two = [jax.tree.map(np.array, batch.step(action).obs) for action in actions[:AHEAD]]
    pairs = zip(jax.tree.leaves(one), jax.tree.leaves(two), strict=True)
    exact = all(np.array_equal(a, b, equal_nan=True) for a, b in pairs)
    return Finding(rule, "" if exact else "the steps after it differ: a part of the state was not saved.")


def _frame(env: HostEnv) -> Finding:
    try:
        batch = env.open(1, draws=True)
        try:
            batch.reset(np.zeros(1, np.uint32))
            return check_picture(batch.frame(0))
        finally:
            batch.close()
    except CoveyError as error:
        return Finding("frame", remark=f"none: {error}")
