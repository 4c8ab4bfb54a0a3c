"""Names of the inputs of an exported file. Imports nothing but the standard library."""

import re
from collections.abc import Iterable
from typing import Any

OBS = "obs"
RESERVED = re.compile(r"[vct]\d+|k[a-z]\d_.*|action|key|(obs|memory|noise)\..*")
"""Names of other arrays in a file."""


def input_name(part: str) -> str:
    """Returns the name of the input for a part of an observation: that of the part, unless the file needs it itself.

    Example:
        >>> input_name("camera"), input_name("action")
        ('camera', 'obs.action')
    """
    return f"obs.{part}" if RESERVED.fullmatch(part) else part


def observation_parts(about: dict[str, Any]) -> list[dict[str, Any]]:
    """Returns the descriptions of the parts of an observation in a contract, also if it is one array."""
    found = about["observation"]
    return [found] if isinstance(found, dict) else found


def c_name(name: str) -> str:
    """Returns the C name of a memory (`memory.age` is `age`) or a noise (`noise.0` is `noise_0`)."""
    return re.sub(r"\W", "_", name.removeprefix("memory."))


def c_input_names(names: Iterable[str]) -> dict[str, str]:
    """Returns the C name of each input for an observation: `obs`, or `obs_` and the name of the part.

    Two names that differ only in case or in signs that C does not allow get numbers.

    Example:
        >>> c_input_names(["camera", "a/b", "A.b"])
        {'camera': 'obs_camera', 'a/b': 'obs_a_b', 'A.b': 'obs_A_b_2'}
    """
    found: dict[str, str] = {}
    taken: set[str] = set()
    for name in names:
        own = OBS if name == OBS else "obs_" + re.sub(r"[^0-9A-Za-z_]", "_", name.removeprefix("obs."))
        base, number = own, 1
        while own.upper() in taken:
            number += 1
            own = f"{base}_{number}"
        taken.add(own.upper())
        found[name] = own
    return found
