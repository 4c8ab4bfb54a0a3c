"""Says how each part of an observation will be used, and warns about images that will probably be misread."""

from collections.abc import Iterator
from typing import Any, Protocol, runtime_checkable

import numpy as np

from covey.envs.host.parts import Leaf
from covey.envs.rules import Finding, Probe
from covey.envs.stack import StackedHost
from covey.observation import Part
from covey.types import EnvSpec

SMALL = 16
"""Images with a side below this many pixels have too few for a convolutional encoder."""
FEW = 4
"""An axis of an image with at most this many entries is probably that of its channels."""


@runtime_checkable
class FromSpaces(Protocol):
    """A host environment whose observations were made from Gymnasium's spaces."""

    @property
    def leaves(self) -> tuple[Leaf, ...]: ...


def check_parts(spec: EnvSpec, probe: Probe, env: Any) -> Iterator[Finding]:
    """Describes each part of the observation.

    Args:
        spec: The environment's spec.
        probe: Some episodes of it.
        env: The environment, which may know how its observations were converted (`leaves_inside`).

    Yields:
        One `Finding` per part.
    """
    leaves = leaves_inside(env)
    values = spec.observation.by_name(probe.outcome.obs)
    for name, part in spec.observation.named:
        rule = "observation" if spec.observation.is_array else f"observation {name}"
        leaf = leaves.get(name)
        warning = _warning(part, leaf, values[name])
        text = _treatment(part, leaf)
        yield Finding(rule, remark=text, warning=f"{text}. {warning}" if warning else "")


def check_form(start: Any, found: Any, spec: EnvSpec, count: tuple[int, ...]) -> str:
    """Returns what is wrong with the form of a host environment's observations; empty if they match its spec.

    Args:
        start: The first observations [N, ...].
        found: Those of all steps [T, N, ...].
        spec: The environment's spec.
        count: T and N.
    """
    form = spec.observation
    for what, obs, rows in (("observation of reset", start, count[1:]), ("observation", found, count)):
        if isinstance(obs, dict) == form.is_array or (isinstance(obs, dict) and obs.keys() != form.parts.keys()):
            wanted = "one array" if form.is_array else f"a dictionary with {', '.join(form.parts)}"
            return f"the {what} must be {wanted}."
        for name, x in form.by_name(obs).items():
            part = form.parts[name]
            shape = (*rows, *part.shown)
            if x.shape != shape or x.dtype != part.dtype:
                which = what if form.is_array else f"{what} {name}"
                return f"the {which} is {x.dtype}{list(x.shape)} and must be {part.dtype}{list(shape)}."
    return ""


def observation_text(spec: EnvSpec) -> str:
    """Returns the size of an observation in a few words: `3 observations`, or the parts."""
    form = spec.observation
    return f"{form.size} observations" if form.is_vector else f"observation {form}"


def leaves_inside(env: Any) -> dict[str, Leaf]:
    """Returns the spaces from which the parts of a host environment were made, by name of part, if they are known."""
    inner = env.env if isinstance(env, StackedHost) else env
    return {leaf.name: leaf for leaf in inner.leaves} if isinstance(inner, FromSpaces) else {}


def _treatment(part: Part, leaf: Leaf | None) -> str:
    if not part.is_image:
        note = leaf.note if leaf else ""
        count = "1 number" if part.size == 1 else f"{part.size} numbers"
        return f"{count}, {note}" if note else f"a vector of {count}, used as it is"
    height, width, channels = part.shape
    frames = f", the newest {part.stack} frames stacked" if part.stack > 1 else ""
    scaled = ", scaled by 1/255" if part.dtype == "uint8" else ", used as it is"
    size = f"{height} x {width} pixels with {channels} channels, {part.dtype}"
    return f"an image of {size}{frames}{scaled}, read by a convolutional encoder"


def _warning(part: Part, leaf: Leaf | None, values: Any) -> str:
    """Returns why an image, or what could be one, will probably be misread; empty if nothing looks wrong."""
    if not part.is_image:
        if leaf is None or not leaf.is_flattened_image:
            return ""
        return (
            f"If {leaf.space.dtype}{list(leaf.space.shape)} is an image, give it the shape (height, width, channels): "
            "otherwise it is flattened, and an MLP learns badly from pixels"
        )
    height, width, channels = part.shape
    if height <= FEW < channels:
        return (
            f"It looks like channels first: the shape must be (height, width, channels), here probably "
            f"({width}, {channels}, {height})"
        )
    if min(height, width) < SMALL:
        return f"It is smaller than {SMALL} pixels, which is little for a convolutional encoder"
    if part.dtype == "float32":
        low, high = float(np.min(values)), float(np.max(values))
        if low < 0.0 or high > 1.0:
            return f"Its values go from {low:.3g} to {high:.3g}: scale them to [0, 1], or use uint8"
    return ""
