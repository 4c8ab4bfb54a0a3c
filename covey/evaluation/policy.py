"""Trained policies as functions."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from covey.agent import Policy
from covey.errors import require
from covey.types import Array, EnvSpec, Key


class TrainedPolicy:
    """A trained policy as a function: observation in, greedy action out, both in the environment's units.

    It keeps the policy's memory between calls: call `reset` at the start of each episode. Creating it compiles it.

    Args:
        policy: The policy or agent.
        spec: The spec of its environment.
        state: The policy's state, such as one member's row of `population.members.agent`.
        hyper: Its hyper-parameters, likewise.
        seed: The seed of its random numbers; most policies need none to act greedily.

    Example:
        >>> policy = covey.load("runs/pendulum-sac-0").policy()          # a TrainedPolicy
        >>> policy.reset()
        >>> obs, _ = env.reset()
        >>> obs, reward, terminated, truncated, _ = env.step(policy(obs))
    """

    def __init__(self, policy: Policy[Any, Any, Any], spec: EnvSpec, state: Any, hyper: Any, seed: int = 0) -> None:
        @jax.jit
        def begin(key: Key) -> tuple[Any, Key]:
            key, key_begin = jax.random.split(key)
            return policy.begin(state, hyper, key_begin), key

        @jax.jit
        def act(memory: Any, obs: Array, key: Key) -> tuple[Array, Any, Key]:
            key, key_act = jax.random.split(key)
            decision = policy.act(state, hyper, memory, obs, key_act, "greedy")
            return spec.to_box(decision.action), decision.memory, key

        self._begin = begin
        self._act = act
        self._shape = (spec.obs_size,)
        self._key = jax.random.key(seed)
        self.reset()
        act(self._memory, jnp.zeros(self._shape), self._key)  # compiles, so that the first real call is fast

    def reset(self) -> None:
        """Starts a new episode, with a new memory."""
        self._memory, self._key = self._begin(self._key)

    def __call__(self, obs: Any) -> np.ndarray:
        """Returns the action for an observation [obs_size]."""
        obs = np.asarray(obs, np.float32)
        require(obs.shape == self._shape, f"An observation has shape {self._shape}, not {obs.shape}.")
        action, self._memory, self._key = self._act(self._memory, obs, self._key)
        return np.asarray(action)
