"""Steps N environments with a policy: the one step of collection, which training and `collect` share."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from covey.agent import Decision, Policy
from covey.envs.base import Env
from covey.errors import require
from covey.observation import Obs
from covey.replay import Record
from covey.training.member import World, start_world, where
from covey.types import Array, Key, Mode, Step

REWARDS = "rewards"
"""The name of the extra that holds the parts of the reward, if it has several."""


class Rows(NamedTuple):
    """Fresh records [T, N], and the observation that followed each."""

    records: Record
    next_obs: Obs


class Rollout(NamedTuple):
    """Fresh data of N environments over T rows, [T, N, ...]; from a loop, [P, T, N, ...] of P members.

    An episode of L steps has L + 1 rows: the last one holds its final observation, and its action is ignored. It is not
    `valid` in `steps`, and `last` in `records`.

    Args:
        steps: The transitions, as `agent.observe` takes them.
        records: The same as `Replay.add` takes them.
        descriptor: Descriptors of the states before each step, [..., size]; size 0 if the environment has none.
        next_descriptor: Those of the states after it.

    Example:
        >>> world, rollout = covey.collect(agent, env, state, hyper, world, key, steps=100)
        >>> buffer = replay.add(buffer, rollout.records)
        >>> rewards = rollout.steps.reward[rollout.steps.valid > 0]
    """

    steps: Step
    records: Record
    descriptor: Array
    next_descriptor: Array


class RowEnd(NamedTuple):
    """The end of a row, besides its records: the states of the environments after it, and its finished episodes.

    Args:
        env: States [N] after the step, before a new episode replaces them.
        finished: [3]: the number of episodes that ended, and the sums of their returns and lengths.
    """

    env: Any
    finished: Array


def new_world(agent: Policy[Any, Any, Any], env: Env, state: Any, hyper: Any, key: Key, envs: int = 1) -> World:
    """Starts N environments at their first episodes, for `collect`.

    Args:
        agent: The agent or policy.
        env: The compiled environment.
        state: The agent's state.
        hyper: Its hyper-parameters.
        key: A random key.
        envs: The number of environments N.

    Returns:
        The environments with the policy's memories.

    Example:
        >>> world = covey.new_world(agent, env, state, hyper, jax.random.key(0), envs=8)
    """
    require(envs >= 1, f"`envs` must be at least 1, not {envs}.")
    key_reset, key_begin = jax.random.split(key)
    start, obs = jax.vmap(env.reset)(jax.random.split(key_reset, envs))
    memory = jax.vmap(lambda k: agent.begin(state, hyper, k))(jax.random.split(key_begin, envs))
    return start_world(start, obs, memory)


def collect(
    agent: Policy[Any, Any, Any],
    env: Env,
    state: Any,
    hyper: Any,
    world: World,
    key: Key,
    steps: int = 1,
    mode: Mode = "sample",
) -> tuple[World, Rollout]:
    """Steps N environments with a policy. A pure function: `jax.jit` it with static `agent`, `env`, `steps`, `mode`.

    An environment whose episode is over starts a new one by itself.

    Args:
        agent: The agent or policy.
        env: The compiled environment.
        state: The agent's state.
        hyper: Its hyper-parameters.
        world: The environments, from `new_world` or the call before.
        key: A random key; use a new one for each call.
        steps: Rows T to collect.
        mode: "sample" explores, "greedy" does not, "random" acts uniformly.

    Returns:
        The environments after these steps, and the collected data.

    Example:
        >>> play = jax.jit(functools.partial(covey.collect, agent, env, steps=50))
        >>> world, rollout = play(state, hyper, world, key)
        >>> rollout.steps.obs.shape
        (50, 8, 3)
    """
    require(steps >= 1, f"`steps` must be at least 1, not {steps}.")
    envs = world.first.shape[0]
    key_starts, key_steps = jax.random.split(key)
    starts = draw_starts(env, key_starts, steps, envs)

    def row(world: World, keys: Key) -> tuple[World, Any]:
        after, rows, end = step_row(agent, env, state, hyper, world, starts, keys, mode)
        return after, (rows, describe(env, world.env, envs), describe(env, end.env, envs))

    world, (rows, before, after) = jax.lax.scan(row, world, jax.random.split(key_steps, (steps, 3, envs)))
    return world, Rollout(as_steps(*rows), rows.records, before, after)


def draw_starts(env: Env, key: Key, rows: int, envs: int) -> Any:
    """Draws start states [episodes, N]: by default as many as `rows` rows can need, two records for each episode."""
    return jax.vmap(jax.vmap(env.reset))(jax.random.split(key, (-(-rows // env.spec.steps_per_start), envs)))


def decide(
    agent: Policy[Any, Any, Any],
    state: Any,
    hyper: Any,
    memory: Any,
    first: Array,
    obs: Obs,
    keys: Key,
    mode: Mode,
) -> Decision:
    """Decides for each of the N environments; at the first step of an episode, with a new memory."""
    key_begin, key_act = keys[0], keys[1]
    memory = where(first, jax.vmap(lambda k: agent.begin(state, hyper, k))(key_begin), memory)
    return jax.vmap(lambda m, o, k: agent.act(state, hyper, m, o, k, mode))(memory, obs, key_act)


def step_row(
    agent: Policy[Any, Any, Any],
    env: Env,
    state: Any,
    hyper: Any,
    world: World,
    starts: Any,
    keys: Key,
    mode: Mode,
) -> tuple[World, Rows, RowEnd]:
    """Steps every environment. One whose episode is over ignores its action and takes a new start state."""
    decision = decide(agent, state, hyper, world.memory, world.first, world.obs, keys, mode)
    after, outcome = jax.vmap(env.step)(world.env, decision.action, keys[2])
    ended = world.last
    going = ~ended
    parts = where(going, outcome.reward, jnp.zeros_like(outcome.reward))
    reward = env.spec.reward(parts)
    terminated = outcome.terminated & going
    clock = world.clock + 1
    closes = going & (outcome.terminated | (clock >= env.spec.episode_length))
    returns: Array = world.returns + reward
    extras = decision.extras | ({REWARDS: parts} if env.spec.rewards else {})
    record = Record(world.obs, decision.action, reward, terminated, ended, extras)
    finished = jnp.stack([jnp.ones_like(returns), returns, clock.astype(jnp.float32)])
    finished = jnp.sum(jnp.where(closes[None], finished, 0.0), axis=1)
    episodes, envs = jax.tree.leaves(starts)[0].shape[:2]
    turn = world.episodes % episodes
    start_env, start_obs = jax.tree.map(lambda x: x[turn, jnp.arange(envs)], starts)
    world = World(
        env=where(ended, start_env, after),
        obs=where(ended, start_obs, outcome.obs),
        memory=decision.memory,
        first=ended,
        last=closes,
        clock=jnp.where(ended, 0, clock),
        returns=jnp.where(ended, 0.0, returns),
        episodes=world.episodes + ended.astype(jnp.int32),
    )
    return world, Rows(record, outcome.obs), RowEnd(after, finished)


def describe(env: Env, states: Any, envs: int) -> Array:
    """Returns the descriptors [N, size] of states; size 0 if the environment has none."""
    return jax.vmap(env.descriptor)(states) if env.spec.descriptor else jnp.zeros((envs, 0))


def as_steps(records: Record, next_obs: Obs) -> Step:
    """Returns fresh records [T, N] as the steps that an agent observes."""
    terminated = records.terminated.astype(jnp.float32)
    last = records.last.astype(jnp.float32)
    return Step(records.obs, records.action, records.reward, terminated, next_obs, 1.0 - last, records.extras)
