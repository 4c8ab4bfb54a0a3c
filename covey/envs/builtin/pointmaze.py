"""PointMaze: a point mass, walls, and a goal behind them."""

import math
from dataclasses import dataclass
from itertools import combinations
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from covey.envs.base import Outcome
from covey.envs.builtin.canvas import RULE, SHADE, Canvas
from covey.envs.builtin.point import (
    RADIUS,
    arena_layers,
    arena_raster,
    draw_arena,
    draw_point,
    next_velocity,
    point_layer,
)
from covey.envs.builtin.raster import TARGET, backdrop, paint
from covey.errors import require
from covey.types import Array, Descriptor, EnvSpec, Key


class Box(NamedTuple):
    """An axis-aligned rectangle."""

    x_low: float
    y_low: float
    x_high: float
    y_high: float

    def overlaps(self, other: "Box") -> bool:
        across = self.x_low < other.x_high and other.x_low < self.x_high
        return across and self.y_low < other.y_high and other.y_low < self.y_high

    def touches(self, other: "Box") -> bool:
        across = self.x_low <= other.x_high and other.x_low <= self.x_high
        return across and self.y_low <= other.y_high and other.y_low <= self.y_high


_WALLS = (Box(x_low=-10.0, y_low=-1.0, x_high=3.0, y_high=1.0),)
_START = Box(x_low=-9.0, y_low=-8.5, x_high=-6.0, y_high=-5.5)


class PointMazeState(NamedTuple):
    """Position and velocity per second: each [2]."""

    position: Array
    velocity: Array


@dataclass(frozen=True)
class PointMaze:
    """Move a point around a wall to the goal behind it. The straight way to the goal is blocked by the wall.

    The point moves as in `Point`. `walls` are the areas that its centre can't enter, so they include its radius. It can
    slide along their edges, so walls that touch must overlap: otherwise it would slip between them.
    Observation: position / arena, velocity / max_speed.
    Reward: -distance(point, goal) / arena, and a bonus on reaching the goal, which terminates the episode.
    Descriptor: the position.
    Reference: the U-maze of Duan et al. 2016; dynamics, sizes and costs are covey's.
    """

    walls: tuple[Box, ...] = _WALLS
    start: Box = _START
    goal: tuple[float, float] = (-7.0, 6.5)
    goal_radius: float = 1.0
    bonus: float = 50.0
    arena: float = 10.0
    max_speed: float = 5.0
    response: float = 0.3
    dt: float = 0.1

    def __post_init__(self):
        goal = Box(*self.goal, *self.goal)
        for wall in self.walls:
            require(
                not self.start.overlaps(wall), f"The start {self.start} overlaps the wall {wall}: move one of them."
            )
            require(not goal.overlaps(wall), f"The goal {self.goal} lies inside the wall {wall}: move one of them.")
        for wall, other in combinations(self.walls, 2):
            seam = wall.touches(other) and not wall.overlaps(other)
            require(not seam, f"A point could slip between {wall} and {other}: let these walls overlap.")

    @property
    def spec(self) -> EnvSpec:
        return EnvSpec(
            observation=4,
            action_size=2,
            episode_length=200,
            action_low=(-self.max_speed, -self.max_speed),
            action_high=(self.max_speed, self.max_speed),
            descriptor=Descriptor(
                ("x", "y"), low=(-self.arena, -self.arena), high=(self.arena, self.arena), coordinates=(0, 1)
            ),
            frames_per_second=2.0 / self.dt,
        )

    def reset(self, key: Key) -> tuple[PointMazeState, Array]:
        low, high = jnp.array(self.start[:2], jnp.float32), jnp.array(self.start[2:], jnp.float32)
        position = jax.random.uniform(key, (2,), jnp.float32, low, high)
        state = PointMazeState(position, jnp.zeros((2,), jnp.float32))
        return state, self._observe(state)

    def step(self, state: PointMazeState, action: Array, key: Key) -> tuple[PointMazeState, Outcome]:
        velocity = next_velocity(state.velocity, action, self.max_speed, self.response)
        ahead = state.position + self.dt * velocity
        position = self._slide(state.position, ahead)
        velocity = jnp.where(position == ahead, velocity, 0.0)
        state = PointMazeState(position, velocity)
        distance = jnp.sqrt(jnp.sum((position - jnp.array(self.goal, jnp.float32)) ** 2))
        terminated = distance < self.goal_radius
        reward = jnp.where(terminated, self.bonus, 0.0) - distance / self.arena
        return state, Outcome(self._observe(state), reward, terminated)

    def descriptor(self, state: PointMazeState) -> Array:
        return state.position

    def frame(self, state: PointMazeState) -> np.ndarray:
        canvas = draw_arena(self.arena)
        x_low, y_low, x_high, y_high = self.start
        canvas.rectangle((x_low - RADIUS, y_low - RADIUS), (x_high + RADIUS, y_high + RADIUS), SHADE, rounding=RADIUS)
        for wall in self.walls:
            _draw_wall(canvas, wall, self.arena)
        canvas.goal(self.goal, self.goal_radius)
        draw_point(canvas, state.position, state.velocity)
        return canvas.pixels()

    def pixels(self, state: PointMazeState, size: int) -> Array:
        raster = arena_raster(self.arena, size)
        return paint(_backdrop(self, size), [point_layer(raster, state.position)])

    def _slide(self, position: Array, ahead: Array) -> Array:
        """Moves along x and then along y, each up to the first wall: no wall is crossed, however thin or fast."""
        x_low, y_low, x_high, y_high = jnp.array(self._barriers(), jnp.float32).reshape(-1, 4).T
        x = _advance(position[0], ahead[0], x_low, x_high, (y_low < position[1]) & (position[1] < y_high), self.arena)
        y = _advance(position[1], ahead[1], y_low, y_high, (x_low < x) & (x < x_high), self.arena)
        return jnp.stack([x, y])

    def _barriers(self) -> list[list[float]]:
        """Returns the walls. Those that reach the arena's edge extend to infinity, so that a point stops there too."""
        return [[v if abs(v) < self.arena else math.copysign(math.inf, v) for v in wall] for wall in self.walls]

    def _observe(self, state: PointMazeState) -> Array:
        return jnp.concatenate([state.position / self.arena, state.velocity / self.max_speed])


