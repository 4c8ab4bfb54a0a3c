"""Paths of skills: greedy episodes of a skill agent's representative skills, or of a planner."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from covey.agent import Policy
from covey.agents.skills.contract import Paths, SkillAgent
from covey.agents.skills.view import vector_size
from covey.envs.base import Env
from covey.envs.described import ADDED
from covey.evaluation.rollout import roll
from covey.observation import OBS, Obs
from covey.training.sharding import SPLIT, WHOLE, Axis, over_devices, over_members
from covey.types import Array, EnvSpec, Key, Metrics


@partial(jax.jit, static_argnames=("agent", "env", "episodes"))
def skill_paths(agent: SkillAgent[Any, Any, Any], env: Env, state: Any, hyper: Any, key: Key, episodes: int) -> Paths:
    """Runs some episodes of each representative skill; all skills have the same start states."""
    return _paths(agent, env, state, hyper, key, episodes)


def measure(
    agent: SkillAgent[Any, Any, Any],
    env: Env,
    states: Any,
    hypers: Any,
    key: Key,
    episodes: int,
    axis: Axis = "vmap",
    devices: int = 1,
) -> Metrics:
    """Returns the agent's measures of its skills for every member, [P] each, over the episodes of `skill_paths`."""
    run = partial(_measure, agent, env, episodes, axis)
    return over_devices(run, devices, (SPLIT, SPLIT, WHOLE), SPLIT)(states, hypers, key)


@partial(jax.jit, static_argnames=("agent", "env", "episodes", "axis"))
def _measure(
    agent: SkillAgent[Any, Any, Any], env: Env, episodes: int, axis: Axis, states: Any, hypers: Any, key: Key
) -> Metrics:
    key_paths, key_measure = jax.random.split(key)

    def one(state: Any, hyper: Any) -> Metrics:
        return agent.measure(state, hyper, _paths(agent, env, state, hyper, key_paths, episodes), key_measure)

    return over_members(one, axis)(states, hypers)


@partial(jax.jit, static_argnames=("planner", "env", "steps"))
def plan_paths(
    planner: Policy[Any, Any, Any], env: Env, states: Any, hyper: Any, keys: Key, steps: int
) -> tuple[Obs, Array]:
    """Runs one episode for each state [G] of a planner; each has its own start state. Returns what `_path` does."""

    def one(state: Any, key: Key) -> tuple[Obs, Array]:
        key_begin, key_path = jax.random.split(key)
        return _path(planner, env, state, hyper, planner.begin(state, hyper, key_begin), key_path, steps)

    return jax.vmap(one)(states, keys)


@partial(jax.jit, static_argnames=("policy", "env"))
def policy_paths(policy: Policy[Any, Any, Any], env: Env, state: Any, hyper: Any, keys: Key) -> tuple[Obs, Array]:
    """Runs one greedy episode for each key [N]; an agent draws its skill. Returns what `_path` does, [N, ...]."""

    def one(key: Key) -> tuple[Obs, Array]:
        key_begin, key_path = jax.random.split(key)
        memory = policy.begin(state, hyper, key_begin)
        return _path(policy, env, state, hyper, memory, key_path, env.spec.episode_length)

    return jax.vmap(one)(keys)


def _paths(agent: SkillAgent[Any, Any, Any], env: Env, state: Any, hyper: Any, key: Key, episodes: int) -> Paths:
    skills = agent.show_skills()
    keys = jax.random.split(key, episodes)

    def one(skill: Array, key: Key) -> tuple[Obs, Array]:
        return _path(agent, env, state, hyper, agent.memory_for(skill), key, env.spec.episode_length)

    obs, valid = jax.vmap(lambda z: jax.vmap(lambda k: one(z, k))(keys))(skills)
    return Paths(skills, obs, valid)


def _path(
    policy: Policy[Any, Any, Any], env: Env, state: Any, hyper: Any, memory: Any, key: Key, steps: int
) -> tuple[Obs, Array]:
    """Returns the observations [T + 1, ...] of an episode, and 1 for each step [T] before its end, 0 after it.

    After the end the last observation is repeated. Parts that no measure reads, such as images, are left out.
    """
    key_reset, key_run = jax.random.split(key)
    start, found = roll(policy, env, state, hyper, memory, (key_reset, key_run), steps)
    ended = jnp.cumsum(found.terminated.astype(jnp.int32))
    alive = jnp.concatenate([jnp.ones(1, bool), ended[:-1] == 0])
    last = jnp.sum(alive.astype(jnp.int32)) - 1
    shown = jnp.minimum(jnp.arange(steps), last)
    first, later = (path_parts(env.spec, obs) for obs in (start.obs, found.obs))
    obs = jax.tree.map(lambda x, xs: jnp.concatenate([x[None], xs[shown]]), first, later)
    return obs, alive.astype(jnp.float32)


def path_parts(spec: EnvSpec, obs: Obs) -> Obs:
    """Returns the parts of observations that measures, plots and plans of skills read: no images, which are large."""
    if not spec.described:
        return obs
    read = [*ADDED, *([OBS] if vector_size(spec) else [])]
    return {name: x for name, x in obs.items() if name in read}
