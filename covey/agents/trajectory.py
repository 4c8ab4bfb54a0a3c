"""Trajectories of actions: constant, linear and quadratic in time."""

from dataclasses import dataclass

import jax.numpy as jnp

from covey.types import Array


@dataclass(frozen=True)
class Trajectories:
    """Trajectories of one order. A trajectory [..., order + 1, A] holds an action, its velocity and its acceleration.

    All are in [-1, 1]. A velocity of 1 crosses the whole action box, which is 2 wide, in one step; hence the factors 2.

    Args:
        order: 0 for a constant action, 1 for a line, 2 for a parabola.
        inverse: If True, the actor proposes the next action, and the derivatives follow from it. If False, it proposes
            the highest derivative, and the action follows from it.
    """

    order: int
    inverse: bool

    def carry_on(self, trajectory: Array) -> Array:
        """CONTINUE: returns the trajectory [..., order + 1, A] one step later."""
        if self.order == 0:
            return trajectory
        a, *rest = jnp.moveaxis(trajectory, -2, 0)
        if self.order == 2:
            v, u = rest
            rest = [_clip(v + 2.0 * u), u]
        return jnp.stack([_clip(a + 2.0 * rest[0]), *rest], axis=-2)

    def start(self, x: Array, previous: Array) -> Array:
        """NEW: returns the trajectory that starts with the actor's proposal x [..., A] after `previous`."""
        a = previous[..., 0, :]
        if self.inverse or self.order == 0:
            v = (x - a) / 2.0
            parts = [x, v, v / 2.0]
        elif self.order == 1:
            parts = [_clip(a + 2.0 * x), x]
        else:
            v = _clip(2.0 * x)
            parts = [_clip(a + 2.0 * v), v, x]
        return jnp.stack(parts[: self.order + 1], axis=-2)


def _clip(x: Array) -> Array:
    return jnp.clip(x, -1.0, 1.0)