def _advance(here: Array, ahead: Array, low: Array, high: Array, in_the_way: Array, arena: float) -> Array:
    """Returns a coordinate after a move, limited by the walls [low, high] that are in the way."""
    ceiling = jnp.min(jnp.where(in_the_way & (here <= low), low, arena), initial=arena)
    floor = jnp.max(jnp.where(in_the_way & (here >= high), high, -arena), initial=-arena)
    return jnp.clip(ahead, floor, ceiling)


def _draw_wall(canvas: Canvas, wall: Box, arena: float) -> None:
    low, high = _seen(wall, arena, RADIUS)
    canvas.rectangle(low, high, RULE)


def _seen(wall: Box, arena: float, radius: float) -> tuple[tuple[float, float], tuple[float, float]]:
    """Returns the corners of a wall without the point's radius, joined to the arena's edge if it reaches it."""
    low = [v - radius if v <= -arena else v + radius for v in (wall.x_low, wall.y_low)]
    high = [v + radius if v >= arena else v - radius for v in (wall.x_high, wall.y_high)]
    return (low[0], low[1]), (high[0], high[1])


@backdrop
def _backdrop(env: PointMaze, size: int) -> Array:
    raster = arena_raster(env.arena, size)
    walls = [(raster.rectangle(*_seen(wall, env.arena, RADIUS)), RULE) for wall in env.walls]
    goal = raster.disc(env.goal, 0.5 * env.goal_radius / raster.high[0])
    return paint(raster.empty(), [*arena_layers(raster, env.arena), *walls, (goal, TARGET)])
