"""The environments of a run: their options in its configuration, objects from Python, and evaluation environments."""

import json
import threading
from pathlib import Path
from typing import Any

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import covey
from covey import envs
from covey.cli import main
from covey.envs.builtin.pendulum import Pendulum
from covey.envs.host.gymnasium import GymnasiumEnv
from covey.errors import CoveyError
from covey.evaluation import evaluate_members
from covey.run.config import as_config, default_config, load_config
from covey.run.config_text import to_json
from covey.run.policy import build_policy
from covey.training.host import HostLoop
from tests.host_tasks import Arm, short_arm
from tests.tasks import SMALL, Counter, small_trainer

ARM = "gymnasium:tests.host_tasks:Arm"
TINY: Any = {"steps": 60, "warmup": 20, "evaluations": 1, "episodes": 2, "agent": SMALL["td3"], "quiet": True}


def options(env: Any) -> dict[str, Any]:
    return {"env_kwargs": {"gain": 0.5, "offsets": [1.0]}, "wrappers": ["tests.host_tasks:doubled"]} | {
        "env": env,
        "episode_length": 7,
        "reward_parts": ("near", "effort"),
        "eval_env_kwargs": {"gain": 0.25},
    }


def test_options_survive_a_file(tmp_path: Path):
    config = default_config("td3", **options(ARM)).resolved()
    file = tmp_path / "config.json"
    file.write_text(json.dumps(to_json(config)))
    assert load_config(file) == config and hash(config) == hash(load_config(file))
    assert config.eval_env_options.kwargs == {"gain": 0.25, "offsets": [1.0]}


def test_files_without_these_options_still_load():
    values = to_json(default_config("td3"))
    for name in ("env_kwargs", "wrappers", "episode_length", "reward_parts", "eval_env", "eval_env_kwargs"):
        del values[name]
    assert as_config(values, Path("config.json")) == default_config("td3").resolved()


@pytest.mark.parametrize(
    ("name", "value"), [("wrappers", "a:b"), ("wrappers", [1]), ("env_kwargs", [1]), ("episode_length", "7")]
)
def test_wrong_values_in_a_file_are_named(name: str, value: Any):
    with pytest.raises(CoveyError, match=f"{name} must be"):
        as_config(to_json(default_config("td3")) | {name: value}, Path("config.json"))
    with pytest.raises(CoveyError, match=f"`{name}` must be"):
        default_config("td3", **{name: value})


def test_a_run_has_the_environment_of_its_options():
    covey.plugins.allow("tests.host_tasks")
    program = build_policy(default_config("td3", **options(ARM)).resolved())
    assert program.train_env.spec.rewards == ("near", "effort") and program.spec.episode_length == 7
    trained, evaluated = (env.open(1).envs[0] for env in (program.train_env, program.env))
    assert (trained.unwrapped.gain, evaluated.unwrapped.gain) == (0.5, 0.25)
    assert "TransformObservation" in str(evaluated)
    short = build_policy(default_config("td3", env="pendulum", episode_length=30).resolved())
    assert short.env is short.train_env and short.env.spec.episode_length == 30
    with pytest.raises(CoveyError, match="`episode_length` must not be negative"):
        default_config("td3", episode_length=-1).check()


def test_evaluations_have_an_environment_of_their_own():
    config = default_config("td3", env="pendulum", env_kwargs={"gravity": 5.0}, eval_env="gymnasium:Pendulum-v1")
    program = build_policy(config.resolved())
    assert program.train_env == Pendulum(gravity=5.0) and isinstance(program.env, GymnasiumEnv)
    assert not program.on_host and program.host_evaluator is not None
    for wrong, message in (
        ("point", "observation is 6 numbers .point. instead of 3 numbers"),
        ("pendulun", "no environment"),
    ):
        with pytest.raises(CoveyError, match=message):
            build_policy(default_config("td3", env="pendulum", eval_env=wrong).resolved())
    with pytest.raises(CoveyError, match=r"action_low is \(-1.0,\)"):
        changed = {"eval_env_kwargs": {"max_torque": 1.0}}
        build_policy(default_config("td3", env="pendulum", **changed).resolved())


def test_a_run_with_objects(tmp_path: Path):
    """Passed to train, and again to load and resume; the best policy is that of the evaluation environment."""
    made = covey.train("td3", env=lambda: Arm(0.5), eval_env=short_arm, out=tmp_path / "run", **TINY)
    assert (made.config.env, made.config.eval_env) == ("object:test_a_run_with_objects.lambda", "object:short_arm")
    found = made.evaluate(episodes=2)
    assert found.episodes.length.tolist() == [5, 5]
    with pytest.raises(CoveyError, match=r"was passed from Python \(object.*covey.load\(path, env=...\)"):
        _ = covey.load(made.path).best
    with pytest.raises(CoveyError, match="was passed from Python"):
        covey.resume(made.path, steps=80, quiet=True)
    again = covey.load(made.path, env=lambda: Arm(0.5), eval_env=short_arm).evaluate(episodes=2)
    np.testing.assert_array_equal(again.episodes.returns, found.episodes.returns)
    longer = covey.resume(made.path, env=lambda: Arm(0.5), eval_env=short_arm, steps=80, quiet=True)
    assert longer.config.steps == 80
    with pytest.raises(CoveyError, match="`env` must be a name with `engine` ray"):
        covey.evolve("td3", env=Arm, engine="ray")


def test_a_run_with_a_name_takes_no_object(tmp_path: Path):
    from covey.storage.folder import RunFolder

    RunFolder(tmp_path / "run").create(to_json(default_config("td3").resolved()))
    with pytest.raises(CoveyError, match="`env` is 'pendulum' in this run"):
        covey.load(tmp_path / "run", env=Arm)


