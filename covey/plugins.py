"""The modules that the user has named: covey imports no other one because a file, such as a config.json, names it."""

import importlib
import os
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

from covey.errors import CoveyError, require

SAFE_PATH, OURS = "PYTHONSAFEPATH", "covey"
_NAMED: dict[str, None] = {}


def trust(*modules: str) -> None:
    """Allows these modules, and no others of the same package, to be imported where a file names them."""
    _NAMED.update(dict.fromkeys(module for module in modules if module))


def trusted() -> tuple[str, ...]:
    """The modules that the user has named so far, in order."""
    return tuple(_NAMED)


def module_of(env: str) -> str:
    """The module in `gymnasium:MODULE:NAME`; empty for any other environment."""
    library, _, name = env.partition(":")
    return name.rpartition(":")[0] if library == "gymnasium" else ""


def import_plugins(modules: Iterable[str]) -> None:
    """Imports modules that the user names, and trusts them from now on."""
    require(not isinstance(modules, str), f"plugins must be a list of modules, as in plugins=[{modules!r}].")
    for name in modules:
        trust(name)
        try:
            importlib.import_module(name)
        except CoveyError:
            raise
        except Exception as error:
            raise CoveyError(f"The plugin {name!r} can't be imported: {type(error).__name__}: {error}.") from error


def import_trusted(module: str, env: str) -> ModuleType:
    """The module that an environment's name asks for; an error unless the user has named it."""
    require(
        module in _NAMED,
        f"The environment {env} is in the Python module {module!r}, and covey imports no module because a run folder "
        f"or a --config file names it. If you trust it, add --plugin {module} to the command, or in Python "
        f"covey.load(path, plugins=[{module!r}]).",
    )
    try:
        return importlib.import_module(module)
    except Exception as error:
        raise CoveyError(f"The module {module!r} can't be imported: {type(error).__name__}: {error}.") from error


def use_current_folder() -> None:
    """Lets modules be found in the current folder too, after all installed packages."""
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.append(here)


@contextmanager
def starting_python() -> Iterator[None]:
    """Keeps a Python process that is started meanwhile from finding its first modules in the current folder."""
    if not os.environ.get(SAFE_PATH):
        os.environ[SAFE_PATH] = OURS
    try:
        yield
    finally:
        started_python()


def started_python() -> None:
    """What `starting_python` has set is not for the processes that an environment starts."""
    if os.environ.get(SAFE_PATH) == OURS:
        del os.environ[SAFE_PATH]
