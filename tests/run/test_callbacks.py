"""Callbacks and evaluators: called at the right moments, may stop a run, and change nothing else."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import covey
from covey import callbacks
from covey.cli import main
from covey.storage.store import Store
from tests.runs import FLAGS, TINY, assert_same_run, last_arrays, tiny


class Recorder:
    """Remembers every event."""

    def __init__(self) -> None:
        self.events: list[tuple[str, Any]] = []

    def __call__(self, name: str) -> Any:
        return lambda event: self.events.append((name, event))

    @property
    def callback(self) -> covey.Callback:
        return covey.Callback(**{f"on_{name}": self(name) for name in ("start", "log", "evaluation", "checkpoint")})

    def steps(self, name: str) -> list[int]:
        return [event.step for each, event in self.events if each == name]


@pytest.fixture(scope="module")
def plain(tmp_path_factory) -> covey.Run:
    return tiny(tmp_path_factory.mktemp("plain") / "run", seeds=2)


def test_events_come_in_order_and_change_nothing(plain: covey.Run, tmp_path: Path):
    seen = Recorder()
    run = tiny(tmp_path / "run", seeds=2, callbacks=[seen.callback])
    assert_same_run(run.path, plain.path)
    assert seen.events[0][0] == "start" and seen.steps("start") == [0]
    assert seen.steps("evaluation") == [0, 400, 800, 1200]
    assert len(seen.steps("log")) > len(seen.steps("evaluation")) and seen.steps("log")[-1] == 1200
    evaluation = [event for name, event in seen.events if name == "evaluation"][-1]
    assert evaluation.values["eval/return"].shape == (2,) and evaluation.episodes.returns.shape == (2, 4)
    assert evaluation.mean["eval/return"] == pytest.approx(np.mean(evaluation.values["eval/return"]))
    (checkpoint,) = [event for name, event in seen.events if name == "checkpoint"]
    assert checkpoint.step == 1200 and (checkpoint.path / "info.json").exists()


def test_a_run_that_a_callback_stops_is_whole_and_can_be_resumed(plain: covey.Run, tmp_path: Path, capsys):
    def stop(event: covey.Event) -> None:
        if event.step == 400:
            event.stop()

    run = tiny(tmp_path / "run", seeds=2, callbacks=[covey.Callback(on_evaluation=stop)])
    assert Store(run.folder.checkpoints, "step").steps() == [400]
    assert max(run.metrics()["eval/return"]["step"]) == 400 and (run.folder.media / "curve.png").exists()
    assert run.evaluate(episodes=2).episodes.returns.shape == (2,)
    assert_same_run(covey.resume(run.path, quiet=True).path, plain.path)


def test_an_exception_ends_the_run_after_saving(plain: covey.Run, tmp_path: Path):
    def fail(event: covey.Event) -> None:
        if event.step == 800:
            raise ZeroDivisionError("mine")

    with pytest.raises(ZeroDivisionError, match="mine"):
        tiny(tmp_path / "run", seeds=2, callbacks=[covey.Callback(on_evaluation=fail)])
    assert Store(tmp_path / "run" / "checkpoints", "step").steps()[-1] == 800
    assert_same_run(covey.resume(tmp_path / "run", quiet=True).path, plain.path)


def test_an_event_has_the_current_policies(tmp_path: Path):
    actions, films = [], []

    def look(event: covey.Event) -> None:
        assert event.run is not None
        actions.append(event.run(1).policy()(np.zeros(6, np.float32)))
        films.append(event.run().animate(event.path / "media" / f"step-{event.step}.gif"))
        returns = event.run(0).program.evaluate  # the same program as the run's own
        assert callable(returns)

    run = tiny(tmp_path / "run", seeds=2, evaluations=1, callbacks=[covey.Callback(on_evaluation=look)])
    assert len(actions) == 2 and not np.array_equal(*actions)
    assert all(film.exists() for film in films)
    with pytest.raises(covey.CoveyError, match="no member 7"):
        covey.resume(
            run.path,
            quiet=True,
            steps=2400,
            callbacks=[covey.Callback(on_evaluation=lambda event: event.run(7))],  # pyright: ignore[reportOptionalCall]
        )


def test_host_environments(tmp_path: Path):
    """The same with the loop of host environments, whose evaluation environments a callback may use in between."""
    returns: list[float] = []

    def look(event: covey.Event) -> None:
        assert event.run is not None
        returns.append(event.run().evaluate(episodes=2).mean.centre)

    options = TINY | {"env": "gymnasium:Pendulum-v1", "steps": 800, "evaluations": 2, "preset": False}
    plain = tiny(tmp_path / "plain", **options)
    watched = tiny(tmp_path / "watched", callbacks=[covey.Callback(on_evaluation=look)], **options)
    assert_same_run(watched.path, plain.path)
    assert len(returns) == 3


def test_an_evaluator_is_logged_and_ranks_policies(plain: covey.Run, tmp_path: Path):
    """Called for each member at each evaluation; `fitness` decides which policy is kept."""
    calls: list[int] = []

    def evaluator(run: covey.Run) -> dict[str, float]:
        calls.append(len(calls))
        return {"fitness": -len(calls), "size": float(np.abs(run.policy()(np.ones(6, np.float32))).sum())}

    run = tiny(tmp_path / "run", seeds=2, evaluator=evaluator)
    assert len(calls) == 2 * 4
    assert run.metrics()["eval/fitness"]["value"] == [-1, -2, -3, -4, -5, -6, -7, -8]
    assert min(run.metrics()["eval/size"]["value"]) >= 0
    assert Store(run.folder.checkpoints, "best").steps() == [0], "the fitness only falls"
    ours, theirs = last_arrays(run.path), last_arrays(plain.path)
    for name in (each for each in theirs if not each.startswith("best")):
        np.testing.assert_array_equal(ours[name], theirs[name], err_msg=name)


def test_a_population_is_ranked_by_the_evaluator(tmp_path: Path):
    """Member 1 always wins, and member 0 copies it."""
    number = 0

    def evaluator(run: covey.Run) -> dict[str, float]:
        nonlocal number
        number += 1
        return {"fitness": float(number % 2 == 0)}

    options = TINY | {"steps": 800, "evaluations": 2, "pbt": {"bottom": 0.5, "top": 0.5, "interval": 600}}
    run = covey.evolve("td3", out=tmp_path / "run", quiet=True, preset=False, members=2, evaluator=evaluator, **options)
    lines = (run.path / "lineage.jsonl").read_text()
    assert '"parent": 1, "fitness": 0.0, "reason": "worse"' in lines


def test_wrong_values(tmp_path: Path):
    with pytest.raises(covey.CoveyError, match=r"must be a covey\.Callback"):
        tiny(tmp_path / "a", callbacks=[print])
    with pytest.raises(covey.CoveyError, match="must return a dictionary"):
        tiny(tmp_path / "b", evaluator=lambda run: 3.0)
    with pytest.raises(covey.CoveyError, match="register_callback"):
        covey.evolve("td3", env="point", engine="ray", callbacks=[covey.Callback()])


def test_a_plugin_registers_callbacks_for_the_command_line(tmp_path: Path, monkeypatch, capsys):
    monkeypatch.setattr(callbacks, "CALLBACKS", {})
    steps: list[int] = []
    covey.register_callback("old", covey.Callback(on_evaluation=lambda event: 1 / 0))
    covey.register_callback("old", covey.Callback(on_evaluation=lambda event: (steps.append(event.step), event.stop())))
    assert main(["train", "td3", *FLAGS, "--out", str(tmp_path / "run")]) == 0
    assert steps == [0], "stopped at the first log"
    assert "Stopped by a callback at step" in capsys.readouterr().out
