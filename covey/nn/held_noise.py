"""Exploration noise that is held for several steps (FlashSAC, 2026, arXiv 2604.04539).

Noise that is drawn anew at every step cancels out within a few steps; held noise moves the environment somewhere else.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from covey.errors import require
from covey.types import Array, Key

EXPONENT = 2.0
"""The probability of holding a vector for n steps is proportional to n to the power of minus this."""
MOST_STEPS = 1000


class NoiseMemory(NamedTuple):
    """The noise within an episode.

    Args:
        noise: The current vector [size].
        left: Further steps for which it is held; 0 before the first step of an episode.
    """

    noise: Array
    left: Array


Held = NoiseMemory | tuple[()]
"""A memory of noise; () if every step has noise of its own."""


@dataclass(frozen=True)
class HeldNoise:
    """Standard normal vectors, each held for n steps, P(n) ~ n^-2 for n from 1 to `longest`.

    Args:
        size: Numbers in a vector.
        longest: The longest hold in steps; 1 draws a vector at every step, and needs no memory.

    Example:
        >>> held = HeldNoise(size=2, longest=16)
        >>> noise, memory = held.draw(held.begin(), key)
    """

    size: int
    longest: int

    def begin(self) -> Held:
        """Returns the memory before the first step of an episode; () if noise is not held."""
        if self.longest == 1:
            return ()
        return NoiseMemory(jnp.zeros(self.size), jnp.zeros((), jnp.int32))

    def draw(self, memory: Held, key: Key) -> tuple[Array, Held]:
        """Returns the noise of this step, a new vector if the steps of the last one are used up; and the new memory."""
        if self.longest == 1:
            return jax.random.normal(key, (self.size,)), memory
        require(bool(memory), "Held noise (`noise_hold`) needs a memory: start each episode with the agent's `begin`.")
        assert memory
        key_noise, key_steps = jax.random.split(key)
        steps = np.arange(1.0, self.longest + 1.0)
        cumulative = np.cumsum(steps**-EXPONENT) / np.sum(steps**-EXPONENT)
        longer = jax.random.uniform(key_steps) >= jnp.asarray(cumulative[:-1], jnp.float32)
        due = memory.left == 0
        noise = jnp.where(due, jax.random.normal(key_noise, (self.size,)), memory.noise)
        left = jnp.where(due, jnp.sum(longer.astype(jnp.int32)), memory.left - 1)
        return noise, NoiseMemory(noise, left)


def require_noise_hold(config: Any) -> None:
    """Raises a CoveyError if the option `noise_hold` of a configuration is no number of steps."""
    value = config.noise_hold
    require(
        1 <= value <= MOST_STEPS,
        f"`noise_hold` must be the longest hold in steps, from 1 (off) to {MOST_STEPS:,}, not {value}.",
        config,
    )
