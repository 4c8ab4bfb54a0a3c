"""Greedy episodes in compiled environments: one step, shared by all rollouts, and the loops around it."""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from covey.agent import Policy
from covey.agents.skills.contract import SkillAgent
from covey.envs.base import Env
from covey.observation import Obs
from covey.training.member import where
from covey.types import Array, Key

DIVERSITY = "diversity_return"
"""The annotation of a skill agent's episodes: the sum of its intrinsic reward."""
SKILL_REWARD = 2**32 - 1
"""The `fold_in` value of the random numbers of that reward."""
ACTION_CHANGE = "action_change"
"""The annotation of every episode: the mean of abs(a_t - a_{t-1}) over its steps but the first, and over dimensions."""
ACTION_LIMITS = "action_limits"
"""The annotation of every episode: the share of the components of its actions that are at a limit."""
AT_LIMIT = 0.99
"""A component of an action is at a limit from this absolute value on."""


class Episodes(NamedTuple):
    """Statistics of greedy episodes: one number per episode, [episodes] or [members, episodes].

    Args:
        returns: Sums of rewards.
        length: Numbers of steps.
        descriptor: [..., size]: the environment's descriptor of the final state, its mean over the episode, or a
            function of all of them, as the environment's spec says; size 0 without a descriptor.
        annotations: By name, means over the episode of the numbers that a policy reports with each decision, such as
            TAAC's share of repeated actions; `diversity_return`, the sum of a skill agent's intrinsic reward; and how
            smooth the actions are. `action_change` is the mean abs(a_t - a_{t-1}) over the episode and the dimensions
            of the action (0 in an episode of one step), and `action_limits` the share of components with
            abs(a) >= 0.99.

    Example:
        >>> found = covey.evaluate(loop, population, episodes=20)
        >>> found.returns.mean(axis=1)                     # the mean return of every member
    """

    returns: Array | np.ndarray
    length: Array | np.ndarray
    descriptor: Array | np.ndarray
    annotations: dict[str, Array | np.ndarray]

    def reported(self) -> dict[str, Array | np.ndarray]:
        """Returns the annotations without `action_change` and `action_limits`, which every policy has."""
        return {name: x for name, x in self.annotations.items() if name not in (ACTION_CHANGE, ACTION_LIMITS)}


class Episode(NamedTuple):
    """One greedy episode of T steps to look at, in NumPy.

    Args:
        states: [T + 1] states of the environment. For a host environment, its pictures; None where none was taken.
        obs: [T + 1, ...] observations, an array or a dictionary of them.
        actions: [T, A] actions in [-1, 1].
        annotations: By name, the numbers [T] that the policy reports with each decision.
        rewards: [T] rewards.
    """

    states: list[Any]
    obs: Any
    actions: np.ndarray
    annotations: dict[str, np.ndarray]
    rewards: np.ndarray = np.zeros(0, np.float32)


class Situation(NamedTuple):
    """The state before a decision: the environment, its observation, and the policy's memory."""

    env: Any
    obs: Obs
    memory: Any


class GreedyStep(NamedTuple):
    """An action with its annotations, and what followed. A rollout has them stacked, [T, ...]."""

    action: Array
    annotations: dict[str, Array]
    env: Any
    obs: Obs
    reward: Array
    terminated: Array


Carry = tuple[Array, Situation, Array, Array, Episodes]
"""Step, situation, last action, whether an episode still runs, and statistics of episodes in lock-step."""


def greedy_step(
    policy: Policy[Any, Any, Any], env: Env, state: Any, hyper: Any, now: Situation, key_act: Key, key_step: Key
) -> tuple[Situation, GreedyStep]:
    """Makes one greedy step in one environment."""
    decision = policy.act(state, hyper, now.memory, now.obs, key_act, "greedy")
    next_env, outcome = env.step(now.env, decision.action, key_step)
    step = GreedyStep(
        decision.action,
        _annotations(decision.extras),
        next_env,
        outcome.obs,
        env.spec.reward(outcome.reward),
        outcome.terminated,
    )
    return Situation(next_env, outcome.obs, decision.memory), step


def smoothness(action: Any, before: Any) -> dict[str, Any]:
    """Returns the annotations [...] of actions [..., A] after those of the step before, in NumPy or JAX."""
    at_limit = (abs(action) >= AT_LIMIT).astype(np.float32)
    return {ACTION_CHANGE: abs(action - before).mean(axis=-1), ACTION_LIMITS: at_limit.mean(axis=-1)}


def _annotations(extras: dict[str, Any]) -> dict[str, Any]:
    """Returns the scalars among the extras of a decision."""
    return {name: x for name, x in extras.items() if x.ndim == 0}


