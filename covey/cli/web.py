"""The commands that show runs in a browser: watch."""

from dataclasses import dataclass
from pathlib import Path

import tyro

from covey.cli.arguments import parse, usage


@dataclass(frozen=True)
class WatchOptions:
    """Shows runs on a live page, while they train or afterwards. The run folders are only read."""

    runs: tyro.conf.Positional[tuple[Path, ...]]
    """Run folders. One that does not exist yet is waited for."""
    port: int = 0
    """The port of the page; by default a free one."""
    host: str = "127.0.0.1"
    """The address to listen on. One that other machines can reach needs --allow-remote."""
    allow_remote: bool = False
    """Let other machines reach the page: whoever has its address sees the runs, and nothing is encrypted."""
    episodes: bool = True
    """Play an episode of each new checkpoint, at low priority on a CPU of this machine."""
    open: bool = False
    """Open the page in the browser."""


def watch(arguments: list[str]) -> None:
    options = parse(WatchOptions, arguments, "watch")
    usage(bool(options.runs), "Name a run folder, for example: covey watch runs/pendulum-td3-0")
    from covey.web.watch import watch as serve

    serve(
        options.runs,
        host=options.host,
        port=options.port,
        allow_remote=options.allow_remote,
        episodes=options.episodes,
        open_page=options.open,
    )
