"""Where processes listen."""

import os
import socket
from pathlib import Path

LOOPBACK = {"0100007F", "0000000000000000FFFF00000100007F"}
"""127.0.0.1, as /proc writes addresses."""


def addresses(processes: list[int]) -> set[str]:
    """Where processes listen, as /proc writes addresses."""
    lines = [line.split() for name in ("tcp", "tcp6") for line in Path(f"/proc/net/{name}").read_text().splitlines()]
    listening = {f"socket:[{fields[9]}]": fields[1].rpartition(":")[0] for fields in lines if fields[3] == "0A"}
    found = set()
    for number in processes:
        try:
            links = [os.readlink(link) for link in Path(f"/proc/{number}/fd").iterdir()]
        except OSError:
            continue
        found |= {listening[link] for link in links if link in listening}
    return found


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]
