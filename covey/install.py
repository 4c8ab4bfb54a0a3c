"""The command that installs an extra of covey for this interpreter."""

import json
import re
import shlex
import sys
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path
from urllib.parse import urlsplit
from urllib.request import url2pathname


def install_command(extra: str) -> str:
    """Returns the command that installs an extra, to be typed as it is.

    From a clone it names the clone and its constraints. From a wheel, which no package index has, it names the packages
    of the extra.

    Args:
        extra: The name of the extra, such as `mujoco`.

    Example:
        >>> install_command("video")
        ".venv/bin/python -m pip install -c constraints.txt -e '.[video]'"
    """
    pip = [sys.executable or "python3", "-m", "pip", "install"]
    try:
        found = distribution("covey")
    except PackageNotFoundError:  # the source alone, on the module search path
        return shlex.join([*pip, *_clone(Path(__file__).resolve().parent.parent, extra, editable=True)])
    folder, editable = _source(found)
    if folder is not None and (folder / "pyproject.toml").is_file():
        return shlex.join([*pip, *_clone(folder, extra, editable)])
    return shlex.join([*pip, *(requirements(found, extra) or [f"covey[{extra}]"])])


def requirements(found: Distribution, extra: str) -> list[str]:
    """Returns the packages that an extra of an installed distribution requires."""
    of_extra = re.compile(rf"""extra\s*==\s*['"]{re.escape(extra)}['"]""")
    parts = [text.partition(";") for text in found.requires or ()]
    return [name.strip() for name, _, marker in parts if of_extra.search(marker)]


def _source(found: Distribution) -> tuple[Path | None, bool]:
    """Returns the folder that a distribution was installed from, if it was one, and whether it is a link to it."""
    origin = json.loads(found.read_text("direct_url.json") or "{}")
    if "dir_info" not in origin:
        return None, False
    return Path(url2pathname(urlsplit(origin["url"]).path)), origin["dir_info"].get("editable", False)


def _clone(folder: Path, extra: str, editable: bool) -> list[str]:
    here = folder == Path.cwd()
    constraints = folder / "constraints.txt"
    pinned = ["-c", constraints.name if here else str(constraints)] if constraints.is_file() else []
    return [*pinned, *(["-e"] if editable else []), f"{'.' if here else folder}[{extra}]"]
