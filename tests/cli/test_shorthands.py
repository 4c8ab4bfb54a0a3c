"""`--lr` and `--hidden`: written out before the configuration is made, and weaker than an option named itself."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

import covey
from covey import agents
from covey.cli import main
from covey.run.config import RunConfig, default_config
from covey.run.config_text import flat, flat_texts, to_json
from covey.run.presets import preset_config
from covey.storage.folder import RunFolder


@pytest.fixture
def started(monkeypatch) -> list[RunConfig[Any, Any]]:
    """The configurations of runs that would have been started or resumed."""
    configs: list[RunConfig[Any, Any]] = []
    monkeypatch.setattr("covey.launch.start_run", lambda config, *_: configs.append(config))
    monkeypatch.setattr("covey.api.start_run", lambda config, *_, **__: configs.append(config))
    monkeypatch.setattr("covey.launch.resume_run", lambda path, config, *_: configs.append(config))
    return configs


def rates(config: RunConfig[Any, Any]) -> dict[str, str]:
    return {name: text for name, text in flat_texts(config.hyper).items() if name.endswith("_lr")}


def widths(config: RunConfig[Any, Any]) -> dict[str, list[int]]:
    return {name: x for name, x in flat(to_json(config.agent)).items() if name.endswith("hidden")}


@pytest.mark.parametrize("name", agents.REGISTRY)
def test_every_rate_and_every_network(name: str):
    config = default_config(name, lr=0.004, hidden=[48, 24])
    assert set(rates(config).values()) == {"0.004"}
    layers = widths(config)
    encoders = [path for path in layers if "encoder" in path]
    assert len(encoders) == 1 and layers.pop(encoders[0]) == [], "an agent has an encoder only if it is given layers"
    assert len(layers) == (3 if agents.entry(name).is_skill_agent else 2)
    assert all(sizes == [48, 24] for sizes in layers.values())
    assert default_config(name, lr=None, hidden=None) == default_config(name)


@pytest.mark.parametrize(("text", "value"), [("8/1024", 8 / 1024), ("0.25", 0.25), ("1/3", 1 / 3), ("2e-3", 0.002)])
def test_updates_per_step_may_be_a_fraction(text: str, value: float, started):
    assert main(["train", "td3", "--env", "point", "--updates-per-step", text]) == 0
    assert started[0].updates_per_step == value


def test_they_win_over_a_preset_and_lose_to_the_option_itself():
    options = {"env": "pendulum", "lr": "linear:1e-3:1e-4", "hidden": 32, "hyper": {"critic_lr": 0.5}}
    config = preset_config("sac", **options, agent={"networks": {"actor": {"hidden": [8]}}})
    assert rates(config) == {
        "actor_lr": "linear:1e-3:1e-4",
        "critic_lr": "0.5",
        "temperature_lr": "linear:1e-3:1e-4",
    }
    assert widths(config)["networks.actor.hidden"] == [8] and widths(config)["networks.critic.hidden"] == [32]
    assert config.hyper.tau == preset_config("sac", env="pendulum").hyper.tau, "the rest of the preset is kept"


def test_the_command_line_writes_them_out(started, tmp_path: Path):
    line = ["--env", "pendulum", "--lr", "0.004", "--hidden", "48", "24", "--hyper.actor-lr", "0.1"]
    assert main(["train", "TD3", *line, "--agent.networks.critic.hidden", "8"]) == 0
    (config,) = started
    assert config.algorithm == "td3" and rates(config) == {"actor_lr": "0.1", "critic_lr": "0.004"}
    assert widths(config)["networks.actor.hidden"] == [48, 24] and widths(config)["networks.critic.hidden"] == [8]
    assert not {"lr", "hidden"} & set(to_json(config))
    python = covey.train(
        "td3",
        env="pendulum",
        lr=0.004,
        hidden=(48, 24),
        hyper={"actor_lr": 0.1},
        agent={"networks": {"critic": {"hidden": [8]}}},
    )
    assert python is None and started[1] == config


def test_they_win_over_a_configuration_file(started, tmp_path: Path):
    file = tmp_path / "config.json"
    file.write_text(json.dumps(to_json(default_config("td3", steps=5000, hyper={"actor_lr": 0.2}))))
    assert main(["train", "td3", "--config", str(file), "--lr", "0.004", "--hidden", "16"]) == 0
    assert set(rates(started[0]).values()) == {"0.004"} and started[0].steps == 5000


def test_a_population_does_not_search_a_given_rate(started):
    line = ["evolve", "sac", "--env", "pendulum", "--lr", "0.004", "--space.actor-lr", "1e-4:1e-2"]
    assert main([*line, "--members", "4"]) == 0
    (config,) = started
    searched = set(config.searched())
    assert "actor_lr" in searched and "tau" in searched
    assert not {"critic_lr", "temperature_lr"} & searched and rates(config)["critic_lr"] == "0.004"
    covey.evolve("sac", env="pendulum", members=4, lr=0.004, space={"actor_lr": "1e-4:1e-2"})
    assert started[1].searched() == config.searched()
    assert main(["evolve", "sac", "--env", "pendulum"]) == 0
    assert {"actor_lr", "critic_lr", "temperature_lr"} <= set(started[2].searched()) and started[2].members == 8


def test_resume_takes_a_learning_rate(started, tmp_path: Path):
    old = default_config("sac").resolved()
    RunFolder(tmp_path / "run").create(to_json(old))
    assert main(["resume", str(tmp_path / "run"), "--lr", "linear:1e-3:0", "--hyper.critic-lr", "0.1"]) == 0
    assert rates(started[0])["actor_lr"] == "linear:1e-3:0" and rates(started[0])["critic_lr"] == "0.1"
    assert dataclasses.replace(started[0], hyper=old.hyper) == old
    assert main(["resume", str(tmp_path / "run")]) == 0 and started[1] is None


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"lr": "fast"}, "`lr` must be a number or KIND"),
        ({"lr": 0.1, "hyper": covey.SACHyper()}, "`lr` and a whole SACHyper as `hyper` exclude each other"),
        ({"hidden": [0]}, "`hidden` must be positive whole numbers, as in 256 256, not 0"),
        ({"hidden": "wide"}, "`hidden` must be positive whole numbers"),
        ({"hidden": 8, "agent": covey.SACConfig()}, "`hidden` and a whole SACConfig as `agent` exclude each other"),
    ],
)
def test_wrong_values(options, says: str):
    with pytest.raises(covey.CoveyError, match=says):
        default_config("sac", **options)
