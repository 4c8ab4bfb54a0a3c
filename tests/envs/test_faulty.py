"""Errors of faulty environments name the environment, the value that it returned, and its space."""

import re

import numpy as np
import pytest

from benchmarks.torture.environments import FAULTS, ODD
from covey import envs
from covey.cli import main
from covey.errors import CoveyError

MODULE = "gymnasium:benchmarks.torture.environments"
LOCAL = [name for name, kind in FAULTS.items() if kind.at != "train" and not kind.ends]
TRACED = ("an error", "a stop", "reset raises")
"""Faults that are exceptions of the environment: the error shows their traceback."""


def run(name: str, workers: int = 0, steps: int = 40) -> None:
    batch = envs.make(name).open(2, workers)
    try:
        batch.reset(np.array([1, 2], np.uint32))
        for _ in range(steps):
            batch.step(np.zeros((2, 1), np.float32))
    finally:
        batch.close()


def test_there_are_enough_of_them():
    assert len(FAULTS) >= 60


@pytest.mark.parametrize("fault", LOCAL)
def test_a_fault_is_named(fault: str):
    kind = FAULTS[fault]
    with pytest.raises(CoveyError) as caught:
        run(f"{MODULE}:{kind.__name__}")
    said = str(caught.value)
    assert re.search(kind.says, said), said
    assert f"{MODULE}:{kind.__name__}" in said
    assert ("\n" in said) == (fault in TRACED), said


@pytest.mark.parametrize("odd", ODD)
def test_unusual_but_correct_values_are_accepted(odd: str):
    run(f"{MODULE}:{ODD[odd].__name__}")


def test_an_old_step_behind_wrappers_is_named():
    with pytest.raises(CoveyError, match=r"TortureOld-v0 returned a tuple of another length .*expected 5, got 4"):
        run(f"{MODULE}:TortureOld-v0")


@pytest.mark.parametrize("fault", ["one number as observation", "an exit", "a hard exit"])
def test_a_fault_in_a_worker_is_named(fault: str):
    """Workers are restarted. One that fails repeatedly ends the run with its error."""
    kind = FAULTS[fault]
    with pytest.raises(CoveyError, match=rf"failed 3 times in a row(.|\n)*{kind.says}"):
        run(f"{MODULE}:{kind.__name__}", workers=1)


@pytest.mark.parametrize("verb", [["check-env"], ["train", "td3", "--env"]])
@pytest.mark.parametrize("fault", ["old reset", "reset too short", "an exit where it is made"])
def test_the_command_line_gives_one_line(fault: str, verb: list[str], tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    kind = FAULTS[fault]
    assert main([*verb, f"{MODULE}:{kind.__name__}"]) == 1
    said = capsys.readouterr().err
    assert said.count("\n") == 1 and re.search(kind.says, said), said
    assert not list(tmp_path.iterdir())


def test_a_missing_class():
    with pytest.raises(CoveyError, match=r"The module 'benchmarks.torture.environments' has no gymnasium.Env called"):
        envs.make(f"{MODULE}:NoEnv")


def test_a_hang_is_named(capfd, monkeypatch):
    """A thread reports it after a minute, which is shortened here."""
    from covey.envs.host import guard

    monkeypatch.setattr(guard, "PATIENCE", 0.2)
    watched = guard.Guard("gymnasium:Slow")
    import time

    with watched.calling("step"):
        time.sleep(0.1)
    deadline, said = time.monotonic() + 20, ""
    with watched.calling("step"):
        while "has not returned" not in said and time.monotonic() < deadline:
            time.sleep(0.05)
            said += capfd.readouterr().err
    assert re.search(r"gymnasium:Slow has not returned from step\(\) for 0.2 s", said)
    assert said.count("has not returned") == 1
