"""Evaluation: deterministic episodes on start states of their own, all at once."""

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from covey.agent import Policy
from covey.envs.base import Env
from covey.training.member import where
from covey.training.sharding import SPLIT, WHOLE, Axis, each, over_devices
from covey.types import Array, Key


class Episodes(NamedTuple):
    """What evaluation found, per episode: [episodes], or [P, episodes] of a population."""

    returns: Array
    length: Array
    descriptor: Array
    annotations: dict[str, Array]
    """What the policy says of each decision in one number, such as that it repeats: the mean over the episode."""


class _Progress(NamedTuple):
    env: Any
    obs: Array
    memory: Any
    alive: Array
    found: Episodes


def evaluate(
    policy: Policy[Any, Any, Any],
    env: Env,
    states: Any,
    hypers: Any,
    key: Key,
    episodes: int,
    axis: Axis = "vmap",
    devices: int = 1,
) -> Episodes:
    """Episodes of every member [P], all from the same start states."""
    run = partial(_evaluate, policy, env, episodes, axis)
    return over_devices(run, devices, (SPLIT, SPLIT, WHOLE), SPLIT)(states, hypers, key)


@partial(jax.jit, static_argnames=("policy", "env", "episodes", "axis"))
def _evaluate(
    policy: Policy[Any, Any, Any], env: Env, episodes: int, axis: Axis, states: Any, hypers: Any, key: Key
) -> Episodes:
    def one(state: Any, hyper: Any) -> Episodes:
        return run_episodes(policy, env, state, hyper, key, episodes)

    return each(one, axis)(states, hypers)


def run_episodes(policy: Policy[Any, Any, Any], env: Env, state: Any, hyper: Any, key: Key, episodes: int) -> Episodes:
    """Each episode stops at its own end; what its environment does afterwards is not looked at.

    The descriptor of an episode is that of its final state or the mean over its states, as the environment says.
    """
    key_reset, key_begin, key_run = jax.random.split(key, 3)
    start_env, start_obs = jax.vmap(env.reset)(jax.random.split(key_reset, episodes))
    memory = jax.vmap(lambda k: policy.begin(state, hyper, k))(jax.random.split(key_begin, episodes))
    size = env.spec.descriptor.size if env.spec.descriptor else 0
    final = env.spec.descriptor is None or env.spec.descriptor.reduce == "final"

    def step(carry: tuple[Array, _Progress]) -> tuple[Array, _Progress]:
        t, now = carry
        keys = jax.random.split(jax.random.fold_in(key_run, t), (2, episodes))
        decision = jax.vmap(lambda m, o, k: policy.act(state, hyper, m, o, k, "greedy"))(now.memory, now.obs, keys[0])
        state_, outcome = jax.vmap(env.step)(now.env, decision.action, keys[1])
        descriptor = jax.vmap(env.descriptor)(state_) if size else now.found.descriptor
        length = now.found.length + 1
        mean = 1.0 / length.astype(jnp.float32)
        share = jnp.ones_like(now.found.returns) if final else mean
        found = Episodes(
            returns=now.found.returns + env.spec.reward(outcome.reward),
            length=length,
            descriptor=now.found.descriptor + share[:, None] * (descriptor - now.found.descriptor),
            annotations={name: x + mean * (decision.extras[name] - x) for name, x in now.found.annotations.items()},
        )
        found = where(now.alive, found, now.found)
        return t + 1, _Progress(state_, outcome.obs, decision.memory, now.alive & ~outcome.terminated, found)

    def goes_on(carry: tuple[Array, _Progress]) -> Array:
        t, now = carry
        return (t < env.spec.episode_length) & jnp.any(now.alive)

    zero = jnp.zeros(episodes)
    first, obs = jax.tree.map(lambda x: x[0], (memory, start_obs))
    extras = jax.eval_shape(lambda: policy.act(state, hyper, first, obs, key, "greedy").extras)
    annotations = {name: zero for name, x in extras.items() if x.shape == ()}
    found = Episodes(zero, jnp.zeros(episodes, jnp.int32), jnp.zeros((episodes, size)), annotations)
    begin = _Progress(start_env, start_obs, memory, jnp.ones(episodes, bool), found)
    return jax.lax.while_loop(goes_on, step, (jnp.zeros((), jnp.int32), begin))[1].found
