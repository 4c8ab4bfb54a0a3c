"""QDax in the comparison, as its examples use it: `scan` inside `jit`, and with its state donated."""

# pyright: reportMissingImports=false

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from qdax.baselines.dads import DADS, DadsConfig
from qdax.baselines.pbt import PBT
from qdax.baselines.sac import SAC, SacConfig
from qdax.baselines.sac_pbt import PBTSAC, PBTSacConfig
from qdax.baselines.td3 import TD3, TD3Config
from qdax.baselines.td3_pbt import PBTTD3, PBTTD3Config
from qdax.core.neuroevolution.buffers.buffer import QDTransition, ReplayBuffer, Transition
from qdax.core.neuroevolution.sac_td3_utils import do_iteration_fn

from benchmarks.peers.work import (
    ACTION,
    BATCH,
    BRAX_ENVS,
    BRAX_ITERATIONS,
    CAPACITY,
    HIDDEN,
    INSERTS,
    MEMBERS,
    OBS,
    UPDATES,
    Work,
    serve,
)

HELD = 10_000
"""Transitions in the replay buffer of learners."""
SKILLS = 5
NETS = {"critic_hidden_layer_size": (HIDDEN, HIDDEN), "policy_hidden_layer_size": (HIDDEN, HIDDEN)}
SAC_NEEDS = {"episode_length": 1000, "batch_size": BATCH, "normalize_observations": False, **NETS}


def transitions(count: int, like: Any) -> Any:
    """Draws random transitions."""
    leaves, tree = jax.tree.flatten(like)
    keys = jax.random.split(jax.random.key(1), len(leaves))
    drawn = [jax.random.uniform(k, (count, *x.shape[1:]), minval=-1) for k, x in zip(keys, leaves, strict=True)]
    drawn = tree.unflatten(drawn)
    return drawn.replace(dones=jnp.zeros(count), truncations=jnp.zeros(count))


def filled(like: Any, capacity: int = CAPACITY) -> Any:
    return ReplayBuffer.init(capacity, transition=like).insert(transitions(HELD, like))


def repeated(update: Callable[[Any, Any], Any], state: Any, buffer: Any, amount: int) -> Work:
    @partial(jax.jit, donate_argnums=(0, 1))
    def many(state: Any, buffer: Any) -> Any:
        def one(carry: Any, _: None) -> Any:
            return update(*carry)[:2], None

        return jax.lax.scan(one, (state, buffer), None, UPDATES)[0]

    held = [(state, buffer)]

    def run() -> None:
        held[0] = jax.block_until_ready(many(*held[0]))

    return Work(run, amount)


def plain() -> Any:
    return Transition.init_dummy(OBS, ACTION)


def td3() -> Work:
    agent = TD3(TD3Config(batch_size=BATCH, **NETS), ACTION)
    return repeated(agent.update, agent.init(jax.random.key(0), ACTION, OBS), filled(plain()), UPDATES)


def sac() -> Work:
    agent = SAC(SacConfig(**SAC_NEEDS), ACTION)
    return repeated(agent.update, agent.init(jax.random.key(0), ACTION, OBS), filled(plain()), UPDATES)


def dads() -> Work:
    agent = DADS(DadsConfig(**SAC_NEEDS, num_skills=SKILLS), ACTION, 2)
    like = QDTransition.init_dummy(OBS + SKILLS, ACTION, 2)
    return repeated(agent.update, agent.init(jax.random.key(0), ACTION, OBS, 2), filled(like), UPDATES)


def population(name: str) -> tuple[Any, Any, Any]:
    if name == "td3":
        agent: Any = PBTTD3(PBTTD3Config(batch_size=BATCH, **NETS), ACTION)
    else:
        agent = PBTSAC(PBTSacConfig(**SAC_NEEDS), ACTION)
    keys = jax.random.split(jax.random.key(0), MEMBERS)
    state = jax.vmap(lambda key: agent.init(key, ACTION, OBS))(keys)
    buffer = jax.tree.map(lambda x: jnp.repeat(x[None], MEMBERS, 0), filled(plain()))
    return agent, state, buffer


def members(name: str) -> Work:
    agent, state, buffer = population(name)
    return repeated(jax.vmap(agent.update), state, buffer, MEMBERS * UPDATES)


def generation() -> Work:
    _, state, buffer = population("td3")
    step = jax.jit(PBT(MEMBERS, 2, 2).update_states_and_buffer, donate_argnums=(2, 3))
    returns = jnp.arange(MEMBERS, dtype=float)
    held = [(state, buffer)]

    def run() -> None:
        held[0] = jax.block_until_ready(step(jax.random.key(0), returns, *held[0]))

    return Work(run, 1)


def insert(capacity: int) -> Work:
    rows = transitions(1, plain())

    @partial(jax.jit, donate_argnums=0)
    def many(buffer: Any) -> Any:
        return jax.lax.fori_loop(0, INSERTS, lambda i, b: b.insert(rows), buffer)

    held = [filled(plain(), capacity)]

    def run() -> None:
        held[0] = jax.block_until_ready(many(held[0]))

    return Work(run, INSERTS)


def brax() -> Work:
    from brax import envs
    from brax.envs.wrappers.training import AutoResetWrapper, EpisodeWrapper, VmapWrapper

    env = AutoResetWrapper(VmapWrapper(EpisodeWrapper(envs.get_environment("halfcheetah", backend="spring"), 1000, 1)))
    agent = TD3(TD3Config(batch_size=BATCH, **NETS), ACTION)
    iteration = partial(
        do_iteration_fn,
        env_batch_size=BRAX_ENVS,
        grad_updates_per_step=1,
        play_step_fn=partial(agent.play_step_fn, env=env),
        update_fn=agent.update,
    )

    @partial(jax.jit, donate_argnums=(0, 1, 2))
    def many(training: Any, world: Any, buffer: Any) -> Any:
        def one(carry: Any, _: None) -> Any:
            return iteration(*carry)[:3], None

        return jax.lax.scan(one, (training, world, buffer), None, BRAX_ITERATIONS)[0]

    world = jax.jit(env.reset)(jax.random.split(jax.random.key(2), BRAX_ENVS))
    held = [(agent.init(jax.random.key(0), ACTION, OBS), world, filled(plain()))]

    def run() -> None:
        held[0] = jax.block_until_ready(many(*held[0]))

    return Work(run, BRAX_ENVS * BRAX_ITERATIONS)


if __name__ == "__main__":
    serve(
        {
            "td3": td3,
            "sac": sac,
            "dads": dads,
            "td3-8": lambda: members("td3"),
            "sac-8": lambda: members("sac"),
            "generation": generation,
            "brax": brax,
        }
        | {f"insert-{rows}": partial(insert, rows) for rows in (10_000, 100_000, 1_000_000)}
    )
