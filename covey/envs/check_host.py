"""The promises of an environment on the host, checked by running it."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from covey.envs.base import HostBatch, HostEnv, HostStep, Outcome
from covey.envs.check import EPISODES, Finding, Probe, actions_of, finite, limits, picture_of, same, starts
from covey.errors import CoveyError

AHEAD = 20
"""Steps after which the state is saved, and that are then taken twice."""


def check_host(env: HostEnv) -> Iterator[Finding]:
    """Every promise in turn, as `check` has them for compiled environments."""
    spec = env.spec
    wrong = limits(spec)
    yield Finding("sizes and limits", wrong)
    if wrong:
        return
    actions, batch = actions_of(spec), env.open(EPISODES)
    try:
        (start, first), (start_again, again) = (_run(batch, actions) for _ in range(2))
        wrong = _shapes(start, first, spec.obs_size)
        yield Finding("shapes and types", wrong)
        if wrong:
            return
        one, two = _probe(start, first), _probe(start_again, again)
        yield Finding("finite values", finite(one))
        yield Finding("the same seed, the same episode", same(one, two))
        yield starts(one)
        yield _ends(first)
        yield _saved(env, batch, actions)
    finally:
        batch.close()
    yield _frame(env)


def _run(batch: HostBatch, actions: np.ndarray) -> tuple[np.ndarray, HostStep]:
    """The observations of the starts [N, D], and what all steps answered [T, N, ...]."""
    start = np.array(batch.reset(np.arange(EPISODES, dtype=np.uint32)))
    steps = [[np.array(x) for x in batch.step(action)] for action in actions]
    return start, HostStep(*(np.stack(column) for column in zip(*steps, strict=True)))


def _probe(start: np.ndarray, found: HostStep) -> Probe:
    """In the words of compiled environments."""
    nothing: Any = np.zeros((*found.reward.shape, 0), np.float32)
    outcome: Any = Outcome(found.obs, found.reward, found.terminated)  # type: ignore[arg-type]
    return Probe((None, start), outcome, nothing)  # type: ignore[arg-type]


def _shapes(start: np.ndarray, found: HostStep, size: int) -> str:
    count = found.reward.shape[:2]
    expected = [
        ("observation of reset", start, (EPISODES, size), np.float32),
        ("observation", found.obs, (*count, size), np.float32),
        ("reward", found.reward, count, np.float32),
        ("terminated", found.terminated, count, np.bool_),
        ("truncated", found.truncated, count, np.bool_),
    ]
    for name, x, shape, dtype in expected:
        if x.shape != shape or x.dtype != dtype:
            return f"the {name} is {x.dtype}{list(x.shape)} and must be {np.dtype(dtype)}{list(shape)}."
    return ""


def _ends(found: HostStep) -> Finding:
    """After an end, the next step begins another episode and pays nothing."""
    over = found.terminated | found.truncated
    after = over[:-1]
    if (over[1:] & after).any() or found.reward[1:][after].any():
        return Finding("ends", "the step after an end must begin another episode, with a reward of 0, and not end it.")
    share = over.any(axis=0).mean()
    return Finding("ends", remark=f"{share:.0%} of {over.shape[1]} random episodes end within {len(over)} steps")


def _saved(env: HostEnv, batch: HostBatch, actions: np.ndarray) -> Finding:
    promise = "goes on from a saved state"
    if env.unsaved:
        return Finding(promise, remark=f"no: when a run is resumed, episodes begin anew ({env.unsaved})")
    _run(batch, actions[:AHEAD])
    state = batch.save()
    one = [np.array(batch.step(action).obs) for action in actions[:AHEAD]]
    batch.load(state)
    two = [np.array(batch.step(action).obs) for action in actions[:AHEAD]]
    exact = all(np.array_equal(a, b, equal_nan=True) for a, b in zip(one, two, strict=True))
    return Finding(promise, "" if exact else "the steps after it differ: something of its state was not saved.")


def _frame(env: HostEnv) -> Finding:
    try:
        batch = env.open(1, draws=True)
        try:
            batch.reset(np.zeros(1, np.uint32))
            return picture_of(batch.frame(0))
        finally:
            batch.close()
    except CoveyError as error:
        return Finding("a picture", remark=f"none: {error}")
