"""The numbers of an observation that the policy and the models of skills receive."""

from collections.abc import Mapping
from typing import Any, NamedTuple, Protocol

import numpy as np

from covey.envs.described import own_observation
from covey.errors import CoveyError, require, unknown
from covey.observation import DESCRIPTOR, OBS, Obs
from covey.types import EnvSpec


class Choice(Protocol):
    """The options of skills that choose the descriptor (see `Skills`)."""

    @property
    def descriptor(self) -> tuple[str, ...]: ...

    @property
    def hide_descriptor(self) -> bool: ...


class View(NamedTuple):
    """The numbers of an observation that the policy and the models of skills receive.

    Args:
        policy: Coordinates of the part "obs" that the policy receives; empty if that is not a vector. The policy
            receives the environment's other parts as they are.
        part: The part that holds the descriptor of skills: "descriptor" or "obs".
        descriptor: Coordinates of the descriptor in that part.
        position: For each coordinate of the descriptor, whether it is a position.
    """

    policy: tuple[int, ...]
    part: str
    descriptor: tuple[int, ...]
    position: tuple[bool, ...]

    def of(self, obs: Obs) -> Any:
        """Returns the descriptors [..., D] of observations [...], in NumPy or JAX.

        Raises a CoveyError if the observations lack the part, because they are the environment's own.
        """
        parts = obs if isinstance(obs, Mapping) else {OBS: obs}
        require(
            self.part in parts,
            f"Skills differ in the descriptor, and the observation has no part {self.part!r}: wrap the environment in "
            "Described(env).",
        )
        return parts[self.part][..., np.array(self.descriptor)]


def view(skills: Choice, spec: EnvSpec) -> View:
    """Returns what the policy and the models of skills receive of an observation.

    Args:
        skills: The options of skills.
        spec: The spec of the environment.

    Returns:
        The view. Raises a CoveyError if the environment does not have the chosen descriptor.

    Example:
        >>> view(Skills(), Described(covey.envs.make("point-free")).spec)
        View(policy=(2, 3), part='descriptor', descriptor=(0, 1), position=(True, True))
    """
    size = vector_size(spec)
    own = spec.descriptor
    chosen = skills.descriptor
    in_obs = chosen == ("observation",) or (bool(chosen) and all(text.isdecimal() for text in chosen))
    descriptor = _numbered(skills, spec, size) if in_obs else _named(skills, spec, size)
    require(len(set(descriptor)) == len(descriptor), f"`descriptor` names a coordinate twice: {chosen}.", skills)
    # A position is found in the descriptor, and in the observation itself if the environment says where.
    is_position = own is not None and own.is_position
    twins = dict(zip(own.coordinates, range(own.size), strict=True)) if own and is_position and own.coordinates else {}
    position = tuple(i in twins if in_obs else is_position for i in descriptor)
    hidden = {i for i, twin in twins.items() if (i if in_obs else twin) in descriptor}
    policy = tuple(i for i in range(size) if not (skills.hide_descriptor and i in hidden))
    return View(policy, OBS if in_obs else DESCRIPTOR, descriptor, position)


def vector_size(spec: EnvSpec) -> int:
    """Returns the size of the environment's part "obs"; 0 if it has none, or if that is not a vector."""
    part = own_observation(spec).parts.get(OBS)
    return part.size if part and part.is_row and len(part.shape) == 1 else 0


def _remedy(size: int) -> str:
    """Returns what to do about a descriptor that is not there, by the size of the vector in the observation."""
    coordinates = "coordinates of the observation, as in `descriptor` 0 1, or all of them: `descriptor` observation"
    if size:
        return f"Choose {coordinates}. A Gymnasium environment gets a descriptor with `env_descriptor`."
    return "Leave `descriptor` empty, and give the environment a descriptor: in its spec, or with `env_descriptor`."


def _numbered(skills: Choice, spec: EnvSpec, size: int) -> tuple[int, ...]:
    """Returns the chosen coordinates of the observation."""
    require(
        size > 0,
        f"Skills can't differ in the observation, which is not a vector: {own_observation(spec)}. {_remedy(size)}",
        skills,
    )
    if skills.descriptor == ("observation",):
        return tuple(range(size))
    numbers = tuple(int(text) for text in skills.descriptor)
    beyond = [i for i in numbers if i >= size]
    require(
        not beyond,
        f"`descriptor` names coordinate {''.join(map(str, beyond[:1]))} of an observation that has {size}: choose "
        f"from 0 to {size - 1}.",
        skills,
    )
    return numbers


def _named(skills: Choice, spec: EnvSpec, size: int) -> tuple[int, ...]:
    """Returns the named coordinates of the environment's own descriptor; all of them if none is named."""
    remedy = _remedy(size)
    chosen = skills.descriptor
    own = spec.descriptor
    if own is None:
        require(bool(chosen), f"This environment has no state descriptor for skills to differ in. {remedy}", skills)
        raise unknown("descriptor", chosen[0], ["observation"])
    require(spec.described, f"Wrap the environment in Described(env), which adds the descriptor. {remedy}", skills)
    for name in chosen:
        if name not in own.names:
            error = unknown("coordinate of the descriptor", name, own.names)
            raise CoveyError(f"{error} {remedy}", type(skills))
    return tuple(own.names.index(name) for name in chosen or own.names)
