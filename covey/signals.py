"""Ctrl-C, SIGTERM and SIGHUP: heard at once, and obeyed within seconds.

Python answers a signal between two steps of its own. A compiled program of a minute, or an environment that hangs,
gives it no turn. So the command line has a thread that hears of every signal from the operating system, and that ends
the process where the main thread does not answer. A Python program that calls covey has none: its process is its own.
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
"""Seconds that the main thread has to answer a signal."""
AGAIN = 0.5
"""Signals that follow the first within this time are part of it: a session that ends sends several."""
INTERRUPTED = 130
"""The exit code."""
STOPS = tuple(getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name))

_exit = os._exit  # as it is here: while an environment runs, it is another


def _report_lost_error(lost: "sys.UnraisableHookArgs") -> None:
    """Prints an error that Python can't raise, as always; but not a Ctrl-C that came while Python collected garbage.

    That one is lost, and the listening thread ends the process instead.
    """
    if not issubclass(lost.exc_type, KeyboardInterrupt):
        sys.__unraisablehook__(lost)


class Stoppable(Protocol):
    """Work that is to be stopped with care. The listening thread calls these."""

    patience: float | None
    """Seconds that it has to answer the first signal; None for as long as it takes."""

    def announce(self, number: int) -> None:
        """Says that a signal was heard."""
        ...

    def wait(self) -> None:
        """Waits for what must not be cut short."""
        ...

    def farewell(self) -> None:
        """Says what is kept, before the process ends."""
        ...


class Listener:
    """Hears signals though the main thread is busy outside of Python, and ends the process if it does not answer."""

    def __init__(self) -> None:
        self.work: Stoppable | None = None
        self.active = False
        self._lock = threading.Lock()
        self._answered, self._heard, self._since = False, 0, 0.0

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Listens meanwhile, where this is the main thread: no other may."""
        if self.active or threading.current_thread() is not threading.main_thread():
            yield
            return
        ear, mouth = socket.socketpair()
        mouth.setblocking(False)
        before = signal.set_wakeup_fd(mouth.fileno(), warn_on_full_buffer=False)
        hook, sys.unraisablehook = sys.unraisablehook, _report_lost_error
        self.active, self._answered, self._heard = True, False, 0
        threading.Thread(target=self._listen, args=(ear,), name="covey-signals", daemon=True).start()
        try:
            yield
        finally:
            with self._lock:
                self.active = False
            signal.set_wakeup_fd(before)
            sys.unraisablehook = hook
            mouth.close()

    @contextmanager
    def watching(self, work: Stoppable) -> Iterator[None]:
        """Signals are meanwhile for this work."""
        self.work = work
        try:
            yield
        finally:
            with self._lock:
                self.work = None

    def answer(self) -> None:
        """The main thread has heard, and takes the time it needs to save."""
        with self._lock:
            self._answered = True

    def _listen(self, ear: socket.socket) -> None:
        deadline = None
        with ear:
            while True:
                left = None if deadline is None else max(0.0, deadline - time.monotonic())
                if not select.select([ear], [], [], left)[0]:
                    self._leave()
                    deadline = None
                    continue
                numbers = ear.recv(64)
                if not numbers:
                    return
                if set(numbers) & set(STOPS):
                    deadline = self._signalled(max(numbers), deadline)

    def _signalled(self, number: int, deadline: float | None) -> float | None:
        """When the main thread must have answered."""
        now, work = time.monotonic(), self.work
        if self._heard and now - self._since < AGAIN:
            return deadline
        self._heard, self._since = self._heard + 1, now
        if work is None or self._heard > 1:
            return now + PATIENCE
        work.announce(number)
        return None if work.patience is None else now + work.patience

    def _leave(self) -> None:
        """Ends the process, unless the main thread has answered or ended what was to be stopped."""
        if (work := self.work) is not None:
            work.wait()
        with self._lock:
            if not self.active or (self._answered and self._heard < 2):
                return
            if work is not None:
                work.farewell()
            for stream in (sys.stdout, sys.stderr):
                with suppress(OSError, ValueError):
                    stream.flush()
            _exit(INTERRUPTED)


LISTENER = Listener()
"""That of this process."""


@contextmanager
def signals_to(ask: Callable[[int, Any], None]) -> Iterator[None]:
    """Lets a function answer Ctrl-C, SIGTERM and SIGHUP, where this is the main thread: no other may.

    A SIGHUP that is ignored, as under nohup, stays so.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    heard = [number for number in STOPS if signal.getsignal(number) is not signal.SIG_IGN]
    old = {number: signal.signal(number, ask) for number in heard}
    try:
        yield
    finally:
        for number, handler in old.items():
            signal.signal(number, handler)
