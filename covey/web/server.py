"""The web server of the live page: on this machine unless asked, with a token, and no file but films."""

import hmac
import ipaddress
import re
import secrets
import socket
from collections.abc import Callable
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from covey.errors import CoveyError, require
from covey.web.live import Live, as_json

BEAT = 10.0
"""Seconds after which a stream without events sends a comment, so that a closed page is noticed."""
TIMEOUT = 60.0
"""Seconds after which a connection that takes or sends nothing is closed."""
MOST_STREAMS = 100
"""Pages that may be open at once."""
POLICY = (
    "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src 'self' data:; "
    "media-src 'self' data:; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
"""The page may load nothing from anywhere but this server."""
HEADERS = {
    "Content-Security-Policy": POLICY,
    "Referrer-Policy": "no-referrer",  # the address of the page contains the token
    "X-Content-Type-Options": "nosniff",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-store",
}
TYPES = {".mp4": "video/mp4", ".gif": "image/gif"}

Render = Callable[[list[dict[str, Any]], str], str]
Films = Callable[[str], Path | None]


def is_loopback(host: str) -> bool:
    """Returns whether an address is one that only this machine can reach."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


class Server(ThreadingHTTPServer):
    """Serves the page of followed runs.

    Args:
        live: The runs.
        render: Makes the page from the runs and the path of its event stream.
        films: Returns the file of a film by its name.
        host: The address to listen on.
        port: The port; 0 for a free one.

    Example:
        >>> server = Server(live, render, player.file)
        >>> print(server.url)
        http://127.0.0.1:40123/6Hq.../
        >>> server.serve_forever()
    """

    daemon_threads = True
    block_on_close = False  # streams end when the log of events is closed

    def __init__(self, live: Live, render: Render, films: Films, host: str = "127.0.0.1", port: int = 0) -> None:
        self.live = live
        self.render = render
        self.films = films
        self.token = secrets.token_urlsafe(24)
        self.host = host
        self.streams = 0
        self.names = {"localhost", host, socket.gethostname()}
        require(0 <= port < 65536, f"`port` must lie between 0 and 65535, not {port}.")
        try:
            found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
            self.address_family = found[0]
            super().__init__(found[4][:2], Handler)  # pyright: ignore[reportArgumentType]
        except OSError as error:
            raise CoveyError(
                f"Can't listen on `host` {host}, `port` {port}: {error.strerror or error}. Without "
                "`port`, a free one is taken."
            ) from None

    @property
    def url(self) -> str:
        """The address of the page, with the token."""
        everywhere = ("0.0.0.0", "::")
        name = socket.gethostname() if self.host in everywhere else self.host
        return f"http://{f'[{name}]' if ':' in name else name}:{self.server_address[1]}/{self.token}/"

    def knows(self, header: str) -> bool:
        """Returns whether a request may have this `Host`.

        A page of another site whose name was made to resolve to this machine (DNS rebinding) sends that name. Any port
        is right, because it may be forwarded by ssh.
        """
        found = re.fullmatch(r"(?:\[([0-9a-fA-F:.]+)\]|([^:\[\]]+))(?::\d+)?", header)
        if not found:
            return False
        name = found[1] or found[2]
        try:
            address = ipaddress.ip_address(name)
        except ValueError:
            return name.casefold() in self.names
        return address.is_loopback or not is_loopback(self.host)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignores connections that browsers break."""


class Handler(BaseHTTPRequestHandler):
    """Answers one connection."""

    server: Server  # pyright: ignore[reportIncompatibleVariableOverride]
    server_version = "covey"
    sys_version = ""
    protocol_version = "HTTP/1.1"
    timeout = TIMEOUT

    def do_GET(self) -> None:
        """Answers with the page, its events or a film; 403 without the token."""
        if not self.server.knows(self.headers.get("Host", "")):
            self._refuse(HTTPStatus.FORBIDDEN, "The name of this host is not one of the watcher's.")
            return
        parts = urlsplit(self.path)
        if parts.path == "/favicon.ico":  # which browsers ask for by themselves
            self._answer(HTTPStatus.NO_CONTENT, "image/x-icon", b"")
            return
        token, *rest = parts.path.removeprefix("/").split("/")
        if not hmac.compare_digest(token.encode(), self.server.token.encode()):
            self._refuse(HTTPStatus.FORBIDDEN, "Open the address that `covey watch` printed: it contains a token.")
            return
        match rest:
            case [""]:
                self._page()
            case ["events"]:
                self._events(parse_qs(parts.query).get("after", [""])[0])
            case ["episode", name]:
                self._film(name)
            case _:
                self._refuse(HTTPStatus.NOT_FOUND, "There is no such page.")

    do_HEAD = do_GET  # noqa: N815

    def log_message(self, format: str, *args: Any) -> None:
        """Logs nothing: an address contains the token."""

    def _refuse(self, status: HTTPStatus, text: str) -> None:
        self._answer(status, "text/plain; charset=utf-8", (text + "\n").encode())

    def _answer(self, status: HTTPStatus, kind: str, body: bytes, **more: str) -> None:
        self.send_response(status)
        headers = {**HEADERS, "Content-Type": kind, "Content-Length": str(len(body))}
        for name, value in (headers | {n.replace("_", "-"): v for n, v in more.items()}).items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def _page(self) -> None:
        runs, number = self.server.live.snapshot()
        page = self.server.render(runs, f"/{self.server.token}/events?after={number}")
        self._answer(HTTPStatus.OK, "text/html; charset=utf-8", page.encode())

    def _events(self, after: str) -> None:
        """Streams events from the number that the page contains, or the last one that it received."""
        last = self.headers.get("Last-Event-ID") or after
        number = int(last) if last.isascii() and last.isdigit() and len(last) < 16 else -1
        server = self.server
        if server.streams >= MOST_STREAMS:
            self._refuse(HTTPStatus.SERVICE_UNAVAILABLE, "Too many pages are open.")
            return
        self.close_connection = True
        self.send_response(HTTPStatus.OK)
        for name, value in {**HEADERS, "Content-Type": "text/event-stream", "Connection": "close"}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command == "HEAD":
            return
        server.streams += 1
        try:
            self._stream(number)
        except OSError:  # the page was closed
            return
        finally:
            server.streams -= 1

    def _stream(self, number: int) -> None:
        live = self.server.live
        self.wfile.write(b"retry: 1000\n\n")
        while not live.log.closed:
            events = live.log.after(number, BEAT)
            if events is None:  # events are missing: everything anew
                runs, number = live.snapshot()
                for index, run in enumerate(runs):
                    self.wfile.write(message(number, "reset", as_json([index, run])))
                continue
            if not events:
                self.wfile.write(b": alive\n\n")
            for event in events:
                self.wfile.write(message(*event))
                number = event.number

    def _film(self, name: str) -> None:
        file = self.server.films(name)  # a name in a table, not a path
        try:
            data = file.read_bytes() if file else None
        except OSError:
            data = None
        if file is None or data is None:
            self._refuse(HTTPStatus.NOT_FOUND, "There is no such film.")
            return
        kind = TYPES.get(file.suffix, "application/octet-stream")
        found = re.fullmatch(r"bytes=(\d{1,15})-(\d{0,15})", self.headers.get("Range", ""))
        if not found:
            self._answer(HTTPStatus.OK, kind, data, Accept_Ranges="bytes")
            return
        start = int(found[1])
        end = min(int(found[2] or len(data)), len(data) - 1)
        if start > end:
            unsatisfied = HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE
            self._answer(unsatisfied, kind, b"", Content_Range=f"bytes */{len(data)}")
            return
        span = f"bytes {start}-{end}/{len(data)}"
        self._answer(HTTPStatus.PARTIAL_CONTENT, kind, data[start : end + 1], Content_Range=span, Accept_Ranges="bytes")


def message(number: int, kind: str, data: str) -> bytes:
    """Returns an event in the format of server-sent events. JSON has no line ends, so one line is enough."""
    return f"id: {number}\nevent: {kind}\ndata: {data}\n\n".encode()
