"""A whole run from Python: its files, its policy, its numbers."""

import json
from pathlib import Path

import jax
import numpy as np
import pytest
from PIL import Image

import covey
from covey import launch
from covey.cli import main
from covey.envs.builtin.point import Point
from covey.evaluation.stats import iqm, iqm_interval, mean_interval
from covey.plots.curves import curve
from covey.run.console import Reporter
from covey.run.policy import PolicyProgram, load_member
from covey.storage.metrics import read_run_metrics
from covey.storage.store import Store
from covey.web.episodes import Cinema, newest_policy
from tests.runs import FLAGS, TINY, rows, tiny


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> covey.Run:
    return tiny(tmp_path_factory.mktemp("run") / "run", seeds=2)


def test_the_folder_holds_what_is_promised(run):
    names = {p.name for p in run.path.iterdir()}
    assert names >= {
        "config.json",
        "metrics.jsonl",
        "environment.txt",
        "checkpoints",
        "evaluation",
        "media",
        "tensorboard",
    }
    kinds = sorted(p.name.split("_")[0] for p in (run.path / "checkpoints").iterdir())
    assert kinds == ["best", "step"]


def test_metrics_have_one_schema_and_one_value_each(run):
    seen = set()
    for row in rows(run.path / "metrics.jsonl"):
        assert row.keys() == {"step", "member", "name", "value"}
        assert np.isfinite(row["value"]), row
        key = (row["step"], row["member"], row["name"])
        assert key not in seen
        seen.add(key)
    names = {name for _, _, name in seen}
    assert names >= {"eval/return", "train/return", "train/episodes", "agent/critic_loss", "hyper/discount"}
    evaluations = sorted({step for step, _, name in seen if name == "eval/return"})
    assert evaluations == [0, 400, 800, 1200]


def test_tensorboard_shows_the_same_numbers(run):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(run.path / "tensorboard" / "member-1"))
    events.Reload()
    column = run.metrics()["eval/return"]
    mine = [v for v, m in zip(column["value"], column["member"], strict=True) if m == 1]
    np.testing.assert_allclose([e.value for e in events.Scalars("eval/return")], mine, rtol=1e-6)


def test_evaluation_is_repeatable_and_on_other_start_states(run):
    one, two, other = run.evaluate(episodes=8), run.evaluate(episodes=8), run.evaluate(episodes=8, seed=5)
    np.testing.assert_array_equal(one.episodes.returns, two.episodes.returns)
    assert not np.array_equal(one.episodes.returns, other.episodes.returns)
    assert one.episodes.descriptor.shape == (8, 2)
    assert "return" in str(one) and "8 episodes" in str(one)


def test_a_recorded_episode_has_its_rewards(run):
    episode = run.episode()
    env = run.best.program.env
    state = episode.states[0]
    for t in range(5):
        state, outcome = env.step(state, episode.actions[t], jax.random.key(0))
        np.testing.assert_allclose(episode.rewards[t], outcome.reward, rtol=1e-5)
    assert episode.rewards.shape == (len(episode.actions),) and len(episode.states) == len(episode.actions) + 1


def test_the_live_page_films_the_best_and_the_newest_policy(run, tmp_path: Path):
    cinema = Cinema()
    steps = {"best": Store(run.folder.checkpoints, "best").steps()[-1], "last": 1200}
    for kind, step in steps.items():
        found = cinema.play({"folder": str(run.path), "kind": kind, "member": 1, "out": str(tmp_path / kind)})
        assert (found["step"], found["kind"], found["length"]) == (step, kind, 50)
        assert Path(found["file"]).stat().st_size > 1000
        if kind == "best":
            assert found["return"] == pytest.approx(run.episode().rewards.sum(), rel=1e-5)
    newest, step = newest_policy(run.folder, run.best.program, 1)
    jax.tree.map(np.testing.assert_array_equal, newest[1:], load_member(run.folder, run.best.program, 1)[1:])
    assert step == 1200


def test_the_policy_acts_as_in_evaluation(run):
    """Observation to action in the environment's own units, greedy, the same after loading."""
    policy = covey.load(run.path).policy()
    obs = np.array([0.1, -0.2, 0.0, 0.3, 0.5, -0.5], np.float32)
    action = policy(obs)
    spec = Point().spec
    assert action.shape == (2,) and np.all(np.abs(action) <= np.array(spec.action_high))
    np.testing.assert_array_equal(action, policy(obs))
    np.testing.assert_array_equal(action, run.policy(seed=3)(obs))
    policy.reset()
    with pytest.raises(covey.CoveyError, match=r"shape \(6,\)"):
        policy(obs[:3])


