"""Shell completion: the answers, and real shells that ask for them."""

import json
import os
import pty
import re
import select
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from covey.agents import REGISTRY
from covey.cli import VERBS, completion, main


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    """The cache folder of a user, with what completion knows; of the libraries only Gymnasium."""
    home = tmp_path_factory.mktemp("cache")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(home))
        patch.setattr(completion, "is_installed", lambda prefix: prefix == "gymnasium")
        completion.build()
    return home


@pytest.fixture
def known(cache: Path):
    return json.loads((cache / "covey" / "completion.json").read_text())


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("covey tr", ["train"]),
        ("covey --plugin my_module ev", ["evolve", "eval"]),
        ("covey train t", ["td3", "taac", "taac-l", "taac-q"]),
        ("covey train td3 --env pend", ["pendulum"]),
        ("covey train td3 --env gymnasium:Hopper-v", ["gymnasium:Hopper-v4", "gymnasium:Hopper-v5"]),
        ("covey train td3 --precision ", ["float32", "bfloat16"]),
        ("covey train TD3 --hyper.a", ["--hyper.actor-lr"]),
        ("covey train td3 --hid", ["--hidden"]),
        ("covey train td3 --fixed", []),
        ("covey train sac --recipe ", ["crossq", "droq", "redq", "simba", "flash", "xqc"]),
        ("covey evolve diayn --recipe d", ["droq"]),
        ("covey train td3 --recipe ", []),
        ("covey recipes s", ["sac"]),
        ("covey evolve sac --space.ac", ["--space.actor-lr"]),
        ("covey evolve sac --ray", ["--ray-address"]),
        ("covey train td3 --config ", []),
        ("covey agents d", ["diayn", "dads"]),
        ("covey check-env point", ["point", "point-free", "pointmaze"]),
        ("covey envs g", ["gymnasium"]),
        ("covey completion z", ["zsh"]),
        ("covey eval --ep", ["--episodes"]),
        ("covey resume runs/one --hyper.sac.actor", ["--hyper.sac.actor-lr"]),
        ("covey resume runs/one --warm", []),
        ("covey eval r", ["runs/one", "runs/two"]),
        ("covey plot runs/one runs/t", ["runs/two"]),
        ("covey watch runs/one runs/t", ["runs/two"]),
        ("covey watch runs/one --allow", ["--allow-remote"]),
        ("covey eval elsewhere/x", ["elsewhere/xyz"]),
    ],
)
def test_answers(line: str, expected: list[str], known, tmp_path: Path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("runs/one", "runs/two", "elsewhere/xyz"):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "config.json").write_text('{"algorithm": "diayn"}')
    (tmp_path / "runs" / "notes").mkdir()
    found = completion.complete(line, known)
    assert [each for each in found if not re.search(r"-v[23]$", each)] == expected


def test_everything_is_known(known):
    assert set(known["verbs"]) == set(VERBS)
    assert set(known["agents"]) == set(REGISTRY)


def test_an_answer_is_fast_and_imports_no_jax(cache: Path):
    code = "import sys; from covey.cli import main; main(['__complete', 'bash', 'covey train s'])\n"
    code += "assert not {'jax', 'numpy', 'rich'} & set(sys.modules)"
    answer = subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ | {"XDG_CACHE_HOME": str(cache)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert answer.stdout == "sac\n"


def test_an_old_cache_is_used_and_written_again(cache: Path, known, tmp_path: Path, monkeypatch):
    started = []
    monkeypatch.setattr(completion.subprocess, "Popen", lambda command, **_: started.append(command))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert "train" in completion.known()["verbs"], "commands are known without a cache"
    assert started == [[sys.executable, "-m", "covey", "__complete", "--build"]]
    (tmp_path / "covey" / "completion.json").write_text(json.dumps(known | {"state": ["old"]}))
    assert completion.known()["agents"] == known["agents"]
    assert len(started) == 1, "one process at a time"
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache))
    assert completion.known() == known and len(started) == 1


