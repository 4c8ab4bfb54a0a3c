"""Watches over the code of an environment in this process: what it raises is named, and so is a call that hangs.

This is the one file of `envs` that may look at the clock and change what `os._exit` does.
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

PATIENCE, LOOK = 60.0, 1.0
"""Seconds after which a call that has not returned is named, and between two looks at the clock."""


class EnvError(CoveyError):
    """A fault of an environment that is already in words."""


class ExitError(SystemExit):
    """An environment called `os._exit`, which would have ended the process without a word."""


class Guard:
    """A context for calls into an environment. It may be entered again and again, and costs under a microsecond.

    An exception, `sys.exit` and `os._exit` become a CoveyError that names the environment. A call that takes longer
    than PATIENCE is reported on the standard error, once.
    """

    def __init__(self, name: str) -> None:
        self.name, self.call = name, ""
        self.since: float | None = None
        self.named: float | None = None
        self._pid, self._exit = os.getpid(), os._exit
        _WATCHDOG.watch(self)

    def calling(self, call: str) -> Self:
        """This guard, for calls of a method by that name."""
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
                f"The environment {self.name} called {how}, which would have ended covey. Remove that call, or give "
                "the environments processes of their own with --workers."
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
        if os.getpid() != self._pid:  # a process that the environment forked, whose end is its own
            self._exit(status)
        raise ExitError(status)


def _misses_values(error: Exception) -> bool:
    """Whether one of Gymnasium's wrappers could not unpack what the environment within it returned."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    module = trace.tb_frame.f_globals.get("__name__", "") if trace else ""
    return isinstance(error, ValueError) and "to unpack" in str(error) and module.startswith("gymnasium.")


class _Watchdog:
    """One thread for all guards of the process, which looks at them now and then."""

    def __init__(self) -> None:
        self._guards: weakref.WeakSet[Guard] = weakref.WeakSet()
        self._lock, self._thread = threading.Lock(), None

    def watch(self, guard: Guard) -> None:
        with self._lock:
            self._guards.add(guard)
            if self._thread is None:
                self._thread = threading.Thread(target=self._look, name="covey-watchdog", daemon=True)
                self._thread.start()

    def _look(self) -> None:
        while True:
            time.sleep(LOOK)
            with self._lock:
                guards = list(self._guards)
            for guard in guards:
                since = guard.since
                if since is not None and since != guard.named and time.monotonic() - since > PATIENCE:
                    guard.named = since
                    sys.stderr.write(
                        f"The environment {guard.name} has not returned from {guard.call}() for {PATIENCE:g} s. "
                        "Ctrl-C stops the run and keeps its last checkpoint; with --workers, an environment that "
                        "hangs is restarted.\n"
                    )
                    sys.stderr.flush()


_WATCHDOG = _Watchdog()
