"""What adapters to other libraries of environments share."""

import atexit
import contextlib
import functools
import importlib
import io
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from covey.backend import silence_mujoco
from covey.errors import CoveyError
from covey.types import Array

HEIGHT, WIDTH = 240, 320
"""Of a picture that MuJoCo draws."""
EXPENSIVE_START = 20
"""Steps per start state where a reset is not small beside a step."""


def import_library(module: str, extra: str) -> ModuleType:
    """A library, or an error that says how to install it. What it prints while it is imported is not shown."""
    try:
        with quiet():
            return importlib.import_module(module)
    except ImportError as error:
        raise CoveyError(
            f"The {extra!r} environments need a package that is not installed or can't be imported ({error}). "
            f"Install it: pip install 'covey[{extra}]'."
        ) from error


def load_mujoco() -> ModuleType:
    """MuJoCo, which comes with the libraries that are built on it."""
    return importlib.import_module("mujoco")


@contextmanager
def quiet() -> Iterator[None]:
    """Keeps off the terminal what a library says about its own insides."""
    with warnings.catch_warnings(action="ignore"), contextlib.redirect_stdout(io.StringIO()):
        yield


@contextmanager
def relaxed_promotion() -> Iterator[None]:
    """Lets code be traced that counts on types and ranks being promoted, or warns of itself, also where that is
    forbidden."""
    with (
        warnings.catch_warnings(action="ignore"),
        jax.numpy_dtype_promotion("standard"),
        jax.numpy_rank_promotion("allow"),
    ):
        yield


@contextmanager
def loading_models() -> Iterator[None]:
    """The context to load a library's models in: no output, no MuJoCo warnings, relaxed promotion."""
    with silence_mujoco(), quiet(), relaxed_promotion():
        yield


def scalar(value: Any) -> Array:
    """A reward as the contract wants it, whatever number or array of one element a library returns."""
    return jnp.asarray(value, jnp.float32).reshape(())


def cast_like(tree: Any, pattern: Any) -> Any:
    """A tree with the types of another: libraries return Python numbers, or other types from a step than a reset."""
    return jax.tree.map(lambda x, like: jnp.asarray(x).astype(like.dtype).reshape(like.shape), tree, pattern)


def draw(model: Any, qpos: Any, camera: int | str = -1) -> np.ndarray:
    """A picture of a MuJoCo model with its joints at `qpos`; an error where there is nothing to draw with."""
    mujoco = load_mujoco()
    data = mujoco.MjData(model)
    data.qpos[:] = qpos
    mujoco.mj_forward(model, data)
    renderer = _renderer(_Model(model))
    renderer.update_scene(data, camera=camera)
    return renderer.render()


class _Model:
    """A model that is known by its identity."""

    def __init__(self, model: Any) -> None:
        self.model = model

    def __hash__(self) -> int:
        return id(self.model)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Model) and other.model is self.model


@functools.lru_cache(maxsize=2)
def _renderer(known: _Model) -> Any:
    mujoco = load_mujoco()
    try:
        renderer = mujoco.Renderer(known.model, height=HEIGHT, width=WIDTH)
    except Exception as error:  # of several libraries, and sometimes an assertion
        raise CoveyError(
            f"MuJoCo can't draw here ({type(error).__name__}: {error}). Without a screen, set MUJOCO_GL=egl (libegl1) "
            "or MUJOCO_GL=osmesa (libosmesa6) before Python starts."
        ) from error
    # Shadows and reflections take most of the time where a processor draws.
    for flag in (mujoco.mjtRndFlag.mjRND_SHADOW, mujoco.mjtRndFlag.mjRND_REFLECTION):
        renderer.scene.flags[flag] = 0
    atexit.register(renderer.close)  # while what it needs for that is still there
    return renderer
