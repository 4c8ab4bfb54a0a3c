"""Errors that a user can act on. A message names the value, what is allowed, and the remedy.

Messages name options as fields in backticks: `batch_size`, `critics.number`. The command line turns them into flags
with their full path (`--agent.sac.batch-size`), because only there is it known where a configuration is mounted.
"""

import difflib
from collections.abc import Iterable


class CoveyError(Exception):
    """An error that a user can act on. The command line prints it without a traceback.

    Args:
        message: One or two sentences. Options are fields in backticks.
        owner: The configuration type that the fields belong to; None for those of a whole run (`RunConfig`).
    """

    exit_code = 1

    def __init__(self, message: str, owner: type | None = None) -> None:
        super().__init__(message)
        self.owner = owner


class LostProcess(CoveyError):  # noqa: N818  (it says what happened)
    """Another process of this job died. A clean shutdown needs all processes, so it is impossible."""


class Stopped(KeyboardInterrupt):
    """A run was asked to stop: it has saved, and so have all processes of its job."""


def unknown(kind: str, name: str, known: Iterable[str]) -> CoveyError:
    """Returns the error for a name that is not registered, with the nearest names that are."""
    known = sorted(known)
    near = difflib.get_close_matches(name, known, n=3, cutoff=0.4)
    hint = f"Did you mean {' or '.join(repr(n) for n in near)}?" if near else f"There are: {', '.join(known)}."
    return CoveyError(f"There is no {kind} called {name!r}. {hint}")


def require(condition: bool, message: str, owner: object = None) -> None:
    """Raises a CoveyError unless the condition holds.

    Args:
        condition: What must hold.
        message: The error message (see `CoveyError`).
        owner: The configuration object whose fields the message names.
    """
    if not condition:
        raise CoveyError(message, None if owner is None else type(owner))


def require_at_least(owner: object, least: int, *names: str) -> None:
    """Raises a CoveyError unless each of the named fields of a configuration is at least `least`."""
    for name in names:
        value = getattr(owner, name)
        require(value >= least, f"`{name}` must be at least {least}, not {value:g}.", owner)
