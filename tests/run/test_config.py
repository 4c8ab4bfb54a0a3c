"""Configurations from plain values: what is not mentioned keeps the default of its owner."""

import json
from dataclasses import dataclass, field
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import covey
from covey import agents
from covey.agents import Entry
from covey.agents.taac import TAACHyper
from covey.errors import CoveyError
from covey.hyper.names import by_name
from covey.hyper.range import Range
from covey.hyper.schedule import reconfigured
from covey.nn.optim import Optimiser, Optimisers
from covey.nn.parts import Networks, Torso
from covey.run.config import default_config, load_config
from covey.run.config_text import from_json, hyper_text, to_json


@dataclass(frozen=True)
class Config:
    networks: Networks = field(default_factory=lambda: Networks(actor=Torso(hidden=(7,), activation="tanh")))
    size: int = 3


class Inner(NamedTuple):
    actor_lr: float = 1e-3
    tau: float = 0.5


class Hyper(NamedTuple):
    discount: float = 0.9
    inner: Inner = Inner(tau=0.25)


@pytest.fixture
def nested(monkeypatch):
    """An agent whose defaults of nested values differ from those of their types."""
    space = {name: Range(0.1, 1.0) for name in ("discount", "inner.actor_lr", "inner.tau")}
    monkeypatch.setitem(agents.REGISTRY, "nested", Entry(Config, Hyper, space, None, ""))


def test_nested_values_start_from_the_default_of_their_owner():
    assert from_json(Config, {}, "agent") == Config()
    some = from_json(Config, {"networks": {"actor": {"norm": "layer"}}, "size": 4}, "agent")
    assert some.networks.actor == Torso(hidden=(7,), activation="tanh", norm="layer")
    assert some.networks.critic == Torso() and some.size == 4
    assert from_json(Config, {}, "agent", Config(size=9)).size == 9


def test_wrong_nested_values_are_still_named():
    with pytest.raises(covey.CoveyError, match=r"no field of agent\.networks\.actor called 'hiden'"):
        from_json(Config, {"networks": {"actor": {"hiden": [3]}}}, "agent")
    with pytest.raises(covey.CoveyError, match=r"`agent\.networks\.actor\.hidden` sizes must be positive"):
        from_json(Config, {"networks": {"actor": {"hidden": [0]}}}, "agent")


def test_hyper_parameters_may_be_nested(nested):
    assert hyper_text(Hyper)().inner.tau == "0.25"
    config = default_config("nested", hyper={"inner": {"actor_lr": 1e-2}})
    assert to_json(config.hyper) == {"discount": "0.9", "inner": {"actor_lr": "0.01", "tau": "0.25"}}
    assert config.schedules().inner.actor_lr.start == 0.01 and config.schedules().inner.tau.start == 0.25
    with pytest.raises(covey.CoveyError, match="Did you mean 'tau'"):
        default_config("nested", hyper={"inner": {"tua": 1}})
    with pytest.raises(covey.CoveyError, match=r"`hyper\.inner` must be an object"):
        default_config("nested", hyper={"inner": 1})


def test_a_config_file_may_leave_out_nested_values(nested, tmp_path):
    file = tmp_path / "config.json"
    file.write_text('{"algorithm": "nested", "agent": {"networks": {"critic": {"hidden": [5]}}}}')
    config = load_config(file)
    assert config.agent.networks.actor.hidden == (7,) and config.agent.networks.critic.hidden == (5,)
    assert config.hyper.inner.tau == "0.25"


def test_the_single_optimiser_of_older_files_is_that_of_actor_and_critics(tmp_path):
    file = tmp_path / "config.json"
    old = '{"weight_decay": 0.1, "clip_norm": 2.0, "beta1": 0.5}'
    file.write_text('{"algorithm": "sac", "agent": {"optimiser": ' + old + "}}")
    optimisers = load_config(file).agent.optimisers
    assert optimisers == Optimisers(*[Optimiser("adamw", 0.1, 2.0, 0.5)] * 2)
    file.write_text('{"algorithm": "dads", "agent": {"sac": {"optimiser": {"beta1": 0.5, "weight_decay": 0.0}}}}')
    assert load_config(file).agent.sac.optimisers.critic == Optimiser(beta1=0.5)


def test_optimisers_survive_a_file():
    optimisers = {"critic": {"kind": "muon", "momentum": 0.95}}
    agent = {"sac": {"optimisers": optimisers}, "discriminator_optimiser": {"kind": "sgd"}}
    config = default_config("diayn", agent=agent)
    assert config.agent.discriminator_optimiser.kind == "sgd"
    assert from_json(type(config.agent), to_json(config.agent), "agent") == config.agent


def test_hyper_parameters_may_be_several_numbers_or_none(tmp_path):
    given = {"reward_weights": (1, "linear:-2:0.5"), "action_entropy": -1.5}
    config = default_config("taac", env="reacher", hyper=given, steps=5000).resolved()
    assert config.hyper.reward_weights == ("1.0", "linear:-2.0:0.5:5000")
    assert (config.hyper.action_entropy, config.hyper.switch_entropy) == ("-1.5", "none")
    path = tmp_path / "config.json"
    path.write_text(json.dumps(to_json(config)))
    assert load_config(path) == config
    schedules = by_name(config.schedules())
    assert (schedules["reward_weights.1"].end, schedules["action_entropy"].start) == (0.5, -1.5)
    assert not [name for name in schedules if name.startswith(("switch_entropy", "discounts"))]
    assert default_config("taac", hyper=TAACHyper(discounts=(0.9, 0.5))).hyper.discounts == ("0.9", "0.5")
    for wrong, says in (
        ({"discounts": (0.9, 1.5)}, "`hyper.discounts` must lie between 0 and 1"),
        ({"actor_lr": None}, "`hyper.actor_lr` must be a number or a schedule"),
        ({"switch_entropy": 0.8}, "`hyper.switch_entropy` must lie between"),
    ):
        with pytest.raises(CoveyError, match=says):
            default_config("taac", hyper=wrong).schedules()


def test_several_numbers_are_searched_one_by_one():
    def searched(**options):
        return default_config("taac", env="reacher", pbt={}, members=4, **options).searched()

    plain = searched(hyper={"reward_weights": (1, 2), "action_entropy": -1.0})
    assert not plain.keys() & {"reward_weights.0", "action_entropy", "reward_weights"}
    space = {"reward_weights": "-1:1", "action_entropy": "-2:0"}
    found = searched(hyper={"reward_weights": (1, 2), "action_entropy": -1.0}, space=space)
    assert found.keys() - plain.keys() == {"reward_weights.0", "reward_weights.1", "action_entropy"}
    with pytest.raises(CoveyError, match=r"`space\.action_entropy` can't be searched"):
        searched(space={"action_entropy": "-2:0"})


def test_changed_numbers_take_effect_on_resume():
    schedules = default_config("taac", hyper={"reward_weights": (5, 6)}).schedules()
    stored = jax.tree.map(lambda _: jnp.zeros(2), schedules)
    found = by_name(reconfigured(stored, schedules, {"reward_weights", "tau"}))
    assert np.asarray(found["reward_weights.1"]).tolist() == [6.0, 6.0]
    assert float(found["tau"][0]) > 0 and float(found["discount"][0]) == 0.0
