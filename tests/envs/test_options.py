"""Options of environments: arguments, wrappers, time limit, parts of the reward."""

import re
from dataclasses import dataclass, field
from typing import Any

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from covey import envs
from covey.cli import main
from covey.cli.arguments import take_kwargs, values_of
from covey.envs.builtin.pendulum import Pendulum
from covey.envs.builtin.point import Point
from covey.envs.options import check_kwargs, parameters, wrapper_text
from covey.errors import CoveyError
from tests.host_tasks import Arm, doubled
from tests.tasks import Counter

ARM = "gymnasium:tests.host_tasks:Arm"


def steps(env: Any, count: int, workers: int = 0) -> list[np.ndarray]:
    """Returns the results of steps with the action 1, [T, 1, ...] each."""
    batch = env.open(1, workers)
    try:
        batch.reset(np.array([0], np.uint32))
        return [np.stack(x) for x in zip(*(batch.step(np.ones((1, 1))) for _ in range(count)), strict=True)]
    finally:
        batch.close()


def test_arguments_of_built_in_environments():
    assert envs.make("pendulum", {"gravity": 5.0}) == Pendulum(gravity=5.0)
    assert envs.make("point-free", {"arena": 3.0}) == Point(goal=False, arena=3.0)
    with pytest.raises(
        CoveyError, match=r"`env_kwargs.gravty`.*pendulum takes no such argument. It takes: gravity, mass"
    ):
        envs.make("pendulum", {"gravty": 5.0})


