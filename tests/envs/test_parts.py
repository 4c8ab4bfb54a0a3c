"""Parts of observations: Gymnasium's spaces, in this process and in workers; what `covey check-env` says about them."""

from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from covey import envs
from covey.cli import main
from covey.envs.base import HostStep
from covey.envs.host.parts import leaves_of, observation_of
from covey.errors import CoveyError
from covey.observation import Part
from tests.host_tasks import Senses

TASKS = "gymnasium:tests.host_tasks"
SEEDS = np.array([4, 5], np.uint32)


def test_every_kind_of_leaf():
    """Images keep their shape, and uint8; everything else is a vector of float32."""
    observation = envs.make(f"{TASKS}:Senses").spec.observation
    assert not observation.is_array
    assert observation.parts == {
        "arm/grips": Part((2,)),
        "arm/joint": Part((2,)),
        "camera": Part((20, 16, 3), "uint8"),
        "depth": Part((16, 16, 1)),
        "grid": Part((4,)),
        "pair/0": Part((3,)),
        "pair/1": Part((5,)),
    }


@pytest.mark.parametrize("workers", [0, 2])
def test_values_are_those_of_the_environment(workers: int):
    batch, steps = envs.make(f"{TASKS}:Senses").open(2, workers), 2
    own = Senses()
    own.reset(seed=0)
    try:
        batch.reset(SEEDS)
        for _ in range(steps):
            own.step(np.zeros(1, np.float32))
            found = batch.step(np.zeros((2, 1))).obs
    finally:
        batch.close()
    expected = own._obs()
    assert found["camera"].dtype == np.uint8 and found["depth"].dtype == np.float32
    for row in (0, 1):
        np.testing.assert_array_equal(found["camera"][row], expected["camera"])
        np.testing.assert_array_equal(found["depth"][row], expected["depth"].astype(np.float32))
        np.testing.assert_array_equal(found["arm/joint"][row], expected["arm"]["joint"])
        np.testing.assert_array_equal(found["arm/grips"][row], [0, 1])
        np.testing.assert_array_equal(found["grid"][row], [1, 2, 3, steps])
        np.testing.assert_array_equal(found["pair/0"][row], np.eye(3)[steps % 3])
        np.testing.assert_array_equal(found["pair/1"][row], [0, 1, 0, 0, 1])


@pytest.mark.parametrize(("name", "part"), [("Pair", Part((2,)))])
def test_a_tuple_with_one_leaf_is_a_dictionary(name: str, part: Part):
    env = envs.make(f"{TASKS}:{name}")
    assert env.spec.observation.parts == {"0": part} and not env.spec.observation.is_array
    obs = env.open(2).reset(SEEDS)
    assert obs.keys() == {"0"} and obs["0"].shape == (2, 2)


def test_a_single_image_is_an_array_of_uint8():
    env = envs.make(f"{TASKS}:Camera")
    obs = env.open(2).reset(SEEDS)
    assert env.spec.observation.is_array and env.spec.observation.parts == {"obs": Part((20, 16, 3), "uint8")}
    assert obs.shape == (2, 20, 16, 3) and obs.dtype == np.uint8 and (obs[:, 0, 0, 2] == 7).all()


@pytest.mark.parametrize("name", ["Senses", "Camera", "Pair"])
def test_a_restored_state_continues_bit_for_bit(name: str):
    env = envs.make(f"{TASKS}:{name}")
    one, other = env.open(2), env.open(2)
    one.reset(SEEDS)
    other.reset(SEEDS + 9)
    one.step(np.zeros((2, 1)))
    other.load(one.save())
    for _ in range(12):
        assert_equal(one.step(np.zeros((2, 1))), other.step(np.zeros((2, 1))))


def assert_equal(one: HostStep, other: HostStep) -> None:
    for a, b in zip(one, other, strict=True):
        np.testing.assert_equal(a, b)


