"""Every option of the critics, the optimiser and the networks, in the updates of both agents that share them."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from covey import agents
from covey.run.config_text import from_json
from covey.training.precision import Precision, in_precision
from tests.reference import SPEC, batch_of
from tests.tasks import NETWORKS, assert_same

TORSO = {"hidden": (16,)}
DECAYED = {"kind": "adamw", "weight_decay": 0.01}
HEADS = {"td3": "tanh", "sac": "tanh_normal"}
MIXES = {
    "redq and droq": {
        "critics": {"number": 4, "subset": 2},
        "networks": {"actor": TORSO, "critic": TORSO | {"norm": "layer", "dropout": 0.1}},
        "optimisers": {"actor": DECAYED, "critic": DECAYED | {"clip_norm": 1.0}},
        "n_step": 3,
    },
    "crossq and hl-gauss": {
        "critics": {"combine": "mean", "bins": 21},
        "networks": {"actor": TORSO, "critic": TORSO | {"norm": "batch"}},
        "optimisers": {"actor": {"beta1": 0.5}, "critic": {"beta1": 0.5}},
        "smoothness": {"temporal": 1.0},
    },
    "optimisers and losses": {
        "critics": {"td_loss": "huber", "huber_delta": 0.5},
        "optimisers": {"actor": {"kind": "rmsprop"}, "critic": {"kind": "muon", "momentum": 0.95}},
        "networks": {"actor": TORSO, "critic": TORSO, "weights": "orthogonal"},
        "target_update_period": 2,
    },
    "c51 and unit norm": {
        "critics": {"bins": 21, "distribution": "c51", "batch_targets": True},
        "networks": {"actor": {"kind": "simba", "hidden": (8,)}, "critic": {"kind": "flash", "hidden": (8,)}},
        "optimisers": {"actor": {"unit_norm": "weights"}, "critic": {"unit_norm": "layers"}},
        "normalise": {"rewards": True, "reward_bound": 5.0},
    },
    "shared encoder": {
        "networks": {"encoder": TORSO, "actor": TORSO, "critic": TORSO, "share_encoder": True},
        "smoothness": {"temporal": 1.0, "spatial": 1.0},
    },
}


def trained(name: str, mix: dict[str, Any], precision: Precision = "float32", members: int = 0) -> Any:
    """A state after three updates, or those of several members in lock-step."""
    entry = agents.entry(name)
    networks = mix.get("networks", NETWORKS) | {"actor_head": HEADS[name]}
    config = from_json(entry.config, {"batch_size": 8} | mix | {"networks": networks}, "agent")
    agent = in_precision(entry.make(config, SPEC), precision)
    batches = jax.tree.map(lambda *x: jnp.stack(x), *(batch_of(agent, seed) for seed in range(3)))

    def learn(key: Any) -> Any:
        state = agent.init(entry.hyper(), key)

        def update(state: Any, x: Any) -> Any:
            return agent.update(state, entry.hyper(), *x)

        return jax.lax.scan(update, state, (batches, jax.random.split(key, 3)))

    keys = jax.random.split(jax.random.key(0), 2)
    return jax.jit(jax.vmap(learn) if members else learn)(keys if members else keys[1])


@pytest.mark.parametrize("name", HEADS)
@pytest.mark.parametrize("mix", MIXES)
def test_options_learn_together(name: str, mix: str):
    state, metrics = trained(name, MIXES[mix])
    assert all(bool(np.isfinite(x).all()) for x in jax.tree.leaves((state, metrics)))


@pytest.mark.parametrize("mix", ["redq and droq", "crossq and hl-gauss", "optimisers and losses"])
def test_members_in_lock_step_are_members_alone(mix: str):
    """Dropout, subsets and batch statistics too: each member has its own."""
    alone, together = trained("sac", MIXES[mix])[0], trained("sac", MIXES[mix], members=2)[0]
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b[1], rtol=1e-3, atol=1e-5), alone, together)


def test_bfloat16_rounds_products_and_keeps_float32_parameters():
    one, two = trained("sac", {})[0], trained("sac", {}, "bfloat16")[0]
    others = trained("sac", MIXES["optimisers and losses"], "bfloat16")[0]
    assert {x.dtype for x in jax.tree.leaves((two, others))} <= {jnp.dtype("float32"), jnp.dtype("int32")}
    with pytest.raises(AssertionError):
        assert_same(one.actor, two.actor)
    apart = jax.tree.map(lambda a, b: float(np.abs(a - b).max()), one.actor, two.actor)
    assert max(jax.tree.leaves(apart)) < 0.01
