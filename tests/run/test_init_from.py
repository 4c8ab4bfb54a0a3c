"""A run that starts from another one: what fits is loaded bit for bit, the rest is listed."""

import json
import shutil
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

import covey
from covey.cli import main
from covey.run.config import default_config
from covey.run.program import build
from covey.storage.folder import RunFolder
from covey.storage.store import Store
from tests.runs import FLAGS, TINY, assert_same_run, rows

NORMALISED = TINY["agent"] | {"normalise": {"observations": True, "rewards": True}}
SHORT = TINY | {"steps": 600, "evaluations": 1, "agent": NORMALISED}


def best(folder: Path) -> dict[str, np.ndarray]:
    store = Store(folder / "checkpoints", "best")
    return {n.removeprefix("best/agent/"): x for n, x in store.read_newest(print)[0].items() if "/agent/" in n}


@pytest.fixture(scope="module")
def source(tmp_path_factory) -> covey.Run:
    """A run whose best policy is not its first."""
    options = TINY | {"agent": NORMALISED, "steps": 2000, "seed": 1}
    return covey.train("sac", out=tmp_path_factory.mktemp("source") / "run", quiet=True, **options)


def started(source: covey.Run, part: str, out: Path, algorithm: str = "sac", **options: Any) -> dict[str, np.ndarray]:
    """The arrays [P, ...] with which a run starts: its program's population before the first step."""
    config = default_config(algorithm, **(SHORT | {"init_from": f"{source.path}{part}"} | options)).resolved()
    out.mkdir(exist_ok=True)
    said: list[str] = []
    population = build(config).init(said.append, RunFolder(out))
    leaves = jax.tree.flatten_with_path(population.members.agent)[0]
    found = {jax.tree_util.keystr(path, simple=True, separator="/"): np.asarray(x) for path, x in leaves}
    return found | {"said": said}  # type: ignore[operator]


def test_the_whole_agent_is_loaded_to_the_bit_in_every_member(source: covey.Run, tmp_path: Path):
    kept = best(source.path)
    found = started(source, "", tmp_path / "run", members=3, agent=NORMALISED | {"batch_size": 16})
    text = "\n".join(found.pop("said"))
    assert float(kept["statistics/observations/rows"]) > 0 and int(kept["critic/optimiser/count"]) > 0
    for name, array in found.items():
        expected = np.zeros(()) if name == "statistics/running" else kept[name]
        for member in array:
            np.testing.assert_array_equal(member, expected, err_msg=name)
    assert "not loaded: statistics/running (of an unfinished episode there)" in text
    assert "batch_size 8 there, 16 here" in text
    record = json.loads((tmp_path / "run" / "init_from.json").read_text())
    assert record["source"] == str(source.path) and len(record["digest"]) == 64
    assert set(record["loaded"]) | set(record["not_loaded"]) == set(found)


PARTS = {
    "actor": {"actor", "statistics/observations"},
    "critic": {"critic/online", "critic/target", "statistics/observations", "statistics/returns"},
}


@pytest.mark.parametrize("part", PARTS)
def test_a_part_is_loaded_and_nothing_else(part: str, source: covey.Run, tmp_path: Path):
    kept, found = best(source.path), started(source, f":{part}", tmp_path, members=2)
    own = started(source, "", tmp_path, members=2, init_from="")
    found.pop("said"), own.pop("said")
    for name, array in found.items():
        inside = any(name.startswith(f"{each}/") for each in PARTS[part])
        expected = np.broadcast_to(kept[name], array.shape) if inside else own[name]
        np.testing.assert_array_equal(array, expected, err_msg=name)


def test_the_encoder_alone(source: covey.Run, tmp_path: Path):
    networks = NORMALISED["networks"] | {"encoder": {"hidden": [8]}, "share_encoder": True}
    options = SHORT | {"agent": NORMALISED | {"networks": networks}}
    encoded = covey.train("td3", out=tmp_path / "encoded", quiet=True, **options)
    networks |= {"actor": {"hidden": [12]}, "critic": {"hidden": [12]}}
    found = started(encoded, ":encoder", tmp_path / "new", "td3", agent=NORMALISED | {"networks": networks})
    kept = best(encoded.path)
    names = [name for name in found if "/encoder/" in name and "optimiser" not in name]
    assert len(names) == 4
    for name in names:
        np.testing.assert_array_equal(found[name][0], kept[name], err_msg=name)
    assert found["said"][1] == "  loaded: critic/online/encoder, critic/target/encoder, statistics/observations"
    with pytest.raises(covey.CoveyError, match=r"no weights of sac on point fit this run"):
        started(source, ":encoder", tmp_path / "none")


