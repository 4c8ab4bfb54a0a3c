"""Has episodes of new checkpoints played in a process of its own, one at a time and at the lowest priority."""

import json
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from covey.plugins import allowed
from covey.web.tail import Checkpoints

SHARE = 0.1
"""The most of the time that is spent on films: after one that took 6 seconds, the next starts a minute later."""
PAUSE = 10.0
"""Seconds between two films, at least."""
PATIENCE = 300.0
"""Seconds after which an episode that has not ended is given up."""
MOST_FILES = 200
"""Films that are kept; older ones are deleted."""
START = (
    "import os, sys, json; os.setpriority(os.PRIO_PROCESS, 0, 19); sys.path[:] = json.loads(sys.argv[1]); "
    "from covey.web.episodes import main; main(json.loads(sys.argv[2]))"
)
"""The program of the process. It lowers its priority before it imports anything that takes time."""


class Request(NamedTuple):
    """An episode to play: of the best policy, or of a member in the newest checkpoint."""

    folder: Path
    kind: str
    step: int
    member: int


class PlayerError(Exception):
    """An episode can't be played; the message says why."""


class Player:
    """Plays a greedy episode of each new best or newest checkpoint, and reports its film.

    It writes to a temporary folder only. If checkpoints come faster than films are made, only the newest is played.

    Args:
        show: Called with the index of a run and its episode: step, return, length, and the URL of the film.
        explain: Called with the index of a run, and why it has no film.
        plugins: Modules that the process imports first; by default those that the user has named.
        pause: Seconds between two films, at least.
    """

    def __init__(
        self,
        show: Callable[[int, dict[str, Any]], None],
        explain: Callable[[int, str], None],
        plugins: Sequence[str] | None = None,
        pause: float = PAUSE,
    ) -> None:
        self._show = show
        self._explain = explain
        self._plugins = list(allowed() if plugins is None else plugins)
        self._pause = pause
        self._folder = Path(tempfile.mkdtemp(prefix="covey-watch-"))
        self._files: dict[str, Path] = {}
        self._waiting: dict[int, Request] = {}
        self._offered: dict[int, Checkpoints] = {}
        self._played: dict[int, tuple[str, int]] = {}
        self._begun: set[int] = set()
        self._ready = 0.0
        self._changed = threading.Condition()
        self._stopped = False
        self.process: subprocess.Popen[bytes] | None = None
        self._thread = threading.Thread(target=self._work, name="covey-films", daemon=True)
        self._thread.start()

    def offer(self, index: int, folder: Path, found: Checkpoints, member: int) -> None:
        """Tells it the newest checkpoints of a run; does nothing if they were played."""
        if max(found) < 0:
            return
        before = self._offered.get(index, Checkpoints(-1, -1))
        if found == before:
            return
        # A checkpoint of the training comes with that of its best policy, which is the one to see if it is new.
        is_best = found.best not in (-1, before.best)
        request = Request(folder, *(("best", found.best) if is_best else ("last", found.last)), member)
        with self._changed:
            self._offered[index] = found
            self._waiting[index] = request
            self._changed.notify_all()

    def file(self, name: str) -> Path | None:
        """Returns the file of a film by the last part of its URL, or None if there is no such film."""
        return self._files.get(name)

    def stop(self) -> None:
        """Ends the process, and deletes the films."""
        with self._changed:
            self._stopped = True
            self._changed.notify_all()
        self._kill()
        self._thread.join()
        self._discard()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _work(self) -> None:
        number = 0
        while (next_one := self._next()) is not None:
            index, request = next_one
            if self._played.get(index) == (request.kind, request.step):
                continue  # it was there already when the one before was asked for
            number += 1
            began = time.monotonic()
            try:
                film = self.play(request, f"{index}-{number}")
                self._played[index] = film["kind"], film["step"]
                self._show(index, film)
            except PlayerError as error:
                if not self._stopped:
                    self._explain(index, f"No film of step {request.step:,}: {error}")
            now = time.monotonic()
            self._ready = now + max(self._pause, (now - began) * (1 / SHARE - 1))

    def _next(self) -> tuple[int, Request] | None:
        """Waits until a film may be made: at once if it is the first of its run. Returns None at the end."""
        with self._changed:
            while not self._stopped:
                left = self._ready - time.monotonic()
                allowed = [index for index in self._waiting if left <= 0 or index not in self._begun]
                if allowed:
                    self._begun.add(allowed[0])
                    return allowed[0], self._waiting.pop(allowed[0])
                self._changed.wait(left if self._waiting else None)
            return None

    def play(self, request: Request, name: str) -> dict[str, Any]:
        """Plays an episode. Returns what the page shows of it."""
        asked = request._asdict() | {"folder": os.path.abspath(request.folder), "out": str(self._folder / name)}
        answer = self._ask((json.dumps(asked) + "\n").encode())
        if "error" in answer:
            raise PlayerError(answer["error"])
        file = Path(answer.pop("file"))
        self._files[file.name] = file
        for old in list(self._files)[:-MOST_FILES]:
            self._files.pop(old).unlink(missing_ok=True)
        return {**answer, "video": f"episode/{file.name}"}

    def _ask(self, line: bytes) -> dict[str, Any]:
        """Sends a line to the process, which is started if there is none, and returns its answer."""
        process = self.process
        if process is None or process.poll() is not None:
            process = self._start()
        assert process.stdin and process.stdout
        try:
            process.stdin.write(line)
            process.stdin.flush()
            if not select.select([process.stdout], [], [], PATIENCE)[0]:
                raise PlayerError(f"the episode did not end within {PATIENCE:.0f} s.")
            answer = process.stdout.readline()
        except (OSError, ValueError):
            answer = b""
        except PlayerError:
            self._discard()
            raise
        if not answer.endswith(b"\n"):
            self._discard()
            raise PlayerError("the process that plays it ended unexpectedly.")
        return json.loads(answer)

    def _start(self) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-P", "-c", START, json.dumps(sys.path), json.dumps(self._plugins)]
        environment = os.environ | {"JAX_PLATFORMS": "cpu", "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
        pipe, nowhere = subprocess.PIPE, subprocess.DEVNULL
        with self._changed:
            if self._stopped:
                raise PlayerError("the watcher ends.")
            # A session of its own: Ctrl-C in the terminal is for the watcher, which then ends this process.
            self.process = subprocess.Popen(
                command, stdin=pipe, stdout=pipe, stderr=nowhere, env=environment, start_new_session=True
            )
            return self.process

    def _kill(self) -> None:
        """Kills the process with those that an environment may have started. Any thread may call this."""
        with self._changed:
            process = self.process
        if process is None:
            return
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()

    def _discard(self) -> None:
        """Kills the process and closes its pipes. Only for the thread that uses them, or after its end."""
        self._kill()
        if self.process and self.process.stdin and self.process.stdout:
            with suppress(OSError):  # a line that could not be sent
                self.process.stdin.close()
            self.process.stdout.close()
