"""The host loop: environments that run outside of JAX step on this thread while the device learns.

A block is collected with the policy as it was before the learning of the block before it, because that is still under
way: acting on block b+1 knows what was learned from block b-1. Without overlap every iteration is learned from before
the next one is collected, the same order as in the compiled loop.

Everything random in a block follows from the member's key and the block's number, as in the compiled loop; environments
are seeded from the member's key, and draw from their own generators then.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from covey.backend import acting_device
from covey.envs.base import HostBatch, HostEnv
from covey.training.device import DeviceLoop
from covey.training.host_acting import Acting
from covey.training.host_programs import TICKET, HostPrograms, Learner
from covey.training.member import Population, where
from covey.training.sharding import Axis
from covey.training.trainer import Rows, Trainer, initial_shapes, initial_values
from covey.types import Array, Key


class HostLoop:
    """Advances P members whose environments run on the host. Between calls everything is in the population.

    It keeps the environments open. They are set to what a population says where that is not what they were left at: at
    the beginning, and after a checkpoint was read.
    """

    devices = 1
    """The learner's; acting has another."""

    def __init__(
        self, trainer: Trainer, members: int = 1, axis: Axis = "map", overlap: bool = True, workers: int = 0
    ) -> None:
        self.trainer, self.members, self.overlap, self.workers = trainer, members, overlap, workers
        self.axis: Axis = axis
        self.programs = HostPrograms(trainer, members, axis, overlap)
        self._broken, self._news = np.zeros(members), list[str]()
        self._batch: HostBatch | None = None
        self._left: np.ndarray | None = None
        self._cut = ""

    @property
    def env(self) -> HostEnv:
        return self.trainer.env

    def init(self, hypers: Any = None, seed: int | Key = 0) -> Population:
        """Creates the members (see `Loop.init`). Their environments start when they are first stepped."""
        return self.programs.init(*initial_values(self.trainer, self.members, hypers, seed))

    def template(self) -> Population:
        """Returns the shapes of a population. Computes nothing."""
        return jax.eval_shape(self.programs.init, *initial_shapes(self.trainer, self.members))

    def place(self, population: Population) -> Population:
        """A population whose arrays may lie anywhere, on the learner's device."""
        return jax.device_put(population)

    def load(self, population: Population, data: Array) -> Population:
        """New members with data [P, rows, N, width] in their replay, each record shown to the agent once."""
        return self._plain.load(population, data)

    def put(self, population: Population, member: int, agent: Any, data: Any = None) -> Population:
        """The population with another agent as a member's and, if they are given, with other data [rows, N, width]."""
        return self._plain.put(population, member, agent, data)

    def restart(self, population: Population, failed: Any) -> Population:
        """The replay of members that have failed [P] forgets what was not finite; everybody's episodes begin anew."""
        population = self._plain.cleanse(population, failed)
        world, self._left, self._cut = population.members.world, None, "a member had failed"
        actor = where(jnp.asarray(failed), population.members.agent, world.env.actor) if self.overlap else ()
        state = jnp.asarray(self._tickets(int(population.block)).reshape(world.env.state.shape))
        world = world._replace(env=world.env._replace(actor=actor, state=state), obs=jnp.nan_to_num(world.obs))
        return population._replace(members=population.members._replace(world=world))

    @property
    def _plain(self) -> DeviceLoop:
        """What does not touch environments is as in the compiled loop."""
        return DeviceLoop(self.trainer, self.members, self.axis)

    def advance(self, population: Population, blocks: int, warmup: bool = False) -> Population:
        """The population `blocks` blocks later; all that was collected has been learned from, or is being."""
        world, blocks = population.members.world, int(blocks)
        learner = Learner(population.members._replace(world=()), population.replay)
        acting = Acting(self.programs, population)
        if blocks == 0:
            return _joined(self._compiled(learner, acting, warmup), world, population.block)
        batch = self._opened(population, acting)
        start = int(population.block)
        for number in range(start, start + blocks):
            acting.begin(number)
            for first in range(0, self.trainer.iterations, self._group):
                rows, finished = acting.collect(batch, first, self._group, warmup)
                place = np.int32(number), np.int32(first), np.int32(self._group)
                learner = self._learned(learner, acting, rows, finished, place, warmup)
        self._broken += acting.broken
        end = start + blocks
        return _joined(learner, acting.world(self._saved(batch, end), learner.members.agent), jnp.int32(end))

    @property
    def _group(self) -> int:
        """Iterations that are collected before they are learned from."""
        return self.trainer.iterations if self.overlap else 1

    def _learned(
        self, learner: Learner, acting: Acting, rows: Rows, finished: np.ndarray, place: Any, warmup: bool
    ) -> Learner:
        """Starts the learning and hands an agent over to act: with overlap, the one from before, without a wait."""
        if self.overlap:
            acting.take(learner.members.agent)
        learner = self.programs.learn(learner, rows, finished, *place, warmup=warmup)
        if not self.overlap:
            acting.take(learner.members.agent)
        return learner

    def _compiled(self, learner: Learner, acting: Acting, warmup: bool) -> Learner:
        """The learner as it is, after every program has been compiled."""
        acting.begin(0)
        decision = acting.decide(0, warmup)
        row = Rows(acting.record(decision, acting.returns), acting.obs)  # type: ignore[arg-type]
        rows = acting.stacked([row] * self._group * self.trainer.unroll, self._group)
        none = np.zeros((self.members, 3), np.float32)
        return self.programs.learn(learner, rows, none, *np.zeros(3, np.int32), warmup=warmup)

    def _opened(self, population: Population, acting: Acting) -> HostBatch:
        """The environments, set to where the population has them unless they are there."""
        state, seeds = np.asarray(population.members.world.env.state), np.asarray(population.members.world.env.seeds)
        if self._batch is None:
            self._batch = self.env.open(seeds.size, self.workers)
            self._say_shared()
        if self._left is not None and np.array_equal(state, self._left):
            return self._batch
        if not state.any():
            acting.obs = self._batch.reset(seeds.ravel()).reshape(acting.obs.shape)
        elif state[0, 0, 0]:
            self._batch.load(state.reshape(seeds.size, -1))
        else:
            block = int(population.block)
            again = [np.random.SeedSequence([int(seed), block]).generate_state(1)[0] for seed in seeds.ravel()]
            self._batch.restart(np.asarray(again, np.uint32))
            acting.last[:] = True
            self._say_restart()
        return self._batch

    def _say_shared(self) -> None:
        if self.overlap and acting_device() == jax.local_devices()[0]:
            self._news.append(
                "Acting and learning share a device, so that they wait for each other: jax had begun with one before. "
                "Start the run in a process of its own, or set jax_num_cpu_devices to 2 before jax is used."
            )

    def _say_restart(self) -> None:
        why = self.env.unsaved or "it could not be saved any more"
        why = self._cut or f"the state of the environments is not in the checkpoint ({why})"
        self._cut = ""
        self._news.append(
            f"Episodes were cut off and begin anew, because {why}. The agents, their replay and their random numbers "
            "go on exactly."
        )

    def _saved(self, batch: HostBatch, block: int) -> np.ndarray:
        """The states of the environments [P, N, bytes], or tickets for those that can't be saved."""
        states = batch.save() if self.env.state_size else self._tickets(block)
        if not states[:, 0].all():
            states = self._tickets(block)
        self._left = states.reshape(self.members, self.trainer.envs, -1)
        return self._left

    def _tickets(self, block: int) -> np.ndarray:
        """What stands in the place of states [P * N, bytes] that can't be had: their first byte is 0."""
        tickets = np.zeros((self.members * self.trainer.envs, self.env.state_size or TICKET), np.uint8)
        tickets[:, :TICKET] = np.frombuffer(np.int64(block << 8).tobytes(), np.uint8)
        return tickets

    def take_news(self) -> list[str]:
        """What a user should know, once."""
        news, self._news = self._news, []
        return news

    def take_broken(self) -> dict[str, np.ndarray]:
        """Returns the episodes [P] that broke off since the last call; empty without workers."""
        if not self.workers:
            return {}
        broken, self._broken = self._broken, np.zeros(self.members)
        return {"train/broken": broken}

    def close(self) -> None:
        """Closes the environments; a later `advance` opens others, and sets them to where its population has them."""
        if self._batch is not None:
            self._batch.close()
            self._batch, self._left = None, None


def _joined(learner: Learner, world: Any, block: Array) -> Population:
    return Population(learner.members._replace(world=world), learner.replay, block)
