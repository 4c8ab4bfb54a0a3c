"""MountainCar: Gymnasium's MountainCarContinuous-v0."""

import math
from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from covey.envs.base import Outcome
from covey.envs.builtin.canvas import ACCENT, INK, RULE, SHADE, Canvas
from covey.envs.builtin.raster import TARGET, Raster, backdrop, paint
from covey.types import Array, Descriptor, EnvSpec, Key

_LOW, _HIGH, _GOAL = -1.2, 0.6, 0.45
_CORNERS = (-1.31, -0.1), (0.71, 1.359)  # of the world in pictures


class MountainCarState(NamedTuple):
    """The position along the valley and the velocity per step."""

    position: Array
    velocity: Array


@dataclass(frozen=True)
class MountainCar:
    """Drive a car out of a valley. The engine is too weak for the slope, so the car has to swing back first.

    Observation: position in [-1.2, 0.6], velocity in [-0.07, 0.07].
    Reward: 100 on reaching position 0.45 (which terminates the episode), minus 0.1 action^2 at every step.
    Descriptor: the position.
    Reference: Gymnasium, MountainCarContinuous-v0: same dynamics, reward, start states and limit of 999 steps. As
    there, the force is clipped, but the cost is that of the action before clipping.
    """

    power: float = 0.0015
    max_speed: float = 0.07
    goal_velocity: float = 0.0

    @property
    def spec(self) -> EnvSpec:
        return EnvSpec(
            observation=2,
            action_size=1,
            episode_length=999,
            action_low=(-1.0,),
            action_high=(1.0,),
            descriptor=Descriptor(("position",), low=(_LOW,), high=(_HIGH,)),
            frames_per_second=30.0,
        )

    def reset(self, key: Key) -> tuple[MountainCarState, Array]:
        position = jax.random.uniform(key, (), jnp.float32, -0.6, -0.4)
        state = MountainCarState(position, jnp.zeros((), jnp.float32))
        return state, jnp.stack(state)

    def step(self, state: MountainCarState, action: Array, key: Key) -> tuple[MountainCarState, Outcome]:
        force = jnp.clip(action[0], -1.0, 1.0)
        velocity = state.velocity + self.power * force - 0.0025 * jnp.cos(3.0 * state.position)
        velocity = jnp.clip(velocity, -self.max_speed, self.max_speed)
        position = jnp.clip(state.position + velocity, _LOW, _HIGH)
        velocity = jnp.where((position == _LOW) & (velocity < 0.0), 0.0, velocity)
        terminated = (position >= _GOAL) & (velocity >= self.goal_velocity)
        reward = jnp.where(terminated, 100.0, 0.0) - 0.1 * action[0] ** 2
        state = MountainCarState(position, velocity)
        return state, Outcome(jnp.stack(state), reward, terminated)

    def descriptor(self, state: MountainCarState) -> Array:
        return state.position[None]

    def frame(self, state: MountainCarState) -> np.ndarray:
        canvas = Canvas(288, *_CORNERS)
        self._draw_valley(canvas)
        x = float(state.position)
        slope = math.atan(1.35 * math.cos(3.0 * x))
        body = [(-0.1, 0.04), (0.1, 0.04), (0.1, 0.08), (0.06, 0.09), (0.03, 0.13), (-0.06, 0.13), (-0.1, 0.08)]
        canvas.polygon([_place(x, slope, point) for point in body], ACCENT)
        for wheel in (-0.058, 0.058):
            canvas.circle(_place(x, slope, (wheel, 0.035)), 0.034, INK)
        return canvas.pixels()

    def pixels(self, state: MountainCarState, size: int) -> Array:
        x = state.position
        slope = jnp.arctan(1.35 * jnp.cos(3.0 * x))
        ahead, up = 0.09 * jnp.cos(slope), 0.09 * jnp.sin(slope)
        middle = (x - 0.7 * up, 0.45 * jnp.sin(3.0 * x) + 0.55 + 0.7 * ahead)
        raster = _raster(size)
        back, front = (middle[0] - ahead, middle[1] - up), (middle[0] + ahead, middle[1] + up)
        return paint(_backdrop(self, size), [(raster.line(back, front, 0.045), ACCENT)])

    def _draw_valley(self, canvas: Canvas) -> None:
        road = [(float(x), _height(float(x))) for x in np.linspace(-1.4, 0.8, 111)]
        canvas.polygon([*road, (0.8, -0.2), (-1.4, -0.2)], SHADE)
        canvas.line(road, 0.014, RULE)
        foot = _height(_GOAL)
        canvas.line([(_GOAL, foot), (_GOAL, foot + 0.24)], 0.012, INK)
        canvas.polygon([(_GOAL, foot + 0.245), (_GOAL + 0.12, foot + 0.2), (_GOAL, foot + 0.155)], ACCENT)


def _raster(size: int) -> Raster:
    return Raster(size, _CORNERS[0], _CORNERS[1])


@backdrop
def _backdrop(env: MountainCar, size: int) -> Array:
    raster = _raster(size)
    ground = raster.below(0.45 * jnp.sin(3.0 * raster.columns()) + 0.55)
    foot = _height(_GOAL)
    flag = raster.line((_GOAL, foot), (_GOAL, foot + 0.24), 0.012)
    return paint(raster.empty(), [(ground, RULE), (flag, TARGET)])


def _height(x: float) -> float:
    return 0.45 * math.sin(3.0 * x) + 0.55


def _place(x: float, slope: float, point: tuple[float, float]) -> tuple[float, float]:
    """Converts a point of the car, relative to its place on the road, to world coordinates."""
    cos, sin = math.cos(slope), math.sin(slope)
    return x + cos * point[0] - sin * point[1], _height(x) + sin * point[0] + cos * point[1]
