"""Whether an environment keeps its promises: the contract of covey/envs/base.py, checked by running it."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from covey.backend import silence_xla
from covey.envs.base import Env, HostEnv, Outcome, check_env
from covey.errors import CoveyError
from covey.types import Array, EnvSpec, Key

EPISODES, STEPS = 8, 200
"""Random episodes that are run, and steps of each at most."""


class Finding(NamedTuple):
    """One promise: what it is, what is wrong with it in words (empty where it is kept), or a remark."""

    promise: str
    wrong: str = ""
    remark: str = ""


class Probe(NamedTuple):
    """What N environments do under given actions: their starts with the observations [N], and all outcomes [T, N]."""

    start: tuple[Any, Array]
    outcome: Outcome
    descriptor: Array


@partial(jax.jit, static_argnames=("env",))
def probe(env: Env, actions: Array, key: Key) -> Probe:
    """Follows actions [T, N, A] from N start states, past whatever ends there are."""
    key_reset, key_step = jax.random.split(key)
    count = actions.shape[1]
    start = jax.vmap(env.reset)(jax.random.split(key_reset, count))

    def step(world: Any, x: tuple[Array, Key]) -> tuple[Any, tuple[Outcome, Array]]:
        action, key = x
        world, outcome = jax.vmap(env.step)(world, action, jax.random.split(key, count))
        return world, (outcome, jax.vmap(env.descriptor)(world))

    _, (outcome, descriptor) = jax.lax.scan(step, start[0], (actions, jax.random.split(key_step, len(actions))))
    return Probe(start, outcome, descriptor)


def check(env: Env) -> Iterator[Finding]:
    """Every promise in turn. Those that need the environment to run come after those that say whether it can."""
    spec = env.spec
    for promise, find in (("sizes and limits", limits), ("shapes and types", lambda _: _shapes(env))):
        wrong = find(spec)
        yield Finding(promise, wrong)
        if wrong:
            return
    actions = actions_of(spec)
    with silence_xla():
        first, again, edge, beyond = (
            jax.device_get(probe(env, each, jax.random.key(0)))
            for each in (actions, actions, np.sign(actions), 3.0 * np.sign(actions))
        )
    yield Finding("finite values", finite(first))
    yield Finding("the same seed, the same episode", same(first, again))
    yield starts(first)
    yield Finding("actions beyond [-1, 1] act as its edge", _clipped(edge, beyond))
    yield _ends(first, spec)
    yield _descriptor(first, spec)
    yield _frame(env, first)


def limits(spec: EnvSpec) -> str:
    boxes = [("action", spec.action_low, spec.action_high, spec.action_size)]
    if spec.descriptor is not None:
        boxes.append(("descriptor", spec.descriptor.low, spec.descriptor.high, spec.descriptor.size))
    for name, low, high, size in boxes:
        if not len(low) == len(high) == size:
            return f"the {name} has {size} numbers, {len(low)} lower and {len(high)} upper limits."
        if not all(np.isfinite([*low, *high])) or any(a >= b for a, b in zip(low, high, strict=True)):
            return f"the limits of the {name} must be finite and rise: they are {low} to {high}."
    for name in ("obs_size", "action_size", "episode_length", "steps_per_start", "frames_per_second"):
        if getattr(spec, name) <= 0:
            return f"spec.{name} must be positive, not {getattr(spec, name)}."
    return ""


def _shapes(env: Env) -> str:
    try:
        check_env(env)
        found = jax.eval_shape(lambda: env.descriptor(env.reset(jax.random.key(0))[0]))
    except CoveyError as error:
        return str(error)
    except Exception as error:  # whatever the environment's own code raises
        return f"it can't be traced by JAX: {type(error).__name__}: {str(error).splitlines()[0]}"
    size = env.spec.descriptor.size if env.spec.descriptor else 0
    if found.shape != (size,) or found.dtype != jnp.float32:
        return f"the descriptor is {found.dtype}{list(found.shape)} and must be float32[{size}]."
    return ""


def actions_of(spec: EnvSpec) -> np.ndarray:
    """Random actions [T, N, A], of which some are the corners of the box and are held for a while."""
    random = np.random.default_rng(0)
    steps = min(STEPS, spec.episode_length)
    actions = random.uniform(-1.0, 1.0, (steps, EPISODES, spec.action_size))
    held = np.repeat(np.sign(actions[::10]), 10, axis=0)[:steps]
    return np.where(np.arange(EPISODES)[None, :, None] % 2, held, actions).astype(np.float32)


def finite(found: Probe) -> str:
    values = {"observation of a start": found.start[1], "observation": found.outcome.obs}
    values |= {"reward": found.outcome.reward, "descriptor": found.descriptor}
    for name, x in values.items():
        bad = np.argwhere(~np.isfinite(x))
        if len(bad):
            step = "" if name.endswith("start") else f" at step {bad[:, 0].min() + 1} of random actions"
            return f"the {name} is not finite (NaN or infinite){step}."
    return ""


def same(first: Probe, again: Probe) -> str:
    pairs = zip(jax.tree.leaves(first.outcome), jax.tree.leaves(again.outcome), strict=True)
    same = all(np.array_equal(a, b, equal_nan=True) for a, b in pairs)
    return "" if same else "two runs from the same key and actions differ: something random does not come from the key."


def starts(found: Probe) -> Finding:
    alike = len(np.unique(found.start[1], axis=0)) == 1
    remark = "every episode starts with the same observation" if alike else ""
    return Finding("starts are drawn from the key", remark=remark)


def _clipped(edge: Probe, beyond: Probe) -> str:
    pairs = zip(jax.tree.leaves(edge.outcome), jax.tree.leaves(beyond.outcome), strict=True)
    same = all(np.array_equal(a[0], b[0], equal_nan=True) for a, b in pairs)
    return "" if same else "an action of 3 leads elsewhere than an action of 1: clip actions to [-1, 1]."


def _ends(found: Probe, spec: EnvSpec) -> Finding:
    ended = found.outcome.terminated
    steps = ended.shape[0]
    if steps == spec.episode_length and ended[-1].all() and not ended[:-1].any():
        wrong = f"every episode terminates at step {steps}, the time limit: leave that to spec.episode_length."
        return Finding("ends", wrong)
    share = ended.any(axis=0).mean()
    return Finding("ends", remark=f"{share:.0%} of {ended.shape[1]} random episodes end within {steps} steps")


def _descriptor(found: Probe, spec: EnvSpec) -> Finding:
    own = spec.descriptor
    if own is None:
        return Finding("descriptor", remark="none: skills need --agent.skills.descriptor")
    # After an end, an environment may go where it likes.
    alive = np.cumsum(found.outcome.terminated, axis=0) == 0
    values = found.descriptor[alive]
    for i, name in enumerate(own.names):
        low, high = (values[:, i].min(), values[:, i].max()) if len(values) else (own.low[i], own.high[i])
        slack = 1e-4 * (own.high[i] - own.low[i])
        if low < own.low[i] - slack or high > own.high[i] + slack:
            return Finding(
                "descriptor",
                f"{name} went from {low:.3g} to {high:.3g}, and its limits are {own.low[i]:g} to {own.high[i]:g}.",
            )
    return Finding("descriptor", remark=f"{', '.join(own.names)}, {own.reduce} of an episode")


def _frame(env: Env, found: Probe) -> Finding:
    try:
        picture = env.frame(jax.tree.map(lambda x: x[0], found.start[0]))
    except CoveyError as error:
        return Finding("a picture", remark=f"none: {error}")
    except Exception as error:  # whatever the environment's own code raises
        return Finding("a picture", f"frame(state) failed: {type(error).__name__}: {error}")
    return picture_of(picture)


def picture_of(picture: Any) -> Finding:
    """Whether something is a picture."""
    fits = isinstance(picture, np.ndarray) and picture.dtype == np.uint8 and picture.ndim == 3
    if not fits or picture.shape[2] != 3:
        shape = f"{picture.dtype}{list(picture.shape)}" if isinstance(picture, np.ndarray) else type(picture).__name__
        return Finding("a picture", f"the picture is {shape} and must be uint8[height, width, 3].")
    return Finding("a picture", remark=f"{picture.shape[1]} by {picture.shape[0]}")


def report(name: str, env: Env | HostEnv, say: Callable[[str], None]) -> bool:
    """Says each promise and whether it is kept; returns whether all are."""
    from covey.envs.check_host import check_host

    spec, good = env.spec, True
    say(
        f"{name}: {spec.obs_size} observations, {spec.action_size} actions, {spec.episode_length} steps, "
        f"{EPISODES} random episodes of up to {min(STEPS, spec.episode_length)}"
    )
    for promise, wrong, remark in check_host(env) if isinstance(env, HostEnv) else check(env):
        good = good and not wrong
        say(f"  {'WRONG' if wrong else 'ok':<6}{promise}{': ' if wrong or remark else ''}{wrong or remark}")
    return good
