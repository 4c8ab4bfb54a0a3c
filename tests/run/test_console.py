"""Output during a run: one line at any width, plain text without a terminal."""

import io

import pytest
from rich.console import Console

from covey.run.console import Reporter


@pytest.mark.parametrize("width", [60, 80, 100, 140])
def test_the_bar_fits_on_one_line(width: int):
    """With its bar, the steps, both speeds, the return and the time that remains."""
    reporter, screen = Reporter(), io.StringIO()
    reporter.console = Console(file=screen, width=width, force_terminal=True, legacy_windows=False, color_system=None)
    reporter.live = True
    reporter.start(1_000_000, 0)
    reporter.evaluated(20_000, ("return -1234.5 [-1345.6, -1123.4]", "best -1100.0"), 400.0)
    reporter.update(250_000, 1234.0, 1234.0)
    assert reporter.bar is not None
    lines = reporter.console.render_lines(reporter.bar.get_renderable())
    reporter.stop()
    assert len(lines) == 1
    text = "".join(segment.text for segment in lines[0])
    shown = ("250", "steps/s") if width < 80 else ("250", "steps/s", "━", "ETA", "-1234.5 [-1345.6, -1123.4]")
    for word in shown:
        assert word in text, text


def test_the_bar_ends_with_the_last_evaluation():
    reporter, screen = Reporter(), io.StringIO()
    reporter.console = Console(file=screen, width=140, force_terminal=True, legacy_windows=False, color_system=None)
    reporter.live = True
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
