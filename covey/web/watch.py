"""`covey watch`: the live page of runs, until Ctrl-C."""

import os
import sys
import threading
import webbrowser
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from covey.errors import require
from covey.signals import LISTENER, signals_to
from covey.web.data import run_data
from covey.web.live import Live
from covey.web.page import render
from covey.web.player import Player
from covey.web.server import Server, is_loopback

NICE = 10
"""How much lower the priority of the command is: a training on the same machine comes first."""
PATIENCE = 20.0
"""Seconds that the command has to end after Ctrl-C, on a busy machine, before it is ended."""


@contextmanager
def watching(
    folders: Sequence[Path],
    *,
    host: str = "127.0.0.1",
    port: int = 0,
    allow_remote: bool = False,
    episodes: bool = True,
    nice: int = 0,
) -> Iterator[Server]:
    """Serves the live page of runs in this context, in threads of its own.

    Args:
        folders: Run folders. One that does not exist yet is waited for.
        host: The address to listen on.
        port: The port; 0 for a free one.
        allow_remote: Allow an address that other machines can reach.
        episodes: Play episodes of new checkpoints, in a process of low priority.
        nice: How much lower the priority of this thread and of the threads of the page becomes.

    Yields:
        The server, whose `url` is the address of the page.

    Raises:
        CoveyError: The address is not allowed or not available.

    Example:
        >>> with watching([Path("runs/pendulum-td3-0")]) as server:
        ...     print(server.url)
        ...     input("Press Enter to end")
    """
    require(
        allow_remote or is_loopback(host),
        f"`host` {host} can be reached by other machines: whoever learns the address of the page sees these runs, and "
        "nothing is encrypted. Forward the port with ssh instead, or set `allow_remote`.",
    )
    live = Live(folders, run_data)
    server = Server(live, render, lambda name: live.player.file(name) if live.player else None, host, port)
    if nice:
        os.nice(nice)  # before the threads start, which inherit it
    live.player = Player(live.show, live.explain) if episodes else None
    thread = threading.Thread(target=server.serve_forever, name="covey-web", daemon=True)
    try:
        live.start()
        thread.start()
        yield server
    finally:
        live.stop()
        if thread.is_alive():
            server.shutdown()
        server.server_close()
        if live.player:
            live.player.stop()


class Ending:
    """Gives the main thread more time to end than other commands have: it comes after everything else."""

    patience: float | None = PATIENCE

    def announce(self, number: int) -> None:
        """Says nothing."""

    def wait(self) -> None:
        """Waits for nothing: only films are lost."""

    def farewell(self) -> None:
        """Says nothing."""


def watch(folders: Sequence[Path], *, open_page: bool = False, **options: Any) -> None:
    """Serves the live page of runs until Ctrl-C, SIGTERM or SIGHUP (see `watching` for the options)."""

    def ask(number: int, frame: Any) -> None:
        raise KeyboardInterrupt

    for folder in folders:
        if not folder.exists():
            print(f"There is no run folder {folder} yet: waiting for it.", file=sys.stderr)
    page = watching(folders, nice=NICE, **options)
    with LISTENER.watching(Ending()), signals_to(ask), suppress(KeyboardInterrupt), page as server:
        if not is_loopback(server.host):
            print(
                f"Warning: other machines can reach this page on {server.host}. Whoever has its address sees these "
                "runs, and nothing is encrypted.",
                file=sys.stderr,
            )
        print(f"{server.url}\nCtrl-C ends it. The run is only read.", flush=True)
        if open_page:
            webbrowser.open(server.url)
        try:
            threading.Event().wait()
        finally:
            LISTENER.answer()
