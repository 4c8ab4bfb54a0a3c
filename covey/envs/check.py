"""Checks an environment against the contract of covey/envs/base.py by running random episodes."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from covey.backend import silence_xla
from covey.envs.base import Env, HostEnv, Outcome, check_env
from covey.envs.check_host import check_host
from covey.envs.check_parts import check_parts, observation_text
from covey.envs.rules import (
    EPISODES,
    STEPS,
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
from covey.types import Array, EnvSpec, Key


def report(name: str, env: Env | HostEnv, say: Callable[[str], None]) -> bool:
    """Checks an environment and prints one line per rule.

    Args:
        name: The environment's name, for the first line.
        env: The environment.
        say: Prints one line.

    Returns:
        Whether the environment follows all rules.

    Example:
        >>> report("pendulum", covey.envs.make("pendulum"), print)
        pendulum: 3 observations, 1 actions, 200 steps; 8 random episodes of up to 200 steps
          ok    sizes and limits
          ...
        True
    """
    spec = env.spec
    say(
        f"{name}: {observation_text(spec)}, {spec.action_size} actions, {spec.episode_length} steps; "
        f"{EPISODES} random episodes of up to {min(STEPS, spec.episode_length)} steps"
    )
    good = True
    for rule, wrong, remark, warning in check_host(env) if isinstance(env, HostEnv) else check(env):
        good = good and not wrong
        label = "WRONG" if wrong else "warn" if warning else "ok"
        text = wrong or warning or remark
        say(f"  {label:<6}{rule}{': ' if text else ''}{text}")
    return good


def check(env: Env) -> Iterator[Finding]:
    """Checks a compiled environment, rule by rule. Stops early if it is too broken to run.

    Args:
        env: The environment.

    Yields:
        One `Finding` per rule.
    """
    spec = env.spec
    yield (limits := check_limits(spec))
    if limits.wrong:
        return
    yield (shapes := Finding("shapes and types", _shapes(env)))
    if shapes.wrong:
        return
    actions = random_actions(spec)
    with silence_xla():
        first, again, edge, beyond = (
            jax.device_get(probe(env, each, jax.random.key(0)))
            for each in (actions, actions, np.sign(actions), 3.0 * np.sign(actions))
        )
    yield from check_parts(spec, first, env)
    yield check_finite(first)
    yield check_repeatable(first, again)
    yield check_starts(first)
    yield _clipping(edge, beyond)
    yield _ends(first, spec)
    yield _descriptor(first, spec)
    yield _frame(env, first)


# The one compiled program below training: without jit, a check of a robot would take minutes.
@partial(jax.jit, static_argnames=("env",))
def probe(env: Env, actions: Array, key: Key) -> Probe:
    """Runs N environments with given actions, without resets at the end of an episode.

    Args:
        env: The environment.
        actions: [T, N, A].
        key: The source of the start states and of the steps' randomness.
    """
    key_reset, key_step = jax.random.split(key)
    count = actions.shape[1]
    start = jax.vmap(env.reset)(jax.random.split(key_reset, count))

    def step(world: Any, x: tuple[Array, Key]) -> tuple[Any, tuple[Outcome, Array]]:
        action, key = x
        world, outcome = jax.vmap(env.step)(world, action, jax.random.split(key, count))
        return world, (outcome, jax.vmap(env.descriptor)(world))

    _, (outcome, descriptor) = jax.lax.scan(step, start[0], (actions, jax.random.split(key_step, len(actions))))
    return Probe(start, outcome, descriptor)


def _shapes(env: Env) -> str:
    try:
        check_env(env)
        found = jax.eval_shape(lambda: env.descriptor(env.reset(jax.random.key(0))[0]))
    except CoveyError as error:
        return str(error)
    except Exception as error:  # the environment's own code may raise anything
        return f"JAX can't trace it: {type(error).__name__}: {str(error).splitlines()[0]}"
    size = env.spec.descriptor.size if env.spec.descriptor else 0
    if found.shape != (size,) or found.dtype != jnp.float32:
        return f"the descriptor is {found.dtype}{list(found.shape)} and must be float32[{size}]."
    return ""


def _clipping(edge: Probe, beyond: Probe) -> Finding:
    pairs = zip(jax.tree.leaves(edge.outcome), jax.tree.leaves(beyond.outcome), strict=True)
    same = all(np.array_equal(a[0], b[0], equal_nan=True) for a, b in pairs)
    differs = "an action of 3 has another outcome than an action of 1: clip actions to [-1, 1]."
    return Finding("actions outside [-1, 1] are clipped", "" if same else differs)


def _ends(found: Probe, spec: EnvSpec) -> Finding:
    ended = found.outcome.terminated
    steps = ended.shape[0]
    if steps == spec.episode_length and ended[-1].all() and not ended[:-1].any():
        wrong = f"every episode terminates at step {steps}, the time limit: leave that to spec.episode_length."
        return Finding("episode ends", wrong)
    share = ended.any(axis=0).mean()
    return Finding("episode ends", remark=f"{share:.0%} of {ended.shape[1]} random episodes end within {steps} steps")


def _descriptor(found: Probe, spec: EnvSpec) -> Finding:
    own = spec.descriptor
    if own is None:
        return Finding("descriptor", remark="none: agents that learn skills need `agent.skills.descriptor`")
    # States after the end of an episode are never used, so they may leave the limits.
    alive = np.cumsum(found.outcome.terminated, axis=0) == 0
    values = found.descriptor[alive]
    for i, name in enumerate(own.names):
        low, high = (values[:, i].min(), values[:, i].max()) if len(values) else (own.low[i], own.high[i])
        slack = 1e-4 * (own.high[i] - own.low[i])
        if low < own.low[i] - slack or high > own.high[i] + slack:
            return Finding(
                "descriptor",
                f"{name} went from {low:.3g} to {high:.3g}, outside of its limits {own.low[i]:g} to {own.high[i]:g}.",
            )
    reduce = getattr(own.reduce, "__name__", own.reduce)
    return Finding("descriptor", remark=f"{', '.join(own.names)}, {reduce} of an episode")


def _frame(env: Env, found: Probe) -> Finding:
    try:
        picture = env.frame(jax.tree.map(lambda x: x[0], found.start[0]))
    except CoveyError as error:
        return Finding("frame", remark=f"none: {error}")
    except Exception as error:  # the environment's own code may raise anything
        return Finding("frame", f"frame(state) failed: {type(error).__name__}: {error}")
    return check_picture(picture)
