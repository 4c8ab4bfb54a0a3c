"""A population's arrays, apart from how its environments are stepped: both training loops stand on this.

`PopulationStore` changes them between chunks: it loads data, replaces members and repairs their replay. `over_slots`
maps the training of one member over all of them inside a chunk.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from covey.devices import devices as local_devices
from covey.errors import require
from covey.hyper.schedule import initial_hyper
from covey.nn.normalise import forget_episode
from covey.replay import ReplayState, Stored
from covey.training.member import Member, Population, new_tally
from covey.training.sharding import SPLIT, WHOLE, Axis, over_devices, over_members, place, row
from covey.training.trainer import Trainer
from covey.types import Array

LAYOUT = Population(SPLIT, ReplayState(SPLIT, WHOLE, SPLIT), WHOLE)  # type: ignore[arg-type]
"""The arrays of a population that have the members' axis, and those that don't."""
SMALL_WIDTH = 64
"""On a CPU, networks up to this width train faster in lock-step (`vmap`) than one after the other (`map`)."""


@dataclass(frozen=True)
class PopulationStore:
    """Changes the arrays of a population between chunks, in place where the devices allow it."""

    trainer: Trainer
    axis: Axis
    devices: int = 1

    def place(self, population: Population) -> Population:
        """Moves a population to its devices."""
        return place(population, self.devices, LAYOUT)

    def load(self, population: Population, data: Stored) -> Population:
        """Fills the replay of new members with records [P, rows, N, ...]; the agents observe each record once."""
        return over_devices(self._load, self.devices, (LAYOUT, SPLIT), LAYOUT)(population, data)

    def copy(self, population: Population, donors: Sequence[int], replay: bool = False) -> Population:
        """Replaces members by copies of others (see `Loop.copy`)."""
        each = len(donors) // self.devices
        near = np.arange(len(donors), dtype=np.int32)
        far = []
        for slot, donor in enumerate(donors):
            if slot // each == donor // each:
                near[slot] = donor
            else:
                far.append((slot, donor))
        on_each = over_devices(partial(self._copy, replay=replay), self.devices, (LAYOUT, SPLIT), LAYOUT)
        population = on_each(population, near % each)
        for slot, donor in far:  # one device sends the row to the other
            held = population.members.agent, population.replay.stored if replay else None
            agent, data = row(held, donor)
            population = self.put(population, slot, forget_episode(agent), data)
        return population

    def put(self, population: Population, member: int, agent: Any, data: Any = None) -> Population:
        """Replaces a member's agent state and, if given, its replay data, `Stored` records [rows, N, ...]."""
        chosen = np.arange(len(population.replay.data)) == member
        on_each = over_devices(self._put, self.devices, (LAYOUT, SPLIT, WHOLE, WHOLE), LAYOUT)
        return on_each(population, chosen, agent, data)

    def reset_tally(self, population: Population) -> Population:
        """Sets the sums of all members to zero."""
        members = population.members
        tally = new_tally(len(self.trainer.quantities))
        fresh = jax.tree.map(lambda x: np.broadcast_to(x, (len(population.replay.data), *x.shape)), tally)
        return population._replace(members=members._replace(tally=place(fresh, self.devices, SPLIT)))

    def repair(self, population: Population, chosen: Any) -> Population:
        """Removes records that are not finite from the replay of the chosen members [P]."""
        return over_devices(self._repair, self.devices, (LAYOUT, SPLIT), LAYOUT)(population, chosen)

    @partial(jax.jit, static_argnames="self", donate_argnames="replay")
    def close(self, replay: ReplayState) -> ReplayState:
        """Closes the episode of the newest record of all members, which rows that are not stored will follow."""
        return self.trainer.replay.close(replay, jnp.ones(len(replay.data), bool))

    @partial(jax.jit, static_argnames="self", donate_argnames="population")
    def _load(self, population: Population, data: Stored) -> Population:
        members = over_members(self.trainer.observe_loaded, self.axis)(population.members, data)
        rows = data.data.shape[1]
        filled, frames = jax.tree.map(lambda x, new: x.at[:, :rows].set(new), population.replay.stored, data)
        return population._replace(members=members, replay=ReplayState(filled, jnp.int32(rows), frames))

    @partial(jax.jit, static_argnames=("self", "replay"), donate_argnames="population")
    def _copy(self, population: Population, donors: Array, replay: bool) -> Population:
        """Runs on every device: `donors` are indices of the device's own members."""
        held = population.members.agent, population.replay.stored if replay else None
        chosen = donors != jnp.arange(len(donors))
        slots = jnp.flatnonzero(chosen, size=len(donors))

        def turn(i: Array, held: Any) -> Any:
            slot = slots[i]
            agent, data = jax.tree.map(lambda x: jax.lax.dynamic_index_in_dim(x, donors[slot], keepdims=False), held)
            put = partial(jax.lax.dynamic_update_index_in_dim, index=slot, axis=0)
            return jax.tree.map(put, held, (forget_episode(agent), data))

        # A loop that writes one row at a time, in place: `x[donors]` would rewrite the replay of all members.
        agents, data = jax.lax.fori_loop(0, jnp.sum(chosen), turn, held)
        return self._with(population, agents, data, chosen)

    @partial(jax.jit, static_argnames="self", donate_argnames="population")
    def _put(self, population: Population, chosen: Array, agent: Any, data: Stored | None) -> Population:
        """Runs on every device with its part of the members; the member is `chosen` on one of them at most."""
        slot = jnp.argmax(chosen)

        def put(held: Any) -> Any:
            return jax.tree.map(
                lambda x, new: jax.lax.dynamic_update_index_in_dim(x, new, slot, 0), held, (agent, data)
            )

        held = population.members.agent, None if data is None else population.replay.stored
        # `cond`, because a device that does not have the member must leave its arrays alone. The other one writes a
        # single row in place; `where` would rewrite the whole replay.
        agents, rows = jax.lax.cond(jnp.any(chosen), put, lambda held: held, held)
        return self._with(population, agents, rows, chosen)

    def _with(self, population: Population, agents: Any, data: Stored | None, chosen: Array) -> Population:
        """Returns the population with these agents and, if given, replay data, which are new for `chosen` members."""
        replay = population.replay
        if data is not None:  # the donor's newest record is not followed by this member's next one
            replay = self.trainer.replay.close(replay._replace(data=data.data, frames=data.frames), chosen)
        return population._replace(members=population.members._replace(agent=agents), replay=replay)

    @partial(jax.jit, static_argnames="self", donate_argnames="population")
    def _repair(self, population: Population, chosen: Array) -> Population:
        held = population.replay.stored
        repaired = self.trainer.replay.cleanse(held)
        data, frames = jax.tree.map(lambda new, x: jnp.where(chosen[:, None, None, None], new, x), repaired, held)
        return population._replace(replay=population.replay._replace(data=data, frames=frames))


