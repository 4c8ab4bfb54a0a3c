"""Brax: the contract, feet against MuJoCo's own geometry, the `_omni` tasks, names, and a whole run."""

import re
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import mujoco
import numpy as np
import pytest

from covey import envs
from covey.cli import main
from covey.envs.check import EPISODES, STEPS, check, probe
from covey.envs.compiled import brax
from covey.envs.compiled.brax import Brax
from covey.errors import CoveyError
from covey.install import install_command
from covey.plots.film import write_gif
from tests.runs import assert_same_run

FEET = {
    "ant": ("left_foot", "right_foot", "third_foot", "fourth_foot"),
    "halfcheetah": ("bfoot", "ffoot"),
    "hopper": ("foot",),
    "walker2d": ("foot", "foot_left"),
    "humanoid": ("right_foot", "left_foot"),
}


def test_ant_follows_the_contract():
    findings = list(check(envs.make("brax:ant")))
    assert len(findings) == 10 and not [f for f in findings if f.wrong]


def test_ant_stands_on_its_feet():
    """Without actions all four feet touch the floor; at the start, slightly above it, not all of them do."""
    env = envs.make("brax:ant@spring")
    found = probe(env, np.zeros((STEPS, EPISODES, 8), np.float32), jax.random.key(0))
    assert np.asarray(found.descriptor[-50:]).mean() > 0.95
    assert np.asarray(found.descriptor[0]).mean() < 0.9
    assert not np.asarray(found.outcome.terminated).any()


@pytest.mark.parametrize("task", FEET)
def test_feet_are_those_of_mujoco(task: str):
    """They are found by geometry, also without names, and their height above the floor is MuJoCo's."""
    feet, model = brax._feet(Brax(task, "spring")), brax._load(Brax(task, "spring")).sys.mj_model
    assert feet.names == FEET[task]
    geoms = {model.geom(i).name.removesuffix("_geom"): i for i in range(model.ngeom)}
    data, random = mujoco.MjData(model), np.random.default_rng(0)
    for _ in range(5):
        data.qpos[:] = model.qpos0 + random.uniform(-0.4, 0.4, model.nq)
        mujoco.mj_forward(model, data)
        x = SimpleNamespace(pos=jnp.asarray(data.xpos[1:]), rot=jnp.asarray(data.xquat[1:]))
        floor = geoms["floor"]
        expected = [mujoco.mj_geomDistance(model, data, floor, geoms[name], 10.0, None) for name in feet.names]
        np.testing.assert_allclose(brax._clearance(feet, x), expected, atol=1e-5)


def test_omni_has_no_forward_reward():
    env, free = Brax("ant"), Brax("ant", omni=True)

    @jax.jit
    def both(key):
        state, _ = env.reset(key)
        action = jax.random.uniform(key, (8,), minval=-1.0, maxval=1.0)
        after, outcome = env.step(state, action, key)
        _, other = free.step(state, action, key)
        return free.descriptor(state), free.descriptor(after), outcome.reward, other.reward, action

    before, after, reward, other, action = both(jax.random.key(3))
    speed = (after[0] - before[0]) * env.spec.frames_per_second
    assert abs(speed) > 1e-3
    np.testing.assert_allclose(reward - other, speed, rtol=1e-3)
    np.testing.assert_allclose(other, 1.0 - 0.5 * np.sum(np.asarray(action) ** 2), rtol=1e-4)
    assert free.spec.descriptor.names == ("x", "y") and free.spec.descriptor.is_position


def test_names():
    names = brax.names()
    assert {"ant", "ant_omni", "ant_uni", "pusher", "inverted_double_pendulum"} <= set(names)
    assert "reacher_omni" not in names and len(names) == 5 * 3 + 4
    assert envs.make("brax:ant_uni") == envs.make("brax:ant@spring") != envs.make("brax:ant_omni")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("brax:antt", r"no Brax environment called 'antt'. Did you mean 'ant'"),
        ("brax:ant@sprin", r"no backend of Brax called 'sprin'. Did you mean 'spring'"),
        ("brx:ant", r"no library of environments called 'brx'. Did you mean 'brax'"),
    ],
)
def test_wrong_names(name: str, message: str):
    with pytest.raises(CoveyError, match=message):
        envs.make(name)


def test_a_missing_library_is_named(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "brax.envs", None)
    brax._load.cache_clear()
    with pytest.raises(CoveyError, match=re.escape(install_command("brax"))):
        envs.make("brax:ant")


@pytest.mark.slow
def test_a_run_and_its_resume(tmp_path, monkeypatch):
    """SAC on the simplest task: it ends with an animation and a page, and a resumed run is identical, bit for bit."""
    small = [
        "--warmup",
        "200",
        "--capacity",
        "640",
        "--envs",
        "4",
        "--evaluations",
        "2",
        "--episodes",
        "2",
        "--agent.batch-size",
        "8",
    ]
    small += ["--agent.networks.actor.hidden", "16", "--agent.networks.critic.hidden", "16"]
    train = ["train", "sac", "--env", "brax:inverted_pendulum", *small]
    assert main([*train, "--steps", "640", "--out", str(tmp_path / "whole")]) == 0
    assert (tmp_path / "whole/media/policy.gif").exists()
    page = tmp_path / "replay.html"
    assert main(["video", str(tmp_path / "whole"), "--out", str(page), "--steps", "300"]) == 0
    assert "brax" in page.read_text()
    monkeypatch.setattr("covey.launch.finish", lambda *arguments: None)  # the pictures are not compared
    assert main([*train, "--steps", "320", "--evaluations", "1", "--out", str(tmp_path / "cut")]) == 0
    assert main(["resume", str(tmp_path / "cut"), "--steps", "640", "--evaluations", "2"]) == 0
    assert_same_run(tmp_path / "whole", tmp_path / "cut")


def test_an_error_without_a_display(monkeypatch, tmp_path):
    """If MuJoCo can't render, the error names the remedy."""

    class Broken:
        def __init__(self, *arguments, **options):
            raise RuntimeError("no display")

    monkeypatch.setattr(mujoco, "Renderer", Broken)
    env = envs.make("brax:hopper")
    state = SimpleNamespace(q=np.zeros(6))
    with pytest.raises(CoveyError, match=r"MuJoCo can't render here \(RuntimeError: no display\).*MUJOCO_GL"):
        write_gif(tmp_path / "x.gif", env, SimpleNamespace(states=[state], annotations={}))
