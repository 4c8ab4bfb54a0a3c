"""Exported files of every agent are the trained policy; damaged, wrong and foreign ones are errors."""

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import covey
from covey import agents
from covey.errors import CoveyError
from covey.export import export as module
from covey.export.check import LIMIT, prove
from covey.export.export import export_policy
from covey.export.opened import open_policy
from tests.export.policies import source
from tests.tasks import SMALL

FORMATS = ["onnx", "numpy", "jax", "c"] if shutil.which("cc") else ["onnx", "numpy", "jax"]
SUFFIXES = {"onnx": ".onnx", "numpy": ".npz", "c": ".h", "jax": ".jax"}


EXPLORING = ("td3", "taac", "dads")
"""Agents of each way to explore: noise, a switch, a skill that is drawn again."""


@pytest.mark.parametrize(
    ("name", "explore"), [*((name, False) for name in agents.REGISTRY), *((name, True) for name in EXPLORING)]
)
def test_every_agent_in_every_format(name: str, explore: bool, tmp_path: Path):
    policy = source(name, explore=explore)
    for kind in FORMATS if explore is False else ("numpy", "jax"):
        made = export_policy(policy, tmp_path / f"policy{SUFFIXES[kind]}")
        assert made.proof.rows == 1000
        assert made.proof.difference <= (0.0 if kind == "jax" else LIMIT), kind
        loaded = covey.load_policy(made.path)
        many = loaded(np.zeros((3, 6), np.float32))
        loaded.reset()
        one = loaded(np.zeros(6))
        if not explore:
            np.testing.assert_allclose(many[0], one, atol=1e-5)
        assert loaded.about["mode"] == policy.facts["mode"]


def random_networks(seed: int) -> dict[str, Any]:
    """Draws depth, widths, activation, normalisation, encoder and initial weights; each form has a chance."""
    random = np.random.default_rng(seed)

    def torso(most: int) -> dict[str, Any]:
        widths = random.integers(1, 20, random.integers(0, most + 1))
        kinds = {"activation": ["relu", "tanh", "elu", "gelu", "silu"], "norm": ["none", "layer"]}
        return {"hidden": widths.tolist()} | {name: str(random.choice(known)) for name, known in kinds.items()}

    encoder = torso(2)
    share = bool(encoder["hidden"]) and bool(random.integers(2))
    weights = str(random.choice(["lecun", "uniform", "orthogonal"]))
    kind = ["mlp", "mlp", "mlp", "simba", "flash", "xqc"][seed]
    actor = torso(3) if kind == "mlp" else {"kind": kind, "hidden": [int(random.integers(1, 20))] * 2}
    networks = {"actor": actor, "critic": torso(1), "encoder": encoder, "share_encoder": share, "weights": weights}
    return {"networks": networks, "normalise": {"observations": bool(random.integers(2))}}


@pytest.mark.parametrize("seed", range(6))
def test_networks_of_any_form(seed: int, tmp_path: Path):
    policy = source("sac", random_networks(seed), seed=seed)
    for kind in FORMATS:
        assert export_policy(policy, tmp_path / f"p{SUFFIXES[kind]}").proof.difference <= LIMIT


def test_the_drawn_networks_have_every_form():
    drawn = [random_networks(seed) for seed in range(6)]
    networks = [each["networks"] for each in drawn]
    assert {each["normalise"]["observations"] for each in drawn} == {False, True}
    assert {each["share_encoder"] for each in networks} == {False, True}
    assert {each["actor"].get("norm") for each in networks} == {"none", "layer", None}
    assert len({len(each["actor"]["hidden"]) for each in networks}) >= 3


def test_bfloat16_is_rounded_in_the_file_too(tmp_path: Path):
    rounded, plain = (source("sac", precision=each) for each in ("bfloat16", "float32"))
    for kind in set(FORMATS) - {"jax"}:
        assert export_policy(rounded, tmp_path / f"p{SUFFIXES[kind]}").proof.difference <= LIMIT
    with pytest.raises(CoveyError, match="decides differently"):
        prove(plain, open_policy(tmp_path / "p.npz"))


def test_a_file_that_decides_differently_is_not_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    other = source("td3", seed=1)
    write = module.WRITERS["numpy"]
    monkeypatch.setitem(module.WRITERS, "numpy", lambda _: write(other))
    with pytest.raises(CoveyError, match=r"decides differently from the trained policy: largest difference \d"):
        export_policy(source("td3"), tmp_path / "policy.npz")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("suffix", [".npz", ".jax"])
