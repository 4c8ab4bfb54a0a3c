"""Small environments that tests use, and small agents."""

from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from covey import agents
from covey.envs.base import Outcome
from covey.envs.described import Described
from covey.observation import Part
from covey.training.device import DeviceLoop
from covey.training.trainer import Trainer, make_trainer
from covey.types import Array, Descriptor, EnvSpec, Key

IMAGE = {"channels": (4,), "features": 5, "shift": 1}
NETWORKS = {"actor": {"hidden": (16,)}, "critic": {"hidden": (16,)}, "image": IMAGE}
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
    # With many dimensions, some steps in the representation are longer than 1, so that the dual variable matters.
    "metra": {
        "sac": _SKILLED,
        "representation": {"hidden": (16,)},
        "skills": {"kind": "continuous", "prior": "sphere", "dimensions": 64, "smerl": True, "smerl_target": -1e3},
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


class CameraState(NamedTuple):
    x: Array
    step: Array
    frames: Array


@dataclass(frozen=True)
class Camera:
    """A point on a line, shown as an image of 12 x 12 pixels with a stack of frames, and more parts if asked for.

    Every pixel of a frame has the value 10 * step + the cell of the point, so that a test can see which frame it is.
    """

    kind: str = "image"
    stack: int = 3
    limit: int = 7

    @property
    def spec(self) -> EnvSpec:
        image = Part((12, 12, 1), "uint8", self.stack)
        forms = {
            "image": image,
            "dictionary": {"camera": image, "position": Part((1,))},
            "privileged": {"camera": image, "privileged": Part((1,))},
        }
        return EnvSpec(forms[self.kind], 1, self.limit, (-1.0,), (1.0,), Descriptor(("x",), (-1.0,), (1.0,)))

    def reset(self, key: Key) -> tuple[CameraState, Any]:
        x = jax.random.uniform(key, (), jnp.float32, -1.0, 1.0)
        frame = self._draw(x, jnp.zeros(()))
        state = CameraState(x, jnp.zeros(()), jnp.concatenate([frame] * self.stack, axis=-1))
        return state, self._observe(state)

    def step(self, state: CameraState, action: Array, key: Key) -> tuple[CameraState, Outcome]:
        x = jnp.clip(state.x + 0.3 * action[0], -1.0, 1.0)
        step = state.step + 1.0
        frames = jnp.concatenate([state.frames[..., 1:], self._draw(x, step)], axis=-1)
        state = CameraState(x, step, frames)
        return state, Outcome(self._observe(state), -(x**2), jnp.zeros((), bool))

    def descriptor(self, state: CameraState) -> Array:
        return state.x[None]

    def frame(self, state: CameraState) -> np.ndarray:
        return np.repeat(np.asarray(state.frames)[..., -1:], 3, axis=-1)

    def _draw(self, x: Array, step: Array) -> Array:
        cell = jnp.clip(jnp.floor((x + 1.0) * 4.5), 0.0, 8.0)
        return jnp.full((12, 12, 1), 10.0 * step + cell).astype(jnp.uint8)

    def _observe(self, state: CameraState) -> Any:
        named = {"camera": state.frames, "position": state.x[None], "privileged": state.x[None]}
        return state.frames if self.kind == "image" else {name: named[name] for name in self.spec.observation.parts}
