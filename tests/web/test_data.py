"""A run folder as JSON values: the numbers are those of its files, whatever state the run is in."""

import json
import shutil
from pathlib import Path

import pytest

from covey.errors import CoveyError
from covey.storage.folder import RunFolder
from covey.web.comparison import compare
from covey.web.data import MOST_FILM, differs, run_data, thinned
from covey.web.words import at_last_step
from tests.web.folders import RETURNS, json_rows, make_run


@pytest.fixture(scope="module")
def finished(tmp_path_factory) -> Path:
    return make_run(tmp_path_factory.mktemp("runs") / "one", hyper={"actor_lr": 1e-3}, env="point")


@pytest.fixture
def run(finished: Path, tmp_path: Path) -> Path:
    """A copy, that a test may change."""
    return Path(shutil.copytree(finished, tmp_path / "one"))


def test_curves_are_the_rows_of_the_file(finished: Path):
    found = run_data(finished)
    rows = [
        {"step": step, "wall": wall, "member": member, "name": name, "value": value}
        for name, curve in found["curves"].items()
        for step, member, value, wall in curve
    ]
    written = json_rows(finished / "metrics.jsonl")
    key = lambda row: (row["name"], row["step"])  # noqa: E731
    assert sorted(rows, key=key) == sorted(written, key=key)
    assert json.loads(json.dumps(found, allow_nan=False)) == found


def test_a_finished_run(finished: Path):
    found = run_data(finished)
    assert (found["state"], found["step"], found["steps"], found["seconds_left"]) == ("finished", 1000, 1000, 0.0)
    assert found["path"] == "one" and found["agent"] == "td3" and found["env"] == "point" and found["members"] == 1
    assert found["steps_per_second"] == 250.0 and found["seconds"] == 4.0
    assert found["hyper"] == {"actor_lr": [1e-3]} and found["notes"] == []
    assert found["versions"]["covey"] and found["command"] and "/" not in found["command"].split()[0]
    assert found["summary"] == [
        "The best policy returns -131.5 [-140.0, -123.0] over 2 episodes, after 1,000 steps.",
        "Before training it was -1200.5 [-1210.5, -1190.5].",
    ]


def test_what_differs_from_the_default(finished: Path):
    found = run_data(finished)["differs"]
    assert found == {
        "hyper.actor_lr": ["0.0003", "0.001"],
        "env": ["pendulum", "point"],
        "steps": [20000, 1000],
        "warmup": [1000, 100],
    }
    assert differs({"algorithm": "of a plugin", "steps": 10}) == {}


def test_running_and_stopped(tmp_path: Path):
    path = make_run(tmp_path / "run", finished=False)
    with RunFolder(path).lock():
        assert run_data(path)["state"] == "running"
    found = run_data(path)
    assert found["state"] == "stopped", "a killed run, or a folder from another machine"
    assert found["summary"][0] == (
        "At step 1,000 of 1,000 the policy returns -130.1 [-140.1, -120.1] in its last evaluation."
    )
    with RunFolder(path).lock():
        pass  # reading has left no lock


def test_a_run_that_has_just_begun(run: Path):
    (run / "metrics.jsonl").unlink()
    (run / "evaluation" / "final.json").unlink()
    found = run_data(run)
    assert (found["state"], found["step"], found["curves"], found["seconds_left"]) == ("stopped", 0, {}, None)
    assert found["summary"] == ["The run has not been evaluated yet."]


def test_a_longer_run_is_not_finished(run: Path):
    folder = RunFolder(run)
    config = folder.read_config()
    config.pop("digest")
    folder.record_changes(1000, [("steps", 1000, 4000)])
    folder.write_config({name: value for name, value in config.items() if name != "changes"} | {"steps": 4000})
    found = run_data(run)
    assert found["state"] == "stopped" and found["seconds_left"] == 3000 / 250
    assert found["changes"] == [{"step": 1000, "name": "steps", "old": 1000, "new": 4000}]
    assert "changes" not in found["config"] and "digest" not in found["config"]


def test_the_later_row_counts_and_half_a_line_is_skipped(run: Path):
    row = {"step": 500, "wall": 9.0, "member": 0, "name": "eval/return", "value": -7.5}
    with (run / "metrics.jsonl").open("a") as file:
        file.write(json.dumps(row) + "\n" + json.dumps(row | {"step": 1000, "value": None}) + "\n" + '{"step": 15')
    assert run_data(run)["curves"]["eval/return"] == [[0, 0, -1200.5, 0.0], [500, 0, -7.5, 9.0], [1000, 0, None, 9.0]]


def test_damage_has_clear_errors(run: Path, tmp_path: Path):
    with pytest.raises(CoveyError, match="There is no run folder"):
        run_data(tmp_path / "nothing")
    (tmp_path / "empty").mkdir()
    with pytest.raises(CoveyError, match="There is no configuration"):
        run_data(tmp_path / "empty")
    lines = (run / "metrics.jsonl").read_text().splitlines(keepends=True)
    (run / "metrics.jsonl").write_text("".join([*lines[:3], "{broken\n", *lines[4:]]))
    with pytest.raises(CoveyError, match=r"line 4.*is not a JSON object\. Restore it from a copy"):
        run_data(run)
    config = run / "config.json"
    config.write_text(config.read_text().replace('"seed": 0', '"seed": 7'))
    with pytest.raises(CoveyError, match="was edited or damaged"):
        run_data(run)


