"""What a user sees while a run goes on: a live bar in a terminal, plain lines elsewhere."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn


class Reporter:
    """Prints to a terminal, or one plain line per event where there is none. `quiet` prints nothing."""

    def __init__(self, quiet: bool = False) -> None:
        self.console = Console(quiet=quiet, highlight=False, soft_wrap=True)
        self.live = self.console.is_terminal and not quiet
        self.bar: Progress | None = None
        self.task: Any = None
        self._total = 0
        self._figures = ""

    def say(self, text: str = "") -> None:
        self.console.print(text, markup=False)

    def heading(self, text: str) -> None:
        self.console.print(text, style="bold", markup=False)

    @contextmanager
    def busy(self, what: str) -> Iterator[None]:
        """Shows what is being done and how long it took."""
        start = time.perf_counter()
        if self.live and self.bar is None:
            with self.console.status(what):
                yield
        else:
            yield
        self.say(f"{what}: {time.perf_counter() - start:.1f} s")

    def start(self, total: int, done: int) -> None:
        self._total = total
        if self.live:
            columns = (
                BarColumn(bar_width=24),
                TextColumn("{task.percentage:>3.0f} %"),
                TextColumn("{task.description}"),
                TimeRemainingColumn(compact=True),
            )
            self.bar = Progress(*columns, console=self.console, refresh_per_second=4)
            self.task = self.bar.add_task("", total=total, completed=done)
            self.bar.start()

    def update(self, step: int, steps_per_second: float, updates_per_second: float) -> None:
        speed = (
            f"{step:,} of {self._total:,} steps  {steps_per_second:,.0f} steps/s  {updates_per_second:,.0f} updates/s"
        )
        if self.bar is not None:
            self.bar.update(self.task, completed=step, description=f"{speed}  {self._figures}")

    def evaluated(self, step: int, figures: str, steps_per_second: float) -> None:
        """One line per evaluation, and the figures beside the bar until the next."""
        self._figures = figures
        speed = f"  {steps_per_second:,.0f} steps/s" if steps_per_second else ""
        self.say(f"step {step:>10,}  {figures}{speed}")

    def stop(self) -> None:
        if self.bar is not None:
            self.bar.stop()
            self.bar = None
