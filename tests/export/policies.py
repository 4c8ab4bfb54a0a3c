"""Policies to export: agents of the registry, small and untrained, with a normaliser that has seen something."""

from typing import Any

import jax
import jax.numpy as jnp

from covey import agents, envs
from covey.envs.described import Described
from covey.evaluation import FixedSkill, chosen_skill
from covey.export.source import Source
from covey.run.config_text import from_json
from covey.training.precision import in_precision
from covey.types import EnvSpec, Step
from tests.tasks import SMALL


def seen(spec: EnvSpec) -> Step:
    """Steps [8, 2] whose observations are far from normalised."""
    obs = 3.0 + 2.0 * jax.random.normal(jax.random.key(0), (8, 2, spec.obs_size))
    zero = jnp.zeros((8, 2))
    return Step(obs, jnp.zeros((8, 2, spec.action_size)), zero, zero, obs, zero + 1.0, {})


def source(name: str, options: Any = None, explore: bool = False, seed: int = 0, precision: str = "float32") -> Source:
    """An agent on `point`, whose observations are normalised."""
    entry = agents.entry(name)
    env: Any = envs.make("point")
    spec = env.spec
    env = Described(env) if entry.is_skill_agent else env
    agent = entry.make(from_json(entry.config, options or SMALL[name], "agent"), env.spec)
    hyper = jax.tree.map(jnp.float32, entry.hyper())
    state = agent.init(hyper, jax.random.key(seed))
    if not entry.is_skill_agent:
        state = agent.observe(state, hyper, seen(spec), jax.random.key(1))
    if getattr(state, "actor_statistics", None):  # as if batch normalisation had seen something
        state = state._replace(actor_statistics=jax.tree.map(lambda x: 0.7 * x + 0.3, state.actor_statistics))
    facts = {"algorithm": name, "environment": "point", "mode": "explore" if explore else "greedy", "covey": "0"}
    policy: Any = in_precision(agent, precision)
    if entry.is_skill_agent:
        policy = FixedSkill(policy, agent, chosen_skill(agent, 1))
    return Source(policy, env, spec, state, hyper, facts | {"checkpoint": "0"}, explore)