@pytest.mark.parametrize(
    ("shell", "file"),
    [
        ("bash", ".local/share/bash-completion/completions/covey"),
        ("zsh", ".local/share/zsh/site-functions/_covey"),
        ("fish", ".config/fish/completions/covey.fish"),
    ],
)
def test_install(shell: str, file: str, tmp_path: Path, monkeypatch, capsys):
    for name in ("XDG_DATA_HOME", "XDG_CONFIG_HOME", "BASH_COMPLETION_USER_DIR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("SHELL", f"/usr/bin/{shell}")
    monkeypatch.setattr(completion, "build", lambda: None)
    assert main(["completion", "--install"]) == 0
    assert f"Wrote {tmp_path / file}" in capsys.readouterr().out
    assert main(["completion", shell]) == 0
    assert capsys.readouterr().out == (tmp_path / file).read_text()
    monkeypatch.setenv("SHELL", "/bin/tcsh")
    assert main(["completion", "--install"]) == 2
    assert "Name a shell: bash, zsh, fish" in capsys.readouterr().err


START = {
    "bash": ["bash", "--norc", "--noprofile", "-i"],
    "zsh": ["zsh", "-f", "-i"],
    "fish": ["fish", "--no-config", "-i"],
}
LOAD = {"bash": "source {}", "zsh": "autoload -U compinit; compinit -u -D; source {}", "fish": "source {}"}


@pytest.mark.parametrize("shell", START)
def test_a_real_shell_completes(shell: str, cache: Path, tmp_path: Path):
    """A shell in a terminal: TAB after each beginning."""
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    command = tmp_path / "bin" / "covey"
    command.parent.mkdir()
    command.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m covey "$@"\n')
    command.chmod(0o755)
    (tmp_path / "runs" / "only-run").mkdir(parents=True)
    (tmp_path / "runs" / "only-run" / "config.json").write_text('{"algorithm": "td3"}')
    (tmp_path / "script").write_text(completion.SCRIPTS[shell])
    root = str(Path(completion.__file__).parents[2])
    variables = {"PATH": f"{command.parent}:{os.environ['PATH']}", "PYTHONPATH": root, "XDG_CACHE_HOME": str(cache)}
    dialogue = {
        f"{LOAD[shell].format(tmp_path / 'script')}; echo re''ady\n": "ready",
        "covey prese\t": "presets",
        "\x15covey train td3 --updates\t": "--updates-per-step",
        "\x15covey train td3 --env gymnasium:InvertedD\t": "gymnasium:InvertedDoublePendulum-v",
        "\x15covey eval \t": "runs/only-run",
    }
    in_terminal(START[shell], dialogue, tmp_path, variables | {"HOME": str(tmp_path), "TERM": "xterm"})


def in_terminal(command: list[str], dialogue: dict[str, str], folder: Path, variables: dict[str, str]) -> None:
    """Types into a program in a terminal, and waits for what must appear after each text."""
    terminal, inner = pty.openpty()
    # A fork of this process would disturb jax.
    start = "import fcntl, os, sys, termios; os.setsid(); fcntl.ioctl(0, termios.TIOCSCTTY, 0); "
    start += "os.execvp(sys.argv[1], sys.argv[1:])"
    child = subprocess.Popen(
        [sys.executable, "-c", start, *command],
        stdin=inner,
        stdout=inner,
        stderr=inner,
        cwd=folder,
        env=os.environ | variables,
    )
    os.close(inner)
    try:
        for typed, expected in dialogue.items():
            os.write(terminal, typed.encode())
            said = b""
            end = time.monotonic() + 20
            while expected not in plain(said) and time.monotonic() < end:
                if select.select([terminal], [], [], 0.1)[0]:
                    said += os.read(terminal, 65536)
            assert expected in plain(said), plain(said)
    finally:
        child.kill()
        child.wait()
        os.close(terminal)


def plain(said: bytes) -> str:
    """Returns what a terminal shows, without its control characters."""
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]|\x1b[()=>][0-9A-B]?|[\x07\x08\r]", "", said.decode(errors="replace"))
