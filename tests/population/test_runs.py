"""Runs of populations, from the first step to the pictures: exact on any number of devices, and after a crash."""

import json
import shlex
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tyro

import covey
from covey import agents
from covey.cli import main
from covey.launch import winner_command
from covey.run.config import config_type
from covey.run.presets import preset_config
from covey.run.session import Session
from tests.runs import FLAGS, TINY, assert_same_run, last_arrays, rows

MEMBERS = {"members": 4, "population_axis": "map", "quiet": True}
PBT = {"bottom": 0.5, "top": 0.25}


def evolve(out: Path, **options: Any) -> covey.Run:
    return covey.evolve("td3", out=out, **(TINY | MEMBERS | {"pbt": PBT} | options))


@pytest.fixture(scope="module")
def reference(tmp_path_factory) -> Path:
    """A population that nobody disturbed, on two devices."""
    return evolve(tmp_path_factory.mktemp("population") / "run", devices=2).path


def test_a_run_leaves_lineage_pictures_and_the_best_policy(reference: Path, capsys):
    lineage = rows(reference / "lineage.jsonl")
    assert [row["generation"] for row in lineage] == [0] * 4 + [1] * 4 + [2] * 4
    assert [row["reason"] for row in lineage[:4]] == ["start"] * 4 and {row["parent"] for row in lineage[:4]} == {None}
    middle = {row["member"]: row for row in lineage[4:8]}
    ranked = sorted(middle, key=lambda m: -middle[m]["fitness"])
    assert {m for m in middle if middle[m]["reason"] == "worse"} == set(ranked[2:])
    assert all(middle[m]["parent"] == ranked[0] for m in ranked[2:])
    assert middle[ranked[2]]["hyper"] != middle[ranked[3]]["hyper"]
    assert {row["reason"] for row in lineage[8:]} == {"kept"}
    for name in ("lineage", "hypers", "fitness", "curve"):
        assert (reference / "media" / f"{name}.png").stat().st_size > 5_000
    run = covey.load(reference)
    assert run.policy()(np.zeros(6)).shape == (2,)
    final = json.loads((reference / "evaluation" / "final.json").read_text())
    assert np.isfinite(final["return"]) and len(final["descriptors"]) == 4
    evaluated = [row for row in rows(reference / "evaluation" / "episodes.jsonl") if row["step"] == 1200]
    assert {(row["member"], row["episode"]) for row in evaluated} == {(m, e) for m in range(4) for e in range(4)}
    assert all(len(row["descriptor"]) == 2 for row in evaluated)
    assert main(["lineage", str(reference)]) == 0
    assert "lineage.png" in capsys.readouterr().out


def test_the_same_on_one_device(reference: Path, tmp_path: Path):
    one = evolve(tmp_path / "run", devices=1).path
    assert_same_run(reference, one)
    assert rows(reference / "lineage.jsonl") == rows(one / "lineage.jsonl")


def test_after_a_crash_in_the_middle_of_a_generation(reference: Path, tmp_path: Path, monkeypatch):
    """Saved at every chance, it dies between two generations, and then once more; it ends as if it had not."""
    out, blocks = tmp_path / "run", iter((5, 9))

    def crash(session: Session) -> None:
        save_if_due(session)
        if session.block >= limit:
            session.writer.finish()
            raise RuntimeError("the power went")

    save_if_due = Session._save_if_due
    monkeypatch.setattr(Session, "_save_if_due", crash)
    limit = next(blocks)
    with pytest.raises(RuntimeError, match="the power went"):
        evolve(out, devices=1, checkpoint_minutes=0.0)
    limit = next(blocks)
    with pytest.raises(RuntimeError, match="the power went"):
        covey.evolve("td3", out=out, **(TINY | MEMBERS | {"pbt": PBT, "devices": 1, "checkpoint_minutes": 0.0}))
    monkeypatch.undo()
    assert main(["resume", str(out), "--devices", "2"]) == 0
    assert_same_run(reference, out)
    assert rows(reference / "lineage.jsonl") == rows(out / "lineage.jsonl")
    assert main(["resume", str(out), "--steps", "2000"]) == 0
    longer = rows(out / "lineage.jsonl")
    assert longer[:8] == rows(reference / "lineage.jsonl")[:8], "the past stays, the end is forgotten"
    assert [row["step"] for row in longer[::4]] == [0, 800, 1600, 2000]


