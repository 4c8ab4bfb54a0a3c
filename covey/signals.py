"""Handles Ctrl-C, SIGTERM and SIGHUP, also while the main thread is busy outside of Python.

Python runs a signal handler only between two of its own instructions. During a compiled program of a minute, or an
environment that hangs, it has no chance. Therefore the command line starts a thread that is notified of every signal by
the operating system, and that ends the process if the main thread does not respond. Programs that use covey as a
library get no such thread.
"""

import os
import select
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, Protocol

PATIENCE = 2.0
"""Seconds that the main thread has to respond to a signal."""
AGAIN = 0.5
"""Signals within this many seconds of the first count as the same one: a closing terminal session sends several."""
INTERRUPTED = 130
"""The exit code after an interrupt."""
STOPS = tuple(getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name))
"""The signals that stop a run."""

_exit = os._exit  # a copy, because `envs.host.guard` replaces os._exit while an environment runs


def _report_unraisable(lost: "sys.UnraisableHookArgs") -> None:
    """Prints errors that Python can't raise, as it does by default, except a Ctrl-C during garbage collection.

    Python drops that KeyboardInterrupt; the listening thread then ends the process.
    """
    if not issubclass(lost.exc_type, KeyboardInterrupt):
        sys.__unraisablehook__(lost)


class Stoppable(Protocol):
    """Work that saves its results when it is stopped. The listening thread calls these methods."""

    patience: float | None
    """Seconds that the work has to respond to the first signal; None for no limit."""

    def announce(self, number: int) -> None:
        """Tells the user that the signal `number` arrived."""
        ...

    def wait(self) -> None:
        """Waits for operations that must not be interrupted."""
        ...

    def farewell(self) -> None:
        """Tells the user what was saved, before the process ends."""
        ...


class Listener:
    """Receives signals in its own thread, and ends the process if the main thread does not respond.

    Example:
        >>> with LISTENER.listening(), LISTENER.watching(work):
        ...     run()
    """

    def __init__(self) -> None:
        self.work: Stoppable | None = None
        self.active = False
        self._lock = threading.Lock()
        self._answered = False
        self._received = 0
        self._since = 0.0

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Listens in this context. Does nothing outside of the main thread, which alone may handle signals."""
        if self.active or threading.current_thread() is not threading.main_thread():
            yield
            return
        receiver, sender = socket.socketpair()
        sender.setblocking(False)
        before = signal.set_wakeup_fd(sender.fileno(), warn_on_full_buffer=False)
        hook, sys.unraisablehook = sys.unraisablehook, _report_unraisable
        self.active = True
        self._answered = False
        self._received = 0
        threading.Thread(target=self._listen, args=(receiver,), name="covey-signals", daemon=True).start()
        try:
            yield
        finally:
            with self._lock:
                self.active = False
            signal.set_wakeup_fd(before)
            sys.unraisablehook = hook
            sender.close()

    @contextmanager
    def watching(self, work: Stoppable) -> Iterator[None]:
        """Directs signals to this work in this context."""
        self.work = work
        try:
            yield
        finally:
            with self._lock:
                self.work = None

    def answer(self) -> None:
        """Called by the main thread when it responds: it may then take as long as it needs to save."""
        with self._lock:
            self._answered = True

    def _listen(self, receiver: socket.socket) -> None:
        """Runs in the thread until the socket is closed."""
        deadline = None
        with receiver:
            while True:
                left = None if deadline is None else max(0.0, deadline - time.monotonic())
                if not select.select([receiver], [], [], left)[0]:
                    self._leave()
                    deadline = None
                    continue
                numbers = receiver.recv(64)
                if not numbers:
                    return
                if set(numbers) & set(STOPS):
                    deadline = self._signalled(max(numbers), deadline)

    def _signalled(self, number: int, deadline: float | None) -> float | None:
        """Handles a signal. Returns the time by which the main thread must have responded; None for no limit."""
        now = time.monotonic()
        work = self.work
        if self._received and now - self._since < AGAIN:
            return deadline
        self._received += 1
        self._since = now
        if work is None or self._received > 1:
            return now + PATIENCE
        work.announce(number)
        return None if work.patience is None else now + work.patience

    def _leave(self) -> None:
        """Ends the process, unless the main thread has responded or finished the work."""
        if (work := self.work) is not None:
            work.wait()
        with self._lock:
            if not self.active or (self._answered and self._received < 2):
                return
            if work is not None:
                work.farewell()
            for stream in (sys.stdout, sys.stderr):
                with suppress(OSError, ValueError):
                    stream.flush()
            _exit(INTERRUPTED)


LISTENER = Listener()
"""The listener of this process."""


@contextmanager
def signals_to(ask: Callable[[int, Any], None]) -> Iterator[None]:
    """Handles Ctrl-C, SIGTERM and SIGHUP with a function in this context.

    Does nothing outside of the main thread, which alone may handle signals. Signals that are ignored, such as SIGHUP
    under nohup, stay ignored.

    Args:
        ask: Called with the signal's number and the stack frame, as by `signal.signal`.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    handled = [number for number in STOPS if signal.getsignal(number) is not signal.SIG_IGN]
    old = {number: signal.signal(number, ask) for number in handled}
    try:
        yield
    finally:
        for number, handler in old.items():
            signal.signal(number, handler)
