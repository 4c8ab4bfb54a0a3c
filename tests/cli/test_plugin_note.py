"""A run notes the plug-ins that it was trained with; a command without them prints the command with them."""

from pathlib import Path

import pytest

from covey import plugins
from covey.cli import main
from covey.cli.plugin_note import noted_plugins
from covey.run.config import default_config
from covey.run.config_text import to_json
from covey.storage.folder import RunFolder


@pytest.fixture
def run(tmp_path: Path, monkeypatch) -> Path:
    """A run with an environment of a plug-in, which this process has not imported."""
    monkeypatch.setattr(plugins, "_ALLOWED", {"noted_plugin": None, "more.of_them": None})
    folder = RunFolder(tmp_path / "a run")
    folder.create(to_json(default_config("td3", env="noted-env").resolved()))
    plugins._ALLOWED.clear()
    return folder.path


def test_the_command_is_printed(run: Path, capsys):
    assert noted_plugins(run) == ["noted_plugin", "more.of_them"]
    assert main(["video", str(run), "--seed", "3"]) == 1
    said = capsys.readouterr().err
    assert "There is no environment called 'noted-env'" in said
    command = f"  covey --plugin more.of_them --plugin noted_plugin video '{run}' --seed 3"
    assert command in said.splitlines()


def test_nothing_is_imported_because_a_folder_names_it(run: Path, tmp_path: Path, capsys, monkeypatch):
    (tmp_path / "noted_plugin.py").write_text("raise SystemExit('executed!')")
    monkeypatch.chdir(tmp_path)
    assert main(["video", str(run)]) == 1
    assert "executed!" not in capsys.readouterr().err


def test_only_names_of_modules_are_printed(run: Path, capsys):
    (run / "environment.txt").write_text("plugins: good ; \x1b[2J rm$(x) ok.too a-b\n")
    assert noted_plugins(run) == ["good", "ok.too"]
    (run / "environment.txt").write_bytes(b"\xff\xfe plugins")
    assert noted_plugins(run) == [] == noted_plugins(run / "nowhere")


def test_there_is_no_note_once_they_are_named(run: Path, capsys):
    plugins.allow("noted_plugin", "more.of_them")
    assert main(["video", str(run)]) == 1
    assert "trained with" not in capsys.readouterr().err
