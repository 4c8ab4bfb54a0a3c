"""Presets: valid, the defaults of a run, and overridden value by value."""

import dataclasses
import json
from pathlib import Path

import pytest

import covey
from covey import agents, envs
from covey.cli import main
from covey.envs.compiled import brax, playground
from covey.run.config import default_config
from covey.run.presets import PRESETS, PUBLISHED, describe, preset_config
from covey.run.program import build
from tests.runs import FLAGS

KNOWN = {env for _, env in PUBLISHED} | set(envs.ENVS) | {f"brax:{name}" for name in brax.names()}
PRESET = {"warmup": 300, "hyper": {"actor_lr": 1e-3, "tau": 0.01}, "agent": {"networks": {"critic": {"hidden": [9]}}}}


@pytest.fixture
def preset(monkeypatch):
    monkeypatch.setitem(PRESETS, ("td3", "point"), PRESET)


def saved(out: Path) -> dict:
    return {name: x for name, x in json.loads((out / "config.json").read_text()).items() if name != "digest"}


@pytest.mark.parametrize(("algorithm", "env"), PRESETS)
def test_every_preset_makes_a_program(algorithm: str, env: str):
    if env.startswith("playground:"):
        pytest.importorskip("mujoco_playground", reason="pip install --no-deps playground, as make does")
        assert env.removeprefix("playground:") in playground.names()
    assert algorithm in agents.REGISTRY and (env in KNOWN or env.startswith("playground:"))
    config = preset_config(algorithm, env=env)
    if ":" not in env or env.endswith("Hopper-v5"):
        build(dataclasses.replace(config.resolved(), capacity=5000))
    else:
        config.check()
        config.schedules()
    assert config != default_config(algorithm, env=env), "a preset that changes nothing"
    assert len(describe(algorithm, env, config).splitlines()) == 1


def test_single_values_override_nested_ones_too(preset):
    agent = {"networks": {"critic": {"norm": "layer"}, "actor": {"hidden": [5]}}}
    config = preset_config("td3", env="point", steps=800, hyper={"tau": 0.5}, agent=agent)
    assert (config.warmup, config.steps, config.hyper.tau, config.hyper.actor_lr) == (300, 800, "0.5", "0.001")
    assert config.agent.networks.critic.hidden == (9,) and config.agent.networks.critic.norm == "layer"
    assert config.agent.networks.actor.hidden == (5,)
    whole = default_config("td3").agent
    assert preset_config("td3", env="point", agent=whole).agent == whole
    assert PRESETS["td3", "point"] is PRESET and "tau" in PRESET["hyper"] and len(PRESET["agent"]["networks"]) == 1


def test_only_what_is_in_effect_is_named(preset):
    config = preset_config("td3", env="point", warmup=400, agent={"networks": {"critic": {"hidden": [8]}}})
    assert describe("td3", "point", config) == "hyper.actor_lr 0.001, hyper.tau 0.01"
    assert describe("td3", "point") == (
        "warmup 300, hyper.actor_lr 0.001, hyper.tau 0.01, agent.networks.critic.hidden (9,)"
    )
    assert describe("td3", "point-free", config) == ""


@pytest.mark.parametrize("env", [["--env", "point"], ["--env=point"], ["--env", "pendulum", "--env", "point"]])
def test_help_shows_the_preset(env: list[str], preset, capsys):
    assert main(["train", "td3", *env, "--help-all"]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "(default: 300, from the preset)" in text and "(default: 0.01, from the preset)" in text


def test_a_run_with_and_without_its_preset(preset, tmp_path: Path, capsys):
    """From the command line; the same again from Python is the same run, and its config.json needs no preset."""
    flags = ["--steps", "800", "--hyper.tau", "0.02", "--evaluations", "1", "--episodes", "2"]
    flags = [*FLAGS, *flags, "--warmup", "400", "--agent.networks.critic.hidden", "16"]
    for name, more in (("with", []), ("without", ["--preset", "off"])):
        assert main(["train", "td3", *flags, *more, "--out", str(tmp_path / name)]) == 0
        out = capsys.readouterr().out
        assert ("  options, also of the preset (--preset off ignores it): networks.actor.hidden 16" in out) == (
            name == "with"
        )
        assert ("actor_lr 0.001" in out) == (name == "with")
    one, two = saved(tmp_path / "with"), saved(tmp_path / "without")
    assert one["hyper"].pop("actor_lr") == "0.001" and two["hyper"].pop("actor_lr") == "0.0003"
    assert one == two
    before = (tmp_path / "with" / "metrics.jsonl").read_text()
    agent = {"networks": {"actor": {"hidden": [16]}, "critic": {"hidden": [16]}}, "batch_size": 8}
    options = {"env": "point", "steps": 800, "warmup": 400, "envs": 2, "evaluations": 1, "episodes": 2}
    covey.train("td3", out=tmp_path / "with", quiet=True, hyper={"tau": 0.02}, agent=agent, **options)
    assert (tmp_path / "with" / "metrics.jsonl").read_text() == before, "resumed, not started again"
    with pytest.raises(covey.CoveyError, match=r"hyper\.actor_lr is '0\.001' there and '0\.0003' here"):
        covey.train("td3", out=tmp_path / "with", quiet=True, preset=False, hyper={"tau": 0.02}, agent=agent, **options)


def test_a_config_file_says_everything(preset, tmp_path: Path, capsys):
    file = tmp_path / "config.json"
    file.write_text('{"algorithm": "td3", "env": "point", "steps": 500}')
    assert main(["train", "td3", "--config", str(file), "--out", str(tmp_path / "run")]) == 1
    assert "Raise --steps above 1000" in capsys.readouterr().err


def test_wrong_values_from_python():
    with pytest.raises(covey.CoveyError, match="`preset` must be True or False, not 'off'"):
        covey.train("td3", preset="off")  # type: ignore[arg-type]
    with pytest.raises(covey.CoveyError, match="`env` must be a name"):
        covey.train("td3", env=["point"])


def test_presets_are_listed(preset, capsys):
    assert main(["presets"]) == 0
    lines = [line for line in capsys.readouterr().out.splitlines() if not line.startswith(" ")]
    assert len(lines) == len(PRESETS) and any(line.startswith("td3 on pendulum: ") for line in lines)
