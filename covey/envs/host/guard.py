"""Guards calls into an environment's code in this process: errors name the environment, and hanging calls are reported.

This is the only file of `envs` that uses the clock and replaces `os._exit`.
"""

import os
import sys
import threading
import time
import traceback
import weakref
from types import TracebackType
from typing import NoReturn, Self

from covey.errors import CoveyError

PATIENCE = 60.0
"""Seconds after which a call that has not returned is reported."""
INTERVAL = 1.0
"""Seconds between two checks for such calls."""


class EnvError(CoveyError):
    """A fault of an environment whose message is already complete: the guard adds no traceback."""


class ExitError(SystemExit):
    """An environment called `os._exit`, which would have ended the process without a message."""


class Guard:
    """A reusable context for calls into an environment. Entering and leaving it takes under a microsecond.

    Exceptions, `sys.exit` and `os._exit` become a CoveyError that names the environment. A call that takes longer than
    PATIENCE is reported once on standard error.

    Args:
        name: The environment's full name.

    Example:
        >>> guard = Guard("gymnasium:Hopper-v5")
        >>> with guard.calling("step"):
        ...     env.step(action)
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.call = ""
        self.since: float | None = None
        self.reported: float | None = None
        self._pid = os.getpid()
        self._exit = os._exit
        _WATCHDOG.watch(self)

    def calling(self, call: str) -> Self:
        """Returns this guard, for calls of the method `call`."""
        self.call = call
        return self

    def __enter__(self) -> Self:
        self._exit = os._exit
        os._exit = self._refuse_exit
        self.since = time.monotonic()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.since = None
        os._exit = self._exit
        if isinstance(error, SystemExit):
            how = f"os._exit({error})" if isinstance(error, ExitError) else f"sys.exit({error})"
            raise CoveyError(
                f"The environment {self.name} called {how}, which would have ended covey. Remove that call, or run "
                "the environments in worker processes (`workers`)."
            ) from error
        if isinstance(error, Exception) and not isinstance(error, EnvError):
            if _misses_values(error):
                raise EnvError(
                    f"The environment {self.name} returned a tuple of another length than Gymnasium's: step must "
                    f"return (obs, reward, terminated, truncated, info), reset (obs, info). ({error})"
                ) from error
            text = "".join(traceback.format_exception(error)).rstrip()
            raise CoveyError(f"The environment {self.name} failed:\n{text}") from error

    def _refuse_exit(self, status: int) -> NoReturn:
        if os.getpid() != self._pid:  # in a process that the environment forked, exiting is fine
            self._exit(status)
        raise ExitError(status)


def _misses_values(error: Exception) -> bool:
    """Returns whether one of Gymnasium's wrappers failed to unpack the return value of the environment inside it."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    module = trace.tb_frame.f_globals.get("__name__", "") if trace else ""
    return isinstance(error, ValueError) and "to unpack" in str(error) and module.startswith("gymnasium.")


class _Watchdog:
    """Reports hanging calls. One thread checks all guards of the process."""

    def __init__(self) -> None:
        self._guards: weakref.WeakSet[Guard] = weakref.WeakSet()
        self._lock = threading.Lock()
        self._thread = None

    def watch(self, guard: Guard) -> None:
        with self._lock:
            self._guards.add(guard)
            if self._thread is None:
                self._thread = threading.Thread(target=self._look, name="covey-watchdog", daemon=True)
                self._thread.start()

    def _look(self) -> None:
        while True:
            time.sleep(INTERVAL)
            with self._lock:
                guards = list(self._guards)
            for guard in guards:
                since = guard.since
                if since is not None and since != guard.reported and time.monotonic() - since > PATIENCE:
                    guard.reported = since
                    sys.stderr.write(
                        f"The environment {guard.name} has not returned from {guard.call}() for {PATIENCE:g} s. "
                        "Ctrl-C stops the run and keeps its last checkpoint. With worker processes (`workers`), an "
                        "environment that hangs is restarted.\n"
                    )
                    sys.stderr.flush()


_WATCHDOG = _Watchdog()
