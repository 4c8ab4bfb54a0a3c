"""Heads, optimisers and targets of your own, by name, in a run."""

from pathlib import Path

import flax.linen as nn
import jax.numpy as jnp
import numpy as np

import covey
from covey.agents.targets import TARGETS
from covey.cli import main
from covey.nn.optim import OPTIMISERS
from covey.nn.parts import ACTOR_HEADS, CRITIC_HEADS
from tests.runs import FLAGS, TINY, last_arrays


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


PARTS = """
import covey, jax.numpy as jnp, optax

covey.register_optimiser("lion", lambda options: optax.scale_by_lion(options.beta1, 0.99))

@covey.register_target("td-lambda")
def td_lambda(inputs, key):
    keep = jnp.full_like(inputs.value, 0.9)
    return keep, (1.0 - keep) * inputs.value
"""


def test_optimisers_and_targets_of_a_plugin_train_and_resume_exactly(tmp_path: Path, monkeypatch, capsys):
    """With Muon and targets that move at every third update, whose states a checkpoint holds too."""
    monkeypatch.setattr("covey.nn.optim.OPTIMISERS", dict(OPTIMISERS))
    monkeypatch.setattr("covey.agents.targets.TARGETS", dict(TARGETS))
    (tmp_path / "own_parts.py").write_text(PARTS)
    monkeypatch.syspath_prepend(tmp_path)
    flags = [*FLAGS, "--capacity", "1200", "--agent.target", "td-lambda", "--agent.target-update-period", "3"]
    flags += ["--agent.optimisers.actor.kind", "lion", "--agent.optimisers.temperature.kind", "sgd"]
    flags += ["--agent.optimisers.critic.kind", "muon", "--agent.optimisers.critic.momentum", "0.95"]
    whole, halved = tmp_path / "whole", tmp_path / "halved"
    assert main(["train", "taac", *flags, "--out", str(whole)]) == 1
    assert "There is no optimiser called 'lion'" in capsys.readouterr().err
    assert main(["--plugin", "own_parts", "train", "taac", *flags, "--out", str(whole)]) == 0
    assert main(["train", "taac", *flags, "--steps", "800", "--out", str(halved)]) == 0
    assert main(["resume", str(halved), "--steps", "1200"]) == 0
    one, two = last_arrays(whole), last_arrays(halved)
    assert {"target_age", "ns_coeffs"} <= {part for name in one for part in name.split("/")}
    for name in one:
        if "tally" not in name and not name.startswith("best/"):
            np.testing.assert_array_equal(one[name], two[name], err_msg=name)
