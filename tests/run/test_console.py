"""Output during a run: one line at any width, plain text without a terminal, and what it says."""

import base64
import io
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import PIL.Image
import pytest
from rich.console import Console

import covey
from covey.agents import REGISTRY
from covey.cli import main
from covey.evaluation.stats import mean_interval
from covey.run import console
from covey.run.config import default_config
from covey.run.console import Reporter, introduce, seed_table
from covey.run.presets import PLAIN
from covey.run.program import build
from covey.storage.folder import RunFolder
from tests.runs import FLAGS, TINY


def terminal(width: int) -> tuple[Reporter, io.StringIO]:
    """A reporter that prints to a terminal of a width."""
    reporter, screen = Reporter(), io.StringIO()
    reporter.console = Console(file=screen, width=width, force_terminal=True, legacy_windows=False, color_system=None)
    reporter.live = True
    return reporter, screen


def bar(reporter: Reporter) -> str:
    assert reporter.bar is not None
    (line,) = reporter.console.render_lines(reporter.bar.get_renderable())
    return "".join(segment.text for segment in line)


@pytest.mark.parametrize("width", [60, 80, 100, 140])
def test_the_bar_fits_on_one_line(width: int):
    """With its bar, the steps, the speed, both returns and the time that remains."""
    reporter, _ = terminal(width)
    reporter.start(1_000_000, 0)
    reporter.evaluated(20_000, ("return -1234.5 [-1345.6, -1123.4]", "best -1100.0"), 400.0)
    reporter.logged(250_000, -310.2)
    reporter.update(250_000, 1234.0, 1234.0)
    text = bar(reporter)
    reporter.stop()
    shown = ("250", "-1234.5", "train -310.2") if width < 80 else ("250", "steps/s", "━", "ETA", "-1234.5", "-310.2")
    for word in shown:
        assert word in text, text
    assert ("[-1345.6, -1123.4]" in text) == (width >= 100)


def test_the_bar_of_a_population_fits_too():
    reporter, _ = terminal(80)
    reporter.start(4000, 0)
    reporter.evaluated(2000, ("return: best -18.44, median -120.57, worst -1222.58",), 400.0)
    reporter.logged(2400, -20.9)
    text = bar(reporter)
    reporter.stop()
    assert "━" in text and "return: best -18.44  train -20.9" in text and text.endswith("ETA 0:00:00")


def test_lines_fit_the_terminal():
    reporter, screen = terminal(80)
    reporter.logged(900, -310.2)
    reporter.evaluated(1000, ("return -1234.5 [-1345.6, -1123.4]", "best -1100.0", "repeated 0.89"), 400.0)
    (line,) = screen.getvalue().splitlines()
    assert len(line) <= 80 and line.endswith("train -310.2  best -1100.0")


def test_the_remaining_time_does_not_follow_the_warm_up(monkeypatch):
    """It is unknown in the warm-up, which is fast, and then the mean speed since."""
    now = 0.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    reporter, _ = terminal(120)
    reporter.start(1000, 0, warmup=100)
    for step, at, remaining in ((100, 1.0, "-:--:--"), (200, 11.0, "-:--:--"), (300, 21.0, "0:01:10")):
        now = at
        reporter.update(step, 1.0, 1.0)
        assert f"ETA {remaining}" in bar(reporter), step
    now = 121.0
    reporter.update(500, 1.0, 1.0)
    assert "ETA 0:03:03" in bar(reporter)
    reporter.stop()


def test_a_long_silence_is_broken_by_a_log(monkeypatch, capsys):
    now = 0.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    reporter = Reporter()
    reporter.logged(100, -2.0)
    now = console.SILENCE + 1
    reporter.logged(200, -4.0)
    reporter.logged(300, None)
    assert capsys.readouterr().out == "step        200  train -3.0\n", "the mean of two logs, once"


def test_no_negative_zero(capsys):
    reporter = Reporter()
    reporter.logged(100, -0.01)
    reporter.evaluated(100, (f"return {mean_interval(np.array([-0.01, -0.02]))}",), 0.0)
    assert "-0.0 " not in capsys.readouterr().out.replace("[-0.1", "")


def test_a_table_of_seeds():
    def column(values: list[float]) -> dict[str, list[float]]:
        return {"step": [0, 0, 100, 100], "member": [0, 1, 0, 1], "value": values}

    metrics = {
        "eval/return": column([-9.0, -8.0, -5.0, -8.5]),
        "eval/return_low": column([-10.0, -9.0, -6.0, -9.5]),
        "eval/return_high": column([-8.0, -7.0, -4.0, -7.5]),
    }
    head, one, two = (line.split() for line in seed_table(metrics, seed=3))
    assert head == ["seed", "last", "evaluation", "best", "at", "step"]
    assert one == ["3", "-5.0", "[-6.0,", "-4.0]", "-5.0", "100"]
    assert two == ["4", "-8.5", "[-9.5,", "-7.5]", "-8.0", "0"]


