"""State descriptors of host environments: where they come from, and the parts that agents with skills observe."""

import jax.numpy as jnp
import numpy as np
import pytest

from covey import envs, plugins
from covey.envs.base import HostStep
from covey.envs.described import described_spec
from covey.envs.host.described import DescribedBatch, DescribedHost
from covey.envs.host.descriptor import preset_sources
from covey.envs.options import EnvOptions
from covey.errors import CoveyError
from covey.evaluation.host import HostTally
from covey.types import Descriptor, EnvSpec
from tests.host_tasks import place

ROAMER, CAMERA = "gymnasium:tests.host_tasks:Roamer", "gymnasium:tests.host_tasks:RoamerWithCamera"
TASKS = "tests.host_tasks"
SEEDS = np.array([3, 4], np.uint32)


def roll(batch, steps: int, seed: int = 0) -> list[HostStep]:
    random = np.random.default_rng(seed)
    return [batch.step(random.uniform(-1, 1, (2, 2))) for _ in range(steps)]


@pytest.mark.parametrize(
    ("sources", "names", "columns"),
    [
        (["info:x", "info:y"], ("x", "y"), (0, 1)),
        (["info:both"], ("both0", "both1"), (0, 1)),
        (["obs:1", "obs:0"], ("obs1", "obs0"), (1, 0)),
        (["where=obs:1"], ("where",), (1,)),
        ([f"{TASKS}:place"], ("place0", "place1"), (0, 1)),
        (place, ("place0", "place1"), (0, 1)),
        ([f"all={TASKS}:place_and_time", "y=info:y"], ("all0", "all1", "all2", "y"), (0, 2, 1, 1)),
    ],
)
def test_descriptors_from_info_observation_and_functions(sources, names, columns):
    env = envs.make(ROAMER, descriptor=sources)
    about = env.spec.descriptor
    assert about.names == names and about.low == (-10.0,) * len(names) and about.high == (10.0,) * len(names)
    assert env.spec.observation.is_vector and not env.spec.described  # other agents observe the same as without
    described = DescribedHost(env)
    shapes = {name: part.shape for name, part in described.spec.observation.named}
    assert shapes == {"descriptor": (len(names),), "obs": (3,), "return": (1,)}
    batch = described.open(2)
    shown = [batch.reset(SEEDS), *(step.obs for step in roll(batch, 9))]  # over the end of an episode
    for obs in shown:
        np.testing.assert_allclose(obs["descriptor"], obs["obs"][:, columns], rtol=1e-6)
        assert {name: x.shape[1:] for name, x in obs.items()} == shapes
    assert all(x.dtype == np.float32 for x in shown[-1].values())
    batch.close()


def test_numbers_of_a_vector_are_known_to_be_in_the_observation():
    """So that they can be hidden from the policy."""
    assert envs.make(ROAMER, descriptor=["obs:1", "obs:0"]).spec.descriptor.coordinates == (1, 0)
    assert envs.make(ROAMER, descriptor=["obs:1", "info:x"]).spec.descriptor.coordinates == ()


def test_parts_of_a_dictionary_and_stacked_images():
    env = envs.make(
        CAMERA, descriptor=["obs:state:1", "s=obs:state"], descriptor_low=-2, descriptor_high=range(1, 5), stack=2
    )
    about = env.spec.descriptor
    assert about.names == ("obsstate1", "s0", "s1", "s2")
    assert about.low == (-2.0,) * 4 and about.high == (1.0, 2.0, 3.0, 4.0) and about.coordinates == ()
    described = DescribedHost(env)
    one, two = described.open(2), described.open(2)
    shown = [one.reset(SEEDS), *(step.obs for step in roll(one, 4))]
    for obs in shown:
        np.testing.assert_allclose(obs["descriptor"], obs["state"][:, [1, 0, 1, 2]])
        assert obs["camera"].shape == (2, 8, 8, 2) and obs["camera"].dtype == np.uint8
    two.reset(SEEDS)
    two.load(one.save())
    a, b = (roll(batch, 1)[0].obs for batch in (one, two))
    for name in a:
        np.testing.assert_array_equal(a[name], b[name])


