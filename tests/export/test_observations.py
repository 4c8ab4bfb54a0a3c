"""Policies that see images and dictionaries, in every format."""

import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

import covey
from covey.errors import CoveyError
from covey.evaluation import TrainedPolicy
from covey.export.card import Card, write_card
from covey.export.check import prove
from covey.export.export import export_policy
from covey.export.names import c_input_names, input_name
from covey.export.opened import open_policy
from covey.export.source import Source
from tests.export.policies import source
from tests.export.seeing import FORMS, agent_that_sees, seeing
from tests.export.test_export import FORMATS, SUFFIXES

PARITY = 2e-6


def some(policy: Source, rows: int = 3) -> Any:
    """Real observations of a policy, with all parts of its environment."""
    env: Any = policy.env
    keys = jax.random.split(jax.random.key(5), rows)
    return jax.tree.map(np.asarray, jax.vmap(lambda key: env.reset(key)[1])(keys))


def row(obs: Any, i: int | list[int]) -> Any:
    return jax.tree.map(lambda x: x[i], obs)


@pytest.mark.parametrize(
    ("form", "remembers"), [*((form, False) for form in FORMS if form != "large"), ("frames", True), ("parts", True)]
)
def test_every_form_in_every_format(form: str, remembers: bool, tmp_path: Path):
    policy = seeing(form, remembers)
    trained = TrainedPolicy(policy.policy, policy.env.spec, policy.state, ())
    obs = some(policy)
    later = row(obs, [1, 2, 0])
    expected = [trained(obs), trained(later)]
    assert np.ptp(expected[0], axis=0).min() > 1e-3, "the action must depend on the observation"
    width = np.array([2.0, 5.0])
    for kind in FORMATS:
        made = export_policy(policy, tmp_path / f"policy{SUFFIXES[kind]}")
        assert made.proof.rows == 1000 and made.proof.ties == 0
        assert made.proof.difference <= (0.0 if kind == "jax" else PARITY), kind
        loaded = covey.load_policy(made.path)
        for each, wanted in zip((obs, later), expected, strict=True):
            assert np.abs((loaded(each) - wanted) / width).max() <= PARITY, kind
        loaded.reset()
        assert np.abs((loaded(row(obs, 0)) - expected[0][0]) / width).max() <= PARITY, kind


@pytest.mark.parametrize(
    ("name", "encoder", "explore"),
    [("sac", "drq", False), ("td3", "impala", False), ("taac-l", "drq", False), ("td3", "nature", True)],
)
def test_agents_with_encoders(name: str, encoder: str, explore: bool, tmp_path: Path):
    """The actor does not see the part `privileged`, so the file does not either."""
    policy = agent_that_sees(name, encoder, explore)
    assert list(policy.inputs.parts) == ["camera", "speed"]
    for kind in ("numpy", "jax") if explore else FORMATS:
        proof = export_policy(policy, tmp_path / f"policy{SUFFIXES[kind]}").proof
        assert proof.rows == 1000 and proof.difference <= (0.0 if kind == "jax" else PARITY), kind


def test_an_unused_part_is_not_in_the_file(tmp_path: Path):
    policy = seeing("privileged")
    obs = some(policy)
    seen = {name: obs[name] for name in ("camera", "speed")}
    for kind in FORMATS:
        file = export_policy(policy, tmp_path / f"policy{SUFFIXES[kind]}").path
        loaded = covey.load_policy(file)
        assert loaded.about["observation"] == [
            {"name": "camera", "part": "camera", "shape": [12, 10, 3], "dtype": "uint8"},
            {"name": "speed", "part": "speed", "shape": [2], "dtype": "float32"},
        ]
        assert loaded.about["ignored"] == ["privileged"] and loaded.about["format"] == 2
        np.testing.assert_array_equal(loaded(seen), loaded(obs))
    onnx = pytest.importorskip("onnxruntime").InferenceSession(tmp_path / "policy.onnx")
    assert [(each.name, each.type, each.shape) for each in onnx.get_inputs()] == [
        ("camera", "tensor(uint8)", ["batch", 12, 10, 3]),
        ("speed", "tensor(float)", ["batch", 2]),
    ]
    text = (tmp_path / "policy.h").read_text() if "c" in FORMATS else ""
    if text:
        call = "policy_act(const uint8_t *obs_camera, const float *obs_speed, policy_memory *memory, float *action)"
        assert call in text and "#define POLICY_OBS_CAMERA 360\n#define POLICY_OBS_SPEED 2\n" in text
        assert "obs_privileged" not in text


