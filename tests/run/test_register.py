"""Heads of your own, by name, in a run."""

from pathlib import Path

import flax.linen as nn
import jax.numpy as jnp

import covey
from covey.nn.parts import ACTOR_HEADS, CRITIC_HEADS
from tests.runs import TINY


def test_heads_are_registered_and_used(tmp_path: Path):
    calls = set()

    @covey.register_actor_head("clipped")
    class Clipped(nn.Module):
        """Clips a linear output."""

        action_size: int

        @nn.compact
        def __call__(self, features):
            calls.add("actor")
            return jnp.clip(nn.Dense(self.action_size)(features), -1.0, 1.0)

    @covey.register_critic_head("halved")
    class Halved(nn.Module):
        """Halves a linear output."""

        @nn.compact
        def __call__(self, features):
            calls.add("critic")
            return 0.5 * nn.Dense(1)(features)[..., 0]

    try:
        networks = TINY["agent"]["networks"] | {"actor_head": "clipped", "critic_head": "halved"}
        options = TINY | {"agent": TINY["agent"] | {"networks": networks}}
        run = covey.train("td3", out=tmp_path / "run", quiet=True, preset=False, **options)
        assert calls == {"actor", "critic"}
        action = run.policy()([0.5] * run.best.program.spec.obs_size)
        assert jnp.abs(action).max() <= 5.0, "the box of the environment"
    finally:
        del ACTOR_HEADS["clipped"], CRITIC_HEADS["halved"]