def test_the_observation_stays_as_it_is_for_other_agents():
    plain, described = envs.make(ROAMER), envs.make(ROAMER, descriptor="info:x")
    one, two = plain.open(2), described.open(2)
    np.testing.assert_array_equal(one.reset(SEEDS), two.reset(SEEDS))
    for a, b in zip(roll(one, 8), roll(two, 8), strict=True):
        np.testing.assert_array_equal(a.obs, b.obs)


def test_the_return_is_the_sum_of_rewards_since_the_start():
    batch = DescribedHost(envs.make(ROAMER)).open(2)
    np.testing.assert_array_equal(batch.reset(SEEDS)["return"], 0.0)
    total = np.zeros(2, np.float32)
    ended = np.zeros(2, bool)
    for step in roll(batch, 15):
        total = np.where(ended, 0.0, total + step.reward).astype(np.float32)
        np.testing.assert_array_equal(step.obs["return"][:, 0], total)
        assert set(step.obs) == {"obs", "return"}
        ended = step.terminated | step.truncated
    batch.restart(SEEDS)
    np.testing.assert_array_equal(roll(batch, 1)[0].obs["return"], 0.0)


class Scripted:
    """A batch of two environments whose steps are given."""

    def __init__(self, steps: list[HostStep]) -> None:
        self.steps = iter(steps)

    def reset(self, seeds: np.ndarray) -> np.ndarray:
        return np.zeros((2, 1), np.float32)

    def step(self, actions: np.ndarray) -> HostStep:
        return next(self.steps)


def test_an_environment_that_broke_starts_again_at_zero():
    no = np.zeros(2, bool)
    obs, reward = np.zeros((2, 1), np.float32), np.array([2.0, 3.0], np.float32)
    steps = [HostStep(obs, reward, no, no, no), HostStep(obs, reward * 0, no, no, np.array([True, False]))]
    batch = DescribedBatch(Scripted([*steps, steps[0]]), EnvSpec(1, 1, 9, (-1.0,), (1.0,)), 2)  # type: ignore[arg-type]
    batch.reset(SEEDS)
    found = [batch.step(obs).obs["return"][:, 0].tolist() for _ in range(3)]
    assert found == [[2.0, 3.0], [0.0, 3.0], [2.0, 6.0]]


@pytest.mark.parametrize("steps", [4, 6], ids=["within an episode", "at its end"])
@pytest.mark.parametrize("workers", [0, 2])
def test_saved_states_resume_exactly(steps: int, workers: int):
    env = DescribedHost(envs.make(ROAMER, descriptor=["info:x", "info:y"]))
    one, two = env.open(2, workers), env.open(2, workers)
    try:
        one.reset(SEEDS)
        roll(one, steps)
        states = one.save()
        assert states.shape == (2, env.state_size) and (states[:, 0] > 0).all()
        two.reset(SEEDS + 7)
        roll(two, 3)
        two.load(states)
        for a, b in zip(roll(one, 9, 1), roll(two, 9, 1), strict=True):
            for name in a.obs:
                np.testing.assert_array_equal(a.obs[name], b.obs[name])
            np.testing.assert_array_equal(a.reward, b.reward)
    finally:
        one.close()
        two.close()


@pytest.mark.parametrize(
    ("sources", "says"),
    [
        (["info:z"], "has no 'z' in the info of reset and step. It has: x, y, both, text"),
        (["info:text"], "must hold real numbers"),
        (["obs:7"], "obs:7.* has no such number"),
        (["obs:speed:0"], "no such part in the observation of .* It has no parts"),
        (["qpos:0"], "no MuJoCo environment"),
        (["position"], "must be info:KEY, obs:INDEX"),
        (["qpos:x"], "must be info:KEY, obs:INDEX"),
        (["info:x", "x=info:y"], "two numbers with the same name: x, x"),
        ([f"{TASKS}:nowhere"], "has no function called 'nowhere'"),
        ([f"{TASKS}:two_arguments"], "takes 2 arguments"),
        ([lambda env: 0.0], "a function at the top level of a module"),
    ],
)
def test_wrong_descriptors(sources, says):
    with pytest.raises(CoveyError, match=says):
        envs.make(ROAMER, descriptor=sources)


