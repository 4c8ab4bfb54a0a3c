"""The adapter to EnvPool, if it is installed: `make test-envpool`, as in CI, installs its 800 MB."""

import re
from importlib.util import find_spec

import numpy as np
import pytest

from covey import envs
from covey.cli import main
from covey.errors import CoveyError
from covey.install import install_command

installed = pytest.mark.skipif(find_spec("envpool") is None, reason="EnvPool is not installed")


@pytest.mark.skipif(find_spec("envpool") is not None, reason="EnvPool is installed")
def test_the_missing_package_is_named():
    with pytest.raises(CoveyError, match=re.escape(install_command("envpool"))):
        envs.make("envpool:Hopper-v5")


@installed
def test_wrong_names_and_actions_are_early_errors():
    with pytest.raises(CoveyError, match="Did you mean 'Hopper-v5'"):
        envs.make("envpool:Hoper-v5")
    with pytest.raises(CoveyError, match="continuous version"):
        envs.make("envpool:CartPole-v1")


@installed
def test_the_stream_and_its_resets():
    """The first step after an end returns a start state and no reward, and equal seeds give equal streams."""
    env = envs.make("envpool:Hopper-v5")
    spec = env.spec
    assert (spec.obs_size, spec.action_size, spec.episode_length, env.state_size) == (11, 3, 1000, 0)
    seeds, runs = np.array([5, 2**32 - 1], np.uint32), []
    for _ in range(2):
        batch, actions = env.open(2), np.random.default_rng(0)
        steps, ended, ends = [batch.reset(seeds)], np.zeros(2, bool), 0
        for _ in range(150):
            step = batch.step(actions.uniform(-1, 1, (2, 3)))
            assert step.obs.dtype == np.float32 and not step.broken.any()
            np.testing.assert_array_equal(step.reward[ended], 0)
            assert np.all(np.abs(step.obs[ended, 0] - 1.25) < 0.01), "a start is upright"
            ended = step.terminated | step.truncated
            ends += ended.sum()
            steps.append(step.obs)
        batch.restart(seeds)
        again = batch.step(np.zeros((2, 3)))
        np.testing.assert_array_equal(again.obs, steps[0])
        assert ends >= 4 and not np.array_equal(steps[0][0], steps[0][1])
        batch.close()
        runs.append(np.stack(steps))
    np.testing.assert_array_equal(*runs)


@installed
def test_the_contract(capsys: pytest.CaptureFixture[str]):
    assert main(["check-env", "envpool:Hopper-v5"]) == 0
    assert "ok    same seed, same episode" in capsys.readouterr().out


@installed
def test_observations_in_a_dictionary():
    env = envs.make("envpool:CheetahRun-v1")
    batch = env.open(3)
    obs = batch.reset(np.arange(3, dtype=np.uint32))
    assert obs.keys() == env.spec.observation.parts.keys() and not env.spec.observation.is_array
    assert sum(x.shape[1] for x in obs.values()) == 17 and all(x.dtype == np.float32 for x in obs.values())
    batch.close()


@installed
def test_a_twin_draws():
    """EnvPool has no pictures: Gymnasium's environment of the same name draws them."""
    batch = envs.make("envpool:Hopper-v5").open(1, draws=True)
    batch.reset(np.zeros(1, np.uint32))
    assert batch.frame(0).shape == (240, 240, 3)
    batch.close()
    with pytest.raises(CoveyError, match="envpool:CheetahRun-v1 can't be drawn"):
        envs.make("envpool:CheetahRun-v1").open(1, draws=True)
