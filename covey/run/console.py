"""Output of a run: a progress bar in a terminal, plain lines elsewhere."""

import dataclasses
import errno
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO, Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Column

from covey.devices import devices as local_devices
from covey.plots.style import short_number
from covey.run.config_text import differences
from covey.run.presets import flat
from covey.run.program import Program
from covey.storage.folder import RunFolder


class Reporter:
    """Prints to a terminal, or one plain line per event without one. `quiet` prints nothing."""

    def __init__(self, quiet: bool = False, file: IO[str] | None = None) -> None:
        """`file` is printed to instead of the standard output."""
        self.console = Console(quiet=quiet, highlight=False, emoji=False, file=file)
        self.console.soft_wrap = not self.console.is_terminal
        self.live = self.console.is_terminal and not quiet
        self.bar: Progress | None = None
        self.task: Any = None
        self._total = 0
        self._figures: tuple[str, ...] = ()
        self._speeds = (0.0, 0.0)

    def say(self, text: str = "") -> None:
        """Prints a line."""
        try:
            self.console.print(text, markup=False)
        except OSError as error:
            if error.errno != errno.EIO:
                raise
            self.mute()  # the terminal is gone, but the run continues

    def mute(self) -> None:
        """Prints nothing from now on."""
        self.console.quiet = True

    def heading(self, text: str) -> None:
        """Prints a line in bold."""
        self.console.print(text, style="bold", markup=False)

    @contextmanager
    def busy(self, what: str) -> Iterator[None]:
        """Shows what is being done, and prints how long it took."""
        start = time.perf_counter()
        if self.live and self.bar is None:
            with self.console.status(what):
                yield
        else:
            yield
        self.say(f"{what}: {time.perf_counter() - start:.1f} s")

    def start(self, total: int, done: int) -> None:
        """Starts the progress bar."""
        self._total = total
        if self.live:
            columns = (
                BarColumn(bar_width=None),
                TextColumn("{task.description}", table_column=Column(no_wrap=True)),
                TextColumn("ETA"),
                TimeRemainingColumn(compact=True),
            )
            self.bar = Progress(*columns, console=self.console, refresh_per_second=4, expand=True)
            self.task = self.bar.add_task("", total=total, completed=done)
            self.bar.start()

    def update(self, step: int, steps_per_second: float, updates_per_second: float) -> None:
        """Moves the progress bar."""
        self._speeds = (steps_per_second, updates_per_second)
        if self.bar is not None:
            text = self._description(step, *self._speeds)
            self.bar.update(self.task, completed=step, description=text)

    def _description(self, step: int, steps: float, updates: float) -> str:
        """Returns as much as fits on one line beside the bar and the remaining time."""
        first = self._figures[0] if self._figures else ""
        long = f"{step:,} of {self._total:,} steps  {steps:,.0f} steps/s  {updates:,.0f} updates/s"
        done, total, acted, learned = (short_number(x, digits=3) for x in (step, self._total, steps, updates))
        short = f"{done}/{total}  {acted} steps/s  {learned} updates/s"
        shortest = f"{short.removesuffix(' updates/s')} upd/s  {first.removeprefix('return ')}"
        options = ("  ".join((long, *self._figures)), f"{long}  {first}", f"{short}  {first}", shortest)
        return next((text for text in options if len(text) <= self.console.width - 21), shortest)

    def evaluated(self, step: int, figures: tuple[str, ...], steps_per_second: float) -> None:
        """Prints one line per evaluation, and shows the figures beside the bar, the first of them at any width."""
        self._figures = figures
        speed = (f"{steps_per_second:,.0f} steps/s",) if steps_per_second else ()
        self.say(f"step {step:>10,}  {'  '.join((*figures, *speed))}")
        self.update(step, *self._speeds)

    def stop(self) -> None:
        """Removes the progress bar."""
        if self.bar is not None:
            self.bar.stop()
            self.bar = None


def introduce(program: Program, folder: RunFolder, reporter: Reporter, preset: str) -> None:
    """Prints the effective configuration at the start of a run."""
    config = program.config
    steps = program.total * program.block_steps
    reporter.heading(f"{config.algorithm} on {config.env}: {steps:,} steps, {_who(program)}")
    reporter.say(
        f"  environments {config.envs}, updates per step {config.updates_per_step:g}, warm-up "
        f"{program.warmup * program.block_steps:,} steps, replay {config.capacity:,} steps"
    )
    if preset:
        reporter.say(f"  preset for {config.algorithm} on {config.env}: {preset} (--preset off ignores it)")
    chosen = [f"{name} {new}" for name, _, new in differences(type(config.agent)(), config.agent)]
    reporter.say(f"  agent: {', '.join(chosen) or 'all defaults'}")
    hyper = ", ".join(f"{name} {value}" for name, value in flat(dataclasses.asdict(config.hyper)).items())
    reporter.say(f"  hyper-parameters: {hyper}")
    if config.pbt:
        ranges = ", ".join(f"{name} {each.low:g} to {each.high:g}" for name, each in program.space.items())
        replaced = config.pbt.losers(config.members)
        reporter.say(f"  search space: {ranges or 'empty'}")
        reporter.say(
            f"  {len(program.generations)} generations, one every {config.pbt.interval:,} steps; in each, the "
            f"{replaced} worst by {config.fitness} copy one of the {config.pbt.donors(config.members)} best"
        )
    reporter.say(f"  run folder: {folder.path}")


def _who(program: Program) -> str:
    """Describes the members and the devices that they run on."""
    config = program.config
    loop = program.loop
    group = program.group
    platform = local_devices()[0].platform
    last = config.seed + config.members - 1
    devices = platform if loop.devices == 1 else f"{loop.devices} {platform} devices"
    where = devices if group.count == 1 else f"{devices} of each of {group.count} processes"
    where = f"{config.islands} islands" if config.engine == "ray" else where
    if config.members == 1:
        return f"seed {last}, on {where}"
    how = {"map": "one after the other", "vmap": "in lock-step"}[loop.axis]
    who = f"{config.members} members" if config.pbt else f"seeds {config.seed} to {last}"
    return f"{who} {how}, on {where}"
