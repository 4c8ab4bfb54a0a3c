"""The devices that covey computes on: jax's, or those that the user chose with `covey.backend.on_device`."""

from contextlib import suppress
from typing import Any

import jax

from covey.errors import CoveyError

PLATFORMS = ("cpu", "gpu", "tpu", "cuda", "rocm")


def devices() -> list[Any]:
    """Returns the devices of this process that may be used: the chosen ones, or all of jax's default platform."""
    chosen: Any = jax.config.jax_default_device  # pyright: ignore[reportAttributeAccessIssue]
    if chosen is None:
        return jax.local_devices()
    return of_platform(chosen) if isinstance(chosen, str) else [chosen]


def of_platform(name: str) -> list[Any]:
    """Returns the devices of a platform; an error if there are none."""
    try:
        return jax.local_devices(backend=name)
    except RuntimeError:
        raise CoveyError(f"There is no `device` {name}. jax sees {seen()}.") from None


def seen() -> str:
    """Lists the devices of all platforms."""
    found = {}
    for name in PLATFORMS:
        with suppress(RuntimeError):
            found |= {device: f"{name}:{i}" for i, device in enumerate(jax.local_devices(backend=name))}
    return ", ".join(found.values())
