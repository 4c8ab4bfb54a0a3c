"""`covey check-env`: every violation of the contract is reported."""

from dataclasses import dataclass, replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from covey import envs
from covey.cli import main
from covey.envs.base import Outcome
from covey.envs.builtin.point import Point
from covey.envs.check import check
from covey.install import install_command
from covey.types import EnvSpec

CALLS = []


@dataclass(frozen=True)
class Faulty:
    """A point on a line, with one fault."""

    fault: str = ""

    @property
    def spec(self) -> EnvSpec:
        spec = replace(Point().spec, observation=1, action_size=1, action_low=(-1.0,), action_high=(1.0,))
        own = replace(spec.descriptor, names=("x",), low=(-9.0,), high=(9.0,), coordinates=(0,))
        return replace(spec, descriptor=own, action_low=(2.0,) if self.fault == "box" else (-1.0,))

    def reset(self, key):
        state = jax.random.uniform(key, (1,))
        return state, state

    def step(self, state, action, key):
        state = state + (action if self.fault == "clip" else jnp.clip(action, -1.0, 1.0)) * 0.1
        reward = -jnp.sum(state**2)
        if self.fault == "impure":
            reward = reward + jax.pure_callback(noise, jax.ShapeDtypeStruct((), jnp.float32), vmap_method="sequential")
        if self.fault == "nan":
            reward = jnp.where(state[0] > 2.0, jnp.nan, reward)
        obs = state.astype(jnp.float16) if self.fault == "dtype" else state
        return state, Outcome(obs, reward, jnp.zeros((), bool))

    def descriptor(self, state):
        return 100.0 * state if self.fault == "descriptor" else state

    def frame(self, state):
        return np.zeros((4, 4) if self.fault == "frame" else (4, 4, 3), np.uint8)


def noise():
    CALLS.append(1)
    return np.float32(len(CALLS))


MESSAGES = {
    "box": "limits of the action must be finite, and low below high",
    "dtype": r"the observation of step is float16\[1\] and must be float32\[1\]",
    "nan": "the reward is not finite .* at step",
    "impure": "two runs with the same seed and actions differ",
    "clip": "an action of 3 has another outcome than an action of 1",
    "descriptor": "x went from .* outside of its limits -9 to 9",
    "frame": r"the picture is uint8\[4, 4\] and must be uint8\[height, width, 3\]",
}


@pytest.mark.parametrize("fault", MESSAGES)
def test_violations_are_reported(fault: str):
    wrong = [f.wrong for f in check(Faulty(fault)) if f.wrong]
    assert len(wrong) >= 1
    with pytest.raises(AssertionError, match=MESSAGES[fault]):
        raise AssertionError(wrong[0])


def test_a_correct_environment_passes():
    assert not [f for f in check(Faulty()) if f.wrong]


@dataclass(frozen=True)
class Limited:
    """A point that terminates at its time limit."""

    @property
    def spec(self) -> EnvSpec:
        return EnvSpec(1, 1, 20, (-1.0,), (1.0,))

    def reset(self, key):
        return jnp.zeros(()), jnp.zeros(1)

    def step(self, state, action, key):
        return state + 1.0, Outcome(jnp.clip(action, -1.0, 1.0), state, state + 1.0 >= 20.0)

    def descriptor(self, state):
        return jnp.zeros(0)

    def frame(self, state):
        return np.zeros((4, 4, 3), np.uint8)


def test_a_time_limit_does_not_terminate():
    wrong = [f.wrong for f in check(Limited()) if f.wrong]
    assert len(wrong) == 1 and "every episode terminates at step 20, the time limit" in wrong[0]


def test_from_the_command_line(monkeypatch, capsys):
    monkeypatch.setattr(envs, "ENVS", dict(envs.ENVS))
    envs.register("faulty", lambda: Faulty("nan"), "Faulty.")
    assert main(["check-env", "point"]) == 0
    assert "ok    descriptor: x, y, final of an episode" in capsys.readouterr().out
    assert main(["check-env", "faulty"]) == 1
    assert "WRONG finite values" in (said := capsys.readouterr()).out and "breaks the contract" in said.err
    assert main(["check-env", "brax:antt"]) == 1 and "'ant'" in capsys.readouterr().err


def test_libraries_are_listed_and_missing_ones_with_their_install_command(monkeypatch, capsys):
    monkeypatch.setattr("covey.cli.catalogue.is_installed", lambda prefix: prefix != "brax")
    assert main(["envs"]) == 0
    said = capsys.readouterr().out
    assert all(f"{prefix}:" in said for prefix in envs.ADAPTERS)
    assert f"not installed: {install_command('brax')}" in said and said.count("pip install") == 1
    assert main(["envs", "brax"]) == 0
    assert "brax:ant_omni\n" in capsys.readouterr().out
    assert main(["envs", "bracks"]) == 1 and "'brax'" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["gymnasium:Hopper-v5", "gymnasium:tests.host_tasks:Opaque"])
def test_host_environments_follow_the_contract(name: str, capsys):
    assert main(["check-env", name]) == 0
    text = capsys.readouterr().out
    assert "WRONG" not in text and "ok    same seed, same episode" in text
    assert ("a resumed run starts new episodes" in text) == name.endswith("Opaque")


def test_a_host_environment_that_ignores_its_seed(capsys):
    assert main(["check-env", "gymnasium:tests.host_tasks:Moody"]) == 1
    assert "WRONG same seed, same episode" in capsys.readouterr().out
