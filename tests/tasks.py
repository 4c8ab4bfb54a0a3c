"""Small environments that tests use, and small agents."""

from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from covey import agents
from covey.envs.base import Outcome
from covey.envs.described import Described
from covey.training.device import DeviceLoop
from covey.training.trainer import Trainer, make_trainer
from covey.types import Array, Descriptor, EnvSpec, Key

NETWORKS = {"actor": {"hidden": (16,)}, "critic": {"hidden": (16,)}}
NORMALISE = {"observations": True, "rewards": True}
SMALL = {
    "td3": {"networks": NETWORKS, "batch_size": 8, "normalise": NORMALISE},
    "sac": {
        "networks": NETWORKS,
        "batch_size": 8,
        "policy_delay": 2,
        "noise_hold": 4,
        "normalise": NORMALISE,
    },
} | {
    name: {
        "networks": NETWORKS,
        "batch_size": 8,
        "window": 3,
        "max_repeat": 5,
        "advantage_clip": (-5.0, 5.0),
        "normalise": NORMALISE,
    }
    for name in ("taac", "taac-l", "taac-q")
}
_SKILLED = {"networks": NETWORKS, "batch_size": 8, "normalise": NORMALISE}
SMALL |= {
    "diayn": {"sac": _SKILLED, "discriminator": {"hidden": (16,)}, "skills": {"smerl": True, "smerl_target": -1e3}},
    "dads": {
        "sac": _SKILLED | {"noise_hold": 4},
        "dynamics": {"hidden": (16,)},
        "samples": 5,
        "dynamics_every": 2,
        "correction": 10.0,
        "learn_variance": True,
        "skills": {"kind": "continuous", "resample": 0.2, "smerl": True, "smerl_target": -1e3},
    },
}
"""Options that make every agent of the registry small; an agent that is not here has its defaults."""


class CounterState(NamedTuple):
    episode: Array
    step: Array


@dataclass(frozen=True)
class Counter:
    """Observation (episode's number, step within it), so that a test can see which records belong together.

    An episode with an even number terminates after `ends` steps; an odd one runs into the time limit.
    """

    ends: int = 3
    limit: int = 5

    @property
    def spec(self) -> EnvSpec:
        return EnvSpec(2, 1, self.limit, (-1.0,), (1.0,), Descriptor(("step",), (0.0,), (9.0,)))

    def reset(self, key: Key) -> tuple[CounterState, Array]:
        state = CounterState(jax.random.randint(key, (), 0, 1_000_000).astype(jnp.float32), jnp.zeros(()))
        return state, jnp.stack(state)

    def step(self, state: CounterState, action: Array, key: Key) -> tuple[CounterState, Outcome]:
        state = CounterState(state.episode, state.step + 1.0)
        terminated = (state.episode % 2 == 0) & (state.step >= self.ends)
        return state, Outcome(jnp.stack(state), state.step * 10.0, terminated)

    def descriptor(self, state: CounterState) -> Array:
        return state.step[None]

    def frame(self, state: CounterState) -> np.ndarray:
        return np.full((4, 4, 3), int(state.step), np.uint8)


@dataclass(frozen=True)
class Breaks:
    """A point on a line whose observation or reward turns NaN at a step of its episode."""

    at: int = 20
    what: str = "observation"

    @property
    def spec(self) -> EnvSpec:
        return EnvSpec(1, 1, 50, (-1.0,), (1.0,))

    def reset(self, key: Key) -> tuple[Array, Array]:
        return jnp.zeros(()), jnp.zeros(1)

    def step(self, state: Array, action: Array, key: Key) -> tuple[Array, Outcome]:
        state = state + 1.0
        broken = jnp.where(state >= self.at, jnp.nan, 0.0)
        obs = action + (broken if self.what == "observation" else 0.0)
        reward = -jnp.sum(action**2) + (broken if self.what == "reward" else 0.0)
        return state, Outcome(obs, reward, jnp.zeros((), bool))

    def descriptor(self, state: Array) -> Array:
        return jnp.zeros(0)

    def frame(self, state: Array) -> np.ndarray:
        return np.zeros((4, 4, 3), np.uint8)


def small_trainer(name: str, env: Any, **options: Any) -> Trainer:
    from covey.run.config_text import from_json

    entry = agents.entry(name)
    env = Described(env) if entry.is_skill_agent else env
    agent = entry.make(from_json(entry.config, SMALL.get(name, {}), "agent"), env.spec)
    return make_trainer(agent, env, entry.hyper(), **({"capacity": 1000} | options))


def population(loop: DeviceLoop, seed: int = 0) -> Any:
    """Fresh members with hyper-parameters at their defaults, and 200 random steps in their replay."""
    hyper = jax.tree.map(lambda s: jnp.full(loop.members, s.start), loop.trainer.schedules)
    keys = jax.vmap(jax.random.key)(seed + jnp.arange(loop.members))
    members = loop.init(hyper, keys)
    return loop.advance(members, jnp.int32(-(-200 // loop.trainer.block_steps)), warmup=True)


def arrays(tree: Any) -> Any:
    """A tree with random keys as plain numbers."""
    return jax.tree.map(lambda x: jax.random.key_data(x) if jnp.issubdtype(x.dtype, jax.dtypes.prng_key) else x, tree)


def assert_same(one: Any, two: Any) -> None:
    """Equal to the bit."""
    jax.tree.map(np.testing.assert_array_equal, arrays(one), arrays(two))
