"""The compiled loop: a population and its environments in one donated program per chunk."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from covey.devices import devices as local_devices
from covey.errors import require
from covey.replay import ReplayState, Stored
from covey.training.collect import Rollout, collect
from covey.training.member import Member, Population, World, where
from covey.training.sharding import SPLIT, WHOLE, Axis, over_devices, over_members
from covey.training.store import LAYOUT, PopulationStore, check_axis, over_slots
from covey.training.trainer import Trainer, initial_shapes, initial_values
from covey.types import Array, Key, Mode


@dataclass(frozen=True, init=False)
class DeviceLoop:
    """Trains members whose environments are compiled.

    A call of `advance` is one compiled program, which updates the population in place. It serves any number of blocks.
    Two equal loops share one compilation.

    Args:
        trainer: The training of one member, from `make_trainer`.
        members: The number of members.
        axis: `map` trains one member after the other, each exactly as if it were alone; `vmap` trains all in
            lock-step, which is faster for small networks and on accelerators, but may round differently. By default
            the faster one.
        devices: The number of devices that share the members. It must divide `members`.

    Example:
        >>> env = covey.envs.make("pendulum")
        >>> agent = covey.SAC(covey.SACConfig(), env.spec)
        >>> loop = covey.DeviceLoop(covey.make_trainer(agent, env, covey.SACHyper()), members=8)
        >>> population = loop.advance(loop.init(seed=0), blocks=10, warmup=True)
        >>> population = loop.advance(population, blocks=100)
    """

    trainer: Trainer
    members: int
    axis: Axis
    devices: int

    workers = 0
    """No process but this one steps environments."""

    def __init__(self, trainer: Trainer, members: int = 1, axis: Axis | None = None, devices: int = 1) -> None:
        axis = check_axis(trainer, members, axis)
        available = len(local_devices()) if devices != 1 else 1
        require(1 <= devices <= available, f"`devices` must lie between 1 and {available}, not {devices}.")
        require(members % devices == 0, f"{members} members can't be divided among `devices` {devices}.")
        self.__dict__.update(trainer=trainer, members=members, axis=axis, devices=devices)  # frozen: once, here

    def init(self, hypers: Any = None, seed: int | Key = 0) -> Population:
        """Creates the members (see `Loop.init`)."""
        hypers, keys = initial_values(self.trainer, self.members, hypers, seed)
        return over_devices(self._init, self.devices, (SPLIT, SPLIT), LAYOUT)(hypers, keys)

    def template(self) -> Population:
        """Returns the shapes of a population. Computes nothing."""
        return jax.eval_shape(self._init, *initial_shapes(self.trainer, self.members))

    def place(self, population: Population) -> Population:
        """Moves a population to the loop's devices."""
        return self._store.place(population)

    def load(self, population: Population, data: Stored) -> Population:
        """Fills the replay of new members (see `Loop.load`)."""
        return self._store.load(population, data)

    def start_from(self, population: Population, agents: Any) -> Population:
        """Replaces the states of all agents (see `Loop.start_from`)."""
        return self.place(population._replace(members=population.members._replace(agent=agents)))

    def advance(self, population: Population, blocks: int, warmup: bool = False) -> Population:
        """Trains for a number of blocks (see `Loop.advance`)."""
        run = partial(self._advance, warmup=warmup)
        return over_devices(run, self.devices, (LAYOUT, WHOLE), LAYOUT)(population, jnp.int32(blocks))

    def lowered(self, warmup: bool) -> list[jax.stages.Lowered]:
        """Returns the program of `advance` (see `Loop.lowered`); nothing if several devices share the members."""
        if self.devices > 1:
            return []
        return [DeviceLoop._advance.lower(self, self.template(), jax.ShapeDtypeStruct((), np.int32), warmup=warmup)]

    def collect(
        self, population: Population, key: Key, steps: int = 1, mode: Mode = "sample"
    ) -> tuple[Population, Rollout]:
        """Steps the environments of all members without learning (see `Loop.collect`)."""
        run = partial(self._collect, steps=steps, mode=mode)
        keys = jax.random.split(key, self.members)
        return over_devices(run, self.devices, (LAYOUT, SPLIT), (LAYOUT, SPLIT))(population, keys)

    def copy(self, population: Population, donors: Sequence[int], replay: bool = False) -> Population:
        """Replaces members by copies of others (see `Loop.copy`)."""
        return self._store.copy(population, donors, replay)

    def put(self, population: Population, member: int, agent: Any, data: Any = None) -> Population:
        """Replaces a member's agent state and, if given, its replay data (see `Loop.put`)."""
        return self._store.put(population, member, agent, data)

    def restart(self, population: Population, failed: Any) -> Population:
        """Gives failed members [P] new environments (see `Loop.restart`). Their replay continues with a new episode."""
        population = self._store.repair(population, failed)
        return over_devices(self._restart, self.devices, (LAYOUT, SPLIT), LAYOUT)(population, failed)

    def reset_tally(self, population: Population) -> Population:
        """Sets the sums of all members to zero (see `Loop.reset_tally`)."""
        return self._store.reset_tally(population)

    def take_messages(self) -> list[str]:
        """Returns nothing: compiled environments send no messages."""
        return []

    def take_broken(self) -> dict[str, np.ndarray]:
        """Returns nothing: compiled episodes never break off."""
        return {}

    def close(self) -> None:
        """Does nothing: no environment is open outside of compiled programs."""

    @property
    def _store(self) -> PopulationStore:
        return PopulationStore(self.trainer, self.axis, self.devices)

    @partial(jax.jit, static_argnames="self")
    def _init(self, hypers: Any, keys: Key) -> Population:
        members = jax.vmap(self.trainer.init)(hypers, keys)
        return Population(members, self.trainer.replay.init(len(keys)), jnp.zeros((), jnp.int32))

    @partial(jax.jit, static_argnames="self", donate_argnames="population")
    def _restart(self, population: Population, failed: Array) -> Population:
        restarted = jax.vmap(lambda m: self.trainer.restart(m, population.block))(population.members)
        replay = self.trainer.replay.close(population.replay, failed)
        return population._replace(members=where(failed, restarted, population.members), replay=replay)

    @partial(jax.jit, static_argnames=("self", "warmup"), donate_argnames="population")
    def _advance(self, population: Population, blocks: Array, warmup: bool) -> Population:
        if not self.trainer.shared:
            return self._blocks(population, blocks, warmup)
        # Members that share their replay take turns block by block, so that each draws what the others have stored.
        return jax.lax.fori_loop(0, blocks, lambda i, x: self._blocks(x, jnp.int32(1), warmup), population)

    @partial(jax.jit, static_argnames=("self", "steps", "mode"), donate_argnames="population")
    def _collect(self, population: Population, keys: Key, steps: int, mode: Mode) -> tuple[Population, Rollout]:
        trainer = self.trainer

        def one(member: Member, key: Key) -> tuple[World, Rollout]:
            hyper = trainer.hyper_at(member.hyper, population.block * trainer.iterations)
            return collect(trainer.agent, trainer.env, member.agent, hyper, member.world, key, steps, mode)

        world, rollout = over_members(one, self.axis)(population.members, keys)
        replay = self._store.close(population.replay)
        return population._replace(members=population.members._replace(world=world), replay=replay), rollout

    def _blocks(self, population: Population, blocks: Array, warmup: bool) -> Population:
        """Trains every member for a number of blocks."""

        def one(member: Member, replay: ReplayState, slot: Array | int) -> tuple[Member, ReplayState]:
            def block(i: Array, carry: tuple[Member, ReplayState]) -> tuple[Member, ReplayState]:
                return self.trainer.block(*carry, population.block + i, slot, warmup)

            return jax.lax.fori_loop(0, blocks, block, (member, replay))

        members, replay = over_slots(one, self.axis, population.members, population.replay)
        return Population(members, replay, population.block + blocks)
