"""MuJoCo Playground: the contract, and an early error if models must be downloaded first."""

import subprocess

import pytest

from covey import envs
from covey.envs.check import check
from covey.errors import CoveyError

pytest.importorskip("mujoco_playground", reason="pip install --no-deps playground, as make does")


def test_contract():
    findings = list(check(envs.make("playground:CartpoleBalance")))
    assert len(findings) == 10 and not [f for f in findings if f.wrong]


def test_robots_need_models(monkeypatch):
    monkeypatch.setattr(subprocess, "Popen", lambda *a, **k: pytest.fail("it tried to clone"))
    with pytest.raises(CoveyError, match="needs the models of MuJoCo Menagerie"):
        envs.make("playground:Go1JoystickFlatTerrain")


def test_unknown():
    with pytest.raises(CoveyError, match="Did you mean 'CheetahRun'"):
        envs.make("playground:CheetaRun")
