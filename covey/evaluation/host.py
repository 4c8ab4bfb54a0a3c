"""Greedy episodes in host environments: one generator of steps, shared by evaluation and recording."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from itertools import count
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from covey.agent import Decision, Policy
from covey.agents.skills.contract import SkillAgent
from covey.envs.base import HostBatch, HostEnv, HostStep
from covey.envs.described import own_parts
from covey.errors import require
from covey.evaluation.rollout import ACTION_CHANGE, DIVERSITY, SKILL_REWARD, Episode, Episodes, smoothness
from covey.observation import DESCRIPTOR, Obs, Observation
from covey.types import Array, Descriptor, EnvSpec, Key, Mode


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
    """Greedy episodes of every member [P] in a batch of P * E environments, E per member. Creating it resets them.

    Args:
        policy: The policy.
        batch: The environments.
        states: The members' states [P].
        hypers: Their hyper-parameters [P].
        key: A random key.
        episodes: E.
        seeds: Seeds of the start states [P * E]; by default all members have the same E.
        memory: Memories [P, E] at the first step; by default those of `begin`.
    """

    def __init__(
        self,
        policy: Policy[Any, Any, Any],
        batch: HostBatch,
        states: Any,
        hypers: Any,
        key: Key,
        episodes: int,
        seeds: np.ndarray | None = None,
        memory: Any = None,
    ) -> None:
        key_reset, key_begin, self.key_run = jax.random.split(key, 3)
        self.policy = policy
        self.batch = batch
        self.states = states
        self.hypers = hypers
        self.shape = (jax.tree.leaves(hypers)[0].shape[0], episodes)
        self.memory = _begin(policy, states, hypers, key_begin, episodes) if memory is None else memory
        if seeds is None:
            seeds = np.tile(np.asarray(jax.random.bits(key_reset, (episodes,), jnp.uint32)), self.shape[0])
        self.obs = batch.reset(seeds)

    def by_member(self, rows: Any) -> Any:
        """Returns rows [P * E, ...] as [P, E, ...]."""
        return jax.tree.map(lambda x: x.reshape(*self.shape, *x.shape[1:]), rows)

    def steps(self) -> Iterator[tuple[np.ndarray, dict[str, np.ndarray], HostStep]]:
        """Yields, without end, the actions [P, E, A], their annotations [P, E] each, and the step [P * E, ...]."""
        for t in count():
            obs = self.by_member(self.obs)
            decision = _act(self.policy, self.states, self.hypers, self.memory, obs, self.key_run, np.int32(t))
            action = np.asarray(decision.action)
            step = self.batch.step(action.reshape(-1, action.shape[-1]))
            self.obs = step.obs
            self.memory = decision.memory
            yield action, {name: np.asarray(x) for name, x in decision.extras.items() if x.ndim == 2}, step


class HostTally:
    """Statistics of greedy episodes [P, E] in lock-step.

    Args:
        shape: (P, E).
        spec: The spec of the environment. If its observation has the descriptor, episodes have one.
    """

    def __init__(self, shape: tuple[int, int], spec: EnvSpec) -> None:
        self._spec = spec
        self._about = spec.descriptor if spec.described else None
        self.alive = np.ones(shape, bool)
        self._returns = np.zeros(shape, np.float32)
        self._length = np.zeros(shape, np.int32)
        self._totals: dict[str, Any] = {}
        self._descriptors: list[np.ndarray] = []
        self._descriptor = np.zeros((*shape, self._about.size if self._about else 0), np.float32)
        self._before: np.ndarray | None = None

    def add(self, action: np.ndarray, reported: dict[str, np.ndarray], step: HostStep) -> None:
        """Adds a step [P * E] with its actions [P, E, A] and their annotations [P, E] each."""
        alive = self.alive
        shape = alive.shape
        annotations = reported | smoothness(action, action if self._before is None else self._before)
        self._before = action
        for name, x in annotations.items():
            self._totals[name] = self._totals.get(name, np.float32(0)) + np.where(alive, x, 0.0)
        self._returns += np.where(alive, self._spec.reward(step.reward).reshape(shape), np.float32(0))
        self._length += alive
        if self._about:
            self._describe(self._about, step, alive & ~step.broken.reshape(shape))
        self.alive = alive & ~(step.terminated | step.truncated | step.broken).reshape(shape)

    def _describe(self, about: Descriptor, step: HostStep, made: np.ndarray) -> None:
        """Adds the descriptors of a step. The observation of a broken one is that of another episode."""
        found = step.obs[DESCRIPTOR].reshape(self._descriptor.shape)
        if callable(about.reduce):
            self._descriptors.append(found)
            return
        weight = 1.0 if about.reduce == "final" else 1.0 / np.maximum(self._length, 1)[..., None]
        mean = self._descriptor + weight * (found - self._descriptor)
        self._descriptor = np.where(made[..., None], mean, self._descriptor).astype(np.float32)

    def episodes(self) -> Episodes:
        """Returns the statistics of all episodes."""
        # The first action of an episode is no change, so there is one change less than steps.
        counts = {ACTION_CHANGE: np.maximum(self._length - 1, 1), DIVERSITY: 1}
        means = {name: total / counts.get(name, self._length) for name, total in self._totals.items()}
        descriptor = self._descriptor
        if self._about and callable(self._about.reduce):
            states = np.stack(self._descriptors, axis=2)
            valid = (np.arange(states.shape[2]) < self._length[..., None]).astype(np.float32)
            descriptor = np.asarray(jax.vmap(jax.vmap(self._about.reduce))(jnp.asarray(states), jnp.asarray(valid)))
        return Episodes(self._returns, self._length, descriptor, means)


@partial(jax.jit, static_argnames="agent")
def _diversity(
    agent: SkillAgent[Any, Any, Any], states: Any, hypers: Any, memory: Any, obs: Obs, after: Obs, key: Key, t: Array
) -> Array:
    """Returns the intrinsic rewards [P, E] of steps."""
    key = jax.random.fold_in(jax.random.fold_in(key, SKILL_REWARD), t)

    def one(state: Any, hyper: Any, memory: Any, obs: Obs, after: Obs) -> Array:
        return agent.skill_reward(state, hyper, memory, obs, after, key)

    return jax.vmap(one)(states, hypers, memory, obs, after)


def evaluate_host(
    policy: Policy[Any, Any, Any],
    batch: HostBatch,
    states: Any,
    hypers: Any,
    key: Key,
    episodes: int,
    spec: EnvSpec,
    skill_agent: SkillAgent[Any, Any, Any] | None = None,
) -> Episodes:
    """Runs greedy episodes of every member [P] in a batch of P * episodes environments, each to its own end.

    The policy of a `skill_agent` also gets a diversity return. Raises a CoveyError if an episode lasts longer than the
    time limit.
    """
    limit = spec.episode_length
    rollout = HostRollout(policy, batch, states, hypers, key, episodes)
    tally = HostTally(rollout.shape, spec)
    memory, obs = rollout.memory, rollout.by_member(rollout.obs)
    for t, (action, annotations, step) in enumerate(rollout.steps()):
        diversity = {}
        if skill_agent:
            after = rollout.by_member(step.obs)
            reward = np.asarray(_diversity(skill_agent, states, hypers, memory, obs, after, key, np.int32(t)))
            made = ~step.broken.reshape(rollout.shape)
            diversity = {DIVERSITY: np.where(made, reward, np.float32(0))}
            memory, obs = rollout.memory, after
        tally.add(action, annotations | diversity, step)
        if not tally.alive.any():
            break
        require(
            t + 1 < limit,
            f"An evaluation episode did not end within {limit:,} steps. Register the environment with "
            "max_episode_steps, or let it return truncated.",
        )
    return tally.episodes()


@dataclass(frozen=True)
class OwnObservation:
    """A policy that sees the environment's own observation: without the parts that `DescribedHost` adds.

    Args:
        policy: The policy.
        observation: The form of the environment's own observation.
    """

    policy: Policy[Any, Any, Any]
    observation: Observation

    def begin(self, state: Any, hyper: Any, key: Key) -> Any:
        """Returns the memory of the policy."""
        return self.policy.begin(state, hyper, key)

    def act(self, state: Any, hyper: Any, memory: Any, obs: Obs, key: Key, mode: Mode) -> Decision:
        """Decides as the policy does."""
        return self.policy.act(state, hyper, memory, self.observation.of_names(own_parts(obs)), key, mode)


class HostEvaluator:
    """Evaluates policies on host environments, which stay open between evaluations.

    Args:
        policy: The policy.
        env: The environment.
        workers: Worker processes that step the environments; 0 steps them in this process.
        skill_agent: The agent, if it learns skills: its episodes then have a diversity return.
    """

    def __init__(
        self,
        policy: Policy[Any, Any, Any],
        env: HostEnv,
        workers: int = 0,
        skill_agent: SkillAgent[Any, Any, Any] | None = None,
    ) -> None:
        self.policy = policy
        self.env = env
        self.workers = workers
        self.skill_agent = skill_agent
        self._batch: HostBatch | None = None
        self._count = 0

    def __call__(self, states: Any, hypers: Any, key: Key, episodes: int) -> Episodes:
        """Runs greedy episodes of every member [P]."""
        batch = self.batch(jax.tree.leaves(hypers)[0].shape[0] * episodes)
        spec = self.env.spec
        return evaluate_host(self.policy, batch, states, hypers, key, episodes, spec, self.skill_agent)

    def batch(self, count: int) -> HostBatch:
        """Returns `count` open environments: those of the last call, if it had as many."""
        if self._batch is None or self._count != count:
            self.close()
            self._batch = self.env.open(count, min(self.workers, count))
            self._count = count
        return self._batch

    def close(self) -> None:
        """Closes the environments; the next evaluation opens new ones."""
        if self._batch is not None:
            self._batch.close()
            self._batch = None


def record_host(
    policy: Policy[Any, Any, Any],
    env: HostEnv,
    state: Any,
    hyper: Any,
    key: Key,
    steps: int,
    draw_every: int = 0,
    memory: Any = None,
) -> Episode:
    """Records one greedy episode of at most `steps` steps, with a picture every `draw_every` steps (0 for none)."""
    states, hypers = jax.tree.map(lambda x: jnp.asarray(x)[None], (state, hyper))
    memories = None if memory is None else jax.tree.map(lambda x: jnp.asarray(x)[None, None], memory)
    batch = env.open(1, draws=draw_every > 0)
    try:
        rollout = HostRollout(policy, batch, states, hypers, key, 1, memory=memories)
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
