"""Greedy episodes in host environments: one generator of steps, shared by evaluation and recording."""

from collections.abc import Iterator
from functools import partial
from itertools import count
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from covey.agent import Decision, Policy
from covey.envs.base import HostBatch, HostEnv, HostStep
from covey.errors import require
from covey.evaluation.rollout import ACTION_CHANGE, Episode, Episodes, smoothness
from covey.observation import Obs
from covey.types import Array, EnvSpec, Key


@partial(jax.jit, static_argnames=("policy", "episodes"))
def _begin(policy: Policy[Any, Any, Any], states: Any, hypers: Any, key: Key, episodes: int) -> Any:
    """Returns a memory for every member and episode, [P, E]."""
    keys = jax.random.split(key, episodes)
    return jax.vmap(lambda s, h: jax.vmap(lambda k: policy.begin(s, h, k))(keys))(states, hypers)


@partial(jax.jit, static_argnames="policy")
def _act(
    policy: Policy[Any, Any, Any], states: Any, hypers: Any, memory: Any, obs: Obs, key: Key, t: Array
) -> Decision:
    """Returns greedy decisions [P, E]."""
    keys = jax.random.split(jax.random.fold_in(key, t), jax.tree.leaves(obs)[0].shape[1])

    def one(state: Any, hyper: Any, memory: Any, obs: Obs) -> Decision:
        return jax.vmap(lambda m, o, k: policy.act(state, hyper, m, o, k, "greedy"))(memory, obs, keys)

    return jax.vmap(one)(states, hypers, memory, obs)


class HostRollout:
    """Greedy episodes of every member [P] in a batch of P * E environments, E per member.

    Creating it resets the environments; all members have the same start states.
    """

    def __init__(
        self, policy: Policy[Any, Any, Any], batch: HostBatch, states: Any, hypers: Any, key: Key, episodes: int
    ) -> None:
        key_reset, key_begin, self.key_run = jax.random.split(key, 3)
        self.policy = policy
        self.batch = batch
        self.states = states
        self.hypers = hypers
        self.shape = (jax.tree.leaves(hypers)[0].shape[0], episodes)
        self.memory = _begin(policy, states, hypers, key_begin, episodes)
        seeds = np.asarray(jax.random.bits(key_reset, (episodes,), jnp.uint32))
        self.obs = batch.reset(np.tile(seeds, self.shape[0]))

    def steps(self) -> Iterator[tuple[np.ndarray, dict[str, np.ndarray], HostStep]]:
        """Yields, without end, the actions [P, E, A], their annotations [P, E] each, and the step [P * E, ...]."""
        for t in count():
            obs = jax.tree.map(lambda x: x.reshape(*self.shape, *x.shape[1:]), self.obs)
            decision = _act(self.policy, self.states, self.hypers, self.memory, obs, self.key_run, np.int32(t))
            action = np.asarray(decision.action)
            step = self.batch.step(action.reshape(-1, action.shape[-1]))
            self.obs = step.obs
            self.memory = decision.memory
            yield action, {name: np.asarray(x) for name, x in decision.extras.items() if x.ndim == 2}, step


def evaluate_host(
    policy: Policy[Any, Any, Any], batch: HostBatch, states: Any, hypers: Any, key: Key, episodes: int, spec: EnvSpec
) -> Episodes:
    """Runs greedy episodes of every member [P] in a batch of P * episodes environments, each to its own end.

    Raises a CoveyError if one lasts longer than the time limit.
    """
    limit = spec.episode_length
    rollout = HostRollout(policy, batch, states, hypers, key, episodes)
    shape = rollout.shape
    returns = np.zeros(shape, np.float32)
    length = np.zeros(shape, np.int32)
    alive = np.ones(shape, bool)
    totals: dict[str, Any] = {}
    before = None
    for t, (action, reported, step) in enumerate(rollout.steps()):
        annotations = reported | smoothness(action, action if before is None else before)
        before = action
        totals = {name: totals.get(name, np.float32(0)) + np.where(alive, x, 0.0) for name, x in annotations.items()}
        returns += np.where(alive, spec.reward(step.reward).reshape(shape), np.float32(0))
        length += alive
        alive = alive & ~(step.terminated | step.truncated | step.broken).reshape(shape)
        if not alive.any():
            break
        require(
            t + 1 < limit,
            f"An evaluation episode did not end within {limit:,} steps. Register the environment with "
            "max_episode_steps, or let it return truncated.",
        )
    # The first action of an episode is no change, so there is one change less than steps.
    counts = {ACTION_CHANGE: np.maximum(length - 1, 1)}
    means = {name: total / counts.get(name, length) for name, total in totals.items()}
    return Episodes(returns, length, np.zeros((*shape, 0), np.float32), means)


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
            self._batch = self.env.open(count, min(self.workers, count))
            self._count = count
        return evaluate_host(self.policy, self._batch, states, hypers, key, episodes, self.env.spec)

    def close(self) -> None:
        """Closes the environments; the next evaluation opens new ones."""
        if self._batch is not None:
            self._batch.close()
            self._batch = None


def record_host(
    policy: Policy[Any, Any, Any], env: HostEnv, state: Any, hyper: Any, key: Key, steps: int, draw_every: int = 0
) -> Episode:
    """Records one greedy episode of at most `steps` steps, with a picture every `draw_every` steps (0 for none)."""
    states, hypers = jax.tree.map(lambda x: jnp.asarray(x)[None], (state, hyper))
    batch = env.open(1, draws=draw_every > 0)
    try:
        rollout = HostRollout(policy, batch, states, hypers, key, 1)
        pictures: list[Any] = [batch.frame(0) if draw_every else None]
        obs = [_first(rollout.obs)]
        actions = []
        annotations = []
        rewards = []
        for t, (action, annotation, step) in enumerate(rollout.steps(), 1):
            obs.append(_first(step.obs))
            actions.append(action[0, 0])
            rewards.append(env.spec.reward(step.reward)[0])
            annotations.append({name: float(x[0, 0]) for name, x in annotation.items()})
            pictures.append(batch.frame(0) if draw_every and t % draw_every == 0 else None)
            if t == steps or step.terminated[0] or step.truncated[0] or step.broken[0]:
                break
    finally:
        batch.close()
    series = {name: np.array([each[name] for each in annotations]) for name in annotations[0]}
    found = jax.tree.map(lambda *rows: np.stack(rows), *obs)
    return Episode(pictures, found, np.stack(actions), series, np.array(rewards))


def _first(obs: Obs) -> Obs:
    """Returns the observation of the first environment."""
    return jax.tree.map(lambda x: x[0], obs)
