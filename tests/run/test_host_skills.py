"""Skills in host environments, from training to plans."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import covey
from covey.cli import main
from covey.run.session import Session
from tests.runs import assert_same_run
from tests.tasks import SMALL

ROAMER = "gymnasium:tests.host_tasks:Roamer"
TINY: dict[str, Any] = {
    "env": ROAMER,
    "env_descriptor": ["info:x", "info:y"],
    "env_descriptor_low": -6,
    "env_descriptor_high": 6,
    "episode_length": 6,
    "steps": 240,
    "warmup": 80,
    "envs": 2,
    "evaluations": 3,
    "episodes": 2,
    "checkpoint_minutes": 0,
}


def train(algorithm: str, out: Path) -> covey.Run:
    return covey.train(algorithm, out=out, quiet=True, agent=SMALL[algorithm], **TINY)


@pytest.mark.parametrize("algorithm", ["diayn", pytest.param("dads", marks=pytest.mark.slow)])
def test_skills_train_resume_exactly_evaluate_and_are_drawn(algorithm: str, tmp_path: Path, monkeypatch, capsys):
    whole = train(algorithm, tmp_path / "whole")
    evaluate = Session._evaluate_and_tune
    calls: list[int] = []

    def die_at_the_third(session: Session, *how: Any) -> None:
        session.writer.finish()
        calls.append(1)
        if len(calls) == 3:
            raise KeyboardInterrupt
        evaluate(session, *how)

    out = tmp_path / "run"
    with monkeypatch.context() as patch:
        patch.setattr(Session, "_evaluate_and_tune", die_at_the_third)
        with pytest.raises(KeyboardInterrupt):
            train(algorithm, out)
    assert main(["resume", str(out), "--plugin", "tests.host_tasks"]) == 0
    assert_same_run(whole.path, out)

    episodes = whole.evaluate(episodes=3).episodes
    assert episodes.descriptor.shape == (3, 2) and np.ptp(episodes.descriptor) > 0
    assert np.isfinite(episodes.annotations["diversity_return"]).all()
    measured = whole.metrics()
    assert {"skills/information", "skills/cells", "skills/spread_between", "eval/descriptor/x"} <= set(measured)
    policy = whole.policy(skill=0)  # it receives the environment's own observation
    assert policy(np.zeros(3)).shape == (2,) and policy(np.zeros(3)).dtype == np.float32
    assert main(["skills", str(out), "--out", str(tmp_path / "map.png"), "--plugin", "tests.host_tasks"]) == 0
    lines = (tmp_path / "map.csv").read_text().splitlines()
    assert lines[0].endswith("episode,steps,return,x,y") and (tmp_path / "map.png").stat().st_size > 1000
    assert all(line.split(",")[-4] == "6" for line in lines[1:])
    if algorithm == "dads":
        plan = ["plan", str(out), "--goal", "1,1", "--out", str(tmp_path / "plan.png"), "--plugin", "tests.host_tasks"]
        capsys.readouterr()
        assert main(plan) == 0
        assert capsys.readouterr().out.startswith("goal (1.00, 1.00): ")


def test_other_agents_record_the_descriptor_of_evaluations(tmp_path: Path):
    run = covey.train("sac", out=tmp_path / "sac", quiet=True, agent=SMALL["sac"], **TINY)
    found = run.evaluate(episodes=4).episodes
    assert found.descriptor.shape == (4, 2) and np.ptp(found.descriptor) > 0
    plain = {name: value for name, value in TINY.items() if not name.startswith("env_descriptor")}
    same = covey.train("sac", out=tmp_path / "plain", quiet=True, agent=SMALL["sac"], **plain)
    np.testing.assert_array_equal(found.returns, same.evaluate(episodes=4).episodes.returns)
    assert same.evaluate(episodes=4).episodes.descriptor.shape == (4, 0)


def test_without_a_descriptor_skills_may_differ_in_the_observation(tmp_path: Path, capsys):
    plain = {name: value for name, value in TINY.items() if not name.startswith("env_descriptor")}
    with pytest.raises(covey.CoveyError, match=r"no state descriptor.*`env_descriptor`"):
        covey.train("diayn", out=tmp_path / "none", quiet=True, agent=SMALL["diayn"], **plain)
    skills = {"descriptor": ["0", "1"], "number": 3}
    run = covey.train("diayn", out=tmp_path / "run", quiet=True, agent=SMALL["diayn"] | {"skills": skills}, **plain)
    assert run.evaluate(episodes=2).episodes.descriptor.shape == (2, 0)
    assert (run.path / "media" / "skills.csv").read_text().splitlines()[0].endswith("return,obs0,obs1")
