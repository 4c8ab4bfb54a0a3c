"""The plug-ins that a run was trained with, for the error of a command that lacks them."""

import shlex
from pathlib import Path

from covey import plugins

FILE = "environment.txt"
LINE = "plugins: "


def plugin_note(arguments: list[str]) -> str:
    """Returns how to repeat a command with the plug-ins that its run folder notes, if it was given without them.

    The folder only provides names. Nothing is imported unless the user types them.

    Args:
        arguments: The command line.
    """
    noted = {name for text in arguments if not text.startswith("-") for name in noted_plugins(Path(text))}
    missing = sorted(noted - set(plugins.allowed()))
    if not missing:
        return ""
    flags = [part for name in missing for part in ("--plugin", name)]
    modules = " and ".join(missing)
    command = shlex.join(["covey", *flags, *arguments])
    return f"\nThe run was trained with {modules}. If you trust that code:\n  {command}"


def noted_plugins(folder: Path) -> list[str]:
    """Returns the modules that a run folder notes. Texts that are no names of modules are left out."""
    try:
        lines = (folder / FILE).read_text(encoding="utf-8", errors="replace").splitlines()
    except (OSError, ValueError):
        return []
    names = [name for line in lines if line.startswith(LINE) for name in line.removeprefix(LINE).split()]
    return [name for name in names if all(part.isidentifier() for part in name.split("."))]
