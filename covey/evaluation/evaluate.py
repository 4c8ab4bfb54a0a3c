"""Evaluates the members of a population by greedy episodes."""

from contextlib import closing
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from covey.agent import Policy
from covey.agents.skills.contract import SkillAgent
from covey.envs.base import Env, HostEnv
from covey.errors import require
from covey.evaluation.host import HostEvaluator
from covey.evaluation.rollout import Episodes, run_episodes
from covey.hyper.schedule import hyper_at
from covey.training.loop import Loop
from covey.training.member import Population
from covey.training.sharding import SPLIT, WHOLE, Axis, over_devices, over_members, place
from covey.types import Key

FIRST_SEED = 0x5EED_C0DE
"""Added to the seed of an evaluation, so that it draws other numbers than training, whose seeds are small."""
EVALUATION = 1
"""The random stream of evaluations. A run uses the same, so that both find the same returns."""


def evaluate(
    loop: Loop,
    population: Population,
    episodes: int = 20,
    seed: int = 0,
    skill_agent: SkillAgent[Any, Any, Any] | None = None,
) -> Episodes:
    """Evaluates every member by greedy episodes.

    All members have the same start states, which depend on `seed` alone. Training is not affected. A host loop opens
    the environments for each call and closes them again.

    Args:
        loop: The loop that trains the population.
        population: The population.
        episodes: Episodes per member.
        seed: The seed of the start states.
        skill_agent: The agent, if it learns skills: the annotation `diversity_return` is then the sum of its intrinsic
            reward over each episode.

    Returns:
        The returns, lengths, descriptors and annotations of the episodes as NumPy arrays, [members, episodes] each.

    Example:
        >>> found = covey.evaluate(loop, population, episodes=20)
        >>> found.returns.shape
        (8, 20)
    """
    require(episodes >= 1, f"`episodes` must be at least 1, not {episodes}.")
    trainer = loop.trainer
    key = stream_key(EVALUATION, seed)
    states = population.members.agent
    hypers = current_hypers(loop, population)
    if isinstance(trainer.env, HostEnv):
        with closing(HostEvaluator(trainer.agent, trainer.env, loop.workers, skill_agent)) as evaluator:
            return evaluator(states, hypers, key, episodes)
    mapping = (loop.axis, loop.devices)
    found = evaluate_members(trainer.agent, trainer.env, states, hypers, key, episodes, *mapping, skill_agent)
    return jax.device_get(found)


def stream_key(number: int, seed: int = 0) -> Key:
    """Returns the key of a random stream that training does not use. It is the same for all seeds of training."""
    return _stream_key(np.int64(FIRST_SEED + seed).astype(np.int32), number)


@jax.jit
def _stream_key(seed: Any, number: Any) -> Key:
    return jax.random.fold_in(jax.random.key(seed), number)


def current_hypers(loop: Loop, population: Population) -> Any:
    """Returns the members' hyper-parameters [P] as of now: those with a schedule follow it."""
    step: Any = np.int32(int(population.block) * loop.trainer.block_steps)
    now = hyper_at(population.members.hyper, loop.trainer.schedules, step)
    return place(jax.tree.map(lambda x: jnp.broadcast_to(x, loop.members), now), loop.devices, SPLIT)


def evaluate_members(
    policy: Policy[Any, Any, Any],
    env: Env,
    states: Any,
    hypers: Any,
    key: Key,
    episodes: int,
    axis: Axis = "vmap",
    devices: int = 1,
    skill_agent: SkillAgent[Any, Any, Any] | None = None,
) -> Episodes:
    """Runs greedy episodes of policies with states and hyper-parameters [P], all from the same start states.

    The environment must be compiled. Returns arrays [P, episodes] on the devices.
    """
    run = partial(_evaluate, policy, env, episodes, axis, skill_agent)
    return over_devices(run, devices, (SPLIT, SPLIT, WHOLE), SPLIT)(states, hypers, key)


@partial(jax.jit, static_argnames=("policy", "env", "episodes", "axis", "skill_agent"))
def _evaluate(
    policy: Policy[Any, Any, Any],
    env: Env,
    episodes: int,
    axis: Axis,
    skill_agent: SkillAgent[Any, Any, Any] | None,
    states: Any,
    hypers: Any,
    key: Key,
) -> Episodes:
    def one(state: Any, hyper: Any) -> Episodes:
        return run_episodes(policy, env, state, hyper, key, episodes, skill_agent)

    return over_members(one, axis)(states, hypers)
