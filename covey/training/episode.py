"""One greedy episode with everything in it, to be looked at."""

from functools import partial
from typing import Any, NamedTuple

import jax

from covey.agent import Policy
from covey.envs.base import Env, Outcome
from covey.types import Array, Key


class Seen(NamedTuple):
    """What each step led to [T]: the state of the environment, its observation, the action, what the policy says of it
    in one number, and whether the task ended there."""

    state: Any
    obs: Array
    action: Array
    marks: dict[str, Array]
    terminated: Array


@partial(jax.jit, static_argnames=("policy", "env", "steps"))
def watch(
    policy: Policy[Any, Any, Any], env: Env, state: Any, hyper: Any, key: Key, steps: int
) -> tuple[tuple[Any, Array], Seen]:
    """The start state with its observation, and so many steps from there. What follows an end is no part of it."""
    key_reset, key_begin, key_run = jax.random.split(key, 3)
    start = env.reset(key_reset)

    def step(carry: Any, key: Key) -> tuple[Any, Seen]:
        world, obs, memory = carry
        key_act, key_step = jax.random.split(key)
        decision = policy.act(state, hyper, memory, obs, key_act, "greedy")
        world, outcome = env.step(world, decision.action, key_step)
        marks = {name: x for name, x in decision.extras.items() if x.ndim == 0}
        return (world, outcome.obs, decision.memory), Seen(
            world, outcome.obs, decision.action, marks, outcome.terminated
        )

    carry = (*start, policy.begin(state, hyper, key_begin))
    return start, jax.lax.scan(step, carry, jax.random.split(key_run, steps))[1]


class Probe(NamedTuple):
    """What N environments do under given actions: their starts with the observations [N], and all outcomes [T, N]."""

    start: tuple[Any, Array]
    outcome: Outcome
    descriptor: Array


@partial(jax.jit, static_argnames=("env",))
def probe(env: Env, actions: Array, key: Key) -> Probe:
    """Follows actions [T, N, A] from N start states, past whatever ends there are."""
    key_reset, key_step = jax.random.split(key)
    count = actions.shape[1]
    start = jax.vmap(env.reset)(jax.random.split(key_reset, count))

    def step(world: Any, x: tuple[Array, Key]) -> tuple[Any, tuple[Outcome, Array]]:
        action, key = x
        world, outcome = jax.vmap(env.step)(world, action, jax.random.split(key, count))
        return world, (outcome, jax.vmap(env.descriptor)(world))

    _, (outcome, descriptor) = jax.lax.scan(step, start[0], (actions, jax.random.split(key_step, len(actions))))
    return Probe(start, outcome, descriptor)
