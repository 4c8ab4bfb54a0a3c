"""Following a run folder that another process writes, cuts and writes again."""

import json
import os
import time
from pathlib import Path

import pytest

from covey.web.live import Live, pause
from covey.web.tail import GrowingFile, MetricRow, Tail, metric_row


def line(step: int, wall: float = 0.0, name: str = "eval/return", value: float | None = 1.0, member: int = 0) -> bytes:
    row = {"step": step, "wall": wall, "member": member, "name": name, "value": value}
    return (json.dumps(row) + "\n").encode()


def append(path: Path, data: bytes) -> None:
    with path.open("ab") as file:
        file.write(data)


def test_lines_are_read_once_and_whole(tmp_path: Path):
    path = tmp_path / "metrics.jsonl"
    file = GrowingFile(path)
    assert file.poll() == (False, []), "it does not exist yet"
    append(path, b"one\ntw")
    assert file.poll() == (False, [b"one"])
    assert file.poll() == (False, [])
    append(path, b"o\nthree\n")
    assert file.poll() == (False, [b"two", b"three"])


def test_a_file_that_was_cut_is_read_again(tmp_path: Path):
    path = tmp_path / "metrics.jsonl"
    file = GrowingFile(path)
    path.write_bytes(b"one\ntwo\nthree\n")
    assert file.poll()[1] == [b"one", b"two", b"three"]
    os.truncate(path, 8)
    assert file.poll() == (True, [b"one", b"two"])
    append(path, b"four\n")
    assert file.poll() == (False, [b"four"])


def test_a_file_that_was_cut_and_has_grown_again_is_noticed(tmp_path: Path):
    """Between two polls, a resumed run may have written more than was cut off."""
    path = tmp_path / "metrics.jsonl"
    file = GrowingFile(path)
    path.write_bytes(b"".join(line(step, wall=1.0) for step in range(100)))
    assert len(file.poll()[1]) == 100
    os.truncate(path, 50 * len(line(10, wall=1.0)))
    append(path, b"".join(line(step, wall=2.0) for step in range(50, 200)))
    reset, lines = file.poll()
    assert reset and lines[-1] == line(199, wall=2.0).rstrip()


def test_a_half_line_that_is_cut_off_is_no_reset(tmp_path: Path):
    path = tmp_path / "metrics.jsonl"
    file = GrowingFile(path)
    path.write_bytes(b"one\ntw")
    file.poll()
    os.truncate(path, 4)
    assert file.poll() == (False, [])
    append(path, b"other\n")
    assert file.poll() == (False, [b"other"])


def test_a_file_that_disappears_is_a_reset(tmp_path: Path):
    path = tmp_path / "metrics.jsonl"
    file = GrowingFile(path)
    path.write_bytes(b"one\n")
    file.poll()
    path.rename(tmp_path / "metrics.jsonl.damaged")
    assert file.poll() == (True, [])
    path.write_bytes(b"new\n")
    assert file.poll() == (False, [b"new"])


def test_links_and_folders_are_not_read(tmp_path: Path):
    secret = tmp_path / "secret"
    secret.write_bytes(b"a line\n")
    (tmp_path / "link").symlink_to(secret)
    (tmp_path / "folder").mkdir()
    assert GrowingFile(tmp_path / "link").poll() == (False, [])
    assert GrowingFile(tmp_path / "folder").poll() == (False, [])


def test_long_files_are_read_in_parts(tmp_path: Path):
    path = tmp_path / "metrics.jsonl"
    count = 5 * 2**18 // len(line(10**6))
    path.write_bytes(b"".join(line(10**6 + step) for step in range(count)))
    rows = [metric_row(each) for each in GrowingFile(path).poll()[1]]
    assert [row.step for row in rows if row] == [10**6 + step for step in range(count)]


def test_rows():
    assert metric_row(line(3, 0.5, "a", None, 2)) == MetricRow("a", 3, 2, None, 0.5)
    assert metric_row(line(3, value=float("nan"))) == MetricRow("eval/return", 3, 0, None, 0.0)
    wrong = [b"", b"7", b"{}", b"[1]", b"{", line(-1), line(1, name=5), line(1, value="x"), b"\xff", b"[" * 10**5]  # type: ignore[arg-type]
    assert [metric_row(each) for each in wrong] == [None] * len(wrong)


