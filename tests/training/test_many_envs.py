"""Thousands of environments: the program of two with other shapes, uniform draws, and exact updates per step."""

from collections import Counter
from fractions import Fraction
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.extend import core

from covey.agent import SamplePlan
from covey.agents.td3 import TD3, TD3Config, TD3Hyper
from covey.envs.builtin.point import Point
from covey.errors import CoveyError
from covey.evaluation.rollout import run_episodes
from covey.replay import Record, Replay
from covey.training.device import DeviceLoop
from covey.training.trainer import make_trainer
from tests.tasks import small_trainer


def operations(program: Any) -> Counter[str]:
    """Counts the operations of a traced program, with those of the programs inside of it."""
    found: Counter[str] = Counter()
    for each in program.eqns:
        found[each.primitive.name] += 1
        for value in jax.tree.leaves(each.params, is_leaf=lambda x: isinstance(x, core.ClosedJaxpr | core.Jaxpr)):
            if isinstance(value, core.ClosedJaxpr | core.Jaxpr):
                found += operations(getattr(value, "jaxpr", value))
    return found


@pytest.mark.parametrize("name", ["td3", "dads"])
def test_the_program_of_1024_environments_is_that_of_two(name: str):
    """Only the shapes of arrays differ, so tracing and compiling do not grow with the environments."""
    counts = []
    for envs in (2, 1024):
        trainer = small_trainer(name, Point(), envs=envs, updates_per_step=8 / envs, capacity=100 * envs)
        loop = DeviceLoop(trainer, 1, "map")
        chunk = type(loop)._advance.trace(loop, loop.template(), jnp.int32(1), warmup=False)
        counts.append(operations(chunk.jaxpr.jaxpr))
    assert counts[0] == counts[1]
    assert counts[0].total() > 1000, "the programs inside were not counted"


def test_the_program_of_1024_evaluation_episodes_is_that_of_two():
    trainer = small_trainer("td3", Point())
    state = jax.eval_shape(trainer.agent.init, trainer.initial_hyper, jax.random.key(0))
    counts = []
    for episodes in (2, 1024):
        run = partial(run_episodes, trainer.agent, trainer.env, episodes=episodes)
        shapes = jax.make_jaxpr(lambda state, key, run=run: run(state, trainer.initial_hyper, key))
        counts.append(operations(shapes(state, jax.random.key(0)).jaxpr))
    assert counts[0] == counts[1] and counts[0].total() > 100


@pytest.mark.parametrize(
    ("envs", "per_step", "delay", "unroll", "updates"),
    [
        (1024, 8 / 1024, 2, 1, 4),
        (4096, 2 / 4096, 1, 1, 2),
        (4096, 3 / 4096, 1, 1, 3),
        (4096, 1 / 8192, 1, 2, 1),
        (1024, 0.002, 1, 125, 256),
    ],
)
def test_few_updates_per_step_are_exact(envs, per_step, delay, unroll, updates):
    env = Point()
    agent = TD3(TD3Config(policy_delay=delay), env.spec)
    trainer = make_trainer(agent, env, TD3Hyper(), envs=envs, updates_per_step=per_step, capacity=1_000_000)
    assert (trainer.unroll, trainer.updates) == (unroll, updates)
    assert Fraction(updates * delay, unroll * envs) == Fraction(per_step).limit_denominator(10**6)


@pytest.mark.parametrize(
    ("envs", "per_step", "delay", "near"),
    [(4096, 0.00073, 1, 3 / 4096), (1, 0.0017, 2, 1 / 500), (2, 0.3333, 1, 1 / 3)],
)
def test_updates_per_step_that_can_not_be_met_name_a_number_that_can(envs, per_step, delay, near):
    env = Point()
    make = partial(make_trainer, TD3(TD3Config(policy_delay=delay), env.spec), env, TD3Hyper(), envs=envs)
    with pytest.raises(CoveyError, match=f"Close to it is {Fraction(near).limit_denominator(10_000)}\\."):
        make(updates_per_step=per_step)
    assert make(updates_per_step=near).updates > 0


ROWS, STREAMS = 6, 4096


def numbered(first: int) -> Record:
    """A row of records whose observation is (row, stream)."""
    obs = jnp.stack([jnp.full(STREAMS, float(first)), jnp.arange(STREAMS, dtype=jnp.float32)], axis=-1)
    flat = jnp.zeros((1, STREAMS))
    return Record(obs[None], flat[..., None], flat, flat, flat, {})


def test_windows_of_a_short_ring_are_uniform_over_4096_streams():
    replay = Replay(ROWS, STREAMS, observation=2, action_size=1)
    state = replay.init()
    for row in range(ROWS + 2):  # the ring has wrapped: rows 2 to 7 are left
        state = replay.add(state, numbered(row))
    batch = replay.sample(state, SamplePlan(batch_size=400_000, window=3), jax.random.key(0))
    row, stream = np.asarray(batch.obs[..., 0]), np.asarray(batch.obs[..., 1])
    np.testing.assert_array_equal(stream, np.broadcast_to(stream[:, :1], stream.shape))
    np.testing.assert_array_equal(row, row[:, :1] + np.arange(3))
    np.testing.assert_array_equal(np.unique(row[:, 0]), [2, 3, 4])
    assert np.unique(stream).size == STREAMS
    counts = np.histogram2d(row[:, 0], stream[:, 0], bins=(3, STREAMS))[0]
    expected = 400_000 / counts.size
    assert abs(np.sum((counts - expected) ** 2 / expected) / counts.size - 1) < 0.05, "chi-square"


def test_a_row_of_4096_streams_is_written_in_place():
    replay = Replay(100, STREAMS, observation=2, action_size=1)
    shapes = jax.eval_shape(replay.init), jax.eval_shape(lambda: numbered(0))
    memory: Any = jax.jit(replay.add, donate_argnums=0).lower(*shapes).compile().memory_analysis()
    size = replay.rows * replay.streams * replay.record_bytes
    assert memory.alias_size_in_bytes >= size and memory.temp_size_in_bytes <= 2 * size / replay.rows
