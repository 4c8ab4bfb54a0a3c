"""Which Python modules covey may import because an environment's name contains them.

`gymnasium:MODULE:NAME` is a name that makes covey import code, and so is that of a wrapper or of the function of a
descriptor, `MODULE:NAME`. Only the user may cause that, by naming the module: with `--plugin`; with a typed `--env`,
`--wrappers` or `--env-descriptor` on the command line; or in a call of `covey.train`, `covey.load` or
`covey.envs.make`. A name that covey reads from a file, such as the config.json of a run folder, never does
(SECURITY.md).
"""

import importlib
import os
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

from covey.errors import CoveyError, require

SAFE_PATH = "PYTHONSAFEPATH"
SET_BY_COVEY = "covey"
"""The value of PYTHONSAFEPATH that tells covey's setting from the user's."""
HARMLESS = ("gymnasium.wrappers",)
"""Modules that a run folder may name."""
SOURCES = ("info", "obs", "qpos")
"""Sources of a descriptor that are no modules (`covey.envs.host.descriptor`)."""
_ALLOWED: dict[str, None] = {}


def allow(*modules: str) -> None:
    """Allows modules to be imported. The names must be exact: a package does not include its submodules.

    Args:
        *modules: Dotted names; empty ones are ignored.

    Example:
        >>> covey.plugins.allow("my_robots.envs")
    """
    _ALLOWED.update(dict.fromkeys(module for module in modules if module))


def allowed() -> tuple[str, ...]:
    """Returns the modules that the user has named so far, in that order."""
    return tuple(_ALLOWED)


def module_of(env: str) -> str:
    """Returns MODULE of `gymnasium:MODULE:NAME`, and "" for any other environment."""
    prefix, _, name = env.partition(":")
    return name.rpartition(":")[0] if prefix == "gymnasium" else ""


def module_of_wrapper(wrapper: str) -> str:
    """Returns MODULE of the wrapper `MODULE:NAME`, and "" for Gymnasium's own."""
    module = wrapper.rpartition(":")[0]
    return "" if module in HARMLESS else module


def module_of_source(source: str) -> str:
    """Returns MODULE of a source of a descriptor, `MODULE:FUNCTION`, and "" for any other source."""
    module = source.rpartition("=")[2].rpartition(":")[0]
    return "" if module.partition(":")[0] in SOURCES else module


def import_plugins(modules: Iterable[str]) -> None:
    """Allows modules and imports them.

    Args:
        modules: Dotted names of modules, which register environments, agents or networks when they are imported.
    """
    require(not isinstance(modules, str), f"plugins must be a list of modules, as in plugins=[{modules!r}].")
    for name in modules:
        allow(name)
        try:
            importlib.import_module(name)
        except CoveyError:
            raise
        except Exception as error:
            raise CoveyError(f"The plugin {name!r} can't be imported: {type(error).__name__}: {error}.") from error


def import_allowed(module: str, what: str) -> ModuleType:
    """Imports the module in the name of an environment or a wrapper.

    Args:
        module: The dotted name of the module.
        what: The environment or the wrapper, for the error message: `The environment gymnasium:MODULE:NAME`.

    Returns:
        The module. Raises a CoveyError if the user has not named it.
    """
    require(
        module in _ALLOWED or module in HARMLESS,
        f"{what} is in the Python module {module!r}, and covey imports no module because a run folder "
        f"or a --config file names it. If you trust it, add --plugin {module} to the command, or in Python "
        f"covey.load(path, plugins=[{module!r}]).",
    )
    try:
        return importlib.import_module(module)
    except Exception as error:
        raise CoveyError(f"The module {module!r} can't be imported: {type(error).__name__}: {error}.") from error


def append_current_folder() -> None:
    """Appends the current folder to the module search path, after all installed packages."""
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.append(here)


@contextmanager
def safe_path() -> Iterator[None]:
    """Python processes started in this context don't search the current folder for their first modules."""
    if not os.environ.get(SAFE_PATH):
        os.environ[SAFE_PATH] = SET_BY_COVEY
    try:
        yield
    finally:
        unset_safe_path()


def unset_safe_path() -> None:
    """Undoes `safe_path`, also in the process that it started: an environment's own subprocesses don't inherit it."""
    if os.environ.get(SAFE_PATH) == SET_BY_COVEY:
        del os.environ[SAFE_PATH]
