"""The host loop: environments outside of JAX are stepped on this thread while the device learns.

With overlap, a block is collected with the policy from before the learning of the previous block, because that is still
under way: block b + 1 is collected by the agent that has learned from block b - 1. Without overlap every iteration is
learned from before the next one is collected, in the same order as in the compiled loop.

All random numbers of a block follow from the member's key and the block's number, as in the compiled loop. Environments
are seeded from the member's key and use their own random generators afterwards.
"""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from covey import backend
from covey.envs.base import HostBatch, HostEnv
from covey.errors import require
from covey.replay import Stored
from covey.training.collect import Rollout, Rows, as_steps
from covey.training.host_acting import Acting, copied, device_of
from covey.training.host_programs import PLACEHOLDER_SIZE, HostPrograms, Learner
from covey.training.member import Population, where
from covey.training.sharding import Axis
from covey.training.store import PopulationStore, check_axis
from covey.training.trainer import Trainer, initial_shapes, initial_values
from covey.types import Array, Key, Mode


class HostLoop:
    """Trains members whose environments run on the host, such as Gymnasium's.

    The loop keeps the environments open between calls; `close` closes them. Everything else is in the population: if
    its environment states are not those that the loop has left (a new or restored population), they are loaded.

    Args:
        trainer: The training of one member, from `make_trainer`.
        members: The number of members.
        axis: `map` trains one member after the other, `vmap` all in lock-step (see `DeviceLoop`). By default the faster
            one.
        overlap: Step the environments while the device learns. The acting policy is then one block older.
        workers: Worker processes that step the environments; 0 steps them in this process.

    Example:
        >>> env = covey.envs.make("gymnasium:HalfCheetah-v5")
        >>> agent = covey.SAC(covey.SACConfig(), env.spec)
        >>> loop = covey.HostLoop(covey.make_trainer(agent, env, covey.SACHyper()), members=2)
        >>> population = loop.advance(loop.init(seed=0), blocks=20, warmup=True)
        >>> population = loop.advance(population, blocks=100)
        >>> loop.close()
    """

    devices = 1
    """The learner's device. Acting has another one."""

    def __init__(
        self, trainer: Trainer, members: int = 1, axis: Axis | None = None, overlap: bool = True, workers: int = 0
    ) -> None:
        backend.request_acting_device()
        self.trainer = trainer
        self.members = members
        self.axis: Axis = check_axis(trainer, members, axis)
        self.overlap = overlap
        self.workers = workers
        self.programs = HostPrograms(trainer, members, self.axis, overlap)
        self._broken = np.zeros(members)
        self._messages: list[str] = []
        self._batch: HostBatch | None = None
        self._left: np.ndarray | None = None  # the states of the environments as the last call left them
        self._cut_reason = ""

    @property
    def env(self) -> HostEnv:
        return self.trainer.env

    def init(self, hypers: Any = None, seed: int | Key = 0) -> Population:
        """Creates the members (see `Loop.init`). Their environments are opened when they are first stepped."""
        return self.programs.init(*initial_values(self.trainer, self.members, hypers, seed))

    def template(self) -> Population:
        """Returns the shapes of a population. Computes nothing."""
        return jax.eval_shape(self.programs.init, *initial_shapes(self.trainer, self.members))

    def place(self, population: Population) -> Population:
        """Moves a population to the learner's device."""
        return self._store.place(population)

    def load(self, population: Population, data: Stored) -> Population:
        """Fills the replay of new members (see `Loop.load`)."""
        return self._store.load(population, data)

    def start_from(self, population: Population, agents: Any) -> Population:
        """Replaces the states of all agents (see `Loop.start_from`), and those that act in the next block."""
        members = population.members
        actor = jax.tree.map(jnp.copy, agents) if self.overlap else ()
        world = members.world._replace(env=members.world.env._replace(actor=actor))
        return self.place(population._replace(members=members._replace(agent=agents, world=world)))

    def copy(self, population: Population, donors: Sequence[int], replay: bool = False) -> Population:
        """Replaces members by copies of others (see `Loop.copy`)."""
        return self._store.copy(population, donors, replay)

    def put(self, population: Population, member: int, agent: Any, data: Any = None) -> Population:
        """Replaces a member's agent state and, if given, its replay data (see `Loop.put`)."""
        return self._store.put(population, member, agent, data)

    def restart(self, population: Population, failed: Any) -> Population:
        """Repairs the replay of failed members [P] (see `Loop.restart`). The episodes of all members start anew."""
        population = self._store.repair(population, failed)
        self._left = None
        self._cut_reason = "a member had failed"
        world = population.members.world
        actor = where(jnp.asarray(failed), population.members.agent, world.env.actor) if self.overlap else ()
        state = jnp.asarray(self._placeholders(int(population.block)).reshape(world.env.state.shape))
        world = world._replace(
            env=world.env._replace(actor=actor, state=state), obs=jax.tree.map(jnp.nan_to_num, world.obs)
        )
        return population._replace(members=population.members._replace(world=world))

    @property
    def _store(self) -> PopulationStore:
        return PopulationStore(self.trainer, self.axis)

    def advance(self, population: Population, blocks: int, warmup: bool = False) -> Population:
        """Trains for a number of blocks (see `Loop.advance`). With overlap, the last learning may still be under way.

        With 0 blocks it only compiles.
        """
        world = population.members.world
        blocks = int(blocks)
        learner = Learner(population.members._replace(world=()), population.replay)
        acting = Acting(self.programs, population, self.trainer.mode(warmup))
        if blocks == 0:
            return _joined(self._compile(learner, acting, warmup), world, population.block)
        batch = self._opened(population, acting)
        start = int(population.block)
        end = start + blocks
        actor = world.env.actor
        for number in range(start, end):
            acting.begin(number)
            for first in range(0, self.trainer.iterations, self._group):
                rows, finished = acting.collect(batch, first, self._group)
                if self.overlap and number == end - 1:  # acting has copied a part only; learning reuses the memory
                    actor = copied(learner.members.agent, device_of(learner.members.agent))
                place = np.int32(number), np.int32(first), np.int32(self._group)
                learner = self._learn(learner, acting, rows, finished, place, warmup)
        self._broken += acting.broken
        return _joined(learner, acting.world(self._saved(batch, end), learner.members.agent, actor), jnp.int32(end))

    def lowered(self, warmup: bool) -> list[jax.stages.Lowered]:
        """Returns nothing: what is acted and learned with depends on rows that environments return."""
        return []

    def collect(
        self, population: Population, key: Key, steps: int = 1, mode: Mode = "sample"
    ) -> tuple[Population, Rollout]:
        """Steps the environments of all members without learning (see `Loop.collect`).

        The descriptors are coordinates of the observation, if the environment's spec names them.
        """
        require(steps >= 1, f"`steps` must be at least 1, not {steps}.")
        acting = Acting(self.programs, population, mode)
        acting.take(population.members.agent)
        batch = self._opened(population, acting)
        number = int(population.block)
        keys = jax.random.split(jax.device_put(key, acting.device), (self.members, steps, 3, self.trainer.envs))
        acting.prepare(keys, number)
        found, _ = acting.rows(batch, range(steps))
        records, next_obs = jax.tree.map(lambda *rows: np.stack(rows, axis=1), *found)
        members = population.members
        world = acting.world(self._saved(batch, number), members.agent, members.world.env.actor)
        members = members._replace(world=world)
        population = Population(members, self._store.close(population.replay), population.block)
        describe = self.env.spec.descriptor_of
        return population, Rollout(as_steps(records, next_obs), records, describe(records.obs), describe(next_obs))

    @property
    def _group(self) -> int:
        """The number of iterations that are collected before they are learned from."""
        return self.trainer.iterations if self.overlap else 1

    def _learn(
        self, learner: Learner, acting: Acting, rows: Rows, finished: np.ndarray, place: Any, warmup: bool
    ) -> Learner:
        """Starts the learning and updates the acting agents: with overlap, to those from before it, without waiting."""
        if self.overlap:
            acting.take(learner.members.agent)
        learner = self.programs.learn(learner, rows, finished, *place, warmup=warmup)
        if not self.overlap:
            acting.take(learner.members.agent)
        return learner

    def _compile(self, learner: Learner, acting: Acting, warmup: bool) -> Learner:
        """Compiles every program, by acting once and learning from no iterations. Returns an equal learner."""
        acting.begin(0)
        decision = acting.decide(0)
        parts = np.zeros((*acting.returns.shape, *self.env.spec.reward_shape), np.float32)
        row = Rows(acting.record(decision, parts), acting.obs)  # type: ignore[arg-type]
        rows = acting.stacked([row] * self._group * self.trainer.unroll, self._group)
        none = np.zeros((self.members, 3), np.float32)
        return self.programs.learn(learner, rows, none, *np.zeros(3, np.int32), warmup=warmup)

    def _opened(self, population: Population, acting: Acting) -> HostBatch:
        """Returns the environments, in the states that the population has."""
        state = np.asarray(population.members.world.env.state)
        seeds = np.asarray(population.members.world.env.seeds)
        if self._batch is None:
            self._batch = self.env.open(seeds.size, self.workers)
            self._report_shared_device()
        if self._left is not None and np.array_equal(state, self._left):
            return self._batch
        if not state.any():  # a new population
            first = self._batch.reset(seeds.ravel())
            acting.obs = jax.tree.map(lambda x, old: x.reshape(old.shape), first, acting.obs)
        elif state[0, 0, 0]:  # saved states; the first byte of a placeholder is 0
            self._batch.load(state.reshape(seeds.size, -1))
        else:
            block = int(population.block)
            again = [np.random.SeedSequence([int(seed), block]).generate_state(1)[0] for seed in seeds.ravel()]
            self._batch.restart(np.asarray(again, np.uint32))
            acting.last[:] = True
            self._report_restart()
        return self._batch

    def _report_shared_device(self) -> None:
        if self.overlap and backend.acting_device() == backend.devices()[0]:
            self._messages.append(
                "Acting and learning share a device and wait for each other, because jax was started with one device. "
                "Start the run in a new process, or set jax_num_cpu_devices to 2 before jax is used."
            )

    def _report_restart(self) -> None:
        unsaved = self.env.unsaved or "it could not be saved any more"
        reason = self._cut_reason or f"the state of the environments is not in the checkpoint ({unsaved})"
        self._cut_reason = ""
        self._messages.append(
            f"Episodes were cut off and start anew, because {reason}. The agents, their replay and their random "
            "numbers continue exactly."
        )

    def _saved(self, batch: HostBatch, block: int) -> np.ndarray:
        """Returns the states of the environments [P, N, bytes], or placeholders if one can't be saved."""
        states = batch.save() if self.env.state_size else self._placeholders(block)
        if not states[:, 0].all():
            states = self._placeholders(block)
        self._left = states.reshape(self.members, self.trainer.envs, -1)
        return self._left

    def _placeholders(self, block: int) -> np.ndarray:
        """Returns bytes [P * N, bytes] in place of states. The first byte is 0, unlike that of a saved state."""
        found = np.zeros((self.members * self.trainer.envs, self.env.state_size or PLACEHOLDER_SIZE), np.uint8)
        found[:, :PLACEHOLDER_SIZE] = np.frombuffer(np.int64(block << 8).tobytes(), np.uint8)
        return found

    def reset_tally(self, population: Population) -> Population:
        """Sets the sums of all members to zero (see `Loop.reset_tally`)."""
        return self._store.reset_tally(population)

    def take_messages(self) -> list[str]:
        """Returns the messages for the user since the last call."""
        messages = self._messages
        self._messages = []
        return messages

    def take_broken(self) -> dict[str, np.ndarray]:
        """Returns the number of episodes [P] that broke off since the last call; empty without workers."""
        if not self.workers:
            return {}
        broken = self._broken
        self._broken = np.zeros(self.members)
        return {"train/broken": broken}

    def close(self) -> None:
        """Closes the environments. A later `advance` opens new ones, in the states that its population has."""
        if self._batch is not None:
            self._batch.close()
            self._batch = None
            self._left = None


def _joined(learner: Learner, world: Any, block: Array) -> Population:
    return Population(learner.members._replace(world=world), learner.replay, block)
