"""Evaluation: own start states, each episode to its own end, numbers after an end are ignored."""

import dataclasses
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from covey import agents, envs
from covey.envs.base import HostBatch, Outcome
from covey.envs.builtin.point import Point
from covey.errors import CoveyError
from covey.evaluation.evaluate import current_hypers, evaluate, evaluate_members
from covey.hyper.schedule import Schedule
from covey.run.config import default_config
from covey.run.program import build
from covey.training.device import DeviceLoop
from covey.training.host import HostLoop
from tests.runs import TINY
from tests.tasks import Counter, assert_same, small_trainer


def run(env, members: int = 2, episodes: int = 64):
    trainer = small_trainer("td3", env)
    hyper = agents.entry("td3").hyper()
    keys = jax.random.split(jax.random.key(0), members)
    states = jax.vmap(lambda k: trainer.agent.init(hyper, k))(keys)
    hypers = jax.tree.map(lambda x: jnp.full(members, x), hyper)
    return evaluate_members(trainer.agent, env, states, hypers, jax.random.key(1), episodes)


def test_returns_lengths_and_descriptors():
    found = run(Counter())
    assert found.returns.shape == (2, 64) and found.descriptor.shape == (2, 64, 1)
    assert set(np.unique(found.length)) == {3, 5}
    np.testing.assert_array_equal(found.returns, np.where(found.length == 3, 60.0, 150.0))
    np.testing.assert_array_equal(found.descriptor[..., 0], found.length)
    np.testing.assert_array_equal(found.returns[0], found.returns[1])


@dataclass(frozen=True)
class NanAfterEnd(Counter):
    """Falls apart when stepped after its end, as simulators do. Its descriptor is averaged over the episode."""

    @property
    def spec(self):
        spec = super().spec
        descriptor = type(spec.descriptor)(("step",), (0.0,), (9.0,), reduce="mean")
        return type(spec)(2, 1, 5, (-1.0,), (1.0,), descriptor)

    def step(self, state, action, key):
        over = (state.episode % 2 == 0) & (state.step >= self.ends)
        state, outcome = super().step(state, action, key)
        reward = jnp.where(over, jnp.nan, outcome.reward)
        state = state._replace(step=jnp.where(over, jnp.nan, state.step))
        return state, Outcome(outcome.obs, reward, outcome.terminated)


def test_what_happens_after_an_end_is_masked():
    found = run(NanAfterEnd())
    assert np.isfinite(found.returns).all()
    np.testing.assert_array_equal(found.returns, np.where(found.length == 3, 60.0, 150.0))
    np.testing.assert_allclose(found.descriptor[..., 0], np.where(found.length == 3, 2.0, 3.0), rtol=1e-6)


@dataclass(frozen=True)
class InParts(Counter):
    """`Counter` with its reward in two parts, of which it is the weighted sum."""

    @property
    def spec(self):
        return dataclasses.replace(super().spec, rewards=("whole", "none"), reward_weights=(1.0, 0.5))

    def step(self, state, action, key):
        state, outcome = super().step(state, action, key)
        return state, outcome._replace(reward=jnp.stack([outcome.reward, jnp.zeros(())]))


def test_a_reward_of_several_parts_is_their_weighted_sum():
    np.testing.assert_array_equal(run(InParts()).returns, run(Counter()).returns)


def loops() -> list[Any]:
    on_host = small_trainer("td3", envs.make("gymnasium:tests.host_tasks:Counted"), envs=2)
    return [DeviceLoop(small_trainer("td3", Counter(), envs=2), 3), HostLoop(on_host, 3)]


@pytest.mark.parametrize("loop", loops(), ids=["device", "host"])
def test_a_population_is_evaluated_in_either_loop(loop: Any):
    population = loop.init(seed=0)
    found = evaluate(loop, population, episodes=16)
    assert found.returns.shape == found.length.shape == (3, 16)
    assert all(isinstance(x, np.ndarray) for x in (found.returns, found.length, found.descriptor))
    np.testing.assert_array_equal(found.returns, np.where(found.length == 3, 60.0, 150.0))
    np.testing.assert_array_equal(found.length[0], found.length[2])
    assert_same(evaluate(loop, population, episodes=16), found)
    assert not np.array_equal(evaluate(loop, population, episodes=16, seed=1).length, found.length)
    with pytest.raises(CoveyError, match="`episodes` must be at least 1"):
        evaluate(loop, population, episodes=0)


def test_host_environments_are_closed_after_an_evaluation(monkeypatch):
    env = envs.make("gymnasium:tests.host_tasks:Counted")
    loop = HostLoop(small_trainer("td3", env), 2)
    opened: list[HostBatch] = []
    closed: list[HostBatch] = []
    make = type(env).open

    def spy(self: Any, count: int, workers: int = 0, draws: bool = False) -> HostBatch:
        batch = make(self, count, workers, draws)
        close = batch.close
        opened.append(batch)
        batch.close = lambda: (closed.append(batch), close())  # type: ignore[method-assign]
        return batch

    monkeypatch.setattr(type(env), "open", spy)
    evaluate(loop, loop.init(), episodes=2)
    assert len(opened) == 1 and closed == opened


def test_a_run_evaluates_with_the_same_episodes():
    """A run and the library find the same returns of the same members."""
    program = build(default_config("td3", **(TINY | {"seeds": 2, "devices": 2})).resolved())
    population = program.init(print)
    ours = evaluate(program.loop, population, episodes=4)
    theirs, _ = program.evaluate(population)
    assert_same(ours, theirs)


def test_scheduled_values_are_those_of_the_current_step():
    trainer = small_trainer("td3", Point())
    schedules = trainer.schedules._replace(tau=Schedule("linear", 0.0, 1.0, 4 * trainer.block_steps))
    loop = DeviceLoop(dataclasses.replace(trainer, schedules=schedules), 2, "map")
    now = current_hypers(loop, loop.advance(loop.init(), 3, warmup=True))
    np.testing.assert_array_equal(now.tau, [0.75, 0.75])
    np.testing.assert_array_equal(now.critic_lr, [np.float32(trainer.schedules.critic_lr.start)] * 2)
