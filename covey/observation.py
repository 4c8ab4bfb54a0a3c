"""The form of observations: one array, or several by name, each with a shape and a dtype."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from covey.errors import CoveyError, require

Obs = Any
"""One observation or many: an array, or a dictionary of arrays by name, as `EnvSpec.observation` says."""
OBS = "obs"
"""The name of an observation that is one array, where parts are listed by name."""
DESCRIPTOR, RETURN = "descriptor", "return"
"""The names of the parts that `covey.envs.Described` adds to an observation."""


@dataclass(frozen=True)
class Part:
    """One array of an observation.

    Args:
        shape: Its shape: (size,) for a vector, (height, width, channels) for an image.
        dtype: `float32`, or `uint8` for images with values from 0 to 255. The replay stores it as it is.
        stack: Frames in an observation: the newest `stack` of them, joined along the last axis, oldest first; at the
            start of an episode the first frame is repeated. The replay stores each frame once.

    Example:
        >>> Part((64, 64, 3), "uint8", stack=3).shown
        (64, 64, 9)
    """

    shape: tuple[int, ...]
    dtype: str = "float32"
    stack: int = 1

    def __post_init__(self) -> None:
        object.__setattr__(self, "shape", tuple(int(size) for size in self.shape))
        object.__setattr__(self, "dtype", str(np.dtype(self.dtype)))
        require(
            len(self.shape) > 0 and min(self.shape) > 0,
            f"The shape of a part of an observation must have positive sizes, not {self.shape}.",
        )
        require(
            self.dtype in ("float32", "uint8"),
            f"A part of an observation must be float32 or uint8, not {self.dtype}.",
        )
        require(self.stack >= 1, f"`stack` must be at least 1, not {self.stack}.")

    @property
    def shown(self) -> tuple[int, ...]:
        """The shape that a policy receives, with all frames."""
        return (*self.shape[:-1], self.shape[-1] * self.stack)

    @property
    def size(self) -> int:
        """Numbers in one frame."""
        return math.prod(self.shape)

    @property
    def is_image(self) -> bool:
        """True for (height, width, channels)."""
        return len(self.shape) == 3

    @property
    def is_row(self) -> bool:
        """True if the replay keeps it among the float32 numbers of a row, and not in an array of its own."""
        return self.dtype == "float32" and self.stack == 1

    def __str__(self) -> str:
        if self.dtype == "float32" and len(self.shape) == 1:
            return f"{self.shown[0]} number{'s' if self.shown[0] > 1 else ''}"
        frames = f", {self.stack} frames of {self.shape[-1]}" if self.stack > 1 else ""
        return f"{self.dtype}{list(self.shown)}{frames}"


Pairs = tuple[tuple[str, Part], ...]


@dataclass(frozen=True)
class Observation:
    """The form of an observation: one array, or a dictionary of arrays.

    Args:
        named: Pairs of name and part, sorted by name. One array is a part with the name "obs".
        is_array: True if an observation is one array, False if it is a dictionary.

    Example:
        >>> Observation.of(3).zeros().shape
        (3,)
        >>> Observation.of({"camera": Part((64, 64, 3), "uint8"), "speed": Part((2,))}).zeros(8)["camera"].shape
        (8, 64, 64, 3)
    """

    named: Pairs
    is_array: bool

    @staticmethod
    def of(given: "int | Part | Mapping[str, Part] | Observation") -> "Observation":
        """Returns the form of an observation from the size of a vector, a part, or parts by name."""
        if isinstance(given, Observation):
            return given
        if isinstance(given, int | np.integer):
            given = Part((int(given),))
        if isinstance(given, Part):
            return Observation(((OBS, given),), is_array=True)
        require(
            isinstance(given, Mapping) and len(given) > 0 and all(isinstance(part, Part) for part in given.values()),
            f"`observation` must be the size of a vector, a Part, or a dictionary of Parts, not {given!r}.",
        )
        return Observation(tuple(sorted((str(name), part) for name, part in given.items())), is_array=False)

    @property
    def parts(self) -> dict[str, Part]:
        """The parts by name, sorted by name."""
        return dict(self.named)

    @property
    def is_vector(self) -> bool:
        """True if an observation is one vector of float32."""
        return self.is_array and len(self.named[0][1].shape) == 1 and self.named[0][1].is_row

    @property
    def size(self) -> int:
        """Numbers in an observation that is a vector; a CoveyError if it is not one."""
        if not self.is_vector:
            raise CoveyError(f"An observation is not a vector here, but: {self}.")
        return self.named[0][1].size

    @property
    def stack(self) -> int:
        """The largest number of frames in a part."""
        return max(part.stack for _, part in self.named)

    @property
    def bytes(self) -> int:
        """Bytes of one observation in the replay: one frame of each part."""
        return sum(part.size * np.dtype(part.dtype).itemsize for _, part in self.named)

    def of_names(self, values: Mapping[str, Any]) -> Obs:
        """Returns values by name of part as an observation is: the only one if it is one array, else a dictionary."""
        return values[OBS] if self.is_array else {name: values[name] for name, _ in self.named}

    def by_name(self, obs: Obs) -> dict[str, Any]:
        """Returns an observation by name of part: the reverse of `of_names`."""
        return {OBS: obs} if self.is_array else {name: obs[name] for name, _ in self.named}

    def zeros(self, *rows: int) -> Obs:
        """Returns observations of zeros with the leading axes `rows`, in NumPy."""
        return self.of_names({name: np.zeros((*rows, *part.shown), part.dtype) for name, part in self.named})

    def rows(self, obs: Obs) -> tuple[int, ...]:
        """Returns the leading axes of observations."""
        name, part = self.named[0]
        shape = np.shape(self.by_name(obs)[name])
        return tuple(shape[: len(shape) - len(part.shape)])

    def __str__(self) -> str:
        if self.is_array:
            return str(self.named[0][1])
        return ", ".join(f"{name} ({part})" for name, part in self.named)
