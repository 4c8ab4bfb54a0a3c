"""The operating system as covey's storage sees it, of which one call fails."""

import os
import shutil
from typing import Any

from covey.storage import disk

CALLS = (
    *("open", "close", "fstat", "lstat", "listdir", "mkdir", "unlink", "rename", "replace", "fsync", "ftruncate"),
    *("write", "pwrite", "pread", "preadv", "rmtree"),
)
SHORT = "a short transfer"


class Faulty:
    """`os` and `shutil` for covey.storage.disk. Call number `at` fails with an errno, or transfers a part only."""

    def __init__(self, at: int = -1, fault: Any = None) -> None:
        self.at, self.fault, self.calls = at, fault, []

    def __getattr__(self, name: str) -> Any:
        real = getattr(shutil if name == "rmtree" else os, name)
        if name not in CALLS:
            return real

        def call(*arguments: Any, **options: Any) -> Any:
            self.calls.append(name)
            if len(self.calls) - 1 != self.at:
                return real(*arguments, **options)
            if self.fault == SHORT:
                return real(*_shortened(name, arguments), **options)
            if name == "close":  # the descriptor is gone all the same
                real(*arguments)
            path = arguments[0] if isinstance(arguments[0], os.PathLike) else None
            raise OSError(self.fault, os.strerror(self.fault), path)

        return call

    def installed(self, monkeypatch: Any) -> "Faulty":
        monkeypatch.setattr(disk, "os", self)
        monkeypatch.setattr(disk, "shutil", self)
        return self


def _shortened(name: str, arguments: tuple[Any, ...]) -> tuple[Any, ...]:
    first, *rest = arguments
    if name == "write":
        return first, bytes(rest[0][: max(1, len(rest[0]) // 2)])
    if name == "pwrite":
        return first, bytes(rest[0][:3]), rest[1]
    if name == "pread":
        return first, rest[0] // 2 or rest[0], rest[1]
    if name == "preadv":
        (buffer,) = rest[0]
        return first, [buffer[: max(1, len(buffer) // 2)]], rest[1]
    return arguments
