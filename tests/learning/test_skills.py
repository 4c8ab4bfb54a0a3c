"""Skills are learnt, measured, drawn and planned with: seeded, with thresholds that a broken agent misses."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np

import covey
from covey.cli import main
from covey.run.plans import arrivals, goals_outside

BRISK = {"actor_lr": 3e-3, "critic_lr": 3e-3, "temperature_lr": 3e-3, "tau": 0.02}
WRONG_PLANS = [
    (["--goal", "3"], "must have 2 finite numbers (x, y)"),
    (["--goal", "3,up"], "numbers separated by commas"),
    ([], "Give goals"),
    (["--goal", "1,1", "--random", "3"], "Give goals"),
    (["--goal", "1,1", "--radius", "-1"], "--radius must be positive"),
    (["--goal", "1,1", "--out", "plan.jpg"], "must name a PNG"),
]
SHORT = {"env": "point-free", "steps": 5_000, "evaluations": 2, "episodes": 4, "quiet": True}


def test_diayn_tells_its_skills_apart(tmp_path: Path, capsys):
    agent, hyper = {"skills": {"number": 4}}, {"sac": BRISK, "discriminator_lr": 2e-3}
    run = covey.train("diayn", out=tmp_path / "run", agent=agent, hyper=hyper, **SHORT)
    metrics = {name.removeprefix("skills/"): column["value"] for name, column in run.metrics().items()}
    assert metrics["accuracy"][0] < 0.45 and metrics["accuracy"][-1] > 0.7
    assert metrics["information"][-1] > metrics["information"][0] and np.isfinite(metrics["information_share"]).all()
    assert metrics["cells"][-1] > 1.5 * metrics["cells"][0]
    assert (run.path / "media" / "skills.png").exists()
    rows = (run.path / "media" / "skills.csv").read_text().splitlines()
    assert rows[0] == "skill0,skill1,skill2,skill3,episode,steps,return,x,y" and len(rows) == 13
    assert json.loads((run.path / "evaluation" / "final.json").read_text())["skills"]["accuracy"] > 0.7
    assert main(["plan", str(run.path), "--goal", "1,2"]) == 1
    assert "diayn learns no dynamics to plan with" in capsys.readouterr().err
    assert run.policy()(np.zeros(4)).shape == (2,), "it acts on what the environment shows"


def test_dads_predicts_its_skills_and_plans_with_them(tmp_path: Path, capsys):
    """One test, so that the training is done once, not by every process that tests run in."""
    hyper = {"sac": BRISK | {"target_entropy": -2.0}, "dynamics_lr": 2e-3}
    dads = covey.train("dads", out=tmp_path / "run", hyper=hyper, **SHORT)
    _predicts(dads)
    capsys.readouterr()
    _plans(dads, capsys)
    for arguments, says in WRONG_PLANS:
        assert main(["plan", str(dads.path), *arguments]) in (1, 2)
        assert says in capsys.readouterr().err


def _predicts(dads: covey.Run) -> None:
    metrics = {name.removeprefix("skills/"): column["value"] for name, column in dads.metrics().items()}
    assert metrics["explained_10"][0] < 0.1 and metrics["explained_10"][-1] > 0.4
    assert metrics["error_1"][-1] < metrics["error_10"][-1]
    assert metrics["cells"][-1] > 1.5 * metrics["cells"][0]


def _plans(dads: covey.Run, capsys) -> None:
    assert main(["eval", str(dads.path), "--episodes", "4"]) == 0
    text = capsys.readouterr().out
    assert all(name in text for name in ("information", "log_likelihood", "error_1", "error_10", "cells", "success"))
    out = dads.path / "media" / "there.png"
    assert main(["plan", str(dads.path), "--goal", "3,4", "--goal", "-2,1", "--out", str(out)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("goal (3.00, 4.00): reached") and out.exists() and out.with_suffix(".gif").exists()
    assert main(["skills", str(dads.path), "--out", str(dads.path / "map.png")]) == 0
    assert (dads.path / "map.png").exists() and (dads.path / "map.csv").exists()


def test_arrivals():
    path = np.array([[0.0, 0.0], [1.0, 0.0], [2.0, 0.0], [1.0, 0.0]])
    assert arrivals(path, np.array([[2.0, 0.1], [1.0, 0.0], [9.0, 0.0], [1.0, 0.0]]), 0.2) == [2, 3, -1, -1]
    assert arrivals(path, np.array([[1.0, 0.0], [0.0, 0.0]]), 0.2) == [1, -1]


def test_errors_before_anything_is_trained(tmp_path: Path, capsys):
    wrong = ["train", "dads", "--env", "point-free", "--out", str(tmp_path / "run"), "--agent.skills.descriptor"]
    assert main([*wrong, "z"]) == 1
    assert "coordinate of the descriptor called 'z'" in capsys.readouterr().err
    assert main([*wrong, "9"]) == 1
    assert "coordinate 9 of an observation that has 4" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


def test_goals_out_of_reach_are_named():
    descriptor = SimpleNamespace(names=("x", "y"), low=(-10.0, -10.0), high=(10.0, 10.0))
    view = SimpleNamespace(view=SimpleNamespace(part="descriptor", descriptor=(0, 1)))
    agent = SimpleNamespace(spec=SimpleNamespace(descriptor=descriptor), skill_sac=view)
    program = cast(Any, SimpleNamespace(skill_agent=agent))
    assert goals_outside(program, np.array([[3.0, 4.0], [10.0, -10.0]])) == ""
    said = goals_outside(program, np.array([[300.0, 4.0], [1.0, 1.0]]))
    assert said == "Note: outside of the limits (x -10 to 10, y -10 to 10), so out of reach: 300,4."
