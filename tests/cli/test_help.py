"""Help and discovery: every command explains itself, and completion knows the public names."""

import contextlib
import io
import re
import subprocess
import sys
from pathlib import Path

import pytest
import tyro

import covey
from covey.agents import REGISTRY
from covey.agents.recipes import RECIPES
from covey.cli import VERBS, main
from covey.cli.help import VERBS_HELP, wrapped
from covey.cli.options import options_of
from covey.cli.training import evolve_options, population_type, train_options
from covey.run.config import config_type, default_config
from covey.run.config_text import to_json
from covey.storage.folder import RunFolder

WITH_ARGUMENTS = {
    "train": ["td3"],
    "evolve": ["sac"],
    "runs": ["runs"],
    "eval": ["RUN"],
    "watch": ["RUN"],
    "doctor": ["RUN"],
    "plot": ["RUN"],
    "skills": ["RUN"],
    "plan": ["RUN", "--goal", "-3,4"],
    "lineage": ["RUN"],
    "replay": ["RUN"],
    "video": ["RUN"],
    "report": ["RUN"],
    "resume": ["RUN", "--steps", "1e5"],
    "export": ["RUN"],
    "push": ["RUN", "./shared"],
    "load": ["./shared"],
    "envs": ["brax"],
    "check-env": ["pendulum"],
    "agents": ["td3"],
    "presets": ["td3"],
    "recipes": ["sac"],
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


def test_the_overview_lists_every_command(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    assert {verb for name in VERBS_HELP for verb in name.split()[0].split("|")} == set(VERBS)
    printed = asked(["--help"], capsys)
    assert len(printed.splitlines()) <= 24, "it fits a terminal"
    assert main([]) == 2


COMMON = ["--env", "--steps", "--seed", "--envs", "--lr", "--hidden", "--recipe", "--out", "--preset", "--config"]
COMMON += ["--plugin"]


@pytest.mark.parametrize("verb", ["train", "evolve"])
def test_the_first_help_is_short(verb: str, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    printed = asked([verb, "--help"], capsys)
    assert printed.count(f"  covey {verb} ") >= 4, "examples"
    assert all(f"\n  {name} " in printed for name in (*REGISTRY, *COMMON))
    assert "--agent.batch-size" not in printed and f"covey {verb} AGENT --help" in printed


@pytest.mark.parametrize("flag", ["--help", "--help-all"])
@pytest.mark.parametrize("name", REGISTRY)
@pytest.mark.parametrize("verb", ["train", "evolve"])
def test_the_help_of_an_agent(verb: str, name: str, flag: str, capsys, monkeypatch):
    """Every option has a text, lines fit the terminal, and no default is nothing."""
    monkeypatch.setenv("COLUMNS", "80")
    printed = asked([verb, name, flag], capsys)
    assert max(map(len, printed.splitlines())) <= 80
    assert not re.search(r"None|default: ?[,)]|\bSTR\b", printed)
    options = (train_options if verb == "train" else evolve_options)(name, default_config(name, pbt={}))
    assert all(each.text for each in options), [each.path for each in options if not each.text]
    hypers = [each for each in options if each.path.startswith("hyper.")]
    assert hypers and all(each.metavar == "FLOAT|SCHEDULE" and "usually" in each.text for each in hypers)
    assert all(f"  {each.flags[0]} " in printed for each in hypers)
    listed = [each for each in options if f"\n  {each.flags[0]}" in printed]
    assert len(listed) == len(options) if flag == "--help-all" else len(listed) < len(options)
    assert ("--seeds" in printed) == (verb == "train") and ("--members" in printed) == (verb == "evolve")


def test_values_of_a_preset_say_so(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "120")
    printed = asked(["train", "td3", "--env", "pendulum", "--help"], capsys)
    assert "Environment steps of each member. (default: 10000, from the preset)" in printed
    assert "(default: 20000)" in asked(["train", "td3", "--preset", "off", "--help"], capsys)
    given = asked(["train", "td3", "--lr", "0.5", "--help"], capsys)
    assert re.search(r"--hyper.actor-lr .*\n.*\(default: 0.5\)", given)


@pytest.mark.parametrize("name", REGISTRY)
@pytest.mark.parametrize("verb", ["train", "evolve"])
def test_tyro_parses_the_options_that_the_help_lists(verb: str, name: str):
    default = default_config(name, pbt={})
    kind, values = (config_type(name), default) if verb == "train" else (population_type(name, default), None)
    with contextlib.redirect_stdout(io.StringIO()) as printed, pytest.raises(SystemExit):
        tyro.cli(kind, args=["--help"], default=values or kind())
    flags = set(re.findall(r"^\W{2}(--\w[\w.-]*)", printed.getvalue(), re.MULTILINE))
    assert {each.flags[0] for each in options_of(kind, values)} == flags - {"--help"}


def test_resume_lists_what_may_change(tmp_path: Path, capsys):
    folder = RunFolder(tmp_path / "run")
    folder.create(to_json(default_config("td3", steps=12345).resolved()))
    printed = asked(["resume", str(folder.path), "--help"], capsys)
    assert "(default: 12345)" in printed and "--hyper.actor-lr" in printed and "--ray-address" in printed
    assert "--warmup" not in printed and "--agent." not in printed


def test_presets_of_an_agent(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    printed = asked(["presets", "SAC"], capsys)
    assert "sac on pendulum: steps 10000" in printed and "td3 on" not in printed
    assert "td3 on pendulum" in (everything := asked(["presets"], capsys))
    assert all(len(line) <= 80 or " " not in line.strip() for line in everything.splitlines())


def test_recipes_of_an_agent(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    printed = asked(["recipes"], capsys)
    starts = [line.partition(":")[0] for line in printed.splitlines() if not line.startswith(" ")]
    assert starts == [f"{agent} {name}" for agent, name in RECIPES], "each once, under the agent that it is written for"
    assert "    source: Chen et al., 2021, arXiv 2101.05982" in printed
    assert all(len(line) <= 80 for line in printed.splitlines())
    inner = " ".join(asked(["recipes", "DIAYN"], capsys).split())
    assert "diayn crossq: batch" in inner and "options: updates_per_step 1, agent.sac.batch_size 256" in inner
    assert "--agent.sac.networks.critic.hidden 256 256" in inner and "sac crossq:" not in inner
    assert main(["recipes", "td3"]) == 1
    assert "There is no recipe for td3. `covey recipes` lists" in capsys.readouterr().err
    assert main(["recipes", "sac", "td3"]) == 2 and main(["recipes", "--all"]) == 2


def test_text_is_wrapped_between_words(monkeypatch):
    monkeypatch.setenv("COLUMNS", "40")
    text = "covey: The environment is a long word.\n  covey --plugin module eval a/long/path/that/is/not/broken"
    assert wrapped(text).splitlines() == ["covey: The environment is a long word.", text.splitlines()[1]]
    assert all(len(line) <= 40 for line in wrapped("one two three " * 20).splitlines())


def test_errors_are_wrapped_in_a_terminal(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "50")
    assert main(["train", "tdd3"]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1, "one line for a file"
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    assert main(["train", "sac", "--learning-rate", "3"]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) > 1 and max(map(len, lines)) <= 50