def test_what_a_run_says(tmp_path: Path, capsys):
    """The name, the seeds, what the interval means, a rate that can't be right, and a line for each seed."""
    flags = [*FLAGS, "--seeds", "2", "--name", "my run", "--hyper.actor-lr", "10", "--episode-length", "90"]
    flags += ["--out", str(tmp_path / "run")]
    assert main(["train", "td3", *flags]) == 0
    out = capsys.readouterr().out
    assert out.startswith("my run: td3 on point, 1,200 steps, 2 seeds (0 to 1)")
    (memory,) = re.findall(r"\n  memory in MiB: about \d+ of [\d,]+ free; replay \d+, networks \d+, rest \d+\n", out)
    assert out.index(memory) < out.index("Compiling")
    assert (
        "evaluation every 400 steps: mean return of 2 seeds, 4 greedy episodes each [95 % interval over seeds]" in out
    )
    assert "Note: far outside of the usual range: actor_lr 10 (usual: 1e-05 to 0.003)" in out
    assert "  environment: episode_length 90" in out and "  train -" in out and "warm-up" in out
    assert "  seed  last evaluation" in out and out.count("Best policy") == 1
    assert covey.load(tmp_path / "run").config.name == "my run"


def test_folders_of_names_and_populations(tmp_path: Path, monkeypatch):
    from covey.storage.folder import new_folder

    monkeypatch.chdir(tmp_path)
    assert str(new_folder("brax:ant", "sac").path) == "runs/brax-ant-sac-0"
    assert str(new_folder("point", "sac", is_population=True).path) == "runs/point-sac-pbt-0"
    assert str(new_folder("point", "sac", "my run").path) == "runs/my-run"
    (tmp_path / "runs" / "my-run").mkdir(parents=True)
    assert str(new_folder("point", "sac", "my run").path) == "runs/my-run-1"


@pytest.mark.parametrize("name", ["../up", "a/b", ".hidden", "-flag", "x" * 101])
def test_names_that_are_no_folders(name: str):
    with pytest.raises(covey.CoveyError, match=r"`name` .* can't be the name of a folder"):
        covey.train("td3", quiet=True, name=name, **TINY)


def test_a_notebook_updates_one_line(monkeypatch, capsys):
    """rich would print every frame of a spinner, and make a block of every line."""
    pytest.importorskip("IPython")
    monkeypatch.setitem(__import__("sys").modules, "ipykernel", console)
    shown, updates = [], []

    class Handle:
        def update(self, content, raw):
            updates.append(content["text/plain"])

    def display(content, raw, display_id):
        shown.append(content["text/plain"])
        return Handle()

    monkeypatch.setattr("IPython.display.display", display)
    reporter = Reporter()
    with reporter.busy("Compiling"):
        pass
    reporter.start(100, 0)
    reporter.update(50, 10.0, 10.0)
    reporter.update(100, 10.0, 10.0)
    assert len(shown) == 1 and len(updates) == 1 and "50 of 100 steps" in shown[0] and "100 %" in updates[0]
    assert capsys.readouterr().out.startswith("Compiling: 0.0 s")
    assert not reporter.live


@pytest.fixture
def outputs(monkeypatch) -> Iterator[list[dict[str, Any]]]:
    """What IPython's own machinery publishes in a notebook: contents, and whether they replace an earlier one."""
    pytest.importorskip("IPython")
    from IPython.core.displaypub import CapturingDisplayPublisher
    from IPython.core.interactiveshell import InteractiveShell

    monkeypatch.setitem(__import__("sys").modules, "ipykernel", console)
    shell = InteractiveShell.instance()
    shell.display_pub = CapturingDisplayPublisher()
    yield shell.display_pub.outputs
    InteractiveShell.clear_instance()


def test_a_notebook_has_one_curve_that_grows(outputs, monkeypatch, capsys):
    """A line and a picture; whatever follows replaces one of the two, and pictures are drawn at most every 2 s."""
    now = 0.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    reporter = Reporter()
    reporter.start(1000, 0)
    for i in range(101):
        now = 0.1 * i
        value = console.Interval(-100.0 + i, -110.0 + i, -90.0 + i)
        reporter.evaluated(10 * i, (f"return {value}",), 400.0, point=("eval/return", value))
    reporter.stop()
    new = [each for each in outputs if not each["update"]]
    assert len(new) == 2 and len({each["transient"]["display_id"] for each in outputs}) == 2
    pictures = [each["data"] for each in outputs if "image/png" in each["data"]]
    assert 5 <= len(pictures) <= 7 and pictures[-1]["text/plain"] == "eval/return 0.0 [-10.0, 10.0]"
    ends = (pictures[0], pictures[-1])
    first, last = (PIL.Image.open(io.BytesIO(base64.b64decode(each["image/png"]))) for each in ends)
    assert first.size == last.size and np.asarray(first).tobytes() != np.asarray(last).tobytes()
    assert len(capsys.readouterr().out.splitlines()) == 101, "a line for each evaluation, and no more"


