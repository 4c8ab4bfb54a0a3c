"""The live page in a real browser (`make test-web`): it grows, plays films, survives a kill, and asks nobody else.

With COVEY_WEB_SHOTS=FOLDER, the screenshots are kept there.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

import covey
from covey.web.watch import watching
from tests.runs import FLAGS, TINY

if not os.environ.get("COVEY_TEST_WEB"):
    pytest.skip("`make test-web` runs them", allow_module_level=True)
sync_api = pytest.importorskip("playwright.sync_api")

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
LAUNCH = ["--no-sandbox", "--disable-background-networking", "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1"]
PATIENCE = 90_000
"""Milliseconds to wait for anything, on a busy machine."""
POINTS = "(window.covey.runs[{run}].curves['eval/return'] || []).length"
ATTACKS = {
    "fetch('http://127.0.0.1:9/').catch(() => 0)": "connect-src",
    "new Image().src = 'http://127.0.0.1:9/'": "img-src",
    "document.body.append(Object.assign(document.createElement('script'), {textContent: '1'}))": "script-src-elem",
}
"""What code in the page could try, and the rule of the page that forbids it."""
VIOLATED = """new Promise((found) => {
  document.addEventListener("securitypolicyviolation", (event) => found(event.effectiveDirective), { once: true });
  %s;
  setTimeout(() => found("nothing"), 5000);
})"""
LONG = [*FLAGS, "--steps", "1000000", "--evaluations", "2000", "--checkpoint-minutes", "0"]


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    assert CHROMIUM, "there is no Chromium: apt-get install chromium"
    with sync_api.sync_playwright() as playwright:
        found = playwright.chromium.launch(executable_path=CHROMIUM, args=LAUNCH)
        yield found
        found.close()


@dataclass
class Tab:
    """An open page, with everything that it complained about or asked for."""

    page: Any
    requests: list[str] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)

    def wait(self, condition: str) -> None:
        """Waits for a condition in JavaScript. (Playwright's own waiting needs `eval`, which the page forbids.)"""
        ends = time.monotonic() + PATIENCE / 1000
        while not self.page.evaluate(condition):
            assert time.monotonic() < ends, condition
            self.page.wait_for_timeout(100)

    def points(self, run: int = 0) -> int:
        return self.page.evaluate(POINTS.format(run=run))

    def curve(self, metric: str = "eval/return", run: int = 0) -> list[list[float]]:
        found = self.page.evaluate(f"window.covey.runs[{run}].curves[{json.dumps(metric)}]")
        return [row[:3] for row in found]


Open = Callable[..., Tab]


@pytest.fixture
def open_tab(browser: Any) -> Iterator[Open]:
    """Opens pages. At the end, none has logged an error or made a request to another machine."""
    tabs: list[Tab] = []

    def opened(url: str, width: int = 1280, scheme: str = "light") -> Tab:
        context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)
        tab = Tab(context.new_page())
        tabs.append(tab)
        context.on("request", lambda request: tab.requests.append(request.url))
        tab.page.on("console", lambda said: tab.errors.append(said.text) if said.type in ("error", "warning") else None)
        tab.page.on("pageerror", lambda error: tab.errors.append(str(error)))
        tab.page.goto(url, wait_until="domcontentloaded")
        return tab

    yield opened
    for tab in tabs:
        outside = [url for url in tab.requests if not url.startswith(("http://127.0.0.1:", "data:", "blob:"))]
        assert not outside and not tab.errors, (outside, tab.errors)
        tab.page.context.close()


@contextmanager
def process(*arguments: str, stop: int = signal.SIGKILL) -> Iterator[subprocess.Popen[str]]:
    """Runs `covey ARGUMENTS`, and stops it at the end."""
    command = [sys.executable, "-m", "covey", *arguments]
    started = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    try:
        yield started
    finally:
        started.send_signal(stop)
        started.communicate(timeout=60)


@pytest.fixture(scope="module")
def population(tmp_path_factory) -> Path:
    """The folder of a finished population of four; its name is HTML."""
    folder = tmp_path_factory.mktemp("runs") / "<script>alert(1)<script>"
    covey.evolve("td3", out=folder, quiet=True, members=4, **(TINY | {"evaluations": 4}))
    return folder


def test_a_run_is_watched_while_it_trains_dies_and_resumes(tmp_path: Path, open_tab: Open):
    folder = tmp_path / "run"
    with process("watch", str(folder), stop=signal.SIGINT) as watcher:
        assert watcher.stdout
        tab = open_tab(watcher.stdout.readline().strip())
        tab.page.get_by_text("Waiting for the run folder run.").wait_for()
        with process("train", "td3", *LONG, "--out", str(folder)):
            grows(tab)
            plays(tab)
            before = tab.points()
            tab.wait(f"{POINTS.format(run=0)} > {before}")
        tab.page.locator(".badge.stopped").wait_for(timeout=PATIENCE)
        reached = max(step for step, *_ in tab.curve())
        with process("resume", str(folder)):
            tab.page.locator(".badge.running").wait_for(timeout=PATIENCE)
            tab.wait(f"window.covey.runs[0].step > {reached}")
            assert tab.page.locator("video[data-episode]").count() == 1, "the film stays"
        tab.page.locator(".badge.stopped").wait_for(timeout=PATIENCE)
        assert tab.curve() == logged(folder), "no row twice, none missing"
        assert tab.page.locator("[role=status]").inner_text() == "live"
        tab.page.goto("about:blank")
    assert watcher.returncode == 0