def test_a_tail_only_reads(tmp_path: Path):
    tail = Tail(tmp_path / "run")
    tail.poll()
    assert not list(tmp_path.iterdir())
    assert tail.checkpoints() == (-1, -1)
    (tmp_path / "run" / "checkpoints" / "step_0000000100").mkdir(parents=True)
    (tmp_path / "run" / "checkpoints" / "step_0000000200.partial").mkdir()
    (tmp_path / "run" / "checkpoints" / "best_0000000050").mkdir()
    before = sorted(tmp_path.rglob("*"))
    assert tail.poll().changed and not tail.poll().changed
    assert tail.checkpoints() == (50, 100)
    assert sorted(tmp_path.rglob("*")) == before


def events(live: Live, after: int) -> list[tuple[str, list]]:
    return [(event.kind, json.loads(event.data)) for event in live.log.after(after, 0) or []]


def test_events_bring_a_page_up_to_date(tmp_path: Path):
    """A page that applies the events to its snapshot has the newer snapshot."""
    path = tmp_path / "metrics.jsonl"
    live = Live([tmp_path], lambda folder: {"state": "running", "step": path.stat().st_size, "curves": {"ignored": []}})
    path.write_bytes(line(1) + line(2, member=1))
    live.poll()
    (run,), number = live.snapshot()
    assert run["curves"] == {"eval/return": [[1, 0, 1.0, 0.0], [2, 1, 1.0, 0.0]]}
    append(path, line(3, value=None))
    live.poll()
    assert events(live, number) == [("rows", [[0, "eval/return", 3, 0, None, 0.0]])]
    number = live.log.last
    append(path, line(3, value=5.0))
    live.poll()
    ((kind, (index, run)),) = events(live, number)
    assert (kind, index) == ("reset", 0), "a step that was logged twice"
    assert run["curves"]["eval/return"][-1] == [3, 0, 5.0, 0.0] and len(run["curves"]["eval/return"]) == 3
    number = live.log.last
    os.truncate(path, len(line(1)))
    live.poll()
    ((kind, (_, run)),) = events(live, number)
    assert kind == "reset" and run["curves"] == {"eval/return": [[1, 0, 1.0, 0.0]]}


def test_films_survive_a_new_summary(tmp_path: Path):
    live = Live([tmp_path], lambda folder: {"episodes": [{"step": 5, "video": "data:"}, {"step": 7}], "notes": ["a"]})
    live.poll()
    live.explain(0, "no ffmpeg")
    assert live.snapshot()[0][0]["notes"] == ["a", "no ffmpeg"]
    live.show(0, {"step": 7, "return": 1.0})
    (run,), number = live.snapshot()
    assert run["episodes"] == [{"step": 5, "video": "data:"}, {"step": 7, "return": 1.0}] and run["notes"] == ["a"]
    assert events(live, number - 1) == [("episode", [0, {"step": 7, "return": 1.0}])]


def test_a_summary_that_fails_is_a_note(tmp_path: Path):
    def read(folder: Path) -> dict:
        raise KeyError("algorithm")

    live = Live([tmp_path / "none"], read)
    live.poll()
    (run,), _ = live.snapshot()
    assert run["name"] == "none" and run["notes"] == ["'algorithm'"] and run["curves"] == {}


def test_several_runs_are_compared_again(tmp_path: Path, monkeypatch):
    monkeypatch.setattr("covey.web.live.COMPARE", 0.0)
    monkeypatch.setattr("covey.web.live.SHARE", 1e9)
    for name in "ab":
        (tmp_path / name).mkdir()
        (tmp_path / name / "metrics.jsonl").write_bytes(line(1))
    facts = {"curve": "eval/return", "env": "point", "population": False, "members": 1}
    live = Live([tmp_path / "a", tmp_path / "b"], lambda folder: {"name": folder.name, **facts})
    live.poll()
    number = live.log.last
    live.poll()
    live.poll()
    ((kind, found),) = events(live, number)
    assert kind == "comparison" and [row["step"] for row in found["rows"]] == [1, 1]
    number = live.log.last
    append(tmp_path / "a" / "metrics.jsonl", line(2))
    live.poll()
    live.poll()
    assert [kind for kind, _ in events(live, number)][:1] == ["rows"]
    assert events(live, number)[-1][0] == "comparison"


def test_a_slow_summary_is_read_less_often():
    began = time.thread_time()
    assert pause(2.0, began) == 2.0
    assert pause(2.0, began - 0.2) == pytest.approx(10.0, abs=0.5)
    assert pause(2.0, began - 100.0) == 30.0