def test_pictures(run):
    with Image.open(run.path / "media" / "curve.png") as picture:
        assert picture.size[0] > 800
    with Image.open(run.path / "media" / "policy.gif") as animation:
        assert getattr(animation, "n_frames", 1) > 20
    assert (run.path / "media" / "curve.csv").read_text().startswith("run,step,centre,low,high")
    _, steps, centre, low, high = curve(run.metrics())
    assert list(steps) == [0, 400, 800, 1200]
    assert np.all(low <= centre) and np.all(centre <= high)


def test_a_run_ends_with_a_report_and_not_because_of_one(run, monkeypatch, capsys):
    assert run.path.name in (run.path / "report.html").read_text()

    def write_report(folders):
        raise RuntimeError("no ink")

    monkeypatch.setattr(launch, "write_report", write_report)
    launch.finish(run, 1200, Reporter())
    assert "report:         none: no ink" in capsys.readouterr().out


def test_the_final_evaluation_is_written_down(run):
    final = json.loads((run.path / "evaluation" / "final.json").read_text())
    assert len(final["returns"]) == 4 and final["return"] == pytest.approx(np.mean(final["returns"]), rel=1e-5)


def test_commands(run, tmp_path, capsys, monkeypatch):
    assert main(["eval", str(run.path), "--episodes", "5"]) == 0
    out = capsys.readouterr().out
    assert "td3 on point: return" in out and "5 episodes" in out
    assert len(json.loads((run.path / "evaluation" / "eval-5-seed-0.json").read_text())["returns"]) == 5
    monkeypatch.chdir(tmp_path)
    assert main(["plot", str(run.path), str(run.path)]) == 0
    assert (tmp_path / "curves.png").exists() and (tmp_path / "curves.csv").exists()
    assert main(["plot", str(run.path), "--metric", "agent/critic_loss", "--out", "loss.png"]) == 0
    assert main(["envs"]) == 0 and "pendulum" in capsys.readouterr().out
    assert main(["agents"]) == 0 and "--hyper.actor-lr" in capsys.readouterr().out
    assert main(["--version"]) == 0


def test_a_plot_of_several_metrics_with_labels(run, tmp_path, capsys):
    """`--metric` takes several names, together or repeated; a label for each run."""
    flags = [
        "--metric",
        "eval/return",
        "agent/critic_loss",
        "--metric",
        "train/return",
        "--out",
        str(tmp_path / "x.png"),
    ]
    assert main(["plot", str(run.path), str(run.path), *flags, "--label", "a", "--label", "b"]) == 0
    lines = (tmp_path / "x.csv").read_text().splitlines()
    assert {tuple(line.split(",")[:2]) for line in lines[1:]} == {
        (metric, label) for metric in ("eval/return", "agent/critic_loss", "train/return") for label in "ab"
    }
    assert main(["plot", str(run.path), "--label", "a", "--label", "b"]) != 0
    assert "Give --label once for each run" in capsys.readouterr().err


def test_a_run_in_a_notebook(run):
    assert repr(run) == f"Run({str(run.path)!r}: agent td3, env point, steps 1,200, seed 0, seeds 2)"
    assert "<th" in run._repr_html_() and "td3" in run._repr_html_()
    result = run.evaluate(episodes=2)
    assert repr(result).startswith("Evaluation(return ") and "mean length" in result._repr_html_()
    assert "image/png" in run.plot()._repr_mimebundle_() and "text/html" in run.animate()._repr_mimebundle_()


def test_the_hyper_parameters_of_the_best_policy(run, tmp_path):
    found = run.best_hyper()
    assert found["actor_lr"] == pytest.approx(float(run.config.hyper.actor_lr), rel=1e-5)
    assert tiny(tmp_path / "again", hyper=found, steps=500).config.hyper.discount == str(found["discount"])


def test_a_config_file_gives_the_same_run(run, tmp_path):
    out = tmp_path / "again"
    assert main(["train", "td3", "--config", str(run.path / "config.json"), "--out", str(out)]) == 0
    assert rows(out / "metrics.jsonl") == rows(run.path / "metrics.jsonl")