def test_arguments_of_registered_factories(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(envs, "ENVS", dict(envs.ENVS))
    envs.register("plain", lambda: Point(arena=2.0), "Takes nothing.")
    with pytest.raises(CoveyError, match="plain takes no arguments"):
        envs.make("plain", {"arena": 3.0})


def test_arguments_of_gymnasiums_environments():
    """Of registered IDs, classes and functions; lists become tuples."""
    env = envs.make("gymnasium:Hopper-v5", {"terminate_when_unhealthy": False, "healthy_z_range": [0.5, 2.0]})
    inner = env.open(1).envs[0].unwrapped
    assert inner._terminate_when_unhealthy is False and inner._healthy_z_range == (0.5, 2.0)
    assert steps(envs.make(ARM, {"gain": 0.5, "offsets": [1.0, 2.0]}), 1)[0][0] == pytest.approx(3.5)
    assert steps(envs.make("gymnasium:tests.host_tasks:short_arm", {"gain": 0.5}), 1)[0][0] == pytest.approx(0.5)


@pytest.mark.parametrize(
    ("name", "argument", "message"),
    [
        (ARM, "gian", "takes no such argument. It takes: gain, offsets, render_mode"),
        ("gymnasium:tests.host_tasks:short_arm", "gian", "It takes: gain."),
        ("gymnasium:Hopper-v5", "frame_skp", "It takes: xml_file, frame_skip"),
        ("gymnasium:Hopper-v5", "max_episode_steps", "Its time limit is `episode_length`"),
        ("gymnax:Pendulum-v1", "gg", "It takes: .*max_speed"),
        ("brax:ant", "gain", "It takes: .*ctrl_cost_weight"),
        ("playground:CheetahRun", "gain", "It takes: .*ctrl_dt"),
    ],
)
def test_unknown_arguments_are_named(name: str, argument: str, message: str):
    with pytest.raises(CoveyError, match=f"`env_kwargs.{argument}`.*{message}"):
        envs.make(name, {argument: 1})


def test_arguments_of_compiled_libraries():
    light, heavy = (envs.make("gymnax:Pendulum-v1", {"m": mass}) for mass in (1.0, 9.0))
    state, _ = light.reset(jax.random.key(0))
    found = [env.step(state, jnp.ones(1), jax.random.key(1))[1].obs for env in (light, heavy)]
    assert not np.allclose(*found)
    assert envs.make("gymnax:Pendulum-v1", {"max_steps_in_episode": 7}).spec.episode_length == 7
    ant = envs.make("brax:ant", {"exclude_current_positions_from_observation": False})
    assert ant.spec.obs_size == 27 + 2
    assert envs.make("playground:CartpoleBalance", {"ctrl_dt": 0.02}).spec.frames_per_second == pytest.approx(50.0)


def test_adapters_get_arguments_if_they_take_them(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(envs, "ADAPTERS", dict(envs.ADAPTERS))
    envs.register_adapter("old", lambda name: Point(arena=float(name)))
    envs.register_adapter("new", lambda name, kwargs=None: Point(arena=float(name), **kwargs or {}))
    assert envs.make("old:3") == envs.make("new:3") == Point(arena=3.0)
    assert envs.make("new:3", {"goal": False}) == Point(arena=3.0, goal=False)
    with pytest.raises(CoveyError, match="no second argument"):
        envs.make("old:3", {"goal": False})


def test_parameters_are_followed_through_inheritance():
    class Base:
        def __init__(self, size: int, colour: str = "") -> None: ...

    class Passes(Base):
        def __init__(self, first: int, **kwargs: Any) -> None: ...

    class Anything:
        def __init__(self, **kwargs: Any) -> None: ...

    class Nothing: ...

    assert parameters(Passes) == ("first", "size", "colour") and parameters(Base) == ("size", "colour")
    assert parameters(Anything) is None and parameters(Nothing) == ()


def test_arguments_must_fit_a_configuration_file():
    assert check_kwargs({"a": (1, 2), "b": {"c": None}}, "env_kwargs") == {"a": [1, 2], "b": {"c": None}}
    for wrong in ({"a": Arm}, {"a": float("nan")}, {1: 2}, [1]):
        with pytest.raises(CoveyError, match="`env_kwargs"):
            check_kwargs(wrong, "env_kwargs")


def test_arguments_on_the_command_line(capsys: pytest.CaptureFixture[str]):
    line = ["--env-kwargs.a-b", "1", "x", "--env-kwargs.c=[1, 2.5]", "--env-kwargs.d", "text", "--env-kwargs.e", "True"]
    found = {"a_b": 1, "c": [1, 2.5], "d": "text", "e": True, "f": -0.5}
    assert take_kwargs([*line, "--env-kwargs.f", "-0.5"], "--env-kwargs") == (found, ["x"])
    assert values_of(["--wrappers", "a:b", "c:d", "--env", "e"], "--wrappers") == ["a:b", "c:d"]
    assert main(["check-env", ARM, "--env-kwargs.gain", "0.5", "--env-kwargs.offsets", "[3]"]) == 0
    assert main(["check-env", ARM, "--env-kwargs.gian", "0.5"]) == 1
    assert "--env-kwargs.gian: the environment" in capsys.readouterr().err


def test_wrappers_of_gymnasiums_environments():
    """By name and as functions, in this process and in workers; their state is saved with the environment's."""
    plain = steps(envs.make(ARM), 3)[0]
    wrappers = ("gymnasium.wrappers:FlattenObservation", doubled)
    env = envs.make(ARM, wrappers=wrappers)
    for workers in (0, 1):
        np.testing.assert_allclose(steps(env, 3, workers)[0], 2.0 * plain)
    assert not env.unsaved and wrapper_text(doubled) == "tests.host_tasks:doubled"


@dataclass(frozen=True)
class Shifted:
    """A wrapper of compiled environments."""

    env: Any
    spec: Any = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "spec", self.env.spec)

    def reset(self, key: Any) -> Any:
        state, obs = self.env.reset(key)
        return state, obs + 1.0


def test_wrappers_of_compiled_environments():
    _, obs = envs.make("pendulum").reset(jax.random.key(0))
    _, shifted = envs.make("pendulum", wrappers=[Shifted]).reset(jax.random.key(0))
    np.testing.assert_array_equal(shifted, obs + 1.0)


@pytest.mark.parametrize(
    ("wrapper", "message"),
    [
        ("nothing", "must be MODULE:NAME, not 'nothing'"),
        ("tests.host_tasks:missing", "has no function or class called 'missing'"),
        ("tests.host_tasks:nothing", "returned None, which is no"),
        ("tests.no_module:x", "'tests.no_module' can't be imported"),
        (lambda env: env, "top level of a module"),
        (3, "top level of a module"),
    ],
)
@pytest.mark.parametrize("env", [ARM, "pendulum"])
def test_wrong_wrappers(wrapper: Any, message: str, env: str):
    with pytest.raises(CoveyError, match=message):
        envs.make(env, wrappers=[wrapper])


def test_a_wrapper_for_other_environments_is_an_error():
    with pytest.raises(CoveyError, match=r"gymnasium.wrappers:FlattenObservation can't wrap pendulum: AttributeError"):
        envs.make("pendulum", wrappers=["gymnasium.wrappers:FlattenObservation"])


def test_the_time_limit_of_compiled_environments():
    env = envs.make("pendulum", episode_length=30)
    assert env.spec.episode_length == 30 and env.env == Pendulum()
    assert envs.make("pendulum", episode_length=0) == Pendulum()


@pytest.mark.parametrize("name", ["gymnasium:Pendulum-v1", ARM, "gymnasium:tests.host_tasks:short_arm"])
@pytest.mark.parametrize("length", [3, 300])
def test_the_time_limit_of_gymnasiums_environments_is_replaced(name: str, length: int):
    """Shorter or longer than their own; it truncates and does not terminate."""
    env = envs.make(name, episode_length=length)
    found = steps(env, length)
    assert env.spec.episode_length == length and not found[2].any()
    assert found[3].ravel().tolist() == [False] * (length - 1) + [True]


def test_the_time_limit_is_outside_of_the_wrappers():
    batch = envs.make("gymnasium:Pendulum-v1", wrappers=[doubled], episode_length=3).open(1)
    assert [type(x).__name__ for x in (batch.envs[0], batch.envs[0].env)] == ["TimeLimit", "TransformObservation"]
    assert "<TimeLimit" not in str(batch.envs[0].env)


def test_the_parts_of_a_reward_are_read_from_info():
    """Their weighted sum is the reward."""
    names = ("reward_forward", "reward_ctrl", "reward_survive")
    env = envs.make("gymnasium:Hopper-v5", reward_parts=names)
    assert env.spec.rewards == names and env.spec.reward_weights == (1.0, 1.0, 1.0)
    one, other = env.open(2), envs.make("gymnasium:Hopper-v5").open(2)
    seeds, random = np.array([1, 2], np.uint32), np.random.default_rng(0)
    np.testing.assert_array_equal(one.reset(seeds), other.reset(seeds))
    ended = np.zeros(2, bool)
    for _ in range(40):
        action = random.uniform(-1, 1, (2, 3))
        parts, whole = one.step(action), other.step(action)
        assert parts.reward.shape == (2, 3) and not parts.reward[ended].any()
        np.testing.assert_allclose(env.spec.reward(parts.reward), whole.reward, rtol=1e-5, atol=1e-6)
        ended = whole.terminated | whole.truncated


def test_missing_parts_of_a_reward_are_early_errors():
    with pytest.raises(CoveyError, match=r"no number 'nearr'.*Its numbers are: near, effort\."):
        envs.make(ARM, reward_parts=["nearr"])
    with pytest.raises(CoveyError, match="no number 'pair'"):
        envs.make(ARM, reward_parts=["near", "pair"])
    with pytest.raises(CoveyError, match=r"pendulum is compiled: name the parts in its spec.rewards"):
        envs.make("pendulum", reward_parts=["near"])


def test_a_restarted_worker_has_parts_too(monkeypatch: pytest.MonkeyPatch):
    batch = envs.make(ARM, reward_parts=["near", "effort"]).open(1, workers=1)
    try:
        batch.reset(np.array([0], np.uint32))
        batch._workers[0].process.kill()  # type: ignore[attr-defined]
        found = batch.step(np.ones((1, 1)))
        assert found.broken[0] and found.reward.tolist() == [[0.0, 0.0]]
        np.testing.assert_allclose(batch.step(np.ones((1, 1))).reward, [[-0.01, -0.1]], rtol=1e-5)
    finally:
        batch.close()


def test_environments_with_batches_of_their_own_take_no_wrappers(monkeypatch: pytest.MonkeyPatch):
    class Own:
        """A HostEnv that covey can't adjust."""

        spec = Counter().spec
        state_size = 0
        unsaved = "never"

        def open(self, count: int, workers: int = 0, draws: bool = False) -> Any: ...

    monkeypatch.setattr(envs, "ENVS", envs.ENVS | {"own": envs.EnvEntry(Own, "")})
    with pytest.raises(CoveyError, match="own has its own batches"):
        envs.make("own", episode_length=3)


@pytest.mark.parametrize(
    ("name", "suggested"),
    [
        ("Hopper-v5", "'gymnasium:Hopper-v5'"),
        ("hopper-v5", "'gymnasium:Hopper-v5'"),
        ("Hoper-v5", "'gymnasium:Hopper-v5'"),
        ("Pendulum-v1", "'gymnasium:Pendulum-v1' or 'gymnax:Pendulum-v1'"),
        ("hopper", "'brax:hopper'"),
        ("CheetahRun", "'playground:CheetahRun'"),
        ("pendulun", "'pendulum'"),
    ],
)
def test_names_without_their_prefix_are_found(name: str, suggested: str):
    with pytest.raises(CoveyError, match=f"no environment called '{name}'. Did you mean {re.escape(suggested)}"):
        envs.make(name)


def test_well_known_names_are_suggested_without_gymnasium(monkeypatch: pytest.MonkeyPatch):
    from covey.envs.host.gymnasium import WELL_KNOWN

    monkeypatch.setattr("covey.envs.host.gymnasium.find_spec", lambda name: None)
    with pytest.raises(CoveyError, match="Did you mean 'gymnasium:Hopper-v5'"):
        envs.make("Hopper-v5")
    assert set(WELL_KNOWN) <= set(gymnasium.registry)


def test_only_usable_environments_of_gymnasium_are_listed():
    """Neither discrete ones nor those whose package is missing or that were moved away."""
    listed = envs.adapter("gymnasium").names()
    assert {"Pendulum-v1", "Hopper-v5", "MountainCarContinuous-v0"} <= set(listed)
    assert not {"CartPole-v1", "Blackjack-v1", "FrozenLake-v1", "Ant-v2"} & set(listed)
