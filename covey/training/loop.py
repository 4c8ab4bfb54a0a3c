"""The protocol of both training loops: compiled environments (`DeviceLoop`) and host environments (`HostLoop`)."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from covey.replay import Stored
from covey.training.member import Population
from covey.types import Key, Mode

if TYPE_CHECKING:
    import jax

    from covey.training.collect import Rollout
    from covey.training.sharding import Axis
    from covey.training.trainer import Trainer


class Loop(Protocol):
    """Trains the members of a population, whatever their environments run on.

    A loop has no state of its own that training depends on: everything is in the `Population` that its methods take and
    return. They may reuse the memory of the population that is passed in, so use only the returned one afterwards.

    Example:
        >>> loop = covey.DeviceLoop(trainer, members=8)
        >>> population = loop.init(covey.draw_hypers(covey.SAC_SPACE, seed=0, members=8), seed=0)
        >>> population = loop.advance(population, blocks=10, warmup=True)
        >>> population = loop.advance(population, blocks=50)
    """

    @property
    def trainer(self) -> "Trainer":
        """The training of one member."""
        ...

    @property
    def members(self) -> int:
        """The number of members."""
        ...

    @property
    def axis(self) -> "Axis":
        """How members are mapped: `map` (one after the other) or `vmap` (in lock-step)."""
        ...

    @property
    def devices(self) -> int:
        """The number of devices that share the members."""
        ...

    @property
    def workers(self) -> int:
        """The number of worker processes that step host environments."""
        ...

    def init(self, hypers: Any = None, seed: int | Key = 0) -> Population:
        """Creates the members.

        Args:
            hypers: Their hyper-parameters: values [P] by name, as `draw_hypers` returns them; or a Hyper of arrays [P].
                What is not given is as in the trainer's Hyper.
            seed: Member i has the seed `seed` + i. Or random keys [P].

        Returns:
            The population before its first step, with an empty replay.
        """
        ...

    def template(self) -> Population:
        """Returns the shapes of a population. Computes nothing."""
        ...

    def place(self, population: Population) -> Population:
        """Moves a population to the loop's devices."""
        ...

    def load(self, population: Population, data: Stored) -> Population:
        """Fills the replay of new members with records [P, rows, N, ...]; the agents observe each record once."""
        ...

    def start_from(self, population: Population, agents: Any) -> Population:
        """Replaces the states of all agents [P] of a new population."""
        ...

    def advance(self, population: Population, blocks: int, warmup: bool = False) -> Population:
        """Trains for a number of blocks.

        Where training is divided into calls does not change its result.

        Args:
            population: The population, from `init` or an earlier call. It is donated: use the returned one.
            blocks: The number of blocks; each has `trainer.block_steps` environment steps per member.
            warmup: Act at random and learn nothing.

        Returns:
            The population after these blocks.
        """
        ...

    def lowered(self, warmup: bool) -> "list[jax.stages.Lowered]":
        """Returns programs of `advance` that can be compiled before there is a population; nothing is compiled here."""
        ...

    def collect(
        self, population: Population, key: Key, steps: int = 1, mode: Mode = "sample"
    ) -> "tuple[Population, Rollout]":
        """Steps the environments of all members with their current policies, and learns nothing.

        The replay does not store these rows. Its newest record closes an episode, so that training may continue.

        Args:
            population: The population. It is donated: use the returned one.
            key: A random key; use a new one for each call.
            steps: Rows T to collect.
            mode: "sample" explores, "greedy" does not, "random" acts uniformly.

        Returns:
            The population after these steps, and the collected data [P, T, N, ...].

        Example:
            >>> population, rollout = loop.collect(population, jax.random.key(0), steps=50)
            >>> rollout.steps.reward.shape
            (8, 50, 1)
        """
        ...

    def copy(self, population: Population, donors: Sequence[int], replay: bool = False) -> Population:
        """Replaces members by copies of others. What is copied stays on the devices.

        Args:
            population: The population. It is donated: use the returned one.
            donors: For every member the index of the one whose agent state it gets; its own index if it keeps its own.
                A donor must keep its own.
            replay: Copy the replay data as well.

        Returns:
            The population. The running return of a copy is 0, because it acts in other environments.

        Example:
            >>> population = loop.copy(population, [0, 1, 0, 3])  # member 2 continues from the state of member 0
        """
        ...

    def put(self, population: Population, member: int, agent: Any, data: Any = None) -> Population:
        """Replaces a member's agent state and, if given, its replay data, `Stored` records [rows, N, ...]."""
        ...

    def restart(self, population: Population, failed: Any) -> Population:
        """Gives failed members [P] new environments and removes values that are not finite from their replay."""
        ...

    def reset_tally(self, population: Population) -> Population:
        """Sets the sums of all members to zero: metrics, finished episodes and the first fault since the last log."""
        ...

    def take_messages(self) -> list[str]:
        """Returns the messages for the user since the last call."""
        ...

    def take_broken(self) -> dict[str, np.ndarray]:
        """Returns counts [P] of episodes that broke off since the last call, by metric name; empty without workers."""
        ...

    def close(self) -> None:
        """Closes environments and worker processes."""
        ...