def test_the_command_line_is_the_python_call(run, tmp_path):
    out = tmp_path / "cli"
    assert main(["train", "td3", *FLAGS, "--seeds", "2", "--out", str(out)]) == 0
    assert json.loads((out / "config.json").read_text()) == json.loads((run.path / "config.json").read_text())


def test_a_member_of_several_seeds_is_the_single_run_of_that_seed(run, tmp_path):
    single = tiny(tmp_path / "single", seed=1, population_axis=run.config.population_axis)
    column = run.metrics()["eval/return"]
    mine = [v for v, m in zip(column["value"], column["member"], strict=True) if m == 1]
    np.testing.assert_allclose(single.metrics()["eval/return"]["value"], mine, rtol=1e-3)


def test_a_schedule_from_the_command_line(tmp_path, monkeypatch):
    """It is logged, evaluated with and saved at its value of the moment."""
    out, evaluated, evaluate = tmp_path / "run", [], PolicyProgram.evaluate

    def watched(program, states, hypers, *rest):
        evaluated.append(float(hypers.exploration_noise[0]))
        return evaluate(program, states, hypers, *rest)

    monkeypatch.setattr(PolicyProgram, "evaluate", watched)
    flags = ["--hyper.exploration-noise", "linear:0.3:0.05", "--out", str(out)]
    assert main(["train", "td3", *FLAGS, *flags]) == 0
    assert json.loads((out / "config.json").read_text())["hyper"]["exploration_noise"] == "linear:0.3:0.05:1200"
    column = covey.load(out).metrics()["hyper/exploration_noise"]
    steps, values = np.array(column["step"]), np.array(column["value"])
    np.testing.assert_allclose(values, 0.3 - 0.25 * steps / 1200, rtol=1e-5)
    arrays, info = Store(out / "checkpoints", "best").read_newest(print)
    best = 0.3 - 0.25 * info["step"] / 1200
    np.testing.assert_allclose(arrays["best/hyper/exploration_noise"], best, rtol=1e-5)
    np.testing.assert_allclose(evaluated, [*(0.3 - 0.25 * np.array([0, 400, 800, 1200]) / 1200), best], rtol=1e-5)


def test_metrics_cut_short_by_a_kill_can_be_drawn(run, tmp_path):
    """The last line, and the members that had not been written yet, are left out."""
    folder = tmp_path / "killed"
    folder.mkdir()
    lines = (run.path / "metrics.jsonl").read_text().splitlines(keepends=True)
    last = max(i for i, line in enumerate(lines) if '"eval/return"' in line)
    (folder / "metrics.jsonl").write_text("".join([*lines[:last], lines[last][:20]]))
    found = curve(read_run_metrics(folder, "eval/return"))
    assert list(found.steps) == [0, 400, 800] and len(found.centre) == 3
    (folder / "metrics.jsonl").write_text('{"name": 3}\n')
    with pytest.raises(covey.CoveyError, match="damaged"):
        read_run_metrics(folder, "eval/return")


def test_flags_may_be_written_with_an_equals_sign(tmp_path, capsys):
    assert main(["train", "td3", "--steps=10", f"--out={tmp_path / 'run'}"]) == 1
    assert "Raise --steps above" in capsys.readouterr().err
    assert main(["--plugin=no_such_module", "envs"]) == 1


def test_statistics():
    interval = mean_interval(np.array([1.0, 2.0, 3.0, 4.0]))
    assert interval.centre == 2.5 and interval.high - 2.5 == pytest.approx(3.182446 * 1.2909944 / 2, rel=1e-5)
    assert str(mean_interval(np.array([1.0]))) == "1.0"
    assert iqm(np.array([[-100.0], [1.0], [3.0], [500.0]]))[0] == 2.0
    centre, low, high = iqm_interval(np.arange(8.0)[:, None])
    assert low[0] < centre[0] < high[0]


def test_the_first_means_of_an_agent_are_not_thinned_by_the_warm_up(tmp_path: Path):
    """The warm-up ends within a log interval: what is logged there is the mean over the updates alone."""
    run = covey.train("sac", out=tmp_path / "run", quiet=True, preset=False, **(TINY | {"evaluations": 1}))
    column = run.metrics()["agent/temperature"]
    assert column["step"][0] == 500, "logs at 300 and 500, and the warm-up ends at 400"
    assert column["value"][0] > 0.9