def test_a_restarted_worker_has_all_parts():
    batch = envs.make(f"{TASKS}:Senses").open(2, workers=2)
    try:
        batch.reset(SEEDS)
        batch._workers[0].process.kill()  # type: ignore[attr-defined]
        found = batch.step(np.zeros((2, 1)))
        assert found.broken.tolist() == [True, False] and found.obs["camera"].shape == (2, 20, 16, 3)
        assert found.obs["grid"][:, 3].tolist() == [0, 1], "the first is at its start, the second went on"
    finally:
        batch.close()


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("reserved", "an observation called 'return', a name that covey adds itself"),
        ("twice", "two observations called 'a/b'"),
        ("list", "Sequence.* has no fixed size"),
        ("too bright", "an image with values from 256 to 256; those of uint8 are from 0 to 255"),
    ],
)
def test_spaces_that_can_not_be_used_are_early_errors(kind: str, message: str):
    with pytest.raises(CoveyError, match=message):
        envs.make(f"{TASKS}:Odd", {"kind": kind})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda obs: obs.pop("camera"), r"the observation without 'camera'"),
        (lambda obs: obs["arm"].update(joint=np.zeros(3)), r"float64\[3\] as the observation\['arm'\]\['joint'\]"),
        (lambda obs: obs.update(pair=(5, np.zeros(2, int))), r"5 \(int\) as the observation\['pair'\]\[0\]"),
        (lambda obs: obs.update(camera=np.zeros((20, 16, 3))), r"float64\[20, 16, 3\] as the observation\['camera'\]"),
    ],
)
def test_observations_that_do_not_fit_their_space(change: Any, message: str, monkeypatch: pytest.MonkeyPatch):
    batch = envs.make(f"{TASKS}:Senses").open(1)
    batch.reset(SEEDS[:1])
    obs = Senses._obs

    def changed(self: Senses) -> Any:
        found = obs(self)
        change(found)
        return found

    monkeypatch.setattr(Senses, "_obs", changed)
    with pytest.raises(CoveyError, match=message):
        batch.step(np.zeros((1, 1)))


def test_an_image_of_another_integer_type_is_converted():
    from covey.envs.host.answers import Answers

    answers = Answers(spaces.Box(0, 255, (2, 2, 3), np.uint8), "mine")
    rows = np.empty((1, 2, 2, 3), np.uint8)
    rows[0] = answers.read(np.full((2, 2, 3), 255, np.int64))
    assert (rows == 255).all()


def test_the_order_of_a_dictionary_does_not_matter():
    a, b = spaces.Box(0, 1, (1,)), spaces.Box(0, 1, (2,))
    one, other = (leaves_of(spaces.Dict(each), "mine") for each in ([("a", a), ("b", b)], [("b", b), ("a", a)]))
    assert observation_of(one) == observation_of(other)


@pytest.mark.parametrize(
    ("name", "lines"),
    [
        (
            "Senses",
            [
                "ok    observation arm/joint: a vector of 2 numbers, used as it is",
                "ok    observation camera: an image of 20 x 16 pixels with 3 channels, uint8, scaled by 1/255, read by",
                "ok    observation depth: an image of 16 x 16 pixels with 1 channels, float32, used as it is, read by",
                "ok    observation grid: 4 numbers, flattened from int64[2, 2]",
                "ok    observation pair/0: 3 numbers, one-hot of Discrete(3)",
            ],
        ),
        ("Images", ["warn  observation: an image of 4 x 4 pixels", "smaller than 16 pixels"]),
        ("Counted", ["Counted: 2 observations, 1 actions", "ok    observation: a vector of 2 numbers, used as it is"]),
    ],
)
def test_check_env_says_how_parts_are_used(name: str, lines: list[str], capsys: pytest.CaptureFixture[str]):
    assert main(["check-env", f"{TASKS}:{name}"]) == 0
    said = capsys.readouterr().out
    for line in lines:
        assert line in said
    assert ("warn" in said) == (name == "Images")


@pytest.mark.parametrize(
    ("kind", "warning"),
    [
        ("channels first", "It looks like channels first: the shape must be (height, width, channels), here probably"),
        ("grey", "If uint8[20, 20] is an image, give it the shape (height, width, channels)"),
        ("bright", "Its values go from 200 to 200: scale them to [0, 1], or use uint8"),
    ],
)
def test_check_env_warns_about_images(kind: str, warning: str, capsys: pytest.CaptureFixture[str]):
    assert main(["check-env", f"{TASKS}:Odd", "--env-kwargs.kind", kind]) == 0
    said = capsys.readouterr().out
    assert "  warn  observation: " in said and warning in said
