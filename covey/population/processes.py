"""The processes that share a population, and what they exchange.

Each process trains its own members without communication. They meet only when a run logs, evaluates or exchanges
members; then a few numbers per member and the weights of the copied members are sent.
"""

from dataclasses import dataclass
from typing import Any, Protocol

import jax
import numpy as np

from covey.errors import LostProcess
from covey.population.pbt import Ranking
from covey.training.sharding import row_in_numpy


class MemberLostError(Exception):
    """The weights of a member are no longer available."""

    def __init__(self, member: int) -> None:
        super().__init__(f"The weights of member {member} are lost.")
        self.member = member


class ProcessGroup(Protocol):
    """The processes that share a population, as one of them sees them.

    Each has p of the P members. Members are numbered over all processes, in the order of the processes. Methods that
    exchange data are collective: all processes must call them, in the same order.

    Example:
        >>> population, successors = covey.exchange(pbt, loop, population, returns, space, group=covey.SingleProcess())
    """

    @property
    def index(self) -> int:
        """The index of this process."""
        ...

    @property
    def count(self) -> int:
        """The number of processes."""
        ...

    def local_members(self, size: int) -> range:
        """Returns the indices of this process's members, of which there are `size`."""
        ...

    def reported_members(self, size: int) -> range:
        """Returns the indices of the members that `gather` covers; process 0 logs these."""
        ...

    def gather(self, tree: Any) -> Any:
        """Returns the arrays of all reported members in NumPy, from those [p, ...] of this process's members."""
        ...

    def gather_ranking(self, own: Ranking, agents: Any) -> Ranking:
        """Returns the ranking of all members.

        Args:
            own: The ranking [p] of this process's members.
            agents: Their agent states [p, ...], which other members may copy.
        """
        ...

    def fetch(self, tree: Any, members: list[int]) -> Any:
        """Returns the rows [k, ...] of any members, in NumPy.

        Args:
            tree: Arrays [p, ...] of this process's members.
            members: The indices of the k members.

        Raises:
            MemberLostError: If the rows of a member are no longer available.
        """
        ...

    def any_process(self, condition: bool) -> bool:
        """Returns whether the condition holds on any process."""
        ...


@dataclass(frozen=True)
class SingleProcess:
    """The process group of a single process, which has all members.

    Args:
        index: The index of this process.
        count: The number of processes.

    Example:
        >>> covey.SingleProcess().local_members(4)
        range(0, 4)
    """

    index: int = 0
    count: int = 1

    def local_members(self, size: int) -> range:
        return range(size)

    def reported_members(self, size: int) -> range:
        return range(size)

    def gather(self, tree: Any) -> Any:
        return jax.device_get(tree)

    def gather_ranking(self, own: Ranking, agents: Any) -> Ranking:
        return own

    def fetch(self, tree: Any, members: list[int]) -> Any:
        return rows(tree, members)

    def any_process(self, condition: bool) -> bool:
        return condition


SINGLE_PROCESS = SingleProcess()


@dataclass(frozen=True)
class JaxProcesses:
    """The processes of a `jax.distributed` job.

    Args:
        index: The index of this process, `jax.process_index()`.
        count: The number of processes, `jax.process_count()`.

    Example:
        >>> jax.distributed.initialize()
        >>> group = JaxProcesses(jax.process_index(), jax.process_count())
    """

    index: int
    count: int

    def local_members(self, size: int) -> range:
        return range(self.index * size, (self.index + 1) * size)

    def reported_members(self, size: int) -> range:
        return range(self.count * size)

    def gather(self, tree: Any) -> Any:
        tree = jax.device_get(tree)
        mine = pack(tree)
        return unpack(_exchange(mine).reshape(-1, mine.shape[1]), tree)

    def gather_ranking(self, own: Ranking, agents: Any) -> Ranking:
        return self.gather(own)

    def fetch(self, tree: Any, members: list[int]) -> Any:
        """Sends this process's rows to all others. Messages have equal sizes, so shorter ones are padded."""
        size = len(jax.tree.leaves(tree)[0])
        owners = [m // size for m in members]
        most = max(owners.count(i) for i in range(self.count))
        mine = [m % size for m in members if m // size == self.index]
        own = rows(tree, mine or [0])  # without any, still a row, for its shapes
        packed = pack(own)
        sent = np.zeros((most, packed.shape[1]), np.uint8)
        sent[: len(mine)] = packed[: len(mine)]
        found = _exchange(sent)
        places = [owners[:i].count(owner) for i, owner in enumerate(owners)]
        return unpack(found[owners, places], own)

    def any_process(self, condition: bool) -> bool:
        return bool(_exchange(np.array([condition], np.uint8)).any())


def rows(tree: Any, members: list[int]) -> Any:
    """Returns the rows [k, ...] of this process's members, in NumPy. Copies nothing else from the devices."""
    return jax.tree.map(lambda *own: np.stack(own), *(row_in_numpy(tree, member) for member in members))


def pack(tree: Any) -> np.ndarray:
    """Packs arrays [k, ...] into bytes [k, n], to send one message instead of one per array."""
    parts = [np.frombuffer(np.ascontiguousarray(x).tobytes(), np.uint8) for x in jax.tree.leaves(tree)]
    rows = len(jax.tree.leaves(tree)[0])
    return np.concatenate([x.reshape(rows, len(x) // rows) for x in parts], axis=1)


def unpack(packed: np.ndarray, like: Any) -> Any:
    """Unpacks arrays [k, ...] from bytes [k, n], with the shapes and types of `like`."""
    leaves, structure = jax.tree.flatten(like)
    found = []
    at = 0
    for leaf in leaves:
        size = leaf.dtype.itemsize * int(np.prod(leaf.shape[1:], dtype=int))
        part = np.frombuffer(packed[:, at : at + size].tobytes(), leaf.dtype)
        found.append(part.reshape(len(packed), *leaf.shape[1:]))
        at += size
    return jax.tree.unflatten(structure, found)


def _exchange(message: np.ndarray) -> np.ndarray:
    """Sends a message to all processes. Returns the messages of all, [processes, ...]."""
    from jax.experimental.multihost_utils import process_allgather

    try:
        return np.asarray(process_allgather(message))
    except (jax.errors.JaxRuntimeError, ValueError) as error:
        raise LostProcess(
            "Another process of this job has stopped, so this one can't continue. Everything up to the last checkpoint "
            "is kept: start `covey resume RUN` with the same options in every process. "
            f"({str(error).splitlines()[0][:200]})"
        ) from error
