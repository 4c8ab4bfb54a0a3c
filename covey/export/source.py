"""A trained policy as `covey export` takes it."""

from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np

from covey.agent import Policy
from covey.envs.base import Env, HostEnv
from covey.errors import require
from covey.evaluation.record import record
from covey.export.trace import needed_equations
from covey.types import Array, EnvSpec, Key

Mode = Literal["greedy", "sample"]
ROWS = 1000
"""Observations on which a file is compared with the policy."""


@dataclass(frozen=True)
class Source:
    """A trained policy with its parameters and its environment.

    Args:
        policy: The policy.
        env: Its environment, in which the proof plays episodes.
        spec: Sizes and limits of the environment's own observations and actions.
        state: The policy's state.
        hyper: Its hyper-parameters.
        facts: What the file should say about it: environment, algorithm, digest of the checkpoint.
        explore: The policy explores, as in training; otherwise it acts greedily.
    """

    policy: Policy[Any, Any, Any]
    env: Env | HostEnv
    spec: EnvSpec
    state: Any
    hyper: Any
    facts: dict[str, Any]
    explore: bool = False

    @property
    def key(self) -> Key:
        """The random key that a greedy policy is traced with."""
        return jax.random.key(0)

    def start(self) -> Any:
        """Returns the memory at the start of an episode, with () in place of idle arrays."""
        whole = self._begin()
        return jax.tree.map(lambda x, idle: () if idle else x, whole, self._idle)

    def function(self, obs: Array, memory: Any, key: Key) -> tuple[Array, Any]:
        """Returns the action in the environment's own units, and the new memory."""
        whole = jax.tree.map(lambda x, idle, given: x if idle else given, self._begin(), self._idle, memory)
        action, new = self._act(obs, whole, key)
        return action, jax.tree.map(lambda x, idle: () if idle else x, new, self._idle)

    def _begin(self) -> Any:
        return self.policy.begin(self.state, self.hyper, self.key)

    def _act(self, obs: Array, memory: Any, key: Key) -> tuple[Array, Any]:
        mode: Mode = "sample" if self.explore else "greedy"
        decision = self.policy.act(self.state, self.hyper, memory, obs, key, mode)
        return self.spec.to_box(decision.action), decision.memory

    @cached_property
    def _idle(self) -> Any:
        """The arrays of the memory that acting neither reads nor changes, such as the noise of a greedy policy."""
        leaves, structure = jax.tree.flatten(self._begin())
        if not leaves:
            return jax.tree.unflatten(structure, [])

        def act(obs: Array, leaves: list[Any], key: Key) -> list[Any]:
            action, new = self._act(obs, jax.tree.unflatten(structure, leaves), key)
            return [action, *jax.tree.leaves(new)]

        jaxpr = jax.make_jaxpr(act)(jnp.zeros(self.spec.obs_size), leaves, self.key).jaxpr
        read = {id(atom) for equation in needed_equations(jaxpr) for atom in equation.invars}
        parts = zip(jaxpr.invars[1:-1], jaxpr.outvars[1:], strict=True)
        return jax.tree.unflatten(structure, [old is new and id(old) not in read for old, new in parts])

    @cached_property
    def situations(self) -> tuple[np.ndarray, Any]:
        """Observations of real episodes [rows, obs_size], and the memory of the trained policy at each of them."""

        def step(memory: Any, obs: Any) -> tuple[Any, Any]:
            return self.function(obs, memory, self.key)[1], memory

        @jax.jit
        def memories(obs: Any) -> Any:
            return jax.vmap(lambda episode: jax.lax.scan(step, self.start(), episode)[1])(obs)

        episodes = self._episodes(ROWS)
        longest = max(map(len, episodes))
        padded = np.stack([np.pad(obs, ((0, longest - len(obs)), (0, 0)), mode="edge") for obs in episodes])
        made = np.arange(longest) < np.array([len(obs) for obs in episodes])[:, None]
        return padded[made], jax.tree.map(lambda x: np.asarray(x)[made], memories(padded))

    def _episodes(self, count: int) -> list[np.ndarray]:
        """Plays greedy episodes. Returns the observations [T, obs_size] of each, `count` in all."""
        found: list[np.ndarray] = []
        while (missing := count - sum(map(len, found))) > 0:
            key = jax.random.fold_in(jax.random.key(1), len(found))
            length = self.env.spec.episode_length
            episode = record(self.policy, self.env, self.state, self.hyper, key, length, frames_per_second=0)
            obs = np.asarray(episode.obs, np.float32)[:missing, : self.spec.obs_size]
            require(bool(np.isfinite(obs).all()), "An episode of the policy had an observation that is not finite.")
            found.append(obs)
        return found


def key_data(count: int, seed: int) -> np.ndarray:
    """Returns the data [count, 2] of random keys, as the format jax takes them."""
    return np.asarray(jax.random.key_data(jax.random.split(jax.random.key(seed), count)), np.uint32)


def as_keys(data: Any) -> Key:
    """Returns random keys from their data."""
    return jax.random.wrap_key_data(jnp.asarray(data, jnp.uint32))
