"""The processes that share a population: what they tell each other, and nothing more than that.

Each process trains its own part of the members with no word to the others. They meet at the moments that a run writes
something down, and then only small numbers and the weights of those that are copied travel.
"""

from dataclasses import dataclass
from typing import Any, Protocol

import jax
import numpy as np

from covey.errors import LostProcess
from covey.population.pbt import Ranking


class MemberLostError(Exception):
    """The weights of a member can't be had any more."""

    def __init__(self, member: int) -> None:
        super().__init__(f"The weights of member {member} are lost.")
        self.member = member


class ProcessGroup(Protocol):
    """As one of its processes sees it. Members are numbered over all processes, in the order of these."""

    @property
    def index(self) -> int:
        """The number of this process."""
        ...

    @property
    def count(self) -> int:
        """How many processes there are."""
        ...

    def local_members(self, size: int) -> range:
        """The numbers of this process's members, of which there are `size`."""
        ...

    def reported_members(self, size: int) -> range:
        """The numbers of the members that `gather` tells of, and whose lines this process writes if it writes any."""
        ...

    def gather(self, tree: Any) -> Any:
        """Arrays [p, ...] of this process's members as those of all that are heard of [P, ...], NumPy."""
        ...

    def gather_ranking(self, own: Ranking, agents: Any) -> Ranking:
        """What is known of all members. `agents` are the states [p, ...] of this process's, which may be copied."""
        ...

    def fetch(self, tree: Any, members: list[int]) -> Any:
        """The rows of members anywhere, [k, ...], of arrays [p, ...] that each process has of its own members.

        Raises `LostError` where one can't be had any more.
        """
        ...

    def any_process(self, wish: bool) -> bool:
        """Whether any process wishes so."""
        ...


@dataclass(frozen=True)
class SingleProcess:
    """One process has all members."""

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

    def any_process(self, wish: bool) -> bool:
        return wish


SINGLE_PROCESS = SingleProcess()


@dataclass(frozen=True)
class JaxProcesses:
    """The processes of a `jax.distributed` job, which meet in collectives: all of them must call the same."""

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
        """Every process sends the rows that it has, padded to the longest of these lists."""
        size = len(jax.tree.leaves(tree)[0])
        owners = [m // size for m in members]
        most = max(owners.count(i) for i in range(self.count))
        mine = [m % size for m in members if m // size == self.index]
        own = rows(tree, mine or [0])
        packed = pack(own)
        sent = np.zeros((most, packed.shape[1]), np.uint8)
        sent[: len(mine)] = packed[: len(mine)]
        found = _exchange(sent)
        places = [owners[:i].count(owner) for i, owner in enumerate(owners)]
        return unpack(found[owners, places], own)

    def any_process(self, wish: bool) -> bool:
        return bool(_exchange(np.array([wish], np.uint8)).any())


def rows(tree: Any, members: list[int]) -> Any:
    """The rows [k, ...] of this process's members, NumPy. Nothing else leaves a device."""
    found = [_row(tree, member) for member in members]
    return jax.tree.map(lambda *own: np.stack(own), *found)


def _row(tree: Any, index: int) -> Any:
    leaves, structure = jax.tree.flatten(tree)
    if not isinstance(leaves[0], jax.Array):
        return jax.tree.map(lambda x: x[index], tree)
    size = len(leaves[0].addressable_shards[0].data)
    parts = [x.addressable_shards[index // size].data for x in leaves]
    return jax.tree.unflatten(structure, jax.device_get(_taken(parts, index % size)))


@jax.jit
def _taken(arrays: list[jax.Array], index: jax.Array) -> list[jax.Array]:
    """A row of each, in one call: one for each array would take longer than all the copying."""
    return [jax.lax.dynamic_index_in_dim(x, index, keepdims=False) for x in arrays]


def pack(tree: Any) -> np.ndarray:
    """Arrays [k, ...] as bytes [k, n]: one message instead of one for each."""
    parts = [np.frombuffer(np.ascontiguousarray(x).tobytes(), np.uint8) for x in jax.tree.leaves(tree)]
    rows = len(jax.tree.leaves(tree)[0])
    return np.concatenate([x.reshape(rows, len(x) // rows) for x in parts], axis=1)


def unpack(packed: np.ndarray, like: Any) -> Any:
    """The arrays [k, ...] in bytes [k, n], in the shapes and types of `like`."""
    leaves, structure = jax.tree.flatten(like)
    found, at = [], 0
    for leaf in leaves:
        size = leaf.dtype.itemsize * int(np.prod(leaf.shape[1:], dtype=int))
        part = np.frombuffer(packed[:, at : at + size].tobytes(), leaf.dtype)
        found.append(part.reshape(len(packed), *leaf.shape[1:]))
        at += size
    return jax.tree.unflatten(structure, found)


def _exchange(message: np.ndarray) -> np.ndarray:
    """The messages of all processes, [processes, ...]."""
    from jax.experimental.multihost_utils import process_allgather

    try:
        return np.asarray(process_allgather(message))
    except (jax.errors.JaxRuntimeError, ValueError) as error:
        raise LostProcess(
            "Another process of this job has stopped, so that this one can't continue. Everything up to the last "
            "checkpoint is kept: start `covey resume RUN`, with the same options in every process. "
            f"({str(error).splitlines()[0][:200]})"
        ) from error
