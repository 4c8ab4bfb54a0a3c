"""Pendulum: Gymnasium's Pendulum-v1."""

import math
from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from covey.envs.base import Outcome
from covey.envs.builtin.canvas import ACCENT, INK, PAPER, RULE, SHADE, Canvas
from covey.envs.builtin.raster import Raster, backdrop, paint
from covey.types import Array, Descriptor, EnvSpec, Key


class PendulumState(NamedTuple):
    """The angle in [-pi, pi] (0 is upright, positive is anticlockwise) and its velocity in radians per second."""

    angle: Array
    velocity: Array


@dataclass(frozen=True)
class Pendulum:
    """Swing a pendulum up and hold it upright. The torque is too weak to lift it directly.

    Observation: cos(angle), sin(angle), velocity (up to 8).
    Reward: -(angle^2 + 0.1 velocity^2 + 0.001 torque^2), with the state before the step.
    Descriptor: the position of the tip, x to the right and y upwards.
    Reference: Gymnasium, Pendulum-v1: same dynamics, reward, start states and limit of 200 steps.
    """

    gravity: float = 10.0
    mass: float = 1.0
    length: float = 1.0
    max_torque: float = 2.0
    max_speed: float = 8.0
    dt: float = 0.05

    @property
    def spec(self) -> EnvSpec:
        return EnvSpec(
            observation=3,
            action_size=1,
            episode_length=200,
            action_low=(-self.max_torque,),
            action_high=(self.max_torque,),
            descriptor=Descriptor(
                ("x", "y"), low=(-self.length, -self.length), high=(self.length, self.length), reduce="mean"
            ),
            frames_per_second=1.0 / self.dt,
        )

    def reset(self, key: Key) -> tuple[PendulumState, Array]:
        key_angle, key_velocity = jax.random.split(key)
        angle = jax.random.uniform(key_angle, (), jnp.float32, -math.pi, math.pi)
        velocity = jax.random.uniform(key_velocity, (), jnp.float32, -1.0, 1.0)
        state = PendulumState(angle, velocity)
        return state, self._observe(state)

    def step(self, state: PendulumState, action: Array, key: Key) -> tuple[PendulumState, Outcome]:
        torque = self.max_torque * jnp.clip(action[0], -1.0, 1.0)
        reward = -(state.angle**2 + 0.1 * state.velocity**2 + 0.001 * torque**2)
        weight = 3.0 * self.gravity / (2.0 * self.length) * jnp.sin(state.angle)
        drive = 3.0 / (self.mass * self.length**2) * torque
        velocity = jnp.clip(state.velocity + (weight + drive) * self.dt, -self.max_speed, self.max_speed)
        state = PendulumState(_wrap(state.angle + velocity * self.dt), velocity)
        return state, Outcome(self._observe(state), reward, jnp.zeros((), bool))

    def descriptor(self, state: PendulumState) -> Array:
        return self.length * jnp.stack([-jnp.sin(state.angle), jnp.cos(state.angle)])

    def frame(self, state: PendulumState) -> np.ndarray:
        length, angle = self.length, float(state.angle)
        tip = (-length * math.sin(angle), length * math.cos(angle))
        canvas = Canvas(256, (-1.35 * length, -1.35 * length), (1.35 * length, 1.35 * length))
        canvas.circle((0.0, 0.0), length, outline=SHADE, fill=PAPER, thickness=0.02 * length)
        canvas.line([(0.0, 0.94 * length), (0.0, 1.06 * length)], 0.02 * length, RULE)
        canvas.line([(0.0, 0.0), tip], 0.09 * length, INK)
        canvas.circle((0.0, 0.0), 0.08 * length, INK)
        canvas.circle(tip, 0.15 * length, ACCENT)
        return canvas.pixels()

    def pixels(self, state: PendulumState, size: int) -> Array:
        raster = _raster(self, size)
        tip = self.descriptor(state)
        rod = raster.line((0.0, 0.0), tip, 0.03)
        return paint(_backdrop(self, size), [(rod, INK), (raster.disc(tip, 0.075), ACCENT)])

    def _observe(self, state: PendulumState) -> Array:
        return jnp.stack([jnp.cos(state.angle), jnp.sin(state.angle), state.velocity])


def _raster(env: Pendulum, size: int) -> Raster:
    edge = 1.25 * env.length
    return Raster(size, (-edge, -edge), (edge, edge))


@backdrop
def _backdrop(env: Pendulum, size: int) -> Array:
    raster = _raster(env, size)
    return paint(raster.empty(), [(raster.disc((0.0, 0.0), 0.05), INK)])


def _wrap(angle: Array) -> Array:
    """Wraps an angle to [-pi, pi]. Gymnasium lets it grow, which would lose precision in float32."""
    return angle - 2.0 * math.pi * jnp.round(angle / (2.0 * math.pi))
