"""Point: a point mass in a square arena, with or without a goal."""

from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from covey.envs.base import Outcome
from covey.envs.builtin.canvas import ACCENT, PAPER, RULE, SHADE, Canvas
from covey.envs.builtin.raster import TARGET, Layer, Raster, backdrop, paint
from covey.types import Array, Descriptor, EnvSpec, Key

RADIUS = 0.5
"""The radius of a point in pictures."""


class PointState(NamedTuple):
    """Position, velocity per second, and the goal (zeros if there is none): each [2]."""

    position: Array
    velocity: Array
    goal: Array


@dataclass(frozen=True)
class Point:
    """Move a point from the middle of a square arena to a random goal; with `goal=False` there is no goal.

    The action is a target velocity, which the point approaches with a delay; at a wall it stops.
    Observation: position / arena, velocity / max_speed and, with a goal, the vector to the goal / arena.
    Reward: -distance(point, goal) / arena, or 0 without a goal.
    Descriptor: the position.
    Reference: the point mass of skill discovery (e.g. Eysenbach et al. 2019); the constants are covey's.
    """

    goal: bool = True
    arena: float = 10.0
    max_speed: float = 5.0
    response: float = 0.3
    dt: float = 0.1

    @property
    def spec(self) -> EnvSpec:
        return EnvSpec(
            observation=6 if self.goal else 4,
            action_size=2,
            episode_length=50,
            action_low=(-self.max_speed, -self.max_speed),
            action_high=(self.max_speed, self.max_speed),
            descriptor=Descriptor(
                ("x", "y"), low=(-self.arena, -self.arena), high=(self.arena, self.arena), coordinates=(0, 1)
            ),
            frames_per_second=1.0 / self.dt,
        )

    def reset(self, key: Key) -> tuple[PointState, Array]:
        key_position, key_goal = jax.random.split(key)
        position = self.arena * jax.random.uniform(key_position, (2,), jnp.float32, -0.05, 0.05)
        goal = velocity = jnp.zeros((2,), jnp.float32)
        if self.goal:
            goal = self.arena * jax.random.uniform(key_goal, (2,), jnp.float32, -0.9, 0.9)
        state = PointState(position, velocity, goal)
        return state, self._observe(state)

    def step(self, state: PointState, action: Array, key: Key) -> tuple[PointState, Outcome]:
        velocity = next_velocity(state.velocity, action, self.max_speed, self.response)
        ahead = state.position + self.dt * velocity
        position = jnp.clip(ahead, -self.arena, self.arena)
        velocity = jnp.where(position == ahead, velocity, 0.0)
        state = PointState(position, velocity, state.goal)
        return state, Outcome(self._observe(state), self._reward(state), jnp.zeros((), bool))

    def descriptor(self, state: PointState) -> Array:
        return state.position

    def frame(self, state: PointState) -> np.ndarray:
        canvas = draw_arena(self.arena)
        canvas.line([(-0.5, 0.0), (0.5, 0.0)], 0.1, SHADE)
        canvas.line([(0.0, -0.5), (0.0, 0.5)], 0.1, SHADE)
        if self.goal:
            canvas.goal((float(state.goal[0]), float(state.goal[1])), 0.9)
        draw_point(canvas, state.position, state.velocity)
        return canvas.pixels()

    def pixels(self, state: PointState, size: int) -> Array:
        raster = arena_raster(self.arena, size)
        layers = [(raster.disc(state.goal, 0.07), TARGET)] if self.goal else []
        return paint(_backdrop(self, size), [*layers, point_layer(raster, state.position)])

    def _reward(self, state: PointState) -> Array:
        if not self.goal:
            return jnp.zeros((), jnp.float32)
        return -jnp.sqrt(jnp.sum((state.goal - state.position) ** 2)) / self.arena

    def _observe(self, state: PointState) -> Array:
        parts = [state.position / self.arena, state.velocity / self.max_speed]
        if self.goal:
            parts.append((state.goal - state.position) / self.arena)
        return jnp.concatenate(parts)


def next_velocity(velocity: Array, action: Array, max_speed: float, response: float) -> Array:
    """Moves the velocity a part of the way to the target velocity of the action."""
    return velocity + response * (max_speed * jnp.clip(action, -1.0, 1.0) - velocity)


def draw_arena(arena: float) -> Canvas:
    """Draws an empty arena. Its walls are where the edge of a point touches them."""
    edge, frame = arena + RADIUS, 0.2
    outside = edge + 2.0 * frame
    canvas = Canvas(256, (-outside, -outside), (outside, outside))
    canvas.rectangle((-edge - frame, -edge - frame), (edge + frame, edge + frame), RULE)
    canvas.rectangle((-edge, -edge), (edge, edge), PAPER)
    return canvas


@backdrop
def _backdrop(env: Point, size: int) -> Array:
    raster = arena_raster(env.arena, size)
    return paint(raster.empty(), arena_layers(raster, env.arena))


def arena_raster(arena: float, size: int) -> Raster:
    """Returns the raster of an arena with its walls."""
    outside = 1.1 * arena
    return Raster(size, (-outside, -outside), (outside, outside))


def arena_layers(raster: Raster, arena: float) -> list[Layer]:
    """Returns the layers of an empty arena: its walls, and the floor inside of them."""
    edge = 1.06 * arena
    return [(raster.rectangle(raster.low, raster.high), RULE), (raster.rectangle((-edge, -edge), (edge, edge)), PAPER)]


def point_layer(raster: Raster, position: Array) -> Layer:
    """Returns the layer of a point. It has no tail: stacked frames show the velocity."""
    return raster.disc(position, 0.045), ACCENT


def draw_point(canvas: Canvas, position: Array, velocity: Array) -> None:
    """Draws a point, with a tail opposite to its velocity."""
    x, y = float(position[0]), float(position[1])
    tail = (x - 0.3 * float(velocity[0]), y - 0.3 * float(velocity[1]))
    canvas.line([tail, (x, y)], 0.3, RULE)
    canvas.circle((x, y), RADIUS, ACCENT)
