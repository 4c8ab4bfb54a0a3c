"""`Described` for host environments: the state descriptor and the return so far become parts of the observation."""

from dataclasses import dataclass, replace
from typing import Any, Protocol, runtime_checkable

import numpy as np

from covey.envs.base import HostBatch, HostEnv, HostStep
from covey.envs.described import described_spec
from covey.envs.host.descriptor import HELD
from covey.envs.stack import StackedHost
from covey.errors import require
from covey.observation import DESCRIPTOR, RETURN, Obs
from covey.types import EnvSpec

RECORD = np.dtype([("returns", "<f4"), ("starts", "?")])
"""The bytes that are saved with each environment."""


@runtime_checkable
class Describable(Protocol):
    """A host environment that has, or can have, a state descriptor."""

    @property
    def described(self) -> HostEnv | None:
        """The same environment with the descriptor in its observations, as the part `HELD`; None without one."""
        ...

    def describing(self, descriptor: tuple[str, ...], low: tuple[float, ...], high: tuple[float, ...]) -> HostEnv:
        """Returns the environment with a state descriptor (see `covey.envs.host.descriptor`)."""
        ...


@dataclass(frozen=True)
class DescribedHost:
    """Wraps a host environment so that its observation has its descriptor and the return so far, as `Described` does.

    Args:
        env: The environment to wrap. One with `spec.descriptor` must be a Gymnasium environment with `env_descriptor`.

    Example:
        >>> env = covey.envs.make("gymnasium:Ant-v5", descriptor=["info:x_position", "info:y_position"])
        >>> print(DescribedHost(env).spec.observation)
        descriptor (2 numbers), obs (105 numbers), return (1 numbers)
    """

    env: HostEnv

    def __post_init__(self) -> None:
        _ = self._inner, self.spec  # raises if there is no such descriptor, or a name is taken

    @property
    def spec(self) -> EnvSpec:
        return described_spec(self.env.spec, getattr(self.env, "name", type(self.env).__name__))

    @property
    def state_size(self) -> int:
        inner = self._inner.state_size
        return inner + RECORD.itemsize if inner else 0

    @property
    def unsaved(self) -> str:
        return self._inner.unsaved

    def open(self, count: int, workers: int = 0, draws: bool = False) -> HostBatch:
        return DescribedBatch(self._inner.open(count, workers, draws), self._inner.spec, count)

    @property
    def _inner(self) -> HostEnv:
        """The environment with the descriptor in its observations."""
        return showing(self.env) if self.env.spec.descriptor else self.env


def showing(env: HostEnv) -> HostEnv:
    """Returns a host environment with its descriptor in its observations, as the part `HELD`."""
    if isinstance(env, StackedHost):
        return replace(env, env=showing(env.env))
    found = env.described if isinstance(env, Describable) else None
    require(
        found is not None,
        f"{type(env).__name__} has a descriptor in its spec, and covey can't read it from its batches. Name numbers of "
        "the observation instead, such as `skills.descriptor` 0 1.",
    )
    assert found is not None
    return found


class DescribedBatch:
    """A `HostBatch` that adds the descriptor and the return so far to the observations of another one.

    Returns are summed in this process, also those of environments in workers.

    Args:
        batch: The batch.
        spec: Its spec.
        count: The number of environments.
    """

    def __init__(self, batch: HostBatch, spec: EnvSpec, count: int) -> None:
        self.batch = batch
        self._spec = spec
        self._returns = np.zeros(count, np.float32)
        self._starts = np.ones(count, bool)  # whether the next step starts an episode

    def reset(self, seeds: np.ndarray) -> Obs:
        obs = self.batch.reset(seeds)
        self._returns[:] = 0.0
        self._starts[:] = False
        return self._shown(obs)

    def restart(self, seeds: np.ndarray) -> None:
        self._starts[:] = True
        self.batch.restart(seeds)

    def step(self, actions: np.ndarray) -> HostStep:
        step = self.batch.step(actions)
        reward = np.asarray(self._spec.reward(step.reward), np.float32)
        self._returns = np.where(self._starts | step.broken, np.float32(0), self._returns + reward)
        self._starts = step.terminated | step.truncated
        return step._replace(obs=self._shown(step.obs))

    def save(self) -> np.ndarray:
        inner = self.batch.save()
        if not inner.shape[1]:
            return inner
        record = np.zeros(len(inner), RECORD)
        record["returns"] = self._returns
        record["starts"] = self._starts
        states = np.concatenate([inner, record[:, None].view(np.uint8)], axis=1)
        states[inner[:, 0] == 0] = 0  # an environment that could not be saved
        return states

    def load(self, states: np.ndarray) -> None:
        end = states.shape[1] - RECORD.itemsize
        self.batch.load(np.ascontiguousarray(states[:, :end]))
        record = np.ascontiguousarray(states[:, end:]).view(RECORD)[:, 0]
        self._returns = record["returns"].copy()
        self._starts = record["starts"].copy()

    def frame(self, index: int) -> np.ndarray:
        return self.batch.frame(index)

    def close(self) -> None:
        self.batch.close()

    def _shown(self, obs: Obs) -> dict[str, Any]:
        parts = self._spec.observation.by_name(obs)
        descriptor = {DESCRIPTOR: parts.pop(HELD)} if HELD in parts else {}
        return parts | descriptor | {RETURN: self._returns[:, None].copy()}