def run_episodes(
    policy: Policy[Any, Any, Any],
    env: Env,
    state: Any,
    hyper: Any,
    key: Key,
    episodes: int,
    skill_agent: SkillAgent[Any, Any, Any] | None = None,
) -> Episodes:
    """Runs greedy episodes of one policy in lock-step, until all have ended.

    An environment whose episode is over is still stepped, but no longer counted: its numbers may be NaN by then. The
    policy of a `skill_agent` also gets a diversity return.
    """
    key_reward = jax.random.fold_in(key, SKILL_REWARD)
    key_reset, key_begin, key_run = jax.random.split(key, 3)
    start_env, start_obs = jax.vmap(env.reset)(jax.random.split(key_reset, episodes))
    memory = jax.vmap(lambda k: policy.begin(state, hyper, k))(jax.random.split(key_begin, episodes))
    start = Situation(start_env, start_obs, memory)
    size = env.spec.descriptor.size if env.spec.descriptor else 0
    reduce = env.spec.descriptor.reduce if env.spec.descriptor else "final"

    def step_all(now: Situation, t: Array) -> tuple[Situation, GreedyStep]:
        key_act, key_step = jax.random.split(jax.random.fold_in(key_run, t), (2, episodes))
        later, step = jax.vmap(partial(greedy_step, policy, env, state, hyper))(now, key_act, key_step)
        if skill_agent:
            key_now = jax.random.fold_in(key_reward, t)
            reward = skill_agent.skill_reward(state, hyper, now.memory, now.obs, step.obs, key_now)
            step = step._replace(annotations=step.annotations | {DIVERSITY: reward})
        return later, step

    def body(carry: Carry) -> Carry:
        t, now, before, alive, found = carry
        now, step = step_all(now, t)
        action = step.action.astype(jnp.float32)
        smooth = smoothness(action, jnp.where(t == 0, action, before))
        step = step._replace(annotations=step.annotations | smooth)
        descriptor = jax.vmap(env.descriptor)(step.env) if size else found.descriptor
        found = where(alive, _add(found, step, descriptor, reduce), found)
        return t + 1, now, action, alive & ~step.terminated, found

    def unfinished(carry: Carry) -> Array:
        t, _, _, alive, _ = carry
        return (t < env.spec.episode_length) & jnp.any(alive)

    zero = jnp.zeros(episodes)
    first, obs = jax.tree.map(lambda x: x[0], (memory, start_obs))
    extras = jax.eval_shape(lambda: policy.act(state, hyper, first, obs, key, "greedy").extras)
    names = (*_annotations(extras), *([DIVERSITY] if skill_agent else []), ACTION_CHANGE, ACTION_LIMITS)
    shape = (episodes, env.spec.episode_length, size) if callable(reduce) else (episodes, size)
    found = Episodes(zero, jnp.zeros(episodes, jnp.int32), jnp.zeros(shape), dict.fromkeys(names, zero))
    no_action = jnp.zeros((episodes, env.spec.action_size))
    carry = (jnp.zeros((), jnp.int32), start, no_action, jnp.ones(episodes, bool), found)
    found = jax.lax.while_loop(unfinished, body, carry)[-1]
    return _reduced(found, reduce) if callable(reduce) else found


def _reduced(found: Episodes, reduce: Callable[[Array, Array], Array]) -> Episodes:
    """Returns episodes with one descriptor each, from those of all states [episodes, T, size]."""
    valid = jnp.arange(found.descriptor.shape[1])[None] < jnp.asarray(found.length)[:, None]
    return found._replace(descriptor=jax.vmap(reduce)(jnp.asarray(found.descriptor), valid.astype(jnp.float32)))


def _add(found: Episodes, step: GreedyStep, descriptor: Any, reduce: Any) -> Episodes:
    """Adds a step to the statistics of episodes. The descriptor is the final one, the mean, or all of them."""
    length = found.length + 1
    mean = 1.0 / length.astype(jnp.float32)  # type: ignore[union-attr]  # the weight of the newest step in a mean
    # The first action of an episode is no change. Its 0 is replaced by the second one's.
    change = 1.0 / jnp.maximum(length - 1, 1).astype(jnp.float32)

    def grown(name: str, x: Any) -> Any:
        new = step.annotations[name]
        if name == DIVERSITY:
            return x + new
        return x + (change if name == ACTION_CHANGE else mean) * (new - x)

    if callable(reduce):  # all descriptors, [episodes, T, size]
        rows = jnp.arange(len(found.length))
        reduced = jnp.asarray(found.descriptor).at[rows, found.length].set(descriptor)
    else:
        weight = jnp.ones_like(found.returns) if reduce == "final" else mean
        reduced = found.descriptor + weight[:, None] * (descriptor - found.descriptor)
    return Episodes(
        returns=found.returns + step.reward,
        length=length,
        descriptor=reduced,
        annotations={name: grown(name, x) for name, x in found.annotations.items()},
    )


def roll(
    policy: Policy[Any, Any, Any], env: Env, state: Any, hyper: Any, memory: Any, keys: tuple[Key, Key], steps: int
) -> tuple[Situation, GreedyStep]:
    """Makes a fixed number of greedy steps from a start state; those after the end of the episode mean nothing.

    Args:
        policy: The policy.
        env: The environment.
        state: The policy's state.
        hyper: Its hyper-parameters.
        memory: Its memory at the first step.
        keys: Random keys for the start state and for the steps.
        steps: The number of steps T.

    Returns:
        The situation at the start, and the steps [T, ...].
    """
    key_reset, key_run = keys
    start = Situation(*env.reset(key_reset), memory)

    def step(now: Situation, key: Key) -> tuple[Situation, GreedyStep]:
        key_act, key_step = jax.random.split(key)
        return greedy_step(policy, env, state, hyper, now, key_act, key_step)

    return start, jax.lax.scan(step, start, jax.random.split(key_run, steps))[1]


@partial(jax.jit, static_argnames=("policy", "env", "steps"))
def watch(
    policy: Policy[Any, Any, Any], env: Env, state: Any, hyper: Any, key: Key, steps: int, memory: Any = None
) -> tuple[Situation, GreedyStep]:
    """Makes a fixed number of greedy steps (see `roll`), with a new memory unless one is given. Compiled."""
    key_reset, key_begin, key_run = jax.random.split(key, 3)
    memory = policy.begin(state, hyper, key_begin) if memory is None else memory
    return roll(policy, env, state, hyper, memory, (key_reset, key_run), steps)
