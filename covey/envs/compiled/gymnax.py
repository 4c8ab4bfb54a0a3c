"""gymnax: small tasks in JAX, those with continuous actions (`gymnax:NAME`)."""

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from covey.envs.base import Outcome
from covey.envs.compiled.adapter import cast_like, import_library, quiet, relaxed_promotion, scalar
from covey.envs.options import as_arguments, check_names
from covey.errors import CoveyError, unknown
from covey.types import Array, EnvSpec, Key

NAMES = ("MountainCarContinuous-v0", "Pendulum-v1", "PointRobot-misc", "Reacher-misc", "Swimmer-misc")
NEVER = 2**30
"""A time limit that no episode reaches: the trainer applies the real one, as a truncation, not as termination."""


def names() -> tuple[str, ...]:
    """Returns the names that `make` accepts."""
    return NAMES


def make(name: str, kwargs: Mapping[str, Any] | None = None) -> "Gymnax":
    """Makes the environment `gymnax:NAME`, with values of its `EnvParams`."""
    if name not in NAMES:
        raise unknown("gymnax environment with continuous actions", name, NAMES)
    env = Gymnax(name, tuple(as_arguments(kwargs or {}).items()))
    check_names(kwargs or (), tuple(vars(_load(Gymnax(name))[1])), f"gymnax:{name}")
    _load(env)
    return env


@dataclass(frozen=True)
class Gymnax:
    """A task of gymnax, by default with its default parameters. It has no descriptor and no pictures.

    gymnax's `reset` and `step` reset by themselves, and before version 1 terminate at the time limit. Its inner
    functions `reset_env` and `step_env`, which are used here, do neither.
    """

    name: str
    kwargs: tuple[tuple[str, Any], ...] = ()

    @property
    def spec(self) -> EnvSpec:
        return _spec(self)

    def reset(self, key: Key) -> tuple[Any, Array]:
        env, params = _load(self)
        with relaxed_promotion():
            obs, state = env.reset_env(key, params)
        return jax.tree.map(jnp.asarray, state), obs.astype(jnp.float32)

    def step(self, state: Any, action: Array, key: Key) -> tuple[Any, Outcome]:
        env, params = _load(self)
        with relaxed_promotion():
            obs, after, reward, terminated, _ = env.step_env(key, state, self.spec.to_box(action), params)
        return cast_like(after, state), Outcome(obs.astype(jnp.float32), scalar(reward), scalar(terminated) > 0.5)

    def descriptor(self, state: Any) -> Array:
        return jnp.zeros(0)

    def frame(self, state: Any) -> np.ndarray:
        raise CoveyError(f"gymnax:{self.name} has no pictures.")


@functools.cache
def _load(env: Gymnax) -> tuple[Any, Any]:
    """Loads gymnax's environment, and its parameters without a time limit."""
    library = import_library("gymnax", "gymnax")
    with quiet(), relaxed_promotion(), jax.ensure_compile_time_eval():
        inner, params = library.make(env.name)
        return inner, params.replace(**dict(env.kwargs) | {"max_steps_in_episode": NEVER})


@functools.cache
def _spec(env: Gymnax) -> EnvSpec:
    inner, params = _load(env)
    with jax.ensure_compile_time_eval():
        box = inner.action_space(params)
        limits = (np.broadcast_to(np.asarray(x, np.float64), box.shape) for x in (box.low, box.high))
        low, high = (tuple(map(float, x)) for x in limits)
    _, obs = jax.eval_shape(lambda: env.reset(jax.random.key(0)))
    return EnvSpec(
        observation=obs.shape[0],
        action_size=box.shape[0],
        episode_length=int(dict(env.kwargs).get("max_steps_in_episode", inner.default_params.max_steps_in_episode)),
        action_low=low,
        action_high=high,
    )