def held(env: Any, **kwargs: Any) -> Any:
    return envs.make(envs.hold(env), kwargs)


class Locked(Arm):
    """An environment that can't be copied or pickled."""

    def __init__(self) -> None:
        super().__init__()
        self.lock = threading.Lock()


def test_objects_of_every_kind():
    """Environments of covey and Gymnasium, classes, and functions with arguments."""
    point = covey.WithDescriptor(envs.make("point"), covey.Descriptor(("x",), (-5.0,), (5.0,)), lambda state: state)
    assert (
        held(point) is point and held(lambda: point) is point and held(Pendulum, gravity=3.0) == Pendulum(gravity=3.0)
    )
    assert held(Arm, gain=0.5).open(1).envs[0].gain == 0.5
    two = held(Arm(0.7)).open(2).envs
    assert two[0] is not two[1] and two[0].gain == two[1].gain == 0.7, "copies"
    made = gymnasium.make("Pendulum-v1", g=3.0, max_episode_steps=20)
    remade = held(made)
    assert remade.name == "object:PendulumEnv" and remade.spec.episode_length == 20
    assert remade.open(1).envs[0].unwrapped.g == 3.0
    host = envs.make(ARM)
    assert held(host) is host


def test_objects_that_do_not_fit():
    with pytest.raises(
        CoveyError, match=r"can't be copied(.|\n)*Pass a factory instead, such as env=lambda: Locked\(\)"
    ):
        held(Locked())
    with pytest.raises(CoveyError, match=r"`env` must be a name.*not 3"):
        held(3)
    with pytest.raises(CoveyError, match="made 0, which is no environment"):
        held(int)
    with pytest.raises(CoveyError, match="`env` is an environment already"):
        held(Arm(), gain=0.5)
    with pytest.raises(CoveyError, match=r"object:Arm takes no such argument\. It takes: gain"):
        held(Arm, gian=0.5)
    lock = threading.Lock()
    with pytest.raises(CoveyError, match="can't be sent to worker processes"):
        held(lambda: Arm(float(lock.locked()))).open(1, workers=1)


def test_the_parts_of_a_host_reward_reach_taac_and_replay():
    """A value for each part, and their sum as the reward."""
    env = envs.make(ARM, episode_length=5, reward_parts=["near", "effort"])
    trainer = small_trainer("taac", env)
    loop = HostLoop(trainer, members=1)
    population = loop.advance(loop.init(seed=0), blocks=2)
    rows = int(population.replay.written)
    record = trainer.replay.records(jax.tree.map(lambda x: x[0], population.replay.data)[:rows])
    loop.close()
    parts = np.asarray(record.extras["rewards"])
    assert parts.shape == (rows, 1, 2) and (parts[..., 0] < 0).any() and (parts[..., 1] < 0).any()
    np.testing.assert_allclose(parts.sum(-1), record.reward, rtol=1e-6)
    assert not np.asarray(record.terminated).any() and np.asarray(record.last)[5::6].all(), (
        "truncated, never terminated"
    )
    assert np.isfinite(np.concatenate([np.ravel(x) for x in jax.tree.leaves(population.members.agent)])).all()


def longest(states: Any, valid: Any) -> Any:
    """A descriptor of two numbers: the largest of an episode, and the number of states."""
    return jnp.stack([jnp.max(jnp.where(valid > 0, states[:, 0], -jnp.ones_like(valid))), jnp.sum(valid)])


def test_descriptors_of_episodes_may_be_any_function():
    """The reduction sees every state of the episode, and the descriptor may be the user's."""
    about = covey.Descriptor(("tens",), (0.0,), (90.0,), is_position=False, reduce=longest)
    env = covey.WithDescriptor(Counter(), about, lambda state: 10.0 * state.step[None])
    trainer = small_trainer("td3", env)
    hyper = jax.tree.map(lambda s: jnp.full(1, s.start), trainer.schedules)
    state = jax.vmap(trainer.agent.init)(hyper, jax.random.split(jax.random.key(0), 1))
    found = evaluate_members(trainer.agent, env, state, hyper, jax.random.key(1), 8)
    assert set(np.ravel(found.length)) == {3, 5}
    np.testing.assert_array_equal(found.descriptor[..., 0], 10.0 * np.asarray(found.length))
    np.testing.assert_array_equal(found.descriptor[..., 1], found.length)
    assert about.reduced_names(2) == ("0", "1") and about.reduced_names(1) == ("tens",)


def test_the_command_line_has_these_options(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    """They are recorded, and applied by `covey eval` to the loaded run; the mean descriptor is logged."""
    line = (
        "--env-kwargs.gravity 5 --eval-env-kwargs.gravity 20 --episode-length 30 --steps 200 --warmup 20 --episodes 2"
    )
    small = "--evaluations 1 --agent.batch-size 8 --agent.networks.actor.hidden 16 --agent.networks.critic.hidden 16"
    out = tmp_path / "run"
    words = ["train", "td3", "--env", "pendulum", *line.split(), *small.split(), "--out", str(out), "--preset", "off"]
    assert main(words) == 0
    config = load_config(out / "config.json")
    assert (config.env_kwargs, config.eval_env_kwargs) == ({"gravity": 5}, {"gravity": 20})
    run = covey.load(out)
    assert run.best.program.env.env == Pendulum(gravity=20) and "eval/descriptor/x" in run.metrics()
    assert main(["eval", str(out), "--episodes", "2"]) == 0 and "mean length 30" in capsys.readouterr().out
    assert main(["train", "td3", "--env", "pendulum", "--env-kwargs.gravty", "5", "--out", str(out) + "2"]) == 1
    assert "--env-kwargs.gravty: the environment pendulum takes no such argument" in capsys.readouterr().err