def over_slots(
    one: Callable[..., tuple[Member, ReplayState]], axis: Axis, members: Member, replay: ReplayState, *inputs: Any
) -> tuple[Member, ReplayState]:
    """Trains all members, each on its own slot of the replay.

    Args:
        one: `one(member, replay, slot, *inputs)` trains one member and returns it with the replay. It must write the
            same number of rows for every member.
        axis: `map` (one after the other) or `vmap` (in lock-step).
        members: The members [P].
        replay: The replay of all.
        inputs: More trees of arrays [P, ...] for `one`.

    Returns:
        The members and the replay.
    """
    return (_in_turn if axis == "map" else _in_lock_step)(one, members, replay, *inputs)


def _in_turn(
    one: Callable[..., tuple[Member, ReplayState]], members: Member, replay: ReplayState, *inputs: Any
) -> tuple[Member, ReplayState]:
    """Trains one member after the other: its parameters stay in the cache while it is trained.

    Its program is that of a single agent, and so are its numbers, to the bit.
    """
    written = replay.written  # at the start, for every member: all write the same rows of their slots

    def turn(slot: Array, carry: tuple[Member, ReplayState]) -> tuple[Member, ReplayState]:
        members, replay = carry
        member, own = jax.tree.map(lambda x: jax.lax.dynamic_index_in_dim(x, slot, keepdims=False), (members, inputs))
        member, replay = one(member, replay._replace(written=written), slot, *own)
        # Not `at[slot].set`: its scatters take longer to compile than everything else.
        put = partial(jax.lax.dynamic_update_index_in_dim, index=slot, axis=0)
        return jax.tree.map(put, members, member), replay

    return jax.lax.fori_loop(0, len(replay.data), turn, (members, replay))


def _in_lock_step(
    one: Callable[..., tuple[Member, ReplayState]], members: Member, replay: ReplayState, *inputs: Any
) -> tuple[Member, ReplayState]:
    """Trains all members at once. Each sees a replay with one slot, its own.

    The write counter is not mapped: with one counter per member, each write would become a scatter.
    """
    axes = ReplayState(data=0, written=None, frames=0)  # type: ignore[arg-type]

    def on_own_slot(member: Member, replay: ReplayState, inputs: Any) -> tuple[Member, ReplayState]:
        return one(member, replay, 0, *inputs)

    mapped = jax.vmap(on_own_slot, in_axes=(0, axes, 0), out_axes=(0, axes))
    data, frames = jax.tree.map(lambda x: x[:, None], replay.stored)
    members, replay = mapped(members, ReplayState(data, replay.written, frames), inputs)
    data, frames = jax.tree.map(lambda x: x[:, 0], replay.stored)
    return members, ReplayState(data, replay.written, frames)


def choose_axis(trainer: Trainer, members: int) -> Axis:
    """Returns the faster of `map` and `vmap`, as measured (docs/performance.md).

    On a CPU small networks train faster in lock-step; on an accelerator all do. Members that share a replay take turns.
    """
    if members == 1 or trainer.shared:
        return "map"
    if local_devices()[0].platform != "cpu":
        return "vmap"
    state = jax.eval_shape(trainer.agent.init, initial_hyper(trainer.schedules), jax.random.key(0))
    # The smaller side of the largest matrix: the width of the hidden layers, whatever the ends of the networks are.
    widest = max(min(leaf.shape[-2:]) for leaf in jax.tree.leaves(state) if len(leaf.shape) >= 2)
    return "vmap" if widest <= SMALL_WIDTH else "map"


def check_axis(trainer: Trainer, members: int, axis: Axis | None) -> Axis:
    """Returns the axis of a loop: the given one if it is possible, or the faster one for None."""
    require(members >= 1, f"`members` must be at least 1, not {members}.")
    require(axis in (None, "map", "vmap"), f"`axis` must be map or vmap, not {axis!r}.")
    require(
        axis != "vmap" or not trainer.shared,
        "Members that share a replay are trained one after the other: `axis` must be map, not vmap.",
    )
    return axis or choose_axis(trainer, members)
