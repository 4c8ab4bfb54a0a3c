"""One episode of a host environment for the pictures: its frames are taken while it runs."""

import os
import sys
from typing import Any

import jax
import numpy as np

from covey.agent import Policy
from covey.envs.base import HostEnv
from covey.run.cache import hushed
from covey.training.host_episodes import Trace, trace_host


def trace(
    policy: Policy[Any, Any, Any],
    env: HostEnv,
    state: Any,
    hyper: Any,
    key: jax.Array,
    steps: int,
    draw_every: int = 0,
) -> Trace:
    """One greedy episode, drawn or not. MuJoCo draws without a screen unless the user has set MUJOCO_GL."""
    if sys.platform == "linux" and not os.environ.get("DISPLAY"):
        os.environ.setdefault("MUJOCO_GL", "egl")
    with hushed():
        return trace_host(policy, env, state, hyper, key, steps, draw_every)


def pictures(found: Trace) -> list[np.ndarray | None]:
    """The picture of every state, or None where none was taken."""
    return [found.frames.get(t) for t in range(len(found.obs))]
