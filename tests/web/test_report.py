"""The report: one HTML file with the numbers of the run, which runs nothing that a run folder contains."""

import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

import covey
from covey.cli import main
from covey.errors import CoveyError
from covey.web.page import as_script, render
from tests.web.folders import json_rows, make_run

EVIL = "</script><script>alert(1)</script><img src=x onerror=alert(2)>"
LIMIT = 5_000_000


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Path:
    return make_run(tmp_path_factory.mktemp("runs") / "one")


class Tags(HTMLParser):
    """Collects the start tags of a page, with their attributes."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.found.append((tag, dict(attrs)))


def data_of(page: str) -> Any:
    """Returns the values in the block of JSON."""
    return json.loads(re.findall(r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL)[0])


def test_the_page_has_the_numbers_of_the_run(run: Path, capsys):
    assert main(["report", str(run)]) == 0
    assert capsys.readouterr().out == f"{run / 'report.html'}\n"
    page = (run / "report.html").read_text()
    (found,) = data_of(page)["runs"]
    for row in json_rows(run / "metrics.jsonl"):
        assert [row["step"], row["member"], row["value"], row["wall"]] in found["curves"][row["name"]]
    assert len(page) < LIMIT


def test_nothing_is_requested(run: Path):
    page = covey.report(run, out=run / "other.html").read_text()
    tags = Tags(page).found
    assert not [tag for tag, attributes in tags if {"src", "href", "srcset"} & attributes.keys()]
    assert "default-src 'none'" in page and "@import" not in page and not re.search(r"url\(", page)
    assert [tag for tag, _ in tags].count("script") == 3


def test_names_are_text(tmp_path: Path):
    evil = EVIL.replace("/", "\u2215")  # a folder's name has no slash
    run = make_run(tmp_path / evil, env=EVIL, extra=[EVIL, "agent/<script>"])
    page = covey.report(run).read_text()
    assert [tag for tag, _ in Tags(page).found].count("script") == 3, "data, uPlot and the page's own"
    assert "<img" not in page and page.count("<script") == 3
    (found,) = data_of(page)["runs"]
    assert found["env"] == EVIL and found["path"] == evil and {EVIL, "agent/<script>"} <= found["curves"].keys()
    assert "alert(1)</" not in page and json.loads(as_script({EVIL: "&<!--"})) == {EVIL: "&<!--"}


def test_text_is_never_set_as_html():
    script = (Path(covey.__file__).parent / "web" / "static" / "page.js").read_text()
    assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function", script)


def test_several_runs_are_compared(run: Path, tmp_path: Path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    other = make_run(tmp_path / "other", algorithm="sac", offset=5.0)
    assert main(["report", str(run), str(other)]) == 0
    found = data_of(Path("report.html").read_text())
    assert [each["agent"] for each in found["runs"]] == ["td3", "sac"]
    assert found["comparison"]["improvement"][1][0][0] == 1.0 and found["live"] == ""


def test_a_long_run_stays_small(tmp_path: Path):
    run = make_run(tmp_path / "run", algorithm="sac", members=8, pbt={})
    row = {"wall": 12345.678, "value": -1234.5678901234567}
    with (run / "metrics.jsonl").open("a") as file:
        for name in (f"agent/metric_with_a_name_{i}" for i in range(10)):
            for step in range(0, 1_000_000, 1000):
                file.writelines(json.dumps({"step": step, "member": m, "name": name, **row}) + "\n" for m in range(8))
    (run / "media" / "policy.gif").write_bytes(bytes(1_400_000))
    for name in ("skills.png", "episode.png", "plan.png"):
        (run / "media" / name).write_bytes(bytes(400_000))
    assert 3_000_000 < covey.report(run).stat().st_size < LIMIT


def test_errors(run: Path, tmp_path: Path, capsys):
    with pytest.raises(CoveyError, match="Name a run folder"):
        covey.report()
    with pytest.raises(CoveyError, match="must name an HTML file"):
        covey.report(run, out=tmp_path / "report.pdf")
    assert main(["report", str(tmp_path / "nothing")]) == 1
    assert "There is no run folder" in capsys.readouterr().err
    (tmp_path / "file").touch()
    with pytest.raises(CoveyError, match="Can't write to"):
        covey.report(run, out=tmp_path / "file" / "report.html")


def test_a_live_page_listens(run: Path):
    assert data_of(render([], live="/events?token=x"))["live"] == "/events?token=x"


def test_the_report_has_the_findings_of_the_doctor(tmp_path: Path, monkeypatch):
    from covey.run.run import Run

    class Found:
        findings = ("the warm-up has 1 step: raise `warmup`.",)

    folder = make_run(tmp_path / "one")
    monkeypatch.setattr(Run, "doctor", lambda run: Found)
    (told,) = data_of(covey.report(folder).read_text())["runs"]
    assert told["doctor"] == ["the warm-up has 1 step: raise `warmup`."]

    def fails(run):
        raise CoveyError("no checkpoint")

    monkeypatch.setattr(Run, "doctor", fails)
    (told,) = data_of(covey.report(folder).read_text())["runs"]
    assert told["doctor"] == [] and any("no checkpoint" in note for note in told["notes"])
