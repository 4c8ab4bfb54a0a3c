"""How a run stops on a signal: it saves first, and reports what is saved."""

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
    """Returns the command that resumes a run, with the plugins that the user has named."""
    return " ".join(("covey resume", str(path), *(f"--plugin {name}" for name in allowed())))


class Stopping:
    """Stops a run: the first signal asks it to save and stop, the second stops it at once.

    The first also stops it at once while there is nothing to save: during compilation, and after the end.
    """

    def __init__(self, reporter: Reporter, states: Store, writer: Writer, path: Path, together: bool) -> None:
        """With `together`, several processes must save the same step, so each waits until they next communicate."""
        self.reporter = reporter
        self.states = states
        self.writer = writer
        self.path = path
        self.patience = None if together else PATIENCE
        self.asked = False
        self.asked_at = 0.0
        self._saves = False
        self._is_over = False

    @contextmanager
    def stoppable(self) -> Iterator[None]:
        """Handles signals in this block."""
        with signals_to(self._ask), LISTENER.watching(self):
            yield

    @contextmanager
    def saves(self) -> Iterator[None]:
        """In this block the run polls `asked`, answers, and saves."""
        self._saves = True
        try:
            yield
        finally:
            self._saves, self._is_over = False, True

    def answer(self) -> None:
        """Tells the listening thread that the run is saving, which may take its time."""
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
        """Reports a signal; after a SIGHUP there is no terminal to print to."""
        if number == getattr(signal, "SIGHUP", None):
            self.reporter.mute()
        saves = "Stopping: saving first. (Again to stop at once.)"
        self.reporter.say(saves if self._saves else "Stopping.")

    def wait(self) -> None:
        """Waits for a checkpoint that is being written."""
        self.writer.wait()

    def farewell(self) -> None:
        """Reports what is kept when the process has to end inside a program or an environment."""
        self.reporter.stop()
        self.reporter.say(f"The current computation did not end within {PATIENCE:g} s of the signal: abandoned.")
        self.say_saved()

    def say_saved(self) -> None:
        """Prints the newest complete checkpoint, and the command that resumes from it."""
        steps = self.states.steps()
        what = f"Saved at step {steps[-1]:,}." if steps else "Stopped before the first checkpoint."
        self.reporter.say(f"{what} Resume with: {resume_command(self.path)}")