def grows(tab: Tab) -> None:
    """The curve of a page gets longer, and so does its line in the chart."""
    tab.page.locator(".badge.running").wait_for(timeout=PATIENCE)
    tab.wait(f"{POINTS.format(run=0)} > 2")
    before = tab.points()
    said = tab.page.locator('[data-metric="eval/return"] figcaption').first.inner_text()
    tab.wait(f"{POINTS.format(run=0)} > {before + 3}")
    tab.wait(f"document.querySelector('[data-metric=\"eval/return\"] figcaption').innerText !== {json.dumps(said)}")


def plays(tab: Tab) -> None:
    """A film appears, and runs; events of the growing curve don't restart it."""
    video = tab.page.locator("video[data-episode]")
    video.wait_for(timeout=PATIENCE)
    tab.wait("document.querySelector('video').readyState >= 2")
    tab.wait("document.querySelector('video').currentTime > 0.1")
    tab.page.evaluate("document.querySelector('video').mark = 1")
    step = video.get_attribute("data-episode")
    before = tab.points()
    tab.page.wait_for_timeout(2500)  # in which the summary of the run comes again
    tab.wait(f"{POINTS.format(run=0)} > {before}")
    mark, now = tab.page.evaluate("(video => [video.mark, video.dataset.episode])(document.querySelector('video'))")
    assert mark == 1 or now != step, "an event has restarted the film"


def logged(folder: Path) -> list[list[float]]:
    """The learning curve in a run folder."""
    rows = [json.loads(row) for row in (folder / "metrics.jsonl").read_text().splitlines(True) if row.endswith("\n")]
    return [[row["step"], row["member"], row["value"]] for row in rows if row["name"] == "eval/return"]


def test_a_member_of_a_population_can_be_selected(population: Path, open_tab: Open):
    with watching([population], episodes=False) as server:
        tab = open_tab(server.url)
        caption = tab.page.locator('[data-run="0"] .first .legend')
        assert "4 members" in caption.inner_text()
        tab.page.select_option("#members", "2")
        assert "member 2" in caption.inner_text()
        last = [value for _, member, value in tab.curve() if member == 2][-1]
        shown = tab.page.locator('[data-metric="eval/return"] figcaption span').first.inner_text()
        assert float(shown.split()[0].replace(",", "")) == pytest.approx(last, rel=1e-3)
        lane = tab.page.locator('[data-member="1"]')
        lane.focus()
        tab.page.keyboard.press("Enter")
        assert tab.page.locator("#members").input_value() == "1", "with the keyboard"


def test_names_are_text_and_the_token_is_needed(population: Path, open_tab: Open, browser: Any):
    with watching([population], episodes=False) as server:
        tab = open_tab(server.url)
        assert tab.page.locator("h2").first.inner_text().startswith(population.name)
        tab.wait("document.querySelector('[role=status]').textContent === 'live'")
        server.live.explain(0, "No film: <b>brax</b> is not installed.")
        tab.page.get_by_text("No film: <b>brax</b> is not installed.").wait_for(timeout=PATIENCE)
        page = browser.new_page()
        answer = page.goto(server.url.replace(server.token, "guess"))
        assert answer.status == 403 and population.name not in page.content()
        page.goto(server.url)
        for attack, directive in ATTACKS.items():
            assert page.evaluate(VIOLATED % attack) == directive, attack
        page.close()


def test_two_runs_on_four_screens(population: Path, tmp_path: Path, open_tab: Open):
    """Nothing is wider than the screen. The pictures are for people to look at."""
    shots = Path(os.environ.get("COVEY_WEB_SHOTS") or tmp_path)
    shots.mkdir(parents=True, exist_ok=True)
    other = tmp_path / "one"
    covey.train("td3", out=other, quiet=True, **TINY)
    before = files(population), files(other)
    with watching([population, other]) as server:
        for scheme in ("light", "dark"):
            for width in (1280, 400):
                tab = open_tab(server.url, width, scheme)
                tab.wait("document.querySelectorAll('video[data-episode]').length === 2")
                assert tab.page.evaluate("document.documentElement.dataset.theme") == scheme
                assert tab.page.evaluate("document.documentElement.scrollWidth") <= width
                tab.page.screenshot(path=shots / f"{scheme}-{width}.png", full_page=True)
        tab.page.click("#theme")
        assert tab.page.evaluate("document.documentElement.dataset.theme") == "light"
    assert (files(population), files(other)) == before, "the watcher only reads"


def files(folder: Path) -> list[tuple[Path, int, int]]:
    """Everything in a run folder, with sizes and times."""
    found = [(path, path.lstat()) for path in sorted([folder, *folder.rglob("*")])]
    return [(path, state.st_size, state.st_mtime_ns) for path, state in found]
