"""One episode to be looked at: every draw has a key of its own."""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from covey.agent import Decision
from covey.envs.base import Outcome
from covey.evaluation.rollout import watch
from covey.types import Array, EnvSpec, Key, Mode


def children(key: Key) -> Array:
    """The keys that a function draws from, if it splits its own in two, [2, 2]."""
    return jax.random.key_data(jax.random.split(key))


@dataclass(frozen=True)
class Keys:
    """An environment and a policy that show the keys they were given."""

    spec = EnvSpec(1, 1, 5, (-1.0,), (1.0,))

    def reset(self, key: Key) -> tuple[Array, Array]:
        return children(key), jnp.zeros(1)

    def step(self, state: Array, action: Array, key: Key) -> tuple[Array, Outcome]:
        return jnp.stack([jax.random.key_data(key)] * 2), Outcome(jnp.zeros(1), jnp.zeros(()), jnp.zeros((), bool))

    def begin(self, state: Any, hyper: Any, key: Key) -> Array:
        return children(key)

    def act(self, state: Any, hyper: Any, memory: Array, obs: Array, key: Key, mode: Mode) -> Decision:
        begun = {f"begin{i}": x for i, x in enumerate(memory.reshape(-1))}
        own = {f"act{i}": x for i, x in enumerate(jax.random.key_data(key))}
        return Decision(jnp.zeros(1), memory, begun | own)


def test_no_key_is_used_twice():
    both = Keys()
    start, found = watch(both, both, (), (), jax.random.key(3), 4)  # type: ignore[arg-type]
    begin = np.array([found.annotations[f"begin{i}"][0] for i in range(4)]).reshape(2, 2)
    act = np.stack([found.annotations["act0"], found.annotations["act1"]], axis=1)
    used = np.concatenate([start.env, begin, act, found.env[:, 0]])
    assert len({tuple(key) for key in used.tolist()}) == len(used) == 2 + 2 + 4 + 4
