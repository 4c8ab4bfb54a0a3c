"""MuJoCo Playground: the DeepMind Control Suite and robots, simulated by MJX in JAX (`playground:NAME`)."""

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from covey.envs.base import Outcome
from covey.envs.compiled.adapter import (
    EXPENSIVE_START,
    cast_like,
    draw,
    import_library,
    loading_models,
    relaxed_promotion,
    scalar,
)
from covey.envs.options import as_arguments, check_names
from covey.errors import require, unknown
from covey.types import Array, EnvSpec, Key

IMPLEMENTATION = "jax"
"""The implementation of MJX. Playground's default, warp, needs an Nvidia graphics card."""


def names() -> tuple[str, ...]:
    """Returns the names that `make` accepts. All but the control suite need models that must be downloaded first."""
    return tuple(sorted(_registry().ALL_ENVS))


def make(name: str, kwargs: Mapping[str, Any] | None = None) -> "Playground":
    """Makes the environment `playground:NAME` with values of its settings, such as `ctrl_dt`."""
    if name not in names():
        raise unknown("Playground environment", name, names())
    models = import_library("mujoco_playground._src.mjx_env", "playground").MENAGERIE_PATH
    require(
        name in _registry().dm_control_suite.ALL_ENVS or models.exists(),
        f"playground:{name} needs the models of MuJoCo Menagerie, and {models} does not exist. Download them once, "
        "which may take long: python -c 'from mujoco_playground._src.mjx_env import ensure_menagerie_exists "
        "as f; f()'. The control suite needs none: try playground:CheetahRun.",
    )
    env = Playground(name, tuple(as_arguments(kwargs or {}).items()))
    _load(env)
    return env


@dataclass(frozen=True)
class Playground:
    """A task of MuJoCo Playground. It has no descriptor.

    Its settings are the defaults, except for `kwargs`, and that MJX runs in JAX.
    If a task has several observations, the policy gets the one called `state`.
    Reference: Zakka et al. (2025), arXiv 2502.08844.
    """

    name: str
    kwargs: tuple[tuple[str, Any], ...] = ()

    @property
    def spec(self) -> EnvSpec:
        return _spec(self)

    def reset(self, key: Key) -> tuple[Any, Array]:
        with relaxed_promotion():
            state = jax.tree.map(jnp.asarray, _load(self).reset(key))
        return state, _observed(state)

    def step(self, state: Any, action: Array, key: Key) -> tuple[Any, Outcome]:
        env = _load(self)
        before = state.replace(
            metrics=dict(state.metrics), info=dict(state.info)
        )  # `step` may modify these dictionaries
        with relaxed_promotion():
            after = cast_like(env.step(before, jnp.clip(action, -1.0, 1.0)), state)
        return after, Outcome(_observed(after), scalar(after.reward), scalar(after.done) > 0.5)

    def descriptor(self, state: Any) -> Array:
        return jnp.zeros(0)

    def frame(self, state: Any) -> np.ndarray:
        model = _load(self).mj_model
        return draw(model, state.data.qpos, camera=0 if model.ncam else -1)


def _observed(state: Any) -> Array:
    obs = state.obs["state"] if isinstance(state.obs, dict) else state.obs
    return obs.astype(jnp.float32)


def _registry() -> Any:
    return import_library("mujoco_playground._src.registry", "playground")


@functools.cache
def _load(env: Playground) -> Any:
    with loading_models(), jax.ensure_compile_time_eval():
        return _registry().load(env.name, config=_settings(env))


def _settings(env: Playground) -> Any:
    """Returns the task's settings; those inside of others have dotted names, such as `noise_config.level`."""
    settings = _registry().get_default_config(env.name)
    settings.impl = IMPLEMENTATION
    check_names(dict(env.kwargs), tuple(sorted(flat_names(settings))), f"playground:{env.name}")
    settings.update_from_flattened_dict(dict(env.kwargs))
    return settings


def flat_names(settings: Any, path: str = "") -> list[str]:
    """Returns the dotted names of all values in nested settings."""
    found = []
    for name, value in settings.items():
        nested = hasattr(value, "items")
        found += flat_names(value, f"{path}{name}.") if nested else [f"{path}{name}"]
    return found


@functools.cache
def _spec(env: Playground) -> EnvSpec:
    inner = _load(env)
    _, obs = jax.eval_shape(lambda: env.reset(jax.random.key(0)))
    settings = _settings(env)
    require(
        settings.get("action_repeat", 1) == 1,
        f"playground:{env.name} repeats each action {settings.get('action_repeat')} times: covey does not support it.",
    )
    size = inner.action_size
    return EnvSpec(
        observation=obs.shape[0],
        action_size=size,
        episode_length=settings.episode_length,
        action_low=(-1.0,) * size,
        action_high=(1.0,) * size,
        frames_per_second=1.0 / inner.dt,
        steps_per_start=EXPENSIVE_START,
    )