def test_a_greedy_policy_that_draws_random_numbers(suffix: str, tmp_path: Path):
    """Also one that does so rarely, and in a format that could store it: it would repeat one draw for ever."""
    options = SMALL["taac"] | {"epsilon": 0.002}
    with pytest.raises(CoveyError, match="draws random numbers"):
        export_policy(source("taac", options), tmp_path / f"policy{suffix}")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("kind", FORMATS)
def test_one_changed_byte(kind: str, tmp_path: Path):
    file = export_policy(source("td3"), tmp_path / f"policy{SUFFIXES[kind]}").path
    data = file.read_bytes()
    for at in (len(data) // 3, len(data) // 2, len(data) - 30):
        file.write_bytes(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])
        with pytest.raises(CoveyError, match=r"has changed since|is not a policy|damaged"):
            covey.load_policy(file)
    file.write_bytes(data[:100])
    with pytest.raises(CoveyError, match="is not a policy"):
        covey.load_policy(file)


def test_wrong_observations(tmp_path: Path):
    policy = covey.load_policy(export_policy(source("taac"), tmp_path / "policy.npz").path)
    with pytest.raises(CoveyError, match=r"shape \(6,\), or a batch \(N, 6\), not \(3,\)"):
        policy(np.zeros(3))
    with pytest.raises(CoveyError, match="NaN or an infinity"):
        policy(np.array([0.0, np.nan, 0.0, 0.0, 0.0, 0.0]))
    policy(np.zeros((2, 6)))
    with pytest.raises(CoveyError, match="3 rows, not 2 as before"):
        policy(np.zeros((3, 6)))


@pytest.mark.parametrize("name", ["missing.onnx", "policy.zip"])
def test_no_such_file(name: str, tmp_path: Path):
    with pytest.raises(CoveyError, match=r"can't be read: No such file|ends in one of"):
        covey.load_policy(tmp_path / name)


def test_rows_of_a_batch_have_their_own_episodes(tmp_path: Path):
    policy = covey.load_policy(export_policy(source("taac-q"), tmp_path / "policy.npz").path)
    obs = np.random.default_rng(0).normal(size=(3, 6)).astype(np.float32)
    first = policy(obs)
    second = policy(obs)
    policy.reset(rows=[1])
    third = policy(obs)
    np.testing.assert_allclose(third[1], first[1], atol=1e-6)
    policy.reset()
    np.testing.assert_allclose(policy(obs), first, atol=1e-6)
    np.testing.assert_allclose(policy(obs), second, atol=1e-6)


def test_the_runner_alone_needs_only_numpy(tmp_path: Path):
    """The runner that is copied beside the file, in a process that can't import JAX or covey."""
    file = export_policy(source("taac-l"), tmp_path / "policy.npz").path
    from covey.export import runner

    shutil.copy(runner.__file__, tmp_path / "runner.py")
    script = (
        "import sys\nsys.modules.update(dict.fromkeys(['jax', 'jaxlib', 'flax', 'covey']))\n"
        "import numpy as np\nfrom runner import Policy\npolicy = Policy('policy.npz')\n"
        "for i in range(3): print(*policy(np.full(6, 0.1 * i)))\n"
        "policy.reset(); print(*policy(np.zeros((2, 6))).ravel())"
    )
    found = subprocess.run([sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True, check=True)
    lines = [np.array(line.split(), float) for line in found.stdout.splitlines()]
    policy = covey.load_policy(file)
    for i in range(3):
        np.testing.assert_allclose(lines[i], policy(np.full(6, 0.1 * i)), atol=1e-6)
    np.testing.assert_allclose(lines[3][:2], lines[0], atol=1e-6)


def test_load_policy_imports_no_training_code(tmp_path: Path):
    for suffix in (".npz", ".onnx"):
        export_policy(source("sac"), tmp_path / f"policy{suffix}")
    script = (
        "import sys, covey, numpy as np\n"
        "for file in ('policy.npz', 'policy.onnx'): covey.load_policy(file)(np.zeros(6))\n"
        "print(sorted(m for m in sys.modules if m.split('.')[0] in ('jax', 'flax', 'optax', 'tyro', 'rich')))\n"
        "print(sorted(m for m in sys.modules if m.startswith('covey.')))"
    )
    path = os.pathsep.join([str(Path(covey.__file__).parents[1]), os.environ.get("PYTHONPATH", "")])
    environment = os.environ | {"PYTHONPATH": path}
    command = [sys.executable, "-c", script]
    found = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True, env=environment)
    heavy, own = found.stdout.splitlines()
    assert heavy == "[]"
    export = [f"covey.export{x}" for x in ("", ".names", ".opened", ".policy", ".runner", ".seal")]
    assert own == str(["covey.errors", *export, "covey.inputs", "covey.observation"])
