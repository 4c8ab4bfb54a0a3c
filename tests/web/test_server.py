"""The server of the live page: who gets an answer, what it contains, and how it ends."""

import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from covey.cli import main
from covey.web.live import MOST_EVENTS, Live
from covey.web.player import Player, PlayerError
from covey.web.server import Server, is_loopback
from covey.web.tail import Checkpoints
from covey.web.watch import watching
from tests.web.test_tail import append, line


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    film = tmp_path / "0-1.mp4"
    film.write_bytes(bytes(range(100)))
    live = Live([tmp_path], lambda folder: {"name": "a run"})
    found = Server(live, lambda runs, path: f"{len(runs)} {path}", {"0-1.mp4": film}.get)
    live.start()
    thread = threading.Thread(target=found.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield found
    live.stop()
    found.shutdown()
    found.server_close()
    thread.join()


def ask(server: Server, path: str, method: str = "GET", **headers: str) -> tuple[http.client.HTTPResponse, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", server.server_address[1], timeout=10)
    connection.request(method, path, headers={name.replace("_", "-"): value for name, value in headers.items()})
    answer = connection.getresponse()
    body = answer.read()
    connection.close()
    return answer, body


def test_the_token_is_needed(server: Server):
    token = server.token
    wrong = ["/", "/index.html", f"/{token[:-1]}/", f"/{token}x/", f"/?token={token}", "/events", "/%00"]
    for path in wrong:
        assert ask(server, path)[0].status == 403, path
    answer, body = ask(server, f"/{token}/")
    assert answer.status == 200 and body == f"1 /{token}/events?after=1".encode()
    assert server.url == f"http://127.0.0.1:{server.server_address[1]}/{token}/" and len(token) >= 32


def test_no_other_name_of_this_host(server: Server):
    """A page of another site may have its name resolve to this machine; the browser then sends that name."""
    page = f"/{server.token}/"
    for host in ("evil.example", "evil.example:80", "127.0.0.1.evil.example", "10.0.0.1", "", "[::1", "a b"):
        assert ask(server, page, Host=host)[0].status == 403, host
    for host in ("localhost", "localhost:8080", "127.0.0.1:1", "[::1]:80"):
        assert ask(server, page, Host=host)[0].status == 200, host


def test_nothing_but_the_page_its_events_and_films(server: Server):
    token = server.token
    films = ["0-2.mp4", "", ".", "..", "../0-1.mp4", "%2e%2e%2fsecret", "..%2f..%2fetc%2fpasswd", "/etc/passwd"]
    for path in (f"/{token}", f"/{token}/metrics.jsonl", f"/{token}/../", *(f"/{token}/episode/{x}" for x in films)):
        assert ask(server, path)[0].status == 404, path
    assert ask(server, f"/{token}/", "POST")[0].status == 501
    assert ask(server, f"/{token}/", "HEAD")[1] == b""


def test_films_are_sent_whole_and_in_parts(server: Server):
    path = f"/{server.token}/episode/0-1.mp4"
    data = bytes(range(100))
    answer, body = ask(server, path)
    assert answer.status == 200 and body == data and answer.headers["Content-Type"] == "video/mp4"
    for span, part in {"bytes=0-": data, "bytes=10-19": data[10:20], "bytes=90-500": data[90:]}.items():
        answer, body = ask(server, path, Range=span)
        assert answer.status == 206 and body == part
    assert answer.headers["Content-Range"] == "bytes 90-99/100"
    assert ask(server, path, Range="bytes=100-")[0].status == 416
    assert ask(server, path, Range="bytes=x")[0].status == 200


def test_the_page_may_request_nothing_else(server: Server):
    for path in (f"/{server.token}/", "/"):
        headers = ask(server, path)[0].headers
        policy = headers["Content-Security-Policy"]
        assert policy.startswith("default-src 'none'") and "http" not in policy and "*" not in policy
        assert headers["Referrer-Policy"] == "no-referrer" and headers["Cache-Control"] == "no-store"
        assert "Access-Control-Allow-Origin" not in headers


class Stream:
    """A page's connection to the events."""

    def __init__(self, server: Server, after: int, last: str = "") -> None:
        self.connection = http.client.HTTPConnection("127.0.0.1", server.server_address[1], timeout=10)
        headers = {"Last-Event-ID": last} if last else {}
        self.connection.request("GET", f"/{server.token}/events?after={after}", headers=headers)
        self.answer = self.connection.getresponse()

    def next(self) -> tuple[int, str, list]:
        found: dict[str, str] = {}
        while True:
            text = self.answer.readline().decode().rstrip("\n")
            name, _, value = text.partition(": ")
            if text:
                found[name] = value
            elif "event" in found:
                return int(found["id"]), found["event"], json.loads(found["data"])


def test_every_page_gets_every_event_once(server: Server, tmp_path: Path):
    streams = [Stream(server, server.live.log.last) for _ in range(3)]
    assert streams[0].answer.headers["Content-Type"] == "text/event-stream"
    append(tmp_path / "metrics.jsonl", line(1))
    number = 0
    for stream in streams:
        number, kind, rows = stream.next()
        assert (kind, rows) == ("rows", [[0, "eval/return", 1, 0, 1.0, 0.0]])
    streams[0].connection.close()
    server.live.show(0, {"step": 1})
    server.live.show(0, {"step": 2})
    again = Stream(server, 0, last=str(number))
    assert [again.next()[1:] for _ in range(2)] == [("episode", [0, {"step": 1}]), ("episode", [0, {"step": 2}])]


def test_a_page_that_missed_too_much_gets_everything(server: Server, tmp_path: Path):
    for step in range(MOST_EVENTS + 10):
        server.live.log.add("rows", [step])
    for after in (1, 10**9):
        _, kind, (index, run) = Stream(server, after).next()
        assert (kind, index, run["name"], run["curves"]) == ("reset", 0, "a run", {})


def test_streams_end_with_the_watcher(server: Server):
    stream = Stream(server, server.live.log.last)
    server.live.stop()
    began = time.monotonic()
    assert stream.answer.read().endswith(b"\n\n") and time.monotonic() - began < 2


def test_addresses():
    assert [is_loopback(x) for x in ("127.0.0.1", "::1", "localhost", "127.8.9.1")] == [True] * 4
    assert [is_loopback(x) for x in ("0.0.0.0", "::", "10.0.0.1", "example.org", "")] == [False] * 5


def test_other_machines_are_refused_unless_asked_for(tmp_path: Path, capsys):
    for host in ("0.0.0.0", "::", "10.1.2.3"):
        assert main(["watch", str(tmp_path), "--host", host]) == 1
        assert f"--host {host} can be reached by other machines" in (said := capsys.readouterr().err), said
        assert "--allow-remote" in said
    with watching([tmp_path], host="0.0.0.0", allow_remote=True, episodes=False) as server:
        assert socket.gethostname() in server.url
        assert ask(server, f"/{server.token}/", Host="10.1.2.3:99")[0].status == 200
        assert ask(server, f"/{server.token}/", Host="evil.example")[0].status == 403
        assert ask(server, "/", Host="10.1.2.3:99")[0].status == 403


def test_a_port_that_is_used_is_an_error(server: Server, tmp_path: Path, capsys):
    assert main(["watch", str(tmp_path), "--port", str(server.server_address[1])]) == 1
    assert "Can't listen on --host 127.0.0.1, --port" in capsys.readouterr().err
    assert main(["watch", str(tmp_path), "--port", "65536"]) == 1
    assert main(["watch"]) == 2


def test_ctrl_c_ends_it_with_pages_open(tmp_path: Path):
    command = [sys.executable, "-m", "covey", "watch", str(tmp_path / "not-yet"), "--no-episodes"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout
    own = os.getpriority(os.PRIO_PROCESS, 0)
    url = process.stdout.readline().strip()
    port, token = url.removeprefix("http://127.0.0.1:").strip("/").split("/")
    connection = http.client.HTTPConnection("127.0.0.1", int(port), timeout=10)
    connection.request("GET", f"/{token}/events?after=0")
    answer = connection.getresponse()
    threads = [int(each.name) for each in Path(f"/proc/{process.pid}/task").iterdir()]
    lowered = [each for each in threads if os.getpriority(os.PRIO_PROCESS, each) == min(19, own + 10)]
    assert len(lowered) >= 4 or not threads, "the page, its events and the tail come after a training"
    began = time.monotonic()
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=20)
    assert process.returncode == 0 and time.monotonic() - began < 10
    assert errors == f"There is no run folder {tmp_path / 'not-yet'} yet: waiting for it.\n"
    answer.read()
    assert not list(tmp_path.iterdir())


class Reports:
    """Receives what a player reports."""

    def __init__(self) -> None:
        self.found: list[tuple[int, object]] = []
        self.more = threading.Event()

    def __call__(self, index: int, what: object) -> None:
        self.found.append((index, what))
        self.more.set()


def test_the_player_says_why_there_is_no_film(tmp_path: Path):
    """The process is real. It fails at the first file, as with a run of another machine."""
    before = set(tmp_path.iterdir())
    shown, explained = Reports(), Reports()
    player = Player(shown, explained, plugins=["no_such_module"])
    try:
        player.offer(3, tmp_path, Checkpoints(-1, -1), 0)
        player.offer(3, tmp_path, Checkpoints(100, 100), 0)
        assert explained.more.wait(60)
        ((index, note),) = explained.found
        assert index == 3 and str(note).startswith("No film of step 100: The plugin 'no_such_module' can't be imported")
        process = player.process
        assert process and os.getpriority(os.PRIO_PROCESS, process.pid) == 19, "the lowest priority"
    finally:
        player.stop()
    assert not shown.found and process.poll() is not None and set(tmp_path.iterdir()) == before


class Counting(Player):
    """Plays nothing, and notes what it was asked for."""

    def play(self, request, name):
        self.asked = [*getattr(self, "asked", []), (request.kind, request.step)]
        raise PlayerError("nothing")


def test_new_checkpoints_are_played_once():
    explained = Reports()
    player = Counting(explained, explained, pause=0.0)
    try:
        for best, last in ((10, 10), (10, 10), (10, 20), (10, 20), (30, 30), (30, 40), (50, 60), (50, 60)):
            explained.more.clear()
            count = len(explained.found)
            player.offer(0, Path("run"), Checkpoints(best, last), 0)
            explained.more.wait(0.1)
            time.sleep(0.01 if len(explained.found) > count else 0)
    finally:
        player.stop()
    assert player.asked == [("best", 10), ("last", 20), ("best", 30), ("last", 40), ("best", 50)]
