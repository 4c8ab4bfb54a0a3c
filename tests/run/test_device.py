"""`--device`: where a run computes."""

from importlib.metadata import metadata, requires
from pathlib import Path

import jax
import pytest

import covey
from covey.backend import EXTRAS, acting_device, on_device
from covey.cli import main
from covey.devices import devices
from tests.runs import FLAGS, assert_same_run, tiny


def test_a_device_is_a_platform_or_one_of_its_devices():
    everything = jax.local_devices()
    assert len(everything) == 2, "tests have two CPU devices"
    assert devices() == everything
    with on_device("cpu"):
        assert devices() == everything
    with on_device("cpu:1"):
        assert devices() == everything[1:] and acting_device() == everything[0]
        assert jax.numpy.zeros(1).devices() == {everything[1]}
    assert devices() == everything, "and afterwards as before"


@pytest.mark.parametrize("platform", ["cuda", "rocm"])
def test_the_makers_of_gpus_are_platforms_too(platform: str, monkeypatch):
    """jax's default device can't be named after them."""
    monkeypatch.setattr("covey.backend.of_platform", lambda name: jax.local_devices() if name == platform else [])
    with on_device(platform):
        assert jax.config.jax_default_device == "gpu"
    with on_device(f"{platform}:1"):
        assert jax.config.jax_default_device == jax.local_devices()[1]


def test_a_run_on_another_device_is_the_same_run(tmp_path: Path):
    one, two = tiny(tmp_path / "default"), tiny(tmp_path / "chosen", device="cpu:1")
    assert_same_run(one.path, two.path)
    assert two.config.device == "cpu:1" and "cpu" in (two.path / "environment.txt").read_text()


WRONG = {
    "gpu": "There is no --device gpu. jax sees cpu:0, cpu:1. Check the driver and the variable JAX_PLATFORMS, or "
    "install jax for it, with the extra cuda12:\n",
    "cuda:0": "There is no --device cuda. jax sees cpu:0, cpu:1.",
    "cuda": "There is no --device cuda. jax sees cpu:0, cpu:1.",
    "tpu": "with the extra tpu:\n",
    "rocm": "Check the driver and the variable JAX_PLATFORMS.\n",
    "cpu:7": "There is no --device cpu:7. jax sees cpu:0, cpu:1.",
    "abacus": "--device must be one of cpu, gpu, tpu, cuda, rocm, or one device of it, such as cuda:0, not 'abacus'.",
    "cpu:x": "not 'cpu:x'",
}


@pytest.mark.parametrize("device", WRONG)
def test_a_device_that_is_not_there_is_an_error(device: str, tmp_path: Path, capsys):
    assert main(["train", "td3", *FLAGS, "--device", device, "--out", str(tmp_path / "run")]) == 1
    assert WRONG[device] in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


def test_there_is_an_extra_for_each_accelerator():
    """And it names the extra of jax that the installed jax has."""
    ours, theirs = requires("covey") or [], metadata("jax").get_all("Provides-Extra") or []
    for extra in {*EXTRAS.values(), "cuda13"}:
        assert f'jax[{extra}]; extra == "{extra}"' in [text.replace("'", '"') for text in ours]
        assert extra in theirs


def test_one_device_is_not_several():
    with pytest.raises(covey.CoveyError, match=r"`device` cpu:0 is one device, not 2. Give the platform alone"):
        covey.train("td3", env="point", device="cpu:0", devices=2, seeds=2)
