"""The acting half of the host loop: environments stepped in NumPy, by an agent on a device of its own."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from covey.agent import Decision
from covey.backend import acting_device
from covey.envs.base import HostBatch
from covey.replay import Record
from covey.training.host_programs import HostPrograms, HostWorld
from covey.training.member import Population, World
from covey.training.trainer import Rows


class Acting:
    """The acting half: the worlds of all members [P, N, ...] in NumPy, and the agent that acts in them.

    It acts on a device of its own, because a program on the learner's would wait behind all the learning under way.
    """

    def __init__(self, programs: HostPrograms, population: Population) -> None:
        world = population.members.world
        self.programs, self.trainer = programs, programs.trainer
        self.device = acting_device()
        agent = population.members.agent if world.env.actor == () else world.env.actor
        self.take(agent)
        self.seeds = world.env.seeds
        own = (population.members.hyper, world.memory, population.members.key)
        self.hypers, self.memory, self.keys = _copied(own, self.device)
        self.obs, self.first, self.last = _numpy(world.obs), _numpy(world.first), _numpy(world.last)
        self.clock, self.returns, self.episodes = _numpy(world.clock), _numpy(world.returns), _numpy(world.episodes)
        self.number = 0
        self.broken = np.zeros(programs.members)

    def take(self, agent: Any) -> None:
        """Acts as this agent from now on; its arrays are copied, because the learner gives its own away."""
        self.actor = _copied(agent, self.device)

    def begin(self, number: int) -> None:
        """Draws the random numbers of a block."""
        self.number = number
        self.drawn = self.programs.step_keys(self.keys, np.int32(number))

    def decide(self, row: int, warmup: bool) -> Decision:
        place = np.array([self.number, row], np.int32)
        return self.programs.act(
            self.actor, self.hypers, self.memory, self.first, self.obs, self.drawn, place, warmup=warmup
        )

    def collect(self, batch: HostBatch, start: int, group: int, warmup: bool) -> tuple[Rows, np.ndarray]:
        """The rows of some iterations, [P, group, unroll, N, ...], and the episodes that ended in them."""
        unroll, found = self.trainer.unroll, []
        finished = np.zeros((self.obs.shape[0], 3), np.float32)
        for row in range(start * unroll, (start + group) * unroll):
            decision = self.decide(row, warmup)
            found.append(self._row(batch, decision, finished))
        return self.stacked(found, group), finished

    def _row(self, batch: HostBatch, decision: Decision, finished: np.ndarray) -> Rows:
        """One step of every environment. Where there was no answer, the record closes its episode instead."""
        shape: tuple[int, ...] = decision.action.shape[:-1]
        action = np.asarray(decision.action)
        step = batch.step(action.reshape(-1, action.shape[-1]))
        obs: Any = step.obs.reshape(self.obs.shape)
        reward, terminated, truncated, broken = (x.reshape(shape) for x in step[1:])
        ended = self.last | broken
        going = ~ended
        reward, terminated = np.where(going, reward, np.float32(0)), terminated & going
        closes = going & (terminated | truncated)
        rows = Rows(self.record(decision, reward)._replace(terminated=terminated, last=ended), obs)
        returns, clock = self.returns + reward, self.clock + 1
        if closes.any():
            finished += np.stack([np.where(closes, x, 0).sum(-1) for x in (np.ones(shape), returns, clock)], axis=-1)
        self.broken += broken.sum(-1)
        self.obs, self.first, self.last, self.memory = obs, ended, closes, decision.memory
        self.clock, self.returns = np.where(ended, 0, clock), np.where(ended, np.float32(0), returns)
        self.episodes = self.episodes + ended.astype(np.int32)
        return rows

    def record(self, decision: Decision, reward: np.ndarray) -> Record:
        action = np.asarray(decision.action)
        extras = {name: np.asarray(x) for name, x in decision.extras.items()}
        none = np.zeros(self.last.shape, bool)
        return Record(self.obs, action, np.asarray(reward, np.float32), none, none, extras)  # type: ignore[arg-type]

    def stacked(self, found: list[Any], group: int) -> Any:
        """Rows [P, N, ...] of several times as [P, group, unroll, N, ...]."""

        def stack(*leaves: np.ndarray) -> np.ndarray:
            joined = np.stack(leaves, axis=1)
            return joined.reshape(joined.shape[0], group, self.trainer.unroll, *joined.shape[2:])

        return jax.tree.map(stack, *found)

    def world(self, state: np.ndarray, agent: Any) -> World:
        """The worlds as a population holds them, on the learner's device."""
        home = jax.tree.leaves(agent)[0].devices().pop()
        actor = self.actor if self.programs.overlap else ()
        host = HostWorld(self.seeds, jnp.asarray(state), actor)
        clock = self.clock.astype(np.int32)
        parts = World(host, self.obs, self.memory, self.first, self.last, clock, self.returns, self.episodes)  # type: ignore[arg-type]
        return jax.tree.map(lambda x: jnp.asarray(jax.device_put(x, home)), parts)


def _numpy(array: Any) -> Any:
    """A copy that may be written to."""
    return np.array(array)


def _copied(tree: Any, device: Any) -> Any:
    """The arrays on a device, never in the same memory: the learner donates its own, also where both share a device."""
    return jax.device_put(tree, device, may_alias=False)
