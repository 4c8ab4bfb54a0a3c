"""How a run stops when it is asked to: it saves first, and says truly what is saved."""

import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from covey.plugins import allowed
from covey.run.console import Reporter
from covey.signals import AGAIN, LISTENER, PATIENCE, signals_to
from covey.storage.store import Store, Writer


def resume_command(path: Path) -> str:
    """The command that resumes a run, with the modules that the user has named."""
    return " ".join(("covey resume", str(path), *(f"--plugin {name}" for name in allowed())))


class Stopping:
    """How a run is stopped: the first signal asks it to save and stop, the second stops it at once.

    So does the first where there is nothing to save: while programs are compiled, and after the end.
    """

    def __init__(self, reporter: Reporter, states: Store, writer: Writer, path: Path, together: bool) -> None:
        """`together`: several processes save the same step, so that each waits until they next meet."""
        self.reporter, self.states, self.writer, self.path = reporter, states, writer, path
        self.patience = None if together else PATIENCE
        self.asked, self.asked_at = False, 0.0
        self._saves = self._is_over = False

    @contextmanager
    def stoppable(self) -> Iterator[None]:
        with signals_to(self._ask), LISTENER.watching(self):
            yield

    @contextmanager
    def saves(self) -> Iterator[None]:
        """Meanwhile, the run looks at `asked` from time to time, answers, and saves."""
        self._saves = True
        try:
            yield
        finally:
            self._saves, self._is_over = False, True

    def answer(self) -> None:
        """Takes from now on the time that it needs to save."""
        LISTENER.answer()

    def _ask(self, number: int, frame: Any) -> None:
        now = time.monotonic()
        if self.asked and now - self.asked_at < AGAIN:
            return
        if not LISTENER.active and not self.asked:
            self.announce(number)
        waits = self._saves or (self.patience is None and not self._is_over)
        if self.asked or not waits:
            raise KeyboardInterrupt
        self.asked, self.asked_at = True, now

    def announce(self, number: int) -> None:
        """Says that a signal was heard; after a SIGHUP, nobody is there to read it."""
        if number == getattr(signal, "SIGHUP", None):
            self.reporter.mute()
        saves = "Stopping: saving first. (Again to stop at once.)"
        self.reporter.say(saves if self._saves else "Stopping.")

    def wait(self) -> None:
        """Waits for a checkpoint that is being written."""
        self.writer.wait()

    def farewell(self) -> None:
        """Says what is kept where the process has to end within a program or an environment."""
        self.reporter.stop()
        self.reporter.say(f"What was under way had not ended {PATIENCE:g} s after the signal, and was dropped.")
        self.say_saved()

    def say_saved(self) -> None:
        """Names the newest complete checkpoint, and how to resume from it."""
        steps = self.states.steps()
        what = f"Saved at step {steps[-1]:,}." if steps else "Stopped before the first checkpoint."
        self.reporter.say(f"{what} Resume with: {resume_command(self.path)}")
