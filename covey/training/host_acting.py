"""The acting half of the host loop: environments are stepped and, if the agent allows it, actions chosen in NumPy."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from covey.agent import Decision
from covey.backend import acting_device
from covey.envs.base import HostBatch
from covey.replay import Record
from covey.training.collect import REWARDS, Rows
from covey.training.host_programs import HostPrograms, HostWorld
from covey.training.member import Population, World
from covey.types import Key, Mode


class Acting:
    """The worlds of all members [P, N, ...] in NumPy, and the agents that act in them.

    The noise of a block is drawn at once. What depends on observations is computed in NumPy, or by a compiled program
    if NumPy can't (see `in_numpy`). That program has a device of its own: on the learner's it would wait until all
    learning under way is done (263 ms instead of 0.07 ms).

    Args:
        programs: The compiled parts of the loop.
        population: The population. Its newest agents act, or with overlap those that its worlds hold for it.
        mode: How the policy acts.
    """

    def __init__(self, programs: HostPrograms, population: Population, mode: Mode) -> None:
        members = population.members
        world = members.world
        self.programs = programs
        self.trainer = programs.trainer
        self.spec = programs.trainer.env.spec
        self.device = acting_device()
        self.mode: Mode = mode
        self.take(members.agent if world.env.actor == () else world.env.actor)
        self.seeds = world.env.seeds
        self._in_numpy = programs.act_in_numpy(mode)
        self.hypers, memory, self.keys = copied((members.hyper, world.memory, members.key), self.device)
        self.memory = jax.device_get(memory) if self._in_numpy else memory
        self.obs = jax.tree.map(_numpy, world.obs)
        self.first = _numpy(world.first)
        self.last = _numpy(world.last)
        self.clock = _numpy(world.clock)
        self.returns = _numpy(world.returns)
        self.episodes = _numpy(world.episodes)
        self.broken = np.zeros(programs.members)

    def take(self, agents: Any) -> None:
        """Acts with these agents [P] from now on. They are copied, because the learner donates its own arrays."""
        self.actor = copied(self.programs.actor(agents, self.mode), self.device)
        self._actor_in_numpy = None

    def begin(self, number: int) -> None:
        """Draws the random numbers of a block."""
        self.prepare(self.programs.step_keys(self.keys, np.int32(number)), number)

    def prepare(self, keys: Key, number: int) -> None:
        """Prepares the decisions of rows of block `number` from their random keys [P, rows, ...]."""
        prepared = self.programs.prepare(self.hypers, keys, np.int32(number), mode=self.mode)
        self.prepared = jax.device_get(prepared) if self._in_numpy else prepared

    def decide(self, row: int) -> Decision:
        """Returns decisions [P, N] for a row that is prepared."""
        late = self.memory, self.first, self.obs
        if not self._in_numpy:
            return self.programs.act(self.actor, *late, self.prepared, np.int32(row), mode=self.mode)
        if self._actor_in_numpy is None:  # now, not in `take`: it waits until these agents have learned
            self._actor_in_numpy = jax.device_get(self.actor)
        return self._in_numpy([x[row] for x in self.prepared], (self._actor_in_numpy, *late))

    def collect(self, batch: HostBatch, start: int, group: int) -> tuple[Rows, np.ndarray]:
        """Collects some iterations. Returns rows [P, group, unroll, N, ...] and the totals of finished episodes."""
        unroll = self.trainer.unroll
        found, finished = self.rows(batch, range(start * unroll, (start + group) * unroll))
        return self.stacked(found, group), finished

    def rows(self, batch: HostBatch, numbers: range) -> tuple[list[Rows], np.ndarray]:
        """Collects rows [P, N, ...] that are prepared, and the totals of finished episodes."""
        finished = np.zeros((self.last.shape[0], 3), np.float32)
        return [self._row(batch, self.decide(row), finished) for row in numbers], finished

    def _row(self, batch: HostBatch, decision: Decision, finished: np.ndarray) -> Rows:
        """Steps every environment. Where a worker did not answer, the record closes the episode instead."""
        shape: tuple[int, ...] = decision.action.shape[:-1]
        action = np.asarray(decision.action)
        step = batch.step(action.reshape(-1, action.shape[-1]))
        # A vector is the usual case, and `tree.map` would take longer than the rest of this line.
        vector = isinstance(self.obs, np.ndarray)
        obs = step.obs.reshape(self.obs.shape) if vector else jax.tree.map(_shaped, step.obs, self.obs)
        terminated, truncated, broken = (x.reshape(shape) for x in step[2:])
        ended = self.last | broken
        going = ~ended
        parts = step.reward.reshape(*shape, *self.spec.reward_shape)
        parts = np.where(going[..., None] if self.spec.rewards else going, parts, np.float32(0))
        reward = self.spec.reward(parts)
        terminated = terminated & going
        closes = going & (terminated | truncated)
        rows = Rows(self.record(decision, parts)._replace(terminated=terminated, last=ended), obs)
        returns = self.returns + reward
        clock = self.clock + 1
        if closes.any():
            finished += np.stack([np.where(closes, x, 0).sum(-1) for x in (np.ones(shape), returns, clock)], axis=-1)
        self.broken += broken.sum(-1)
        self.obs = obs
        self.first = ended
        self.last = closes
        self.memory = decision.memory
        self.clock = np.where(ended, 0, clock)
        self.returns = np.where(ended, np.float32(0), returns)
        self.episodes = self.episodes + ended.astype(np.int32)
        return rows

    def record(self, decision: Decision, parts: np.ndarray) -> Record:
        """Returns the record [P, N] of a decision, of a step that neither terminates nor closes an episode.

        Args:
            decision: The decision.
            parts: The rewards [P, N], or their parts [P, N, parts].
        """
        action = np.asarray(decision.action)
        extras = {name: np.asarray(x) for name, x in decision.extras.items()}
        extras |= {REWARDS: parts} if self.spec.rewards else {}
        none = np.zeros(self.last.shape, bool)
        reward = np.asarray(self.spec.reward(parts), np.float32)
        return Record(self.obs, action, reward, none, none, extras)  # type: ignore[arg-type]

    def stacked(self, found: list[Any], group: int) -> Any:
        """Stacks rows [P, N, ...] to [P, group, unroll, N, ...]."""

        def stack(*leaves: np.ndarray) -> np.ndarray:
            joined = np.stack(leaves, axis=1)
            return joined.reshape(joined.shape[0], group, self.trainer.unroll, *joined.shape[2:])

        return jax.tree.map(stack, *found)

    def world(self, state: np.ndarray, agent: Any, actor: Any) -> World:
        """Returns the worlds as a population holds them, on the learner's device.

        Args:
            state: The states of the environments [P, N, bytes].
            agent: The learner's agents [P].
            actor: Those that act in the next block; `()` without overlap.
        """
        learner = device_of(agent)
        host = HostWorld(self.seeds, jnp.asarray(state), actor)
        clock = self.clock.astype(np.int32)
        parts = World(host, self.obs, self.memory, self.first, self.last, clock, self.returns, self.episodes)  # type: ignore[arg-type]
        return jax.tree.map(lambda x: jnp.asarray(jax.device_put(x, learner)), parts)


def _shaped(x: np.ndarray, like: np.ndarray) -> np.ndarray:
    return x.reshape(like.shape)


def _numpy(array: Any) -> Any:
    """Returns a writable copy."""
    return np.array(array)


def device_of(tree: Any) -> Any:
    """Returns the device of arrays."""
    return jax.tree.leaves(tree)[0].devices().pop()


def copied(tree: Any, device: Any) -> Any:
    """Copies arrays to a device. Never shares memory: the learner donates its arrays, even if both share a device."""
    return jax.device_put(tree, device, may_alias=False)
