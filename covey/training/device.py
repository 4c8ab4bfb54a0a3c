"""The compiled loop: a population and its environments in one donated program per chunk."""

from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from covey.hyper.schedule import initial_hyper
from covey.replay import ReplayState
from covey.training.member import Population, where
from covey.training.sharding import SPLIT, WHOLE, Axis, each, over_devices, place
from covey.training.trainer import Trainer, initial_shapes, initial_values
from covey.types import Array, Key

LAYOUT = Population(SPLIT, ReplayState(SPLIT, WHOLE), WHOLE)  # type: ignore[arg-type]
"""Which of a population's arrays have the members' axis."""
SMALL_WIDTH = 64
"""Networks up to this width are dispatched faster in lock-step on a CPU."""


@dataclass(frozen=True)
class DeviceLoop:
    """Advances P members by whole blocks.

    `map` lets one member do all its blocks before the next, so that its parameters stay in the cache and its
    arithmetic is that of a single agent, to the bit. `vmap` advances all members in lock-step, which saves
    dispatches where networks are small, and is what an accelerator wants. Several `devices` have equal parts of the
    members, which don't talk to each other.
    """

    trainer: Trainer
    members: int = 1
    axis: Axis = "map"
    devices: int = 1

    def init(self, hypers: Any = None, seed: int | Key = 0) -> Population:
        """Creates the members (see `Loop.init`)."""
        hypers, keys = initial_values(self.trainer, self.members, hypers, seed)
        return over_devices(self._init, self.devices, (SPLIT, SPLIT), LAYOUT)(hypers, keys)

    def template(self) -> Population:
        """Returns the shapes of a population. Computes nothing."""
        return jax.eval_shape(self._init, *initial_shapes(self.trainer, self.members))

    def place(self, population: Population) -> Population:
        """A population whose arrays may lie anywhere, on its devices."""
        return place(population, self.devices, LAYOUT)

    def load(self, population: Population, data: Array) -> Population:
        """New members with data [P, rows, N, width] in their replay, each record shown to the agent once."""
        return over_devices(self._load, self.devices, (LAYOUT, SPLIT), LAYOUT)(population, data)

    def advance(self, population: Population, blocks: int, warmup: bool = False) -> Population:
        """Trains for `blocks` blocks (see `Loop.advance`). One compilation serves every number."""
        run = partial(self._advance, warmup=warmup)
        return over_devices(run, self.devices, (LAYOUT, WHOLE), LAYOUT)(population, jnp.int32(blocks))

    def restart(self, population: Population, failed: Any) -> Population:
        """Members that have failed [P] get new environments; their replay ends there, without what is not finite."""
        population = self.cleanse(population, failed)
        return over_devices(self._restart, self.devices, (LAYOUT, SPLIT), LAYOUT)(population, failed)

    def cleanse(self, population: Population, chosen: Any) -> Population:
        """The replay of the chosen members [P] forgets what was not finite."""
        return over_devices(self._cleanse, self.devices, (LAYOUT, SPLIT), LAYOUT)(population, chosen)

    def put(self, population: Population, member: int, agent: Any, data: Any = None) -> Population:
        """The population with another agent as a member's and, if they are given, with other data [rows, N, width]."""
        chosen = np.arange(self.members) == member
        own = over_devices(self._put, self.devices, (LAYOUT, SPLIT, WHOLE, WHOLE), LAYOUT)
        return own(population, chosen, agent, data)

    def take_news(self) -> list[str]:
        """Compiled environments send no messages."""
        return []

    def take_broken(self) -> dict[str, np.ndarray]:
        """Compiled episodes never break off."""
        return {}

    def close(self) -> None:
        """Nothing runs outside of compiled programs."""

    @partial(jax.jit, static_argnames="self")
    def _init(self, hypers: Any, keys: Key) -> Population:
        members = jax.vmap(self.trainer.init)(hypers, keys)
        return Population(members, self.trainer.replay.init(len(keys)), jnp.zeros((), jnp.int32))

    @partial(jax.jit, static_argnames="self", donate_argnames="population")
    def _load(self, population: Population, data: Array) -> Population:
        members = each(self.trainer.observe_loaded, self.axis)(population.members, data)
        held = population.replay.data.at[:, : data.shape[1]].set(data)
        return population._replace(members=members, replay=ReplayState(held, jnp.int32(data.shape[1])))

    @partial(jax.jit, static_argnames="self", donate_argnames="population")
    def _restart(self, population: Population, failed: Array) -> Population:
        renewed = jax.vmap(lambda m: self.trainer.restart(m, population.block))(population.members)
        replay = self.trainer.replay.close(population.replay, failed)
        return population._replace(members=where(failed, renewed, population.members), replay=replay)

    @partial(jax.jit, static_argnames="self", donate_argnames="population")
    def _cleanse(self, population: Population, chosen: Array) -> Population:
        cleansed = self.trainer.replay.cleanse(population.replay.data)
        data = jnp.where(chosen[:, None, None, None], cleansed, population.replay.data)
        return population._replace(replay=population.replay._replace(data=data))

    @partial(jax.jit, static_argnames="self", donate_argnames="population")
    def _put(self, population: Population, chosen: Array, agent: Any, data: Array | None) -> Population:
        """One row written in place, on the device that has the member."""
        slot = jnp.argmax(chosen)

        def put(held: Any) -> Any:
            return jax.tree.map(
                lambda x, new: jax.lax.dynamic_update_index_in_dim(x, new, slot, 0), held, (agent, data)
            )

        members, replay = population.members, population.replay
        held = (members.agent, None if data is None else replay.data)
        own, rows = jax.lax.cond(jnp.any(chosen), put, lambda held: held, held)
        if data is not None:  # the donor's newest record is not followed by this member's next one
            replay = self.trainer.replay.close(replay._replace(data=rows), chosen)
        return population._replace(members=members._replace(agent=own), replay=replay)

    @partial(jax.jit, static_argnames=("self", "warmup"), donate_argnames="population")
    def _advance(self, population: Population, blocks: Array, warmup: bool) -> Population:
        if self.trainer.shared:
            return self._block_by_block(population, blocks, warmup)
        run = self._in_turn if self.axis == "map" else self._in_step
        return run(population, blocks, warmup)

    def _block_by_block(self, population: Population, blocks: Array, warmup: bool) -> Population:
        """In turn too, but a block each: what a member has stored, the others see."""

        def block(i: Array, population: Population) -> Population:
            return self._in_turn(population, jnp.int32(1), warmup)

        return jax.lax.fori_loop(0, blocks, block, population)

    def _in_turn(self, population: Population, blocks: Array, warmup: bool) -> Population:
        written, count = population.replay.written, len(population.replay.data)

        def member_blocks(slot: Array, carry: tuple[Any, Array]) -> tuple[Any, Array]:
            members, data = carry
            member = jax.tree.map(lambda x: jax.lax.dynamic_index_in_dim(x, slot, keepdims=False), members)

            def block(i: Array, carry: tuple[Any, ReplayState]) -> tuple[Any, ReplayState]:
                return self.trainer.block(*carry, population.block + i, slot, warmup)

            member, replay = jax.lax.fori_loop(0, blocks, block, (member, ReplayState(data, written)))
            # Not `at[slot].set`, whose scatters take longer to compile than all else.
            put = partial(jax.lax.dynamic_update_index_in_dim, index=slot, axis=0)
            return jax.tree.map(put, members, member), replay.data

        carry = (population.members, population.replay.data)
        members, data = jax.lax.fori_loop(0, count, member_blocks, carry)
        rows = blocks * self.trainer.iterations * self.trainer.unroll
        return Population(members, ReplayState(data, written + rows), population.block + blocks)

    def _in_step(self, population: Population, blocks: Array, warmup: bool) -> Population:
        replay_axes = ReplayState(data=0, written=None)  # type: ignore[arg-type]

        def block(i: Array, carry: tuple[Any, ReplayState]) -> tuple[Any, ReplayState]:
            def one(member: Any, replay: ReplayState) -> tuple[Any, ReplayState]:
                return self.trainer.block(member, replay, population.block + i, 0, warmup)

            return jax.vmap(one, in_axes=(0, replay_axes), out_axes=(0, replay_axes))(*carry)

        own = ReplayState(population.replay.data[:, None], population.replay.written)
        members, replay = jax.lax.fori_loop(0, blocks, block, (population.members, own))
        return Population(members, ReplayState(replay.data[:, 0], replay.written), population.block + blocks)


def choose_axis(trainer: Trainer, members: int) -> Axis:
    """`map` or `vmap`, whichever was measured to be faster (docs/performance.md): small networks in lock-step."""
    if members == 1:
        return "map"
    if jax.local_devices()[0].platform != "cpu":
        return "vmap"
    state = jax.eval_shape(trainer.agent.init, initial_hyper(trainer.schedules), jax.random.key(0))
    # The smaller side of the largest matrix: the width of the hidden layers, whatever the ends of the networks are.
    widest = max(min(leaf.shape[-2:]) for leaf in jax.tree.leaves(state) if len(leaf.shape) >= 2)
    return "vmap" if widest <= SMALL_WIDTH else "map"
