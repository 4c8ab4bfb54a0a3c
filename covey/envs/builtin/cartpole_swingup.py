"""CartpoleSwingup: swing a pole up by moving the cart that it hangs from."""

import math
from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from covey.envs.base import Outcome
from covey.envs.builtin.canvas import ACCENT, INK, PAPER, RULE, Canvas
from covey.envs.builtin.raster import Raster, backdrop, paint
from covey.types import Array, Descriptor, EnvSpec, Key

_HALF = 0.26  # half of the cart's width in pictures


class CartpoleState(NamedTuple):
    """The cart's position and velocity; the pole's angle (0 is upright, positive leans right) and its velocity."""

    position: Array
    velocity: Array
    angle: Array
    spin: Array


@dataclass(frozen=True)
class CartpoleSwingup:
    """Swing up a pole that hangs from a cart, then balance it near the middle of the rail.

    Observation: position / rail, velocity / 5, cos(angle), sin(angle), angular velocity / 10.
    Reward in [0, 1]: the product of upright, centred, small control and small angular velocity.
    At an end of the rail the cart stops; the episode continues.
    Descriptor: the position of the pole's tip.
    Reference: Barto, Sutton and Anderson 1983 (dynamics, with a uniform pole); Tassa et al. 2018, dm_control
    cartpole/swingup (masses, force, rail and reward; but 500 steps of 0.02 s instead of 1,000 of 0.01 s).
    """

    cart_mass: float = 1.0
    pole_mass: float = 0.1
    length: float = 1.0
    gravity: float = 9.81
    max_force: float = 10.0
    rail: float = 1.8
    dt: float = 0.02

    @property
    def spec(self) -> EnvSpec:
        reach = self.rail + self.length
        return EnvSpec(
            observation=5,
            action_size=1,
            episode_length=500,
            action_low=(-self.max_force,),
            action_high=(self.max_force,),
            descriptor=Descriptor(("x", "y"), low=(-reach, -self.length), high=(reach, self.length), reduce="mean"),
            frames_per_second=1.0 / self.dt,
        )

    def reset(self, key: Key) -> tuple[CartpoleState, Array]:
        position, velocity, angle, spin = jax.random.uniform(key, (4,), jnp.float32, -0.05, 0.05)
        state = CartpoleState(position, velocity, math.pi + angle, spin)
        return state, self._observe(state)

    def step(self, state: CartpoleState, action: Array, key: Key) -> tuple[CartpoleState, Outcome]:
        control = jnp.clip(action[0], -1.0, 1.0)
        acceleration, angular = self._accelerate(state, self.max_force * control)
        # Semi-implicit Euler: positions use the new velocities, which keeps the energy bounded.
        velocity = state.velocity + self.dt * acceleration
        spin = state.spin + self.dt * angular
        ahead = state.position + self.dt * velocity
        position = jnp.clip(ahead, -self.rail, self.rail)
        velocity = jnp.where(position == ahead, velocity, 0.0)
        state = CartpoleState(position, velocity, state.angle + self.dt * spin, spin)
        return state, Outcome(self._observe(state), _reward(state, control), jnp.zeros((), bool))

    def descriptor(self, state: CartpoleState) -> Array:
        x = state.position + self.length * jnp.sin(state.angle)
        return jnp.stack([x, self.length * jnp.cos(state.angle)])

    def frame(self, state: CartpoleState) -> np.ndarray:
        reach = 1.04 * (self.rail + self.length)
        x, angle = float(state.position), float(state.angle)
        tip = (x + self.length * math.sin(angle), self.length * math.cos(angle))
        canvas = Canvas(320, (-reach, -0.5 * reach), (reach, 0.5 * reach))
        canvas.line([(-self.rail - _HALF, 0.0), (self.rail + _HALF, 0.0)], 0.035, RULE)
        for end in (-self.rail - _HALF, self.rail + _HALF):
            canvas.line([(end, -0.12), (end, 0.12)], 0.05, RULE)
        canvas.line([(0.0, -0.3), (0.0, -0.22)], 0.03, RULE)
        canvas.rectangle((x - _HALF, -0.14), (x + _HALF, 0.14), INK, rounding=0.05)
        canvas.line([(x, 0.0), tip], 0.1, ACCENT)
        canvas.circle((x, 0.0), 0.06, PAPER)
        return canvas.pixels()

    def pixels(self, state: CartpoleState, size: int) -> Array:
        # The world is 2.4 times as wide as high: x is compressed, so that the pole is not a few pixels long.
        raster = _raster(self, size)
        x, tip = state.position, self.descriptor(state)
        cart = raster.rectangle((x - _HALF, -0.14), (x + _HALF, 0.14))
        return paint(_backdrop(self, size), [(cart, INK), (raster.line((x, 0.0), tip, 0.03), ACCENT)])

    def _accelerate(self, state: CartpoleState, force: Array) -> tuple[Array, Array]:
        """Returns the accelerations of cart and pole (a uniform pole, no friction)."""
        mass, half = self.cart_mass + self.pole_mass, 0.5 * self.length
        sin, cos = jnp.sin(state.angle), jnp.cos(state.angle)
        push = (force + self.pole_mass * half * state.spin**2 * sin) / mass
        angular = (self.gravity * sin - cos * push) / (half * (4.0 / 3.0 - self.pole_mass / mass * cos**2))
        return push - self.pole_mass * half / mass * angular * cos, angular

    def _observe(self, state: CartpoleState) -> Array:
        cos, sin = jnp.cos(state.angle), jnp.sin(state.angle)
        return jnp.stack([state.position / self.rail, state.velocity / 5.0, cos, sin, state.spin / 10.0])


def _raster(env: CartpoleSwingup, size: int) -> Raster:
    width, height = 1.04 * (env.rail + env.length), 1.2 * env.length
    return Raster(size, (-width, -height), (width, height))


@backdrop
def _backdrop(env: CartpoleSwingup, size: int) -> Array:
    raster = _raster(env, size)
    end = env.rail + _HALF
    rail = raster.line((-end, 0.0), (end, 0.0), 0.01)
    middle = raster.line((0.0, -0.3), (0.0, -0.2), 0.01)
    return paint(raster.empty(), [(rail, RULE), (middle, RULE)])


def _reward(state: CartpoleState, control: Array) -> Array:
    """Returns dm_control's reward: each factor is at most 1, and only `upright` can be 0."""
    upright = (1.0 + jnp.cos(state.angle)) / 2.0
    centred = (1.0 + _bell(state.position / 2.0)) / 2.0
    small_control = (5.0 - control**2) / 5.0
    small_spin = (1.0 + _bell(state.spin / 5.0)) / 2.0
    return upright * centred * small_control * small_spin


def _bell(x: Array) -> Array:
    """Returns dm_control's Gaussian tolerance: 1 at 0, and 0.1 at 1."""
    return jnp.exp(-math.log(10.0) * x**2)
