"""Your own environment in pure JAX: a cart on a rail that must stop at the origin.

From the command line:  covey --plugin examples.own_environment train td3 --env cart --steps 4000
From Python:            python examples/own_environment.py
"""

from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import covey
from covey.envs import Outcome
from covey.types import EnvSpec


class CartState(NamedTuple):
    position: jax.Array
    velocity: jax.Array


@dataclass(frozen=True)
class Cart:
    """Push a cart with a force of at most 2. The reward is minus its distance from the origin.

    Write the environment for one cart: covey maps it over many.
    """

    spec = EnvSpec(observation=2, action_size=1, episode_length=60, action_low=(-2.0,), action_high=(2.0,))

    def reset(self, key):
        state = CartState(jax.random.uniform(key, (), minval=-1.0, maxval=1.0), jnp.zeros(()))
        return state, jnp.stack(state)

    def step(self, state, action, key):
        force = 2.0 * jnp.clip(action[0], -1.0, 1.0)  # agents act in [-1, 1]; clip, then rescale
        velocity = 0.95 * state.velocity + 0.1 * force
        state = CartState(state.position + 0.1 * velocity, velocity)
        return state, Outcome(jnp.stack(state), -jnp.abs(state.position), jnp.zeros((), bool))

    def descriptor(self, state):
        return jnp.zeros(0)  # none: only skill agents need one

    def frame(self, state):
        picture = np.full((40, 200, 3), 245, np.uint8)
        centre = int(np.clip(100 + 60 * float(state.position), 8, 192))
        picture[12:28, centre - 8 : centre + 8] = (40, 90, 140)
        return picture


covey.register_env("cart", Cart, "Stop a cart at the origin.")

if __name__ == "__main__":
    run = covey.train("td3", env="cart", steps=4000, evaluations=5)
    print(run.evaluate(episodes=20))
