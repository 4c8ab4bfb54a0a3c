"""Legends and titles say what the runs are."""

import csv
from pathlib import Path

import numpy as np
from PIL import Image

from covey.plots.curves import Curve, plot_metrics
from covey.plots.labels import labels, title
from covey.plots.style import Picture

SAC = {"algorithm": "sac", "env": "point", "seed": 0, "members": 1, "episodes": 20, "hyper": {"actor_lr": "0.001"}}


def other(**values):
    return SAC | values


def test_labels_show_what_differs():
    faster = other(hyper={"actor_lr": "0.01"}, seed=1)
    assert labels([SAC, faster], ["a", "b"]) == ["actor_lr 0.001", "actor_lr 0.01"], "the seed is not the point"
    assert labels([SAC, other(seed=3)], ["a", "b"]) == ["seed 0", "seed 3"]
    assert labels([SAC, other(algorithm="td3")], ["a", "b"]) == ["sac", "td3"]
    assert labels([SAC, SAC], ["a", "b"]) == ["a", "b"]
    assert labels([SAC, {}], ["a", "b"]) == ["a", "b"], "a folder without a configuration"
    assert labels([SAC], ["a"]) == ["a"]


def test_a_name_is_the_label():
    assert labels([other(name="slow"), other(hyper={"actor_lr": "1"})], ["a", "b"]) == ["slow", "actor_lr 1"]
    assert labels([other(name="x"), other(name="x")], ["a", "b"]) == ["x (a)", "x (b)"]


def test_many_differences_are_counted():
    one = other(hyper=dict.fromkeys("abcde", "1"))
    two = other(hyper=dict.fromkeys("abcde", "2"))
    assert labels([one, two], ["x", "y"])[0] == "a 1, b 1, c 1, 2 more"


def test_titles_name_the_statistic():
    assert title([SAC]) == "sac on point, 1 seed: mean of 20 episodes, 95 % interval"
    assert title([other(members=5)]) == "sac on point, 5 seeds: interquartile mean, 95 % bootstrap interval"
    assert title([other(members=8, pbt={"bottom": 0.25})]).startswith("sac on point, 8 members")
    assert title([SAC, other(algorithm="td3", members=3)]) == "2 agents on point, 1 to 3 seeds"
    assert title([SAC], "agent/critic_loss") == "sac on point, 1 seed"
    assert title([{}], "x") == "x"


def test_several_metrics_are_panels_of_one_picture(tmp_path: Path):
    steps = np.arange(3)
    drawn = Curve("run", steps, steps, steps - 1, steps + 1)
    out = plot_metrics({"eval/return": [drawn], "agent/loss": [drawn]}, tmp_path / "x.png", "title")
    with Image.open(out) as two, Image.open(plot_metrics({"a": [drawn]}, tmp_path / "y.png")) as one:
        assert two.size[1] > one.size[1]
    rows = list(csv.reader((tmp_path / "x.csv").read_text().splitlines()))
    assert rows[0] == ["metric", "run", "step", "centre", "low", "high"]
    assert [row[0] for row in rows[1:]] == ["eval/return"] * 3 + ["agent/loss"] * 3


def test_a_picture_is_shown_in_a_notebook(tmp_path: Path):
    path = tmp_path / "x.png"
    assert Picture(path)._repr_mimebundle_() == {"text/plain": str(path)}, "it does not exist"
    Image.new("RGB", (4, 4)).save(path)
    Image.new("RGB", (4, 4)).save(tmp_path / "x.gif")
    assert Picture(path) == path and "image/png" in Picture(path)._repr_mimebundle_()
    assert "data:image/gif" in Picture(tmp_path / "x.gif")._repr_mimebundle_()["text/html"]
