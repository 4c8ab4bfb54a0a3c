"""Help and discovery: every command explains itself, and completion knows the public names."""

import subprocess
import sys
from pathlib import Path

import pytest

import covey
from covey.cli import VERBS, main
from covey.run.config import default_config
from covey.run.config_text import to_json
from covey.storage.folder import RunFolder

WITH_ARGUMENTS = {
    "train": ["td3"],
    "evolve": ["sac"],
    "eval": ["RUN"],
    "plot": ["RUN"],
    "skills": ["RUN"],
    "plan": ["RUN", "--goal", "-3,4"],
    "lineage": ["RUN"],
    "replay": ["RUN"],
    "video": ["RUN"],
    "resume": ["RUN", "--steps", "1e5"],
    "envs": ["brax"],
    "check-env": ["pendulum"],
    "agents": ["td3"],
    "presets": ["td3"],
    "completion": ["bash"],
}


def asked(arguments: list[str], capsys) -> str:
    """What a command prints that must end well."""
    try:
        code = main(arguments)
    except SystemExit as ended:
        code = ended.code
    printed = capsys.readouterr()
    assert code in (0, None), printed.err
    return printed.out


@pytest.mark.parametrize("flag", ["-h", "--help"])
@pytest.mark.parametrize("verb", VERBS)
def test_every_command_has_help(verb: str, flag: str, tmp_path: Path, capsys):
    assert f"covey {verb}" in asked([verb, flag], capsys)
    folder = RunFolder(tmp_path / "run")
    folder.create(to_json(default_config("td3").resolved()))
    arguments = [str(folder.path) if argument == "RUN" else argument for argument in WITH_ARGUMENTS[verb]]
    assert f"covey {verb}" in asked([verb, *arguments, flag], capsys)


def test_a_plot_of_no_run_says_so(tmp_path: Path, capsys):
    assert main(["plot", str(tmp_path / "nope")]) == 1
    assert f"There is no run folder {tmp_path / 'nope'}." in capsys.readouterr().err
    assert not any(tmp_path.iterdir())


def test_completion_knows_the_public_names():
    assert dir(covey) == sorted(covey.__all__)
    code = "import sys, covey; names = dir(covey); assert 'jax' not in sys.modules; print(*names)"
    printed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert {"train", "evolve", "load", "Run"} <= set(printed.split())