def test_a_descriptor_whose_size_changes_is_an_error():
    batch = DescribedHost(envs.make(ROAMER, descriptor=f"{TASKS}:growing")).open(1)
    batch.reset(SEEDS[:1])
    with pytest.raises(CoveyError, match=r"growing.* has 2 numbers, and had 1 at first"):
        batch.step(np.zeros((1, 2)))


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"descriptor": "info:both", "descriptor_low": [1, 2, 3]}, "`env_descriptor_low` must be one finite .* or 2"),
        ({"descriptor": "info:x", "descriptor_high": np.inf}, "`env_descriptor_high` must be one finite number"),
        ({"descriptor": "info:x", "descriptor_low": 3, "descriptor_high": 2}, "must be below"),
        ({"descriptor_low": 3}, "are limits of an `env_descriptor`"),
    ],
)
def test_wrong_limits(options, says):
    with pytest.raises(CoveyError, match=says):
        envs.make(ROAMER, **options)


def test_compiled_environments_have_their_own():
    with pytest.raises(CoveyError, match=r"pendulum is compiled.*covey.WithDescriptor"):
        envs.make("pendulum", descriptor="obs:0")


def test_a_descriptor_from_a_file_imports_nothing():
    plugins.allow(TASKS)
    with pytest.raises(CoveyError, match=r"The descriptor json:dumps of .* add --plugin json"):
        envs.make_from_config(ROAMER, EnvOptions(descriptor=("json:dumps",)))
    assert plugins.module_of_source("json:dumps") == plugins.module_of_source("x=json:dumps") == "json"
    assert plugins.module_of_source("info:x") == plugins.module_of_source("obs:camera:3") == ""


def test_robots_have_a_preset():
    assert preset_sources("gymnasium:Ant-v5") == ("x=qpos:0", "y=qpos:1")
    assert preset_sources("gymnasium:HalfCheetah-v4") == ("x=qpos:0",)
    assert preset_sources("gymnasium:Pendulum-v1") == preset_sources("brax:ant") == ()
    pytest.importorskip("mujoco")
    env = envs.make("gymnasium:Ant-v5", descriptor=preset_sources("gymnasium:Ant-v5"))
    info = envs.make("gymnasium:Ant-v5", descriptor=["info:x_position", "info:y_position"])
    one, two = (DescribedHost(each).open(1) for each in (env, info))
    np.testing.assert_allclose(one.reset(SEEDS[:1])["descriptor"], two.reset(SEEDS[:1])["descriptor"])
    a, b = (batch.step(np.full((1, 8), 0.5)).obs for batch in (one, two))
    np.testing.assert_allclose(a["descriptor"], b["descriptor"])
    assert env.spec.descriptor.names == ("x", "y")


def longest(states, valid):
    return jnp.sum(states[:, :1] * valid[:, None], axis=0)


@pytest.mark.parametrize(
    ("reduce", "expected"),
    [("final", [[2.0, 0.0], [4.0, 0.0]]), ("mean", [[1.5, 0.0], [2.5, 0.0]]), (longest, [[3.0], [10.0]])],
)
def test_descriptors_of_evaluation_episodes(reduce, expected):
    """Two episodes of 2 and 4 steps; the descriptor's first number counts the steps."""
    about = Descriptor(("t", "zero"), (0.0,) * 2, (9.0,) * 2, reduce=reduce)
    spec = EnvSpec(1, 1, 9, (-1.0,), (1.0,), about)
    tally = HostTally((1, 2), described_spec(spec, "test"))
    no = np.zeros(2, bool)
    for t in range(1, 5):
        obs = {"descriptor": np.array([[t, 0.0], [t, 0.0]], np.float32)}
        ended = np.array([t == 2, t == 4])
        tally.add(np.zeros((1, 2, 1)), {}, HostStep(obs, np.ones(2, np.float32), no, ended, no))
    found = tally.episodes()
    np.testing.assert_allclose(found.descriptor[0], expected)
    np.testing.assert_array_equal(found.length, [[2, 4]])
