"""The command that lists runs: `covey runs`."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import tyro

from covey.cli.arguments import parse
from covey.cli.help import width

if TYPE_CHECKING:
    from covey.storage.listing import RunSummary

LEAST = 10
"""The least width of a column that is shortened."""


@dataclass(frozen=True)
class RunsOptions:
    """Lists the runs in a folder, the newest first: agent, task, step, last return with its 95 % interval, speed, and
    state: running, finished, stopped, damaged."""

    folder: tyro.conf.Positional[Path] = Path("runs")
    """The folder of the runs; by default runs."""
    json: bool = False
    """Print JSON, with whole names and what is damaged."""


def runs(arguments: list[str]) -> None:
    from covey.storage.listing import list_runs

    options = parse(RunsOptions, arguments, "runs")
    found = list_runs(options.folder)
    if options.json:
        print(json.dumps([run.as_json() for run in found], indent=2))
    elif not found:
        print(f"There are no runs in {options.folder}. Start one with: covey train td3")
    else:
        print("\n".join(table(found, options.folder, width())))


def table(found: "Sequence[RunSummary]", folder: Path, columns: int) -> list[str]:
    """Returns a line for each run, none wider than `columns`.

    Args:
        found: The runs.
        folder: The folder that they are in; names are relative to it.
        columns: The width.
    """
    rows = [["run", "agent", "task", "step", "return", "steps/s", "state"]]
    rows += [[_name(run, folder), run.agent, run.env, *_numbers(run), run.state] for run in found]
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    spare = columns - sum(widths) - 2 * (len(widths) - 1)
    for i in (2, 0, 4, 1):  # the task is mostly a part of the name
        less = max(0, min(-spare, widths[i] - LEAST))
        widths[i] -= less
        spare += less
    right = (3, 5)
    lines = []
    for row in rows:
        cells = [_shortened(text, widths[i]) for i, text in enumerate(row)]
        padded = [cell.rjust(widths[i]) if i in right else cell.ljust(widths[i]) for i, cell in enumerate(cells)]
        lines.append("  ".join(padded).rstrip()[:columns])
    return lines


def _name(run: "RunSummary", folder: Path) -> str:
    path = Path(run.path)
    name = str(path.relative_to(folder)) if path != folder else path.name
    return "".join(letter if letter.isprintable() else "?" for letter in name)


def _numbers(run: "RunSummary") -> tuple[str, str, str]:
    """Returns step, return and speed as texts."""
    from covey.plots.style import short_number

    step = f"{short_number(run.step, 3)}/{short_number(run.steps, 3)}" if run.steps else ""
    value = "" if run.value is None else f"{run.value:z.4g}"
    if run.low is not None and run.high is not None:
        value += f" ± {(run.high - run.low) / 2:.2g}"
    if run.metric.startswith("skills/"):
        value += " nats"
    speed = "" if run.steps_per_second is None else short_number(run.steps_per_second, 3)
    return step, value, speed


def _shortened(text: str, most: int) -> str:
    """Returns a text with its middle left out if it is too long."""
    if len(text) <= most:
        return text
    start = (most - 1) // 2
    return f"{text[:start]}…{text[len(text) - (most - 1 - start) :]}"
