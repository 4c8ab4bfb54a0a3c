"""Reacher: bring the tip of a two-link arm to a goal."""

import math
from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from covey.envs.base import Outcome
from covey.envs.builtin.canvas import ACCENT, INK, PAPER, SHADE, Canvas
from covey.envs.builtin.raster import TARGET, Raster, paint
from covey.types import Array, Descriptor, EnvSpec, Key

_LOWER = (120, 128, 140)  # the colour of the second link in small pictures


class ReacherState(NamedTuple):
    """Angles of the joints (the second is relative to the first link), their velocities, and the goal: each [2]."""

    angles: Array
    velocities: Array
    goal: Array


@dataclass(frozen=True)
class Reacher:
    """Bring the tip of a two-link arm, moved by torques at its joints, to a random goal.

    The arm moves in a horizontal plane (no gravity). Each link has a length of 0.5 and a mass of 1 at its end, and the
    joints are damped.
    Observation: cos and sin of the two angles, their velocities / 5, the goal, and the vector from tip to goal.
    Reward: -distance(tip, goal) - 0.01 |action|^2, in two parts: the distance with weight -1, |action|^2 with -0.01.
    Descriptor: the position of the tip.
    Reference: Gymnasium, Reacher-v5 (the task; dynamics, sizes and costs are covey's).
    """

    length: float = 0.5
    mass: float = 1.0
    damping: float = 0.5
    max_torque: float = 1.5
    effort: float = 0.01
    dt: float = 0.05

    @property
    def spec(self) -> EnvSpec:
        reach = 2.0 * self.length
        return EnvSpec(
            observation=10,
            action_size=2,
            episode_length=100,
            action_low=(-self.max_torque, -self.max_torque),
            action_high=(self.max_torque, self.max_torque),
            descriptor=Descriptor(("x", "y"), low=(-reach, -reach), high=(reach, reach)),
            frames_per_second=1.0 / self.dt,
            rewards=("distance", "effort"),
            reward_weights=(-1.0, -self.effort),
        )

    def reset(self, key: Key) -> tuple[ReacherState, Array]:
        key_angles, key_direction, key_radius = jax.random.split(key, 3)
        angles = jax.random.uniform(key_angles, (2,), jnp.float32, -math.pi, math.pi)
        direction = jax.random.uniform(key_direction, (), jnp.float32, -math.pi, math.pi)
        # Uniform on the ring between 0.2 and 0.95 of the reach: closer goals would need a completely folded arm.
        radius = 2.0 * self.length * jnp.sqrt(jax.random.uniform(key_radius, (), jnp.float32, 0.2**2, 0.95**2))
        goal = radius * jnp.stack([jnp.cos(direction), jnp.sin(direction)])
        state = ReacherState(angles, jnp.zeros((2,), jnp.float32), goal)
        return state, self._observe(state, goal - self.descriptor(state))

    def step(self, state: ReacherState, action: Array, key: Key) -> tuple[ReacherState, Outcome]:
        control = jnp.clip(action, -1.0, 1.0)
        velocities = state.velocities + self.dt * self._accelerate(state, self.max_torque * control)
        state = ReacherState(state.angles + self.dt * velocities, velocities, state.goal)
        to_goal = state.goal - self.descriptor(state)
        reward = jnp.stack([jnp.sqrt(jnp.sum(to_goal**2)), jnp.sum(control**2)])
        return state, Outcome(self._observe(state, to_goal), reward, jnp.zeros((), bool))

    def descriptor(self, state: ReacherState) -> Array:
        first, second = state.angles[0], state.angles[0] + state.angles[1]
        return self.length * jnp.stack([jnp.cos(first) + jnp.cos(second), jnp.sin(first) + jnp.sin(second)])

    def frame(self, state: ReacherState) -> np.ndarray:
        length, reach = self.length, 2.0 * self.length
        first, second = float(state.angles[0]), float(state.angles[0]) + float(state.angles[1])
        elbow = (length * math.cos(first), length * math.sin(first))
        tip = (elbow[0] + length * math.cos(second), elbow[1] + length * math.sin(second))
        canvas = Canvas(256, (-1.15 * reach, -1.15 * reach), (1.15 * reach, 1.15 * reach))
        canvas.circle((0.0, 0.0), reach, PAPER, outline=SHADE, thickness=0.02 * reach)
        canvas.goal((float(state.goal[0]), float(state.goal[1])), 0.1 * reach)
        canvas.line([(0.0, 0.0), elbow, tip], 0.07 * reach, INK)
        for joint in ((0.0, 0.0), elbow):
            canvas.circle(joint, 0.06 * reach, PAPER, outline=INK, thickness=0.03 * reach)
        canvas.circle(tip, 0.055 * reach, ACCENT)
        return canvas.pixels()

    def pixels(self, state: ReacherState, size: int) -> Array:
        edge = 2.2 * self.length
        raster = Raster(size, (-edge, -edge), (edge, edge))
        first = state.angles[0]
        elbow = self.length * jnp.stack([jnp.cos(first), jnp.sin(first)])
        tip = self.descriptor(state)
        # The second link is lighter: which of two crossing links is which would not be visible otherwise.
        upper, lower = raster.line((0.0, 0.0), elbow, 0.035), raster.line(elbow, tip, 0.028)
        goal = raster.disc(state.goal, 0.07), TARGET
        arm = [(upper, INK), (lower, _LOWER), (raster.disc(tip, 0.045), ACCENT)]
        return paint(raster.empty(), [goal, *arm])

    def _accelerate(self, state: ReacherState, torques: Array) -> Array:
        """Returns the joints' accelerations: M(angles) acceleration = torques - damping velocities - Coriolis."""
        first, second = state.velocities[0], state.velocities[1]
        inertia = self.mass * self.length**2
        cos, sin = jnp.cos(state.angles[1]), jnp.sin(state.angles[1])
        force_first = torques[0] - self.damping * first + inertia * sin * second * (2.0 * first + second)
        force_second = torques[1] - self.damping * second - inertia * sin * first**2
        # dt * damping on the diagonal makes the damping implicit, which is stable for any dt.
        m11 = inertia * (3.0 + 2.0 * cos) + self.dt * self.damping
        m12 = inertia * (1.0 + cos)
        m22 = inertia + self.dt * self.damping
        solved = jnp.stack([m22 * force_first - m12 * force_second, m11 * force_second - m12 * force_first])
        return solved / (m11 * m22 - m12**2)

    def _observe(self, state: ReacherState, to_goal: Array) -> Array:
        return jnp.concatenate(
            [jnp.cos(state.angles), jnp.sin(state.angles), state.velocities / 5.0, state.goal, to_goal]
        )
