"""A run does nothing twice, and its policy needs no training program."""

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

import covey
from covey import envs
from covey.cli import main
from covey.storage.store import Store
from tests.runs import TINY, tiny


def counted(monkeypatch: pytest.MonkeyPatch, target: Any, name: str) -> list[Any]:
    """The calls of a function, which still works."""
    calls: list[Any] = []
    real = getattr(target, name)

    def call(*arguments: Any, **options: Any) -> Any:
        calls.append(arguments)
        return real(*arguments, **options)

    monkeypatch.setattr(target, name, call)
    return calls


def test_training_makes_the_environment_once_and_plays_the_final_episode_once(tmp_path: Path, monkeypatch):
    made = counted(monkeypatch, envs, "make_from_config")
    played = counted(monkeypatch, __import__("covey.run.run", fromlist=["run"]), "record")
    read = counted(monkeypatch, Store, "read_newest")
    covey.train("td3", out=tmp_path / "run", quiet=True, preset=False, **TINY)
    assert len(made) == 1 and len(played) == 1
    assert [store.kind for store, *_ in read if store.kind == "best"] == ["best"]


def test_a_run_of_a_larger_machine_can_be_evaluated_here(tmp_path: Path, capsys):
    run = tiny(tmp_path / "run")
    before = run.evaluate(episodes=3)
    values = json.loads(run.folder.config.read_text())
    del values["digest"]
    run.folder.config.write_text(json.dumps(values | {"capacity": 10**12}))
    loaded = covey.load(run.path)
    assert loaded.evaluate(episodes=3).episodes.returns.tolist() == before.episodes.returns.tolist()
    assert loaded.policy()([0.0] * loaded.best.program.spec.obs_size).shape == (2,)
    assert main(["resume", str(run.path), "--steps", "2400"]) == 1
    assert "Lower --capacity" in capsys.readouterr().err


def test_a_run_is_resumed_from_python(tmp_path: Path):
    run = tiny(tmp_path / "run")
    longer = covey.resume(run.path, quiet=True, steps=2 * run.config.steps, hyper={"actor_lr": 1e-3})
    assert longer.config.steps == 2 * run.config.steps and longer.config.hyper.actor_lr == "0.001"
    assert longer.config.hyper.critic_lr == run.config.hyper.critic_lr
    assert max(longer.metrics()["eval/return"]["step"]) == 2 * run.config.steps
    with pytest.raises(covey.CoveyError, match="`env` is 'point' in this run, and can't change within it"):
        covey.resume(run.path, quiet=True, env="pendulum")  # pyright: ignore[reportCallIssue]


def test_options_may_be_the_agents_own_types(tmp_path: Path):
    hyper = covey.TD3Hyper(exploration_noise=covey.Schedule("linear", 0.3, 0.1, 1000))
    options = TINY | {"hyper": hyper, "agent": covey.TD3Config(batch_size=8)}
    run = covey.train("td3", out=tmp_path / "run", quiet=True, preset=False, **options)
    assert run.config.hyper.exploration_noise == "linear:0.3:0.1:1000" and run.config.agent.batch_size == 8


@pytest.mark.parametrize("damage", ["cut", "fifo", "gone"])
def test_resuming_repairs_the_checkpoint_of_the_best_policy(damage: str, tmp_path: Path, capsys):
    """Every training checkpoint has a copy of it."""
    run = tiny(tmp_path / "run")
    before = run.evaluate(episodes=3).episodes.returns.tolist()
    (file,) = run.folder.checkpoints.glob("best_*/arrays.safetensors")
    if damage == "cut":
        file.write_bytes(file.read_bytes()[:-1])
    elif damage == "fifo":
        file.unlink()
        os.mkfifo(file)
    else:
        shutil.rmtree(file.parent)
    assert main(["resume", str(run.path)]) == 0
    out = capsys.readouterr().out
    assert ("is damaged" in out) == (damage != "gone")
    assert covey.load(run.path).evaluate(episodes=3).episodes.returns.tolist() == before
    assert "damaged" not in capsys.readouterr().err
