"""The comparison with other libraries: how it asks, and how it tells what it found."""

import sys
from pathlib import Path

from benchmarks.peers.__main__ import Participant, summary
from benchmarks.peers.quality import MOST, race
from benchmarks.peers.report import chart, table


def test_a_participant_works_when_asked(tmp_path: Path):
    one = Participant("covey", "insert-10000", sys.executable, tmp_path / "log")
    try:
        assert "jax" in one.receive()["versions"]
        assert one.rate() > 1000, "rows written in a second"
    finally:
        one.close()


def test_one_that_can_not_take_part_says_why(tmp_path: Path):
    one = Participant("covey", "no-such-work", sys.executable, tmp_path / "log")
    assert "failed" in one.receive()
    one.close()
    assert "KeyError: 'no-such-work'" in (tmp_path / "log").read_text()


def test_ratios_are_taken_within_a_round(tmp_path: Path):
    """A machine that is twice as slow in one round is so for everybody. What misses its target is bold."""
    rates = {"covey": [100.0, 50.0, 90.0], "QDax": [50.0, 25.0, 60.0], "SBX": [80.0, 40.0, 72.0]}
    row = summary("td3", {"rates": rates, "failed": {"SB3": "ImportError"}})
    assert (row["ratio"]["QDax"], row["ratio"]["SBX"]) == (2.0, 1.25)
    text = table({"td3": row}, {"jax": "0.9.2"}, "")
    assert "| TD3 learner | updates/s | 90.0 |  | 50.0 (2.00x) | 72.0 (**1.25x**) | does not run |  |" in text
    chart({"td3": row}, tmp_path / "chart.png")
    assert (tmp_path / "chart.png").stat().st_size > 5000


def test_a_race_ends_at_the_goal():
    def told(*returns: float) -> list[str]:
        lines = [f"step {500 * (i + 1):,}  return {x:,}  best 0" for i, x in enumerate(returns)]
        return [sys.executable, "-c", f"print({chr(10).join(lines)!r})"]

    assert race(told(-1200.5, -300.0, -199.0, -100.0))[1] == 1500
    assert race(told(-1200.5, -300.0)) == (float("inf"), MOST)
