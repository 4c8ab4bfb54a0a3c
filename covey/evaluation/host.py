"""Evaluation on host environments: deterministic episodes from seeds of their own, all at once."""

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from covey.agent import Decision, Policy
from covey.envs.base import HostBatch, HostEnv
from covey.errors import require
from covey.evaluation.evaluate import Episodes
from covey.types import Array, Key


class Trace(NamedTuple):
    """One episode: observations [T + 1, D], actions [T, A], marks [T] each, and pictures by their step."""

    obs: np.ndarray
    actions: np.ndarray
    annotations: dict[str, np.ndarray]
    frames: dict[int, np.ndarray]


@partial(jax.jit, static_argnames=("policy", "episodes"))
def _begin(policy: Policy[Any, Any, Any], states: Any, hypers: Any, key: Key, episodes: int) -> Any:
    """A memory for every member and episode, [P, E]."""
    keys = jax.random.split(key, episodes)
    return jax.vmap(lambda s, h: jax.vmap(lambda k: policy.begin(s, h, k))(keys))(states, hypers)


@partial(jax.jit, static_argnames="policy")
def _act(
    policy: Policy[Any, Any, Any], states: Any, hypers: Any, memory: Any, obs: Array, key: Key, t: Array
) -> Decision:
    """Greedy decisions [P, E]."""
    keys = jax.random.split(jax.random.fold_in(key, t), obs.shape[1])

    def one(state: Any, hyper: Any, memory: Any, obs: Array) -> Decision:
        return jax.vmap(lambda m, o, k: policy.act(state, hyper, m, o, k, "greedy"))(memory, obs, keys)

    return jax.vmap(one)(states, hypers, memory, obs)


def evaluate_host(
    policy: Policy[Any, Any, Any], batch: HostBatch, states: Any, hypers: Any, key: Key, episodes: int, limit: int
) -> Episodes:
    """Episodes of every member [P] in a batch of P * episodes, all from the same seeds. Each counts up to its own end.

    None may last longer than `limit`.
    """
    key_reset, key_begin, key_run = jax.random.split(key, 3)
    members = jax.tree.leaves(hypers)[0].shape[0]
    seeds = np.tile(np.asarray(jax.random.bits(key_reset, (episodes,), jnp.uint32)), members)
    memory = _begin(policy, states, hypers, key_begin, episodes)
    shape = (members, episodes)
    returns, length, alive = np.zeros(shape, np.float32), np.zeros(shape, np.int32), np.ones(shape, bool)
    annotations: dict[str, np.ndarray] = {}
    obs, t = batch.reset(seeds), 0
    while alive.any():
        require(
            t < limit,
            f"An evaluation episode did not end within {limit:,} steps. Register the environment with "
            "max_episode_steps, or let it return truncated.",
        )
        decision = _act(policy, states, hypers, memory, obs.reshape(*shape, -1), key_run, np.int32(t))
        annotations = annotations or {name: np.zeros(shape, np.float32) for name in _annotations(decision, 2)}
        annotations = {
            name: x + np.where(alive, np.asarray(decision.extras[name]), 0.0) for name, x in annotations.items()
        }
        step = batch.step(np.asarray(decision.action).reshape(seeds.size, -1))
        obs, memory, t = step.obs, decision.memory, t + 1
        returns += np.where(alive, step.reward.reshape(shape), np.float32(0))
        length += alive
        alive = alive & ~(step.terminated | step.truncated | step.broken).reshape(shape)
    means = {name: total / length for name, total in annotations.items()}
    return Episodes(returns, length, np.zeros((*shape, 0), np.float32), means)  # type: ignore[arg-type]


class HostEvaluator:
    """Evaluates policies on host environments, which stay open between evaluations.

    Args:
        policy: The policy.
        env: The environment.
        workers: Worker processes that step the environments; 0 steps them in this process.
    """

    def __init__(self, policy: Policy[Any, Any, Any], env: HostEnv, workers: int = 0) -> None:
        self.policy = policy
        self.env = env
        self.workers = workers
        self._batch: HostBatch | None = None
        self._count = 0

    def __call__(self, states: Any, hypers: Any, key: Key, episodes: int) -> Episodes:
        """Runs greedy episodes of every member [P]."""
        count = jax.tree.leaves(hypers)[0].shape[0] * episodes
        if self._batch is None or self._count != count:
            self.close()
            self._batch, self._count = self.env.open(count, min(self.workers, count)), count
        limit = self.env.spec.episode_length
        return evaluate_host(self.policy, self._batch, states, hypers, key, episodes, limit)

    def close(self) -> None:
        """Closes the environments; the next evaluation opens others."""
        if self._batch is not None:
            self._batch.close()
            self._batch = None


def trace_host(
    policy: Policy[Any, Any, Any], env: HostEnv, state: Any, hyper: Any, key: Key, steps: int, draw_every: int = 0
) -> Trace:
    """One greedy episode of at most `steps` steps, with a picture of every `draw_every`-th step unless that is 0."""
    states, hypers = jax.tree.map(lambda x: jnp.asarray(x)[None], (state, hyper))
    key_reset, key_begin, key_run = jax.random.split(key, 3)
    memory = _begin(policy, states, hypers, key_begin, 1)
    batch = env.open(1, draws=draw_every > 0)
    try:
        seen, actions, annotations = [batch.reset(np.asarray(jax.random.bits(key_reset, (1,), jnp.uint32)))[0]], [], []
        frames = {0: batch.frame(0)} if draw_every else {}
        for t in range(steps):
            decision = _act(policy, states, hypers, memory, seen[-1][None, None], key_run, np.int32(t))
            memory = decision.memory
            step = batch.step(np.asarray(decision.action)[0])
            seen.append(step.obs[0])
            actions.append(np.asarray(decision.action)[0, 0])
            annotations.append({name: float(decision.extras[name][0, 0]) for name in _annotations(decision, 2)})
            if draw_every and (t + 1) % draw_every == 0:
                frames[t + 1] = batch.frame(0)
            if step.terminated[0] or step.truncated[0] or step.broken[0]:
                break
    finally:
        batch.close()
    series = {name: np.array([each[name] for each in annotations]) for name in annotations[0]}
    return Trace(np.stack(seen), np.stack(actions), series, frames)


def _annotations(decision: Decision, axes: int) -> list[str]:
    """What a policy says of a decision in one number."""
    return [name for name, x in decision.extras.items() if x.ndim == axes]
