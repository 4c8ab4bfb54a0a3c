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
from covey.evaluation.used import used_parts, with_zeros
from covey.export.trace import needed_equations
from covey.observation import OBS, Obs, Observation
from covey.training.jaxprs import used_inputs
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
        spec: Sizes and limits of the environment's own observations and actions. Those of `env` may have further parts,
            which `Described` adds.
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

    @cached_property
    def inputs(self) -> Observation:
        """The parts of an observation that the policy uses; one array if the only one is called "obs"."""
        form = self.env.spec.observation
        used = used_parts(lambda obs: self._act(obs, self._begin(), self.key), form)
        parts = {name: form.parts[name] for name in used}
        return Observation.of(parts[OBS] if tuple(used) == (OBS,) else parts)

    @cached_property
    def draws(self) -> bool:
        """True if the decisions may depend on the random key."""
        closed = jax.make_jaxpr(self.function)(self.inputs.zeros(), self.start(), self.key)
        return used_inputs(closed.jaxpr)[-1]

    def function(self, obs: Obs, memory: Any, key: Key) -> tuple[Array, Any]:
        """Returns the action in the environment's own units, and the new memory.

        Args:
            obs: One observation, of the parts in `inputs`.
            memory: The memory, as `start` returns it.
            key: A random key.
        """
        whole = jax.tree.map(lambda x, idle, given: x if idle else given, self._begin(), self._idle, memory)
        action, new = self._act(with_zeros(self.env.spec.observation, self.inputs.by_name(obs)), whole, key)
        return action, jax.tree.map(lambda x, idle: () if idle else x, new, self._idle)

    def _begin(self) -> Any:
        return self.policy.begin(self.state, self.hyper, self.key)

    def _act(self, obs: Obs, memory: Any, key: Key) -> tuple[Array, Any]:
        mode: Mode = "sample" if self.explore else "greedy"
        decision = self.policy.act(self.state, self.hyper, memory, obs, key, mode)
        return self.spec.to_box(decision.action), decision.memory

    @cached_property
    def _idle(self) -> Any:
        """The arrays of the memory that acting neither reads nor changes, such as the noise of a greedy policy."""
        leaves, structure = jax.tree.flatten(self._begin())
        if not leaves:
            return jax.tree.unflatten(structure, [])

        def act(leaves: list[Any], obs: Obs, key: Key) -> list[Any]:
            action, new = self._act(obs, jax.tree.unflatten(structure, leaves), key)
            return [action, *jax.tree.leaves(new)]

        jaxpr = jax.make_jaxpr(act)(leaves, self.env.spec.observation.zeros(), self.key).jaxpr
        read = {id(atom) for equation in needed_equations(jaxpr) for atom in equation.invars}
        parts = zip(jaxpr.invars[: len(leaves)], jaxpr.outvars[1:], strict=True)
        return jax.tree.unflatten(structure, [old is new and id(old) not in read for old, new in parts])

    @cached_property
    def situations(self) -> tuple[Obs, Any]:
        """Observations of real episodes [rows, ...], and the memory of the trained policy at each of them."""

        def step(memory: Any, obs: Any) -> tuple[Any, Any]:
            return self.function(obs, memory, self.key)[1], memory

        @jax.jit
        def memories(obs: Any) -> Any:
            return jax.vmap(lambda episode: jax.lax.scan(step, self.start(), episode)[1])(obs)

        episodes = self._episodes(ROWS)
        lengths = np.array([len(jax.tree.leaves(obs)[0]) for obs in episodes])

        def padded(*parts: np.ndarray) -> np.ndarray:
            filled = np.zeros((len(parts), lengths.max(), *parts[0].shape[1:]), parts[0].dtype)
            for row, x in zip(filled, parts, strict=True):
                row[: len(x)] = x
                row[len(x) :] = x[-1]
            return filled

        obs = jax.tree.map(padded, *episodes)
        made = np.arange(lengths.max()) < lengths[:, None]
        return jax.tree.map(lambda x: np.asarray(x)[made], (obs, memories(obs) if self._has_memory else self.start()))

    @property
    def _has_memory(self) -> bool:
        return bool(jax.tree.leaves(self.start()))

    def _episodes(self, count: int) -> list[Obs]:
        """Plays greedy episodes. Returns the observations [T, ...] of each, `count` in all."""
        found: list[Obs] = []
        missing = count
        while missing > 0:
            key = jax.random.fold_in(jax.random.key(1), len(found))
            length = self.env.spec.episode_length
            episode = record(self.policy, self.env, self.state, self.hyper, key, length, frames_per_second=0)
            given = self.env.spec.observation.by_name(episode.obs)
            obs = {name: np.asarray(given[name], part.dtype)[:missing] for name, part in self.inputs.named}
            finite = all(bool(np.isfinite(x).all()) for x in obs.values())
            require(finite, "An episode of the policy had an observation that is not finite.")
            found.append(self.inputs.of_names(obs))
            missing -= len(next(iter(obs.values())))
        return found


def key_data(count: int, seed: int) -> np.ndarray:
    """Returns the data [count, 2] of random keys, as the format jax takes them."""
    return np.asarray(jax.random.key_data(jax.random.split(jax.random.key(seed), count)), np.uint32)


def as_keys(data: Any) -> Key:
    """Returns random keys from their data."""
    return jax.random.wrap_key_data(jnp.asarray(data, jnp.uint32))
