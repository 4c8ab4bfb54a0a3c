"""Paths of skills in host environments: what `covey.evaluation.skills` does in compiled ones."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from covey.agent import Policy
from covey.agents.skills.contract import Paths, SkillAgent
from covey.envs.base import HostBatch, HostEnv
from covey.evaluation.host import HostEvaluator, HostRollout
from covey.evaluation.skills import path_parts
from covey.observation import Obs
from covey.types import Array, EnvSpec, Key, Metrics


class HostSkills:
    """Runs the skills of an agent in host environments, which stay open between calls.

    Args:
        agent: The agent.
        env: The environment, described (`DescribedHost`).
        workers: Worker processes that step the environments; 0 steps them in this process.

    Example:
        >>> skills = HostSkills(agent, DescribedHost(covey.envs.make("gymnasium:Ant-v5", descriptor="x=qpos:0")))
        >>> paths = skills.paths(state, hyper, jax.random.key(0), episodes=3)
        >>> skills.close()
    """

    def __init__(self, agent: SkillAgent[Any, Any, Any], env: HostEnv, workers: int = 0) -> None:
        self.agent = agent
        self.env = env
        self._batches = HostEvaluator(agent, env, workers)

    def paths(self, state: Any, hyper: Any, key: Key, episodes: int) -> Paths:
        """Runs some episodes of each representative skill; all skills have the same start states."""
        states, hypers = jax.tree.map(lambda x: jnp.asarray(x)[None], (state, hyper))
        found = self._paths(states, hypers, key, episodes)
        return Paths(found.skills, *jax.tree.map(lambda x: x[0], (found.obs, found.valid)))

    def measure(self, states: Any, hypers: Any, key: Key, episodes: int) -> Metrics:
        """Returns the agent's measures of its skills for every member, [P] each."""
        key_paths, key_measure = jax.random.split(key)
        paths = self._paths(states, hypers, key_paths, episodes)
        return _measure(self.agent, states, hypers, paths.skills, paths.obs, paths.valid, key_measure)

    def measures(self, state: Any, hyper: Any) -> set[str]:
        """Returns the names of the measures. Computes nothing."""
        skills = jax.eval_shape(self.agent.show_skills)
        steps = self.env.spec.episode_length

        def one(state: Any, hyper: Any, skills: Array) -> Metrics:
            rows = (skills.shape[0], 1)
            obs = path_parts(self.env.spec, self.env.spec.observation.zeros(*rows, steps + 1))
            return self.agent.measure(state, hyper, Paths(skills, obs, jnp.ones((*rows, steps))), jax.random.key(0))

        return set(jax.eval_shape(one, state, hyper, skills))

    def close(self) -> None:
        """Closes the environments."""
        self._batches.close()

    def _paths(self, states: Any, hypers: Any, key: Key, episodes: int) -> Paths:
        """Returns paths with skills [S, K], and observations and `valid` [P, S, N, ...]."""
        key_reset, key_run = jax.random.split(key)
        skills = self.agent.show_skills()
        members = jax.tree.leaves(hypers)[0].shape[0]
        rows = (members, len(skills), episodes)
        each = jnp.repeat(skills, episodes, axis=0)
        memory = jax.vmap(lambda _: jax.vmap(self.agent.memory_for)(each))(jnp.arange(members))
        seeds = np.tile(np.asarray(jax.random.bits(key_reset, (episodes,), jnp.uint32)), members * len(skills))
        batch = self._batches.batch(len(seeds))
        rollout = HostRollout(self.agent, batch, states, hypers, key_run, len(each), seeds, memory)
        obs, valid = run_paths(rollout, self.env.spec, self.env.spec.episode_length)
        obs, valid = jax.tree.map(lambda x: x.reshape(*rows, *x.shape[2:]), (obs, valid))
        return Paths(skills, obs, valid)


@partial(jax.jit, static_argnames="agent")
def _measure(
    agent: SkillAgent[Any, Any, Any], states: Any, hypers: Any, skills: Array, obs: Obs, valid: Array, key: Key
) -> Metrics:
    def one(x: tuple[Any, Any, Obs, Array]) -> Metrics:
        state, hyper, obs, valid = x
        return agent.measure(state, hyper, Paths(skills, obs, valid), key)

    return jax.lax.map(one, (states, hypers, obs, valid))


def host_plan_paths(
    planner: Policy[Any, Any, Any], env: HostEnv, states: Any, hyper: Any, key: Key, steps: int
) -> tuple[Obs, np.ndarray]:
    """Runs one episode for each state [G] of a planner, each with its own start state (see `plan_paths`)."""
    key_reset, key_run = jax.random.split(key)
    count = jax.tree.leaves(states)[0].shape[0]
    hypers = jax.tree.map(lambda x: jnp.broadcast_to(jnp.asarray(x), (count, *jnp.shape(x))), hyper)
    batch: HostBatch = env.open(count)
    try:
        seeds = np.asarray(jax.random.bits(key_reset, (count,), jnp.uint32))
        rollout = HostRollout(planner, batch, states, hypers, key_run, 1, seeds)
        return jax.tree.map(lambda x: x[:, 0], run_paths(rollout, env.spec, steps))
    finally:
        batch.close()


def run_paths(rollout: HostRollout, spec: EnvSpec, steps: int) -> tuple[Obs, np.ndarray]:
    """Returns the observations [P, E, T + 1, ...] of episodes, and 1 for each step [P, E, T] before their end.

    After the end the last observation is repeated. Parts that no measure reads, such as images, are left out.
    """
    last: dict[str, np.ndarray] = path_parts(spec, rollout.by_member(rollout.obs))
    alive = np.ones(rollout.shape, bool)
    found = [last]
    valid = []
    for _, _, step in rollout.steps():
        made = alive & ~step.broken.reshape(rollout.shape)  # a broken step leads to another episode
        new = path_parts(spec, rollout.by_member(step.obs))
        last = {name: np.where(made[..., None], x, last[name]) for name, x in new.items()}
        found.append(last)
        valid.append(made.astype(np.float32))
        alive = made & ~(step.terminated | step.truncated).reshape(rollout.shape)
        if len(valid) == steps or not alive.any():
            break
    found += [last] * (steps - len(valid))
    valid += [np.zeros(rollout.shape, np.float32)] * (steps - len(valid))
    return jax.tree.map(lambda *rows: np.stack(rows, axis=2), *found), np.stack(valid, axis=2)
