"""covey export, push and load, on a small run."""

from pathlib import Path

import numpy as np
import pytest

import covey
from covey.cli import main
from tests.runs import TINY, tiny


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("export") / "run"
    tiny(path, seeds=2)
    return path


def test_export_and_check(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    file = tmp_path / "policy.npz"
    assert main(["export", str(folder), "--out", str(file)]) == 0
    assert "largest difference" in capsys.readouterr().out
    assert (tmp_path / "runner.py").exists()
    assert main(["export", "--check", str(file), str(folder)]) == 0
    assert "is the policy of" in capsys.readouterr().out
    obs = np.linspace(-1, 1, 6).astype(np.float32)
    np.testing.assert_allclose(covey.load_policy(file)(obs), covey.load(folder).policy()(obs), atol=1e-5)


def test_members_have_their_own_policies(folder: Path, tmp_path: Path):
    run = covey.load(folder)
    files = [run.export(tmp_path / f"{i}.npz", member=i).path for i in range(2)]
    first, second = (covey.load_policy(file)(np.ones(6)) for file in files)
    assert np.abs(first - second).max() > 1e-4
    assert run.check_export(files[1]).difference < 1e-5
    with pytest.raises(covey.CoveyError, match="`member` must lie between 0 and 1, not 2"):
        run.export(member=2)


def test_a_file_of_another_run(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    other = tiny(tmp_path / "other", seed=7).export().path
    assert other.name == "policy.onnx"
    assert main(["export", "--check", str(other), str(folder)]) == 1
    assert "was made of the checkpoint" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--skill", "1"], "--skill is for agents that learn skills"),
        (["--out", "policy.txt"], "does not tell its format"),
        (["--out", "policy.npz", "--format", "onnx"], "ends in .onnx"),
        (["--member", "9"], "--member must lie between 0 and 1, not 9"),
    ],
)
def test_wrong_options(folder: Path, flags: list[str], message: str, capsys: pytest.CaptureFixture[str]):
    assert main(["export", str(folder), *flags]) == 1
    assert message in capsys.readouterr().err


def test_a_chosen_skill_is_in_the_file(tmp_path: Path):
    agent = {"sac": TINY["agent"], "skills": {"number": 3}, "discriminator": {"hidden": [8]}}
    run = covey.train("diayn", out=tmp_path / "run", quiet=True, **(TINY | {"env": "point-free", "agent": agent}))
    found = [covey.load_policy(run.export(tmp_path / f"{i}.npz", skill=i).path) for i in range(2)]
    assert found[1].about["skill"] == [0.0, 1.0, 0.0]
    actions = [policy(np.ones(policy.about["observation"]["shape"])) for policy in found]
    assert np.abs(actions[0] - actions[1]).max() > 1e-4
    assert run.check_export(tmp_path / "1.npz").difference < 1e-5
    with pytest.raises(covey.CoveyError, match="`skill` must be an index from 0 to 2, not 3"):
        run.export(skill=3)


def test_push_and_load_through_a_folder(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    shared = tmp_path / "shared"
    assert main(["push", str(folder), str(shared)]) == 0
    card = (shared / "README.md").read_text()
    assert card.startswith("---\nlibrary_name: covey\n")
    assert "mean_reward" in card and "covey.load_policy" in card
    (shared / "evil.py").write_text("raise SystemExit('code from a repository was executed')")
    (shared / "link.npz").symlink_to(shared / "policy.npz")
    assert main(["load", str(shared), "--out", str(tmp_path / "got")]) == 0
    assert "td3 on point" in capsys.readouterr().out
    names = {file.name for file in (tmp_path / "got").iterdir()}
    assert names == {"README.md", "policy.onnx", "policy.npz", "curve.png", "policy.gif"}
    assert main(["load", str(shared), "--out", str(tmp_path / "got")]) == 1
    assert main(["load", "no name"]) == 1
    assert "neither USER/NAME" in capsys.readouterr().err


def test_a_missing_package_is_named(folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    from covey.export import writers

    monkeypatch.setattr(writers, "find_spec", lambda name: None)
    assert main(["export", str(folder)]) == 1
    said = " ".join(capsys.readouterr().err.split())
    assert "The format onnx needs onnx. Install it:" in said and "pip install" in said
