"""Reads observations that a program gives to a policy: an array or a dictionary, of one environment or of many."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from covey.errors import CoveyError, require
from covey.observation import OBS, Observation, Pairs, Part


@dataclass(frozen=True)
class Inputs:
    """The observations that a policy takes. It checks them, and converts each part to its dtype.

    A float32 part takes any numbers. A uint8 part takes whole numbers from 0 to 255 of any integer dtype. Floats are an
    error there: an image that was scaled to [0, 1] would be taken for a black one.

    Args:
        named: Pairs of name and part that the policy needs; `shape` is the whole shape, with all frames.
        ignored: Names of parts that may be given too, and are not used.
        finite: True if infinities are errors. NaN always is one.
        any_rows: True if observations may have any leading axes; otherwise none or one.

    Example:
        >>> Inputs.of(Observation.of(3)).read([0.0, 1.0, 2.0])
        ([array([0., 1., 2.], dtype=float32)], ())
    """

    named: Pairs
    ignored: tuple[str, ...] = ()
    finite: bool = False
    any_rows: bool = False

    @staticmethod
    def of(
        form: Observation, used: Sequence[str] | None = None, *, finite: bool = False, any_rows: bool = False
    ) -> "Inputs":
        """Returns the inputs of a policy that uses some parts of an observation, by default all of them."""
        names = tuple(form.parts) if used is None else tuple(used)
        named = tuple((name, Part(form.parts[name].shown, form.parts[name].dtype)) for name in names)
        return Inputs(named, tuple(name for name in form.parts if name not in names), finite, any_rows)

    def read(self, obs: Any) -> tuple[list[np.ndarray], tuple[int, ...]]:
        """Reads observations.

        Args:
            obs: A dictionary of arrays by name of part. An array alone is enough if the policy needs one part.

        Returns:
            The arrays [*rows, ...] in the order of `named`, and their leading axes `rows`.

        Raises:
            CoveyError: A part is missing or unknown, has a wrong shape or dtype, or holds NaN.
        """
        if len(self.named) == 1 and not isinstance(obs, Mapping):
            name, part = self.named[0]
            array = self._array(name, part, obs)
            return [array], self._rows(name, part, array)
        self._check_names(obs)
        arrays = [self._array(name, part, obs[name]) for name, part in self.named]
        rows = [self._rows(name, part, x) for (name, part), x in zip(self.named, arrays, strict=True)]
        if any(each != rows[0] for each in rows):
            shapes = ", ".join(f"{name} {x.shape}" for (name, _), x in zip(self.named, arrays, strict=True))
            raise CoveyError(f"The parts of an observation must have the same number of rows, not: {shapes}.")
        return arrays, rows[0]

    def _check_names(self, obs: Any) -> None:
        """Raises an error if parts are missing or unknown."""
        expected = ", ".join(f"{name} ({part})" for name, part in self.named)
        if not isinstance(obs, Mapping):
            raise CoveyError(f"An observation is a dictionary with the parts {expected} here, not {_kind(obs)}.")
        for name, _ in self.named:
            require(name in obs, f"The observation lacks the part {name!r}. The policy needs: {expected}.")
        for name in obs:
            known = name in self.ignored or any(name == each for each, _ in self.named)
            require(known, f"The observation has an unknown part {name!r}. The policy needs: {expected}.")

    def _array(self, name: str, part: Part, given: Any) -> np.ndarray:
        """Returns one part as an array of its dtype."""
        try:
            if part.dtype == "float32":
                return self._checked(name, np.asarray(given, np.float32))
            array = np.asarray(given)
        except (TypeError, ValueError) as error:
            raise CoveyError(f"{_named(name)} must be an array of numbers: {error}.") from None
        if array.dtype == np.uint8:
            return array
        require(
            array.dtype.kind in "iu",
            f"{_named(name)} must be uint8, with values from 0 to 255, not {array.dtype}. Multiply values from 0 to 1 "
            "by 255, round them, and convert them with `.astype(np.uint8)`.",
        )
        fits = array.size == 0 or (array.min() >= 0 and array.max() <= 255)
        require(bool(fits), f"{_named(name)} must have values from 0 to 255, not {array.min()} to {array.max()}.")
        return array.astype(np.uint8)

    def _checked(self, name: str, array: np.ndarray) -> np.ndarray:
        """Returns an array of floats, after a check for NaN and perhaps infinities."""
        squares = np.vdot(array, array)  # NaN if there is one, without the cost of two passes
        if squares < np.inf or (np.isfinite(array).all() if self.finite else not np.isnan(squares)):
            return array
        where = "" if name == OBS else f" in its part {name!r}"
        if self.finite:
            raise CoveyError(f"The observation holds NaN or an infinity{where}: `obs` must be finite.")
        raise CoveyError(f"The observation holds NaN{where}: the action would too.")

    def _rows(self, name: str, part: Part, array: np.ndarray) -> tuple[int, ...]:
        """Returns the leading axes of one part."""
        if array.shape == part.shape:
            return ()
        count = array.ndim - len(part.shape)
        rows = array.shape[: max(count, 0)]
        if count < 0 or array.shape[count:] != part.shape or not (self.any_rows or (count <= 1 and 0 not in rows)):
            sizes = ", ".join(map(str, part.shape))
            allowed = f"(..., {sizes})" if self.any_rows else f"{part.shape}, or a batch (N, {sizes})"
            raise CoveyError(f"{_named(name)} must have shape {allowed}, not {array.shape}.")
        return rows


def _named(name: str) -> str:
    return "`obs`" if name == OBS else f"The part {name!r} of an observation"


def _kind(x: Any) -> str:
    return f"an array of shape {np.shape(x)}" if isinstance(x, np.ndarray) else type(x).__name__
