"""Where skills lead: greedy episodes of chosen skills, or of a planner."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from covey.agent import Policy
from covey.agents.skills.contract import Paths, SkillAgent
from covey.envs.base import Env
from covey.training.sharding import SPLIT, WHOLE, Axis, each, over_devices
from covey.types import Array, Key, Metrics


def roll(
    policy: Policy[Any, Any, Any], env: Env, state: Any, hyper: Any, memory: Any, key: Key, steps: int
) -> tuple[Array, Array]:
    """Observations [T + 1, ...] of one greedy episode from a memory, and whether each step was made before its end [T].

    What the environment does after its end is replaced by its last observation.
    """
    key_reset, key_run = jax.random.split(key)
    world, start = env.reset(key_reset)

    def step(carry: Any, key: Key) -> Any:
        world, obs, memory, alive = carry
        key_act, key_step = jax.random.split(key)
        decision = policy.act(state, hyper, memory, obs, key_act, "greedy")
        world, outcome = env.step(world, decision.action, key_step)
        obs = jnp.where(alive, outcome.obs, obs)
        return (world, obs, decision.memory, alive & ~outcome.terminated), (obs, alive.astype(jnp.float32))

    carry = (world, start, memory, jnp.ones((), bool))
    _, (obs, valid) = jax.lax.scan(step, carry, jax.random.split(key_run, steps))
    return jnp.concatenate([start[None], obs]), valid


@partial(jax.jit, static_argnames=("agent", "env", "episodes"))
def skill_paths(agent: SkillAgent[Any, Any, Any], env: Env, state: Any, hyper: Any, key: Key, episodes: int) -> Paths:
    """Some episodes of each of the skills that stand for all, from the same start states."""
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
    """What every member's skills are worth, [P] each, over the episodes of `skill_paths`."""
    run = partial(_measure, agent, env, episodes, axis)
    return over_devices(run, devices, (SPLIT, SPLIT, WHOLE), SPLIT)(states, hypers, key)


@partial(jax.jit, static_argnames=("agent", "env", "episodes", "axis"))
def _measure(
    agent: SkillAgent[Any, Any, Any], env: Env, episodes: int, axis: Axis, states: Any, hypers: Any, key: Key
) -> Metrics:
    key_paths, key_measure = jax.random.split(key)

    def one(state: Any, hyper: Any) -> Metrics:
        return agent.measure(state, hyper, _paths(agent, env, state, hyper, key_paths, episodes), key_measure)

    return each(one, axis)(states, hypers)


@partial(jax.jit, static_argnames=("planner", "env", "steps"))
def plan_paths(
    planner: Policy[Any, Any, Any], env: Env, states: Any, hyper: Any, keys: Key, steps: int
) -> tuple[Array, Array]:
    """One episode of a planner for each of its states [G], from start states of their own."""

    def one(state: Any, key: Key) -> tuple[Array, Array]:
        key_begin, key_roll = jax.random.split(key)
        return roll(planner, env, state, hyper, planner.begin(state, hyper, key_begin), key_roll, steps)

    return jax.vmap(one)(states, keys)


def _paths(agent: SkillAgent[Any, Any, Any], env: Env, state: Any, hyper: Any, key: Key, episodes: int) -> Paths:
    skills, keys = agent.show_skills(), jax.random.split(key, episodes)

    def one(skill: Array, key: Key) -> tuple[Array, Array]:
        return roll(agent, env, state, hyper, agent.memory_for(skill), key, env.spec.episode_length)

    obs, valid = jax.vmap(lambda z: jax.vmap(lambda k: one(z, k))(keys))(skills)
    return Paths(skills, obs, valid)
