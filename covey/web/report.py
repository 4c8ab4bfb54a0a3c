"""Writes the report: the page of runs as one HTML file."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from covey.errors import CoveyError, require
from covey.run.config import read_run_config
from covey.run.run import Run
from covey.storage.atomic import replace_output
from covey.storage.folder import RunFolder, disk_errors
from covey.web.data import run_data
from covey.web.page import render

NAME = "report.html"


def write_report(folders: Sequence[Path], out: Path | None = None, examine: bool = False) -> Path:
    """Writes the page of one or more runs. Several are compared.

    Args:
        folders: The run folders.
        out: The file; by default report.html in a single run folder, or in the current folder.
        examine: Show the findings of the doctor as well, which takes some seconds for each run.

    Returns:
        The file.

    Raises:
        CoveyError: A folder holds no run or a damaged one, or the file can't be written.

    Example:
        >>> write_report([Path("runs/pendulum-td3-0")])
        PosixPath('runs/pendulum-td3-0/report.html')
    """
    require(bool(folders), "Name a run folder, for example: covey report runs/pendulum-td3-0")
    file = out or (folders[0] / NAME if len(folders) == 1 else Path(NAME))
    require(file.suffix == ".html", f"`out` must name an HTML file, for example {file / NAME}, not {file}.")
    page = render([_examined(folder) if examine else run_data(folder) for folder in folders])
    with disk_errors(file.parent):
        replace_output(file, page.encode())
    return file


def _examined(folder: Path) -> dict[str, Any]:
    """Returns the data of a run with the findings of the doctor, or with a note why there are none."""
    found = run_data(folder)
    try:
        place = RunFolder(folder)
        found["doctor"] = [str(each) for each in Run(place, read_run_config(place)).doctor().findings]
    except CoveyError as error:
        found["notes"].append(f"The doctor could not examine the run: {error}")
    return found
