"""What covey says when it can't go on: one paragraph that names the value and the remedy."""

import difflib
from collections.abc import Iterable


class CoveyError(Exception):
    """An error that a user can act on. The command line prints it without a traceback."""


class LostProcess(CoveyError):  # noqa: N818  (it says what happened)
    """Another process of a job is gone, so that a tidy end, for which all have to meet, is not to be had."""


class Stopped(KeyboardInterrupt):
    """A run was asked to stop: it has saved, and so have all processes of its job."""


def unknown(kind: str, name: str, known: Iterable[str]) -> CoveyError:
    """The error for a name that is not registered, with the nearest ones that are."""
    known = sorted(known)
    near = difflib.get_close_matches(name, known, n=3, cutoff=0.4)
    hint = f"Did you mean {' or '.join(repr(n) for n in near)}?" if near else f"There are: {', '.join(known)}."
    return CoveyError(f"There is no {kind} called {name!r}. {hint}")


def require(condition: bool, message: str) -> None:
    """Raises a CoveyError unless the condition holds."""
    if not condition:
        raise CoveyError(message)