def test_a_run_in_a_notebook_shows_its_curve(outputs, tmp_path: Path, capsys):
    covey.train("td3", out=tmp_path / "run", **TINY)
    last = [each["data"] for each in outputs if "image/png" in each["data"]][-1]
    columns = covey.load(tmp_path / "run").metrics()
    names = ("eval/return", "eval/return_low", "eval/return_high")
    assert last["text/plain"] == f"eval/return {console.Interval(*(columns[n]['value'][-1] for n in names))}"
    assert sum(not each["update"] for each in outputs) == 2


LONG = "-".join(["very-long-environment-name"] * 4)


@pytest.mark.parametrize("population", [{}, {"pbt": {}, "members": 4}])
@pytest.mark.parametrize("name", REGISTRY)
def test_every_agent_fits_80_columns(name: str, population: dict[str, Any], monkeypatch):
    """The introduction with a name that is longer than a line, the progress lines and the bar, with long numbers."""
    monkeypatch.setitem(covey.envs.ENVS, LONG, covey.envs.ENVS["point"])
    config = default_config(name, env=LONG, **population).resolved()
    reporter, screen = terminal(80)
    introduce(build(config), RunFolder(Path(f"runs/{LONG}-{name}-0")), reporter, PLAIN)
    assert "  memory in MiB: about " in screen.getvalue()
    reporter.start(123_456_789, 0)
    measures = [f"{each} -12345.67" for each in (*REGISTRY[name].progress, "repeated", "action_change")]
    value = mean_interval(np.array([-123_456.7, -23_456.7, -345_678.9]))
    best = f"{config.fitness}: best -1.235e+05, median -1.235e+05, worst -1.235e+05"
    figures = (best, "member 3 copies 1") if population else (f"return {value}", "best -123456.7")
    reporter.logged(123_000_000, -123_456.7)
    reporter.evaluated(123_000_000, (*figures, *measures), 123_456.7)
    reporter.update(123_000_000, 123_456.7, 123_456.7)
    assert len(bar(reporter).rstrip()) <= 80
    reporter.stop()
    lines = re.sub(r"\x1b\[[?0-9;]*[a-zA-Z]", "", screen.getvalue()).splitlines()
    assert max(map(len, lines)) <= 80, max(lines, key=len)
    screen.truncate(screen.seek(0))
    reporter.evaluated(123_000_000, (*figures, *measures), 123_456.7)
    (line,) = screen.getvalue().splitlines()
    assert line.startswith("step 123,000,000  ") and len(line) <= 80


def test_the_table_of_seeds_fits_80_columns():
    column = {"step": [123_456_789] * 2, "member": [0, 1], "value": [-1_234_567.8] * 2}
    metrics = dict.fromkeys(("eval/return", "eval/return_low", "eval/return_high"), column)
    assert max(map(len, seed_table(metrics, seed=2_000_000_000))) <= 80


def test_the_bar_ends_with_the_last_evaluation():
    reporter, screen = terminal(140)
    reporter.start(1000, 0)
    reporter.evaluated(500, ("return -2.0",), 400.0)
    reporter.update(1000, 400.0, 300.0)
    reporter.evaluated(1000, ("return -1.0",), 400.0)
    reporter.stop()
    last = screen.getvalue().splitlines()[-2]  # the line after it shows the cursor again
    for word in ("1,000 of 1,000 steps", "400 steps/s", "300 updates/s", "return -1.0"):
        assert word in last


def test_plain_lines_without_a_terminal(capsys):
    reporter = Reporter()
    reporter.start(1000, 0)
    with reporter.busy("Compiling"):
        pass
    reporter.update(500, 1.0, 1.0)
    reporter.evaluated(500, ("return -1.0", "best -1.0"), 400.0)
    reporter.stop()
    out = capsys.readouterr().out.splitlines()
    assert out[0].startswith("Compiling: ") and out[1] == "step        500  return -1.0  best -1.0  400 steps/s"
    assert len(out) == 2


def test_quiet(capsys):
    reporter = Reporter(quiet=True)
    reporter.heading("x")
    reporter.evaluated(500, ("return -1.0",), 400.0)
    assert capsys.readouterr().out == ""


def test_names_are_printed_as_they_are(capsys):
    """rich would make an ant of `:ant:`, and a style of what stands in brackets."""
    reporter = Reporter()
    for say in (reporter.heading, reporter.say):
        say("sac on brax:ant: [bold] 400 steps")
    assert capsys.readouterr().out == 2 * "sac on brax:ant: [bold] 400 steps\n"
