"""Writes the report: the page of runs as one HTML file."""

from collections.abc import Sequence
from pathlib import Path

from covey.errors import require
from covey.storage.atomic import replace_output
from covey.storage.folder import disk_errors
from covey.web.data import run_data
from covey.web.page import render

NAME = "report.html"


def write_report(folders: Sequence[Path], out: Path | None = None) -> Path:
    """Writes the page of one or more runs. Several are compared.

    Args:
        folders: The run folders.
        out: The file; by default report.html in a single run folder, or in the current folder.

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
    page = render([run_data(folder) for folder in folders])
    with disk_errors(file.parent):
        replace_output(file, page.encode())
    return file