def test_one_part_is_enough_as_an_array(tmp_path: Path):
    """A policy that uses only the part "obs" has the file of a vector policy."""
    policy = seeing("one of two")
    obs = some(policy)
    loaded = covey.load_policy(export_policy(policy, tmp_path / "policy.npz").path)
    assert loaded.about["observation"] == {"name": "obs", "shape": [2], "dtype": "float32"}
    np.testing.assert_array_equal(loaded(obs["obs"]), loaded(obs))
    np.testing.assert_array_equal(loaded({"obs": obs["obs"]}), loaded(obs))


def test_the_contract_of_a_vector_is_the_old_one(tmp_path: Path):
    about = covey.load_policy(export_policy(source("td3"), tmp_path / "policy.npz").path).about
    assert about["format"] == 1 and "ignored" not in about
    assert about["observation"] == {"name": "obs", "shape": [6], "dtype": "float32"}
    if "c" in FORMATS:
        text = export_policy(source("td3"), tmp_path / "policy.h").path.read_text()
        assert "policy_act(obs, &memory, action);   float obs[6], action[2] in the units of the environment\n" in text
        assert "#define POLICY_OBS 6\n#define POLICY_ACTION 2\n" in text
        assert "policy_act(const float *obs, policy_memory *memory, float *action)" in text


IMAGE, SPEED = np.zeros((12, 10, 3), np.uint8), np.zeros(2, np.float32)
WRONG: dict[str, tuple[Any, str]] = {
    "no dictionary": (IMAGE, r"dictionary with the parts camera \(uint8\[12, 10, 3\]\), speed \(2 numbers\)"),
    "missing": ({"camera": IMAGE}, "lacks the part 'speed'. The policy needs: camera"),
    "unknown": ({"camera": IMAGE, "speed": SPEED, "sped": SPEED}, "unknown part 'sped'"),
    "shape": (
        {"camera": IMAGE[:-1], "speed": SPEED},
        r"'camera' .* \(12, 10, 3\), or a batch \(N, .* not \(11, 10, 3\)",
    ),
    "rows": ({"camera": IMAGE[None], "speed": np.zeros((2, 2))}, r"same number of rows, not: camera \(1, 12"),
    "one and many": ({"camera": IMAGE, "speed": np.zeros((1, 2))}, "same number of rows"),
    "floats": ({"camera": IMAGE / 255.0, "speed": SPEED}, "'camera' .* must be uint8, .* not float64"),
    "too large": ({"camera": IMAGE + np.int32(256), "speed": SPEED}, "from 0 to 255, not 256 to 256"),
    "negative": ({"camera": IMAGE - np.int32(1), "speed": SPEED}, "from 0 to 255, not -1 to -1"),
    "NaN": ({"camera": IMAGE, "speed": SPEED * np.nan}, "NaN.* in its part 'speed'"),
    "no numbers": ({"camera": IMAGE, "speed": ["a", "b"]}, "'speed' .* must be an array of numbers"),
}


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> tuple[TrainedPolicy, Any]:
    policy = seeing("privileged")
    file = export_policy(policy, tmp_path_factory.mktemp("wrong") / "policy.npz").path
    return TrainedPolicy(policy.policy, policy.env.spec, policy.state, ()), covey.load_policy(file)


@pytest.mark.parametrize("name", WRONG)
def test_wrong_observations_are_named(name: str, both: tuple[TrainedPolicy, Any]):
    obs, message = WRONG[name]
    for policy in both:
        with pytest.raises(CoveyError, match=message):
            policy(obs)


