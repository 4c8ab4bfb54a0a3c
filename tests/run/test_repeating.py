"""A run of an agent that repeats, on rewards in parts: what the user sees of it."""

from pathlib import Path

import numpy as np
import pytest

import covey
from covey.cli import main
from tests.runs import TINY


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    out = tmp_path_factory.mktemp("taac") / "run"
    return covey.train("taac", out=out, quiet=True, **(TINY | {"env": "reacher"}))


def test_how_often_it_repeats_is_told(run, capsys):
    repeated = np.array(run.metrics()["eval/repeated"]["value"])
    assert len(repeated) == 4 and np.all((repeated >= 0) & (repeated <= 1))
    assert main(["eval", str(run.path), "--episodes", "4"]) == 0
    assert "mean repeated" in capsys.readouterr().out


def test_the_histogram_of_repetition(run):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    metrics = run.metrics()
    shares = np.array([metrics[f"agent/repeat_probabilities[{i}]"]["value"] for i in range(10)])
    np.testing.assert_allclose(shares.sum(axis=0), 1.0, rtol=1e-5)
    events = EventAccumulator(str(run.path / "tensorboard"), size_guidance={"histograms": 0})
    events.Reload()
    shown = [event.histogram_value for event in events.Histograms("agent/repeat_probabilities")]
    assert len(shown) == shares.shape[1]
    np.testing.assert_allclose([one.bucket for one in shown], shares.T, rtol=1e-6)
    assert shown[0].bucket_limit[0] == pytest.approx(0.1) and shown[0].bucket_limit[-1] == 1.0
    assert "agent/repeat_probabilities[0]" not in events.Tags()["scalars"]


def test_the_episode_is_drawn(run, tmp_path: Path):
    from PIL import Image

    picture = Image.open(run.plot_episode(tmp_path / "episode.png"))
    assert picture.width > 800 and len(picture.convert("RGB").getcolors(1 << 24)) > 50
    assert (run.path / "media" / "episode.png").exists()
