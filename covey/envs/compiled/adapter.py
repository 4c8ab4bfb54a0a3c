"""Helpers of the adapters to other JAX libraries: imports, silence, types, and MuJoCo's pictures."""

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
from covey.install import install_command
from covey.types import Array

HEIGHT, WIDTH = 240, 320
"""The size of MuJoCo's pictures, in pixels."""
EXPENSIVE_START = 20
"""`EnvSpec.steps_per_start` of environments whose reset costs as much as many steps."""


def import_library(module: str, extra: str) -> ModuleType:
    """Imports a library without its output.

    Args:
        module: The module's dotted name.
        extra: The extra of covey that installs it, for the error message.

    Returns:
        The module. Raises a CoveyError with the install command if it can't be imported.
    """
    try:
        with quiet():
            return importlib.import_module(module)
    except ImportError as error:
        raise CoveyError(
            f"The {extra!r} environments need a package that is not installed or can't be imported ({error}). "
            f"Install it:\n  {install_command(extra)}"
        ) from error


def load_mujoco() -> ModuleType:
    """Imports MuJoCo, which is installed with the libraries that are built on it."""
    return importlib.import_module("mujoco")


@contextmanager
def quiet() -> Iterator[None]:
    """Suppresses the output and the warnings of a library."""
    with warnings.catch_warnings(action="ignore"), contextlib.redirect_stdout(io.StringIO()):
        yield


@contextmanager
def relaxed_promotion() -> Iterator[None]:
    """Allows implicit promotion of types and ranks, and drops warnings, while a library's code is traced.

    The user, or a test, may have forbidden promotion with jax's configuration.
    """
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
    """Converts a number or an array with one element to a float32 scalar."""
    return jnp.asarray(value, jnp.float32).reshape(())


def cast_like(tree: Any, pattern: Any) -> Any:
    """Casts the leaves of a tree to the types and shapes of `pattern`.

    Some libraries return Python numbers, or other types from `step` than from `reset`. A scan needs equal types.
    """
    return jax.tree.map(lambda x, like: jnp.asarray(x).astype(like.dtype).reshape(like.shape), tree, pattern)


def draw(model: Any, qpos: Any, camera: int | str = -1) -> np.ndarray:
    """Draws a MuJoCo model; raises a CoveyError if rendering is impossible here.

    Args:
        model: The MjModel.
        qpos: The positions of its joints.
        camera: The camera's index or name; -1 for the free camera.
    """
    mujoco = load_mujoco()
    data = mujoco.MjData(model)
    data.qpos[:] = qpos
    mujoco.mj_forward(model, data)
    renderer = _renderer(_Model(model))
    renderer.update_scene(data, camera=camera)
    return renderer.render()


class _Model:
    """A hashable handle to a model, compared by identity, so that `_renderer` can be cached."""

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
    except Exception as error:  # OpenGL libraries raise many types, AssertionError among them
        raise CoveyError(
            f"MuJoCo can't render here ({type(error).__name__}: {error}). Without a display, set MUJOCO_GL=egl (needs "
            "libegl1) or MUJOCO_GL=osmesa (needs libosmesa6) before Python starts."
        ) from error
    # Without a graphics card, shadows and reflections take most of the time.
    for flag in (mujoco.mjtRndFlag.mjRND_SHADOW, mujoco.mjtRndFlag.mjRND_REFLECTION):
        renderer.scene.flags[flag] = 0
    atexit.register(renderer.close)  # before the interpreter unloads the modules that it needs
    return renderer