def test_nobody_replaced_and_nothing_searched_is_plain_seeds(tmp_path: Path):
    off = dict.fromkeys(covey.agents.entry("td3").space, "off")  # type: ignore[attr-defined]
    population = evolve(tmp_path / "population", pbt={"bottom": 0.0}, space=off).path
    options = {name: x for name, x in (TINY | MEMBERS).items() if name != "members"}
    seeds = covey.train("td3", out=tmp_path / "seeds", seeds=4, **options).path
    assert_same_run(seeds, population)


def test_the_winner_as_a_command(reference: Path):
    """What `covey evolve` prints at its end is a command with the winner's hyper-parameters and the run's options."""
    run = covey.load(reference)
    words = shlex.split(winner_command(run).replace("\\\n", ""))
    assert words[:3] == ["covey", "train", "td3"] and all(len(line) < 80 for line in winner_command(run).splitlines())
    name, arguments = words[2], words[3:]
    config = tyro.cli(config_type(name), args=arguments, default=preset_config(name, env=run.config.env))
    for name in run.config.searched():
        assert float(getattr(config.hyper, name)) == pytest.approx(float(getattr(run.best.hyper, name)), rel=1e-5)
    assert config.agent == run.config.agent and config.steps == run.config.steps and config.members == 1
    assert config.resolved().capacity == run.config.capacity


@pytest.fixture
def any_rate(monkeypatch) -> None:
    """Learning rates beyond what covey allows, so that members fail."""
    space = agents.entry("td3").space
    monkeypatch.setitem(space, "critic_lr", space["critic_lr"]._replace(most=np.inf))


@pytest.mark.usefixtures("any_rate")
def test_members_that_fail_are_replaced(tmp_path: Path):
    """Learning rates up to 1e30: who draws one is not finite soon, and is replaced before the next generation."""
    run = evolve(tmp_path / "run", space={"critic_lr": "1e-4:1e30"}, seed=3, pbt=PBT | {"resample": 0.0})
    lineage = rows(run.path / "lineage.jsonl")
    failed = [row for row in lineage if row["reason"] == "failed"]
    assert failed and all(row["parent"] != row["member"] for row in failed)
    learned = {name: x for name, x in last_arrays(run.path).items() if ".agent" in name and x.dtype.kind == "f"}
    assert all(np.isfinite(x).all() for x in learned.values())
    assert lineage[-1]["step"] == 1200 and (run.path / "media" / "lineage.png").exists()


@pytest.mark.usefixtures("any_rate")
def test_all_failed_is_an_error(tmp_path: Path, capsys):
    wrong = ["--members", "2", "--pbt.bottom", "0.5", "--space.critic-lr", "1e25:1e30", "--out", str(tmp_path / "run")]
    assert main(["evolve", "td3", *FLAGS, *wrong]) == 1
    assert "All 2 members have failed" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--seeds", "3"], "Did you mean --members?"),
        (["--members", "3", "--devices", "2"], "can't be divided among 2 devices"),
        (["--space.tau", "1:0"], "LOW must be less than HIGH"),
        (["--process", "1"], "--process needs --coordinator"),
        (["--coordinator", "here", "--processes", "2", "--process", "0"], "--coordinator HOST:PORT"),
        (["--coordinator", "127.0.0.1:1", "--processes", "2", "--process", "2"], "must lie between 0 and 1"),
        (["--pbt.fitness", "retrun"], "Did you mean 'return'"),
    ],
)
def test_wrong_arguments(arguments: list[str], says: str, tmp_path: Path, capsys):
    assert main(["evolve", "td3", *FLAGS, "--out", str(tmp_path / "run"), *arguments]) in (1, 2)
    assert says in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


def test_skills_are_ranked_by_what_they_tell(tmp_path: Path):
    from tests.tasks import SMALL

    options = TINY | MEMBERS | {"env": "point-free", "members": 2, "pbt": {"bottom": 0.5, "top": 0.5}}
    agent = SMALL["diayn"] | {"skills": {"number": 3}}
    run = covey.evolve("diayn", out=tmp_path / "run", **(options | {"agent": agent, "devices": 1}))
    lineage = rows(run.path / "lineage.jsonl")
    measured = [row["value"] for row in rows(run.path / "metrics.jsonl") if row["name"] == "skills/information"]
    np.testing.assert_allclose([row["fitness"] for row in lineage[-2:]], measured[-2:], rtol=1e-6)
    assert "sac.tau" in lineage[0]["hyper"]