def test_what_is_converted(both: tuple[TrainedPolicy, Any]):
    """Lists, whole numbers of any integer type for bytes, and any numbers for floats."""
    for policy in both:
        image = np.arange(360).reshape(12, 10, 3) % 256
        found = policy({"camera": image.tolist(), "speed": [1, 2]})
        np.testing.assert_array_equal(found, policy({"camera": image.astype(np.uint8), "speed": np.array([1.0, 2.0])}))


def test_a_trained_policy_ignores_the_privileged_part(both: tuple[TrainedPolicy, Any]):
    policy, _ = both
    obs = some(seeing("privileged"))
    policy.reset()
    found = policy({name: obs[name] for name in ("camera", "speed")})
    np.testing.assert_array_equal(found, policy(obs))
    np.testing.assert_array_equal(found, policy(obs | {"privileged": np.full((3, 4), 9.0)}))
    with pytest.raises(
        CoveyError, match=r"shape \(2, 12, 10, 3\), and those before had \(3, 12, 10, 3\). Call `reset`"
    ):
        policy(row(obs, [0, 1]))
    policy.reset()


def test_the_runner_alone_takes_a_dictionary(tmp_path: Path):
    policy = seeing("parts", remembers=True)
    file = export_policy(policy, tmp_path / "policy.npz").path
    from covey.export import runner

    shutil.copy(runner.__file__, tmp_path / "runner.py")
    obs = some(policy)
    np.savez(tmp_path / "obs.npz", **obs)
    script = (
        "import sys\nsys.modules.update(dict.fromkeys(['jax', 'jaxlib', 'flax', 'covey']))\n"
        "import numpy as np\nfrom runner import Policy\npolicy = Policy('policy.npz')\nobs = dict(np.load('obs.npz'))\n"
        "print(*policy(obs).ravel())\nprint(*policy(obs).ravel())\n"
        "policy.reset()\nprint(*policy({name: x[0] for name, x in obs.items()}))\n"
        "camera, speed = obs['camera'], obs['speed']\n"
        "for wrong in ({'camera': camera}, obs | {'speed': speed[:, :1]}, obs | {'speed': speed[0]},"
        " obs | {'camera': camera / 255}):\n"
        "    try: policy(wrong)\n    except ValueError as error: print(error)"
    )
    done = subprocess.run([sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True, check=True)
    first, second, one, *errors = done.stdout.splitlines()
    loaded = covey.load_policy(file)
    for line, wanted in ((first, loaded(obs)), (second, loaded(obs))):
        np.testing.assert_allclose(np.array(line.split(), float).reshape(3, 2), wanted, atol=1e-6)
    np.testing.assert_allclose(np.array(one.split(), float), np.array(first.split(), float)[:2], atol=1e-6)
    for error, words in zip(
        errors, ("the parts", "speed must have shape", "different numbers", "0 to 255"), strict=True
    ):
        assert words in error


def test_a_file_of_another_form(tmp_path: Path):
    file = export_policy(seeing("image"), tmp_path / "policy.npz").path
    with pytest.raises(CoveyError, match=r"The file takes observations .*'uint8'.* the policy .*'float32'"):
        prove(seeing("pixels"), open_policy(file))
    with pytest.raises(CoveyError, match="decides differently"):
        prove(seeing("image", seed=1), open_policy(file))


def test_names_of_inputs():
    assert [input_name(each) for each in ("obs", "camera", "v0", "action", "memory.age", "a b")] == [
        "obs",
        "camera",
        "obs.v0",
        "obs.action",
        "obs.memory.age",
        "a b",
    ]
    names = c_input_names(["obs", "camera", "obs.v0", "int", "0", "a/b", "A.b"])
    assert list(names.values()) == ["obs", "obs_camera", "obs_v0", "obs_int", "obs_0", "obs_a_b", "obs_A_b_2"]


def test_the_model_card_lists_every_part(tmp_path: Path):
    about = covey.load_policy(export_policy(seeing("parts"), tmp_path / "policy.npz").path).about
    card = write_card(Card(about, 1.0, 0.0, 2.0, 0.5, 10, 100, "covey train", "", ("policy.npz",)))
    assert "| camera | [12, 10, 3] | uint8 | input |" in card and "| speed | [2] | float32 | input |" in card