def test_damage_beside_the_numbers_is_a_note(run: Path):
    (run / "changes.jsonl").write_text('{"step": 1}\n')
    (run / "checkpoints" / "step_0000001000").mkdir()
    (run / "media" / "policy.gif").symlink_to("/etc/passwd")
    (run / "evaluation" / "final.json").write_text("{")
    (run / "environment.txt").unlink()
    found = run_data(run)
    assert found["state"] == "stopped" and found["changes"] == [] and found["episodes"] == []
    assert [each["step"] for each in found["checkpoints"]] == [1000] and found["checkpoints"][0]["seconds"] is None
    notes = " ".join(found["notes"])
    assert all(name in notes for name in ("changes.jsonl", "step_0000001000", "policy.gif")), notes


def test_films_and_pictures(run: Path):
    (run / "media" / "policy.gif").write_bytes(b"GIF89a")
    (run / "media" / "skills.png").write_bytes(b"PNG")
    found = run_data(run)
    assert found["episodes"][0]["video"] == "data:image/gif;base64,R0lGODlh"
    assert found["media"] == {"skills": "data:image/png;base64,UE5H"}
    (run / "media" / "policy.mp4").write_bytes(b"film")
    assert run_data(run)["episodes"][0]["video"].startswith("data:video/mp4")
    (run / "media" / "policy.mp4").write_bytes(bytes(MOST_FILM + 1))
    assert run_data(run)["episodes"][0]["video"].startswith("data:image/gif"), "the smaller one"
    (run / "media" / "policy.gif").unlink()
    found = run_data(run)
    assert found["episodes"] == [] and found["notes"] == ["media/policy.mp4 is left out: it has more than 1.5 MB."]


def test_long_curves_are_thinned():
    curves = {name: [[s, 0, float(s), 1.0] for s in range(1000)] for name in ("agent/a", "agent/b", "eval/return")}
    notes: list[str] = []
    assert thinned(curves, "eval/return", 3000, notes) is curves and not notes
    found = thinned(curves, "eval/return", 300, notes)
    assert found.keys() == curves.keys() and sum(map(len, found.values())) <= 300 and len(notes) == 1
    assert all(rows[-1][0] == 999 and all(row in curves[name] for row in rows) for name, rows in found.items())
    assert list(thinned(curves, "eval/return", 110, notes)) == ["agent/a", "eval/return"]
    assert notes[-1] == "Left out because the page would be too large: agent/b."


def test_a_population(tmp_path: Path):
    run = make_run(tmp_path / "run", algorithm="sac", members=3, pbt={})
    found = run_data(run)
    assert found["population"] and found["lineage"] == json_rows(run / "lineage.jsonl")
    assert found["differs"]["members"] == [8, 3] and "pbt.interval" not in found["differs"]
    assert found["summary"][-2:] == [
        "In 2 generations of 3 members, there was 1 replacement.",
        "The fittest is member 2, with a fitness of -128.1.",
    ]
    with (run / "lineage.jsonl").open("a") as file:
        file.write('{"step": 1}\n')
    found = run_data(run)
    assert found["lineage"] == [] and "lineage.jsonl" in found["notes"][0]


def test_seeds_and_skills(tmp_path: Path):
    found = run_data(make_run(tmp_path / "seeds", members=4))
    # Mean and standard error of 0, 1, 2, 3 are 1.5 and 0.6455; Student's quantile of 3 degrees of freedom is 3.182.
    assert found["summary"][-1].startswith(
        "Over 4 seeds, eval/return at step 1,000 has the mean -128.6 [-130.7, -126.6] and the interquartile mean -128.6"
    )
    found = run_data(make_run(tmp_path / "skills", algorithm="diayn", finished=False))
    assert found["curve"] == "skills/information" and found["skills"] == {"information": [2.0]}
    assert found["summary"] == ["Measures of its skills: information 2."]


def test_comparison(tmp_path: Path):
    one = run_data(make_run(tmp_path / "one", members=3))
    two = run_data(make_run(tmp_path / "two", members=2, offset=1.0))
    assert at_last_step(one, "eval/return", 700)[0] == 500
    found = compare([one, two])
    assert [row["members"] for row in found["rows"]] == [3, 2] and found["metric"] == "eval/return"
    assert found["rows"][0]["mean"][0] == RETURNS[-1] + 1 and found["rows"][1]["iqm"][0] == RETURNS[-1] + 1.5
    # Of 0, 1, 2 against 1, 2: higher in 1 of 6 pairs, equal in 2.
    assert found["improvement"][0][1][0] == pytest.approx(2 / 6)
    assert found["improvement"][1][0][0] == pytest.approx(4 / 6) and found["improvement"][0][0] is None
    assert found["notes"] == []
    short = run_data(make_run(tmp_path / "three", env="point"))
    short["curves"]["eval/return"] = short["curves"]["eval/return"][:2]
    found = compare([one, short])
    assert [row["step"] for row in found["rows"]] == [500, 500] and found["rows"][1]["mean"][1:] == [None, None]
    assert found["improvement"][0][1][1:] == [None, None], "one seed has no interval"
    assert "different environments" in found["notes"][0] and "one member" in found["notes"][1]
    json.dumps(found, allow_nan=False)
