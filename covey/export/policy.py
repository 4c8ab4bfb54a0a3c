"""Exported policies as functions from observation to action."""

from pathlib import Path
from typing import Any

import numpy as np

from covey.errors import require
from covey.export.names import observation_parts
from covey.export.opened import open_policy
from covey.inputs import Inputs
from covey.observation import Part


def load_policy(path: str | Path, seed: int = 0) -> "ExportedPolicy":
    """Loads a policy that `covey export` has written. Needs neither JAX (except for `.jax` files) nor the run folder.

    Args:
        path: The file: .onnx, .npz, .h or .jax. A .h file is compiled first, with this machine's C compiler.
        seed: The seed of its random numbers, if it was exported to explore.

    Returns:
        The policy.

    Raises:
        CoveyError: The file can't be read, or it has changed since it was written.

    Example:
        >>> policy = covey.load_policy("policy.onnx")
        >>> policy.reset()
        >>> action = policy(observation)
    """
    return ExportedPolicy(Path(path), seed)


class ExportedPolicy:
    """A policy from a file: observation in, action out, both in the environment's units.

    It keeps the policy's memory between calls: call `reset` at the start of each episode. An observation is an array,
    or a dictionary of arrays by name of part, as `about["observation"]` says. Parts of the environment that the policy
    does not use (`about["ignored"]`) may be given or left out.

    Args:
        path: The file.
        seed: The seed of its random numbers, if it was exported to explore.

    Example:
        >>> policy = ExportedPolicy(Path("policy.npz"))
        >>> policy.about["action"]["high"]
        [2.0]
    """

    def __init__(self, path: Path, seed: int = 0) -> None:
        self._opened = open_policy(path)
        self.about: dict[str, Any] = self._opened.about
        """The contract: names, shapes, types and limits of what goes in and out, and where the policy is from."""
        parts = observation_parts(self.about)
        named = tuple((each.get("part", each["name"]), Part(each["shape"], each["dtype"])) for each in parts)
        self._inputs = Inputs(named, tuple(self.about.get("ignored", ())), finite=True)
        self._names = [each["name"] for each in parts]
        self._random = np.random.default_rng(seed)
        self.reset()

    def reset(self, rows: Any = None) -> None:
        """Starts a new episode, with a new memory.

        Args:
            rows: Of a batch, the rows whose episodes start anew; None for all, after which the batch may have another
                size.
        """
        if rows is None:
            self._memory: dict[str, np.ndarray] | None = None
        elif self._memory is not None:
            start = self._start(1)
            self._memory = {name: np.array(x) for name, x in self._memory.items()}
            for name, x in self._memory.items():
                x[rows] = start[name][0]

    def __call__(self, obs: Any) -> np.ndarray:
        """Returns the action for one observation, or the actions for a batch with a leading axis."""
        values, rows = self._inputs.read(obs)
        count = rows[0] if rows else 1
        batch = dict(zip(self._names, values if rows else [x[None] for x in values], strict=True))
        memory = self._start(count) if self._memory is None else self._memory
        held = next((len(x) for x in memory.values()), count)
        require(held == count, f"The batch has {count} rows, not {held} as before: call reset() first.")
        found = self._opened.step(batch | memory | self._noise(count))
        self._memory = {name: found[name] for name in memory}
        return found["action"] if rows else found["action"][0]

    def _start(self, count: int) -> dict[str, np.ndarray]:
        """Returns the memory of a batch at the start of its episodes."""
        parts = {each["name"]: np.array(each["start"], each["dtype"]) for each in self.about["memory"]}
        return {name: np.broadcast_to(x, (count, *x.shape)) for name, x in parts.items()}

    def _noise(self, count: int) -> dict[str, np.ndarray]:
        """Draws the random numbers of one decision."""
        drawn = {}
        for each in self.about["noise"]:
            shape = (count, *each["shape"])
            drawn[each["name"]] = {
                "normal": lambda shape: self._random.standard_normal(shape, np.float32),
                "uniform": lambda shape: self._random.random(shape, np.float32),
                "key": lambda shape: self._random.integers(0, 2**32, shape, np.uint32),
            }[each["kind"]](shape)
        return drawn
