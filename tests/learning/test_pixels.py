"""Learning from images: seeded, with thresholds that a policy which ignores the image misses."""

from dataclasses import dataclass, replace
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

import covey
from covey.types import Array, Key

NETWORKS = covey.Networks(
    actor=covey.Torso(hidden=(64, 64)),
    critic=covey.Torso(hidden=(64, 64)),
    image=covey.Image(channels=(8, 8), features=32),
    actor_head="tanh_normal",
    weights="lecun",
)


@dataclass(frozen=True)
class CameraAndSpeed:
    """The pendulum with its angle in an image, and its velocity as a vector: neither is enough alone."""

    env: Any

    @property
    def spec(self) -> covey.EnvSpec:
        parts = {"pixels": self.env.spec.observation.parts["pixels"], "speed": covey.Part((1,))}
        return replace(self.env.spec, observation=covey.Observation.of(parts))

    def reset(self, key: Key) -> tuple[Any, Any]:
        state, obs = self.env.reset(key)
        return state, self._parts(obs)

    def step(self, state: Any, action: Array, key: Key) -> tuple[Any, Any]:
        state, outcome = self.env.step(state, action, key)
        return state, outcome._replace(obs=self._parts(outcome.obs))

    def descriptor(self, state: Any) -> Array:
        return self.env.descriptor(state)

    def frame(self, state: Any) -> np.ndarray:
        return self.env.frame(state)

    def _parts(self, obs: dict[str, Array]) -> dict[str, Array]:
        return {"pixels": obs["pixels"], "speed": obs["obs"][..., 2:] / jnp.float32(8.0)}


def learned(agent: Any, env: Any, hyper: Any, steps: int) -> float:
    """Returns the mean greedy return after some steps, the first thousand of them random."""
    loop = covey.DeviceLoop(covey.make_trainer(agent, env, hyper, capacity=steps + 1000))
    population = loop.advance(loop.init(seed=0), blocks=10, warmup=True)
    population = loop.advance(population, blocks=steps // 100)
    return float(covey.evaluate(loop, population, episodes=20).returns.mean())


def test_sac_learns_from_an_image_and_a_vector():
    """A random policy has about -1200; one that sees the velocity or the angle alone stays below -600."""
    env = CameraAndSpeed(covey.envs.make("pendulum", pixels=16, stack=1, pixels_beside=True))
    agent = covey.SAC(covey.SACConfig(networks=NETWORKS, batch_size=32), env.spec)
    assert learned(agent, env, covey.SACHyper(1e-3, 1e-3, 1e-3), 5_000) > -250


@pytest.mark.slow
@pytest.mark.parametrize("name", ["sac", "taac"])
def test_the_pendulum_is_learned_from_stacked_images(name: str):
    env = covey.envs.make("pendulum", pixels=16, stack=3)
    kind, config, hyper = {
        "sac": (covey.SAC, covey.SACConfig(networks=NETWORKS, batch_size=32), covey.SACHyper(1e-3, 1e-3, 1e-3)),
        "taac": (
            covey.TAAC,
            covey.TAACConfig(networks=NETWORKS, batch_size=16),
            covey.TAACHyper(actor_lr=1e-3, critic_lr=1e-3, temperature_lr=1e-3),
        ),
    }[name]
    assert learned(kind(config, env.spec), env, hyper, 8_000) > -250