def test_from_another_algorithm_what_matches(source: covey.Run, tmp_path: Path):
    found = started(source, "", tmp_path / "td3", "td3")
    text, kept = "\n".join(found.pop("said")), best(source.path)
    for name in found:
        if name.startswith("critic/"):
            np.testing.assert_array_equal(found[name][0], kept[name], err_msg=name)
    assert "not loaded: actor/head/Dense_0/bias (shape [4] there, [2] here)" in text
    assert "not loaded: target_actor (missing there)" in text
    assert "not loaded: actor_optimiser (mu/head/Dense_0/bias shape [4] there, [2] here)" in text
    assert int(found["actor_optimiser/count"][0]) == 0, "an optimiser is loaded whole or not at all"
    assert "not used: temperature, temperature_optimiser (only there)" in text
    assert "actor was not loaded completely" in text

    skilled = started(source, ":actor", tmp_path / "diayn", "diayn", agent={"sac": NORMALISED})
    np.testing.assert_array_equal(skilled["sac/actor/head/Dense_0/kernel"][0], kept["actor/head/Dense_0/kernel"])
    text = "\n".join(skilled["said"])
    assert "sac/actor/torso/Dense_0/kernel (shape [6, 16] there, [12, 16] here)" in text
    assert "sac/statistics/observations (mean shape [6] there, [12] here)" in text


def test_a_fine_tuned_run_starts_at_the_returns_of_its_source(source: covey.Run, tmp_path: Path):
    logged = rows(source.folder.episodes)
    step = max({r["step"] for r in logged}, key=lambda s: np.mean([r["return"] for r in logged if r["step"] == s]))
    expected = [r["return"] for r in logged if r["step"] == step]
    run = covey.train("sac", out=tmp_path / "run", quiet=True, init_from=source.path, **SHORT)
    assert [r["return"] for r in rows(run.folder.episodes) if r["step"] == 0] == expected


@pytest.mark.parametrize(
    ("part", "given", "acts"),
    [
        ("", "auto", "sample"),
        (":actor", "auto", "sample"),
        (":critic", "auto", "random"),
        ("", "random", "random"),
        (":encoder", "policy", "sample"),
    ],
)
def test_the_warm_up_acts_with_the_loaded_policy(part: str, given: str, acts: str, source: covey.Run):
    config = default_config("sac", **(SHORT | {"init_from": f"{source.path}{part}", "warmup_actions": given}))
    assert build(config.resolved()).loop.trainer.warmup_mode == acts


def test_resume_needs_the_source_until_there_is_a_checkpoint(source: covey.Run, tmp_path: Path, monkeypatch, capsys):
    """Killed before and after the first checkpoint, the run ends as one that was left alone."""
    moved, out = tmp_path / "source", tmp_path / "run"
    shutil.copytree(source.path, moved)
    arguments = ["train", "sac", *FLAGS, "--seeds", "2", "--checkpoint-minutes", "0", "--init-from", f"{moved}:actor"]
    assert main([*arguments, "--out", str(tmp_path / "undisturbed")]) == 0
    assert "loaded: actor, statistics/observations" in capsys.readouterr().out

    def die(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("covey.run.session.Session._train", die)
        assert main([*arguments, "--out", str(out)]) == 130
    moved.rename(tmp_path / "away")
    assert main(["resume", str(out)]) == 1
    assert f"--init-from {moved}:actor: There is no run folder" in capsys.readouterr().err
    (tmp_path / "away").rename(moved)
    with monkeypatch.context() as patch:
        patch.setattr("covey.run.session.Session._evaluate_and_tune", die)
        assert main(["resume", str(out)]) == 130
    shutil.rmtree(moved)
    assert Store(out / "checkpoints", "step").steps()
    assert main(["resume", str(out)]) == 0
    assert_same_run(tmp_path / "undisturbed", out)


WRONG = {
    "another part": (":acto", "There is no part called 'acto'. Did you mean 'actor'"),
    "no folder": ("-none:actor", "There is no run folder"),
    "other shapes": (
        "",
        "no weights of sac on point fit this run: not loaded: actor/head/Dense_0/bias (shape [4]",
    ),
}


@pytest.mark.parametrize("what", WRONG)
def test_errors_come_before_the_folder(what: str, source: covey.Run, tmp_path: Path, capsys):
    suffix, message = WRONG[what]
    networks = ["--agent.networks.actor.hidden", "8", "--agent.networks.critic.hidden", "8"]
    out = tmp_path / "run"
    options = ["--env", "pendulum", *networks, "--out", str(out), "--init-from", f"{source.path}{suffix}"]
    assert main(["train", "sac", *options]) == 1
    error = capsys.readouterr().err
    assert message in error and "--init-from" in error
    assert not out.exists()


def test_a_damaged_source_is_reported(source: covey.Run, tmp_path: Path, capsys):
    copy = tmp_path / "copy"
    shutil.copytree(source.path, copy)
    for file in copy.glob("checkpoints/*/arrays.safetensors"):
        file.write_bytes(file.read_bytes()[:-1])
    assert main(["train", "sac", *FLAGS, "--init-from", str(copy), "--out", str(tmp_path / "run")]) == 1
    error = capsys.readouterr().err
    assert "is damaged" in error and "holds no intact checkpoint" in error
