"""Skills are learnt, measured, drawn and planned with: seeded, with thresholds that a broken agent misses."""

import json
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
from PIL import Image

import covey
from covey.cli import main
from covey.plots import TILE, skill_labels
from covey.run.skills.films import representatives
from covey.run.skills.plans import arrivals, goals_outside

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
    assert main(["plan", str(run.path), "--goal", "1,2", "--planning.hold", "3"]) == 1
    assert "makes no plan" in capsys.readouterr().err
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


def test_metra_reaches_the_walls_and_goals(tmp_path: Path, capsys):
    run = covey.train("metra", out=tmp_path / "run", **SHORT)  # half the steps of its preset
    metrics = {name.removeprefix("skills/"): column["value"] for name, column in run.metrics().items()}
    assert metrics["cells"][-1] > 3 * metrics["cells"][0] and metrics["dependency"][-1] > 0.35
    assert 0.2 < metrics["squared_step"][-1] < 1.1, "a step in phi is at most about a unit long"
    ends = np.loadtxt(run.path / "media" / "skills.csv", delimiter=",", skiprows=1)[:, -2:]
    assert np.all(ends.max(axis=0) > 9.5) and np.all(ends.min(axis=0) < -9.5), "some skill ends at every wall"
    assert sum(all(plan.reached) for plan in run.random_plans(20, radius=1.0)) >= 17
    capsys.readouterr()
    assert main(["plan", str(run.path), "--random", "5", "--within", "4", "--radius", "1"]) == 0
    assert "5 of 5 goals reached" in capsys.readouterr().out
    for arguments, says in (
        (["--goal", "1,1", "--within", "3"], "--within is for random goals"),
        (["--random", "2", "--within", "-3"], "--within must be positive"),
    ):
        assert main(["plan", str(run.path), *arguments]) in (1, 2)
        assert says in capsys.readouterr().err
    _shows(run, capsys)


def _shows(run: covey.Run, capsys) -> None:
    """The film of several skills, and the page, from Python and from the command line."""
    film = run.film_skills(run.path / "film.gif", skills=[0, 4])
    with Image.open(film) as picture:
        assert picture.n_frames > 20 and picture.width > 1.9 * TILE  # two tiles
    page = covey.skills_page(run, skills=[0, 4, 8])
    assert page == run.path / "media" / "skills.html"
    text = page.read_text()
    assert "skill 8: 180" in text and len(re.findall("data:(video/mp4|image/gif);base64", text)) == 3
    assert 'src="http' not in text, "it makes no request"
    assert main(["skills", str(run.path), "--video", "--skills", "3", "--out", str(run.path / "one.gif")]) == 0
    assert capsys.readouterr().out.strip() == str(run.path / "one.gif") and (run.path / "one.gif").exists()
    for arguments, says in (
        (["--skills", "3"], "add --video or --page"),
        (["--video", "--skills", "16"], "--skills must be numbers from 0 to 15, not 16"),
        (["--video", "--out", "film.avi"], "film.avi"),
        (["--page", "--out", "page.txt"], "must name an HTML file"),
        (["--out", "map.gif"], "A film needs --video"),
    ):
        assert main(["skills", str(run.path), *arguments]) in (1, 2)
        assert says in capsys.readouterr().err


def test_skills_that_represent_all():
    grid = np.stack(np.meshgrid(*[np.linspace(-1, 1, 5)] * 2, indexing="ij"), axis=-1).reshape(-1, 2)
    assert representatives(grid, 9) == [0, 2, 4, 10, 12, 14, 20, 22, 24]
    assert representatives(np.eye(3), 9) == [0, 1, 2]
    assert skill_labels(np.array([[1.0, 0.0], [0.0, -1.0], [-1.0, -1e-9], [0.4, 0.8]])) == [
        "skill 0: 0°",
        "skill 1: 270°",
        "skill 2: 180°",
        "skill 3: 0.4, 0.8",
    ]
    assert skill_labels(np.eye(2)) == ["skill 0", "skill 1"]


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
