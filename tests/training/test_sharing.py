"""Replay that several members write: what is drawn was written, belongs together, and is finite."""

from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from covey import envs
from covey.agent import Decision, SamplePlan
from covey.envs.builtin.point import Point
from covey.errors import CoveyError
from covey.training.device import DeviceLoop
from covey.training.host import HostLoop
from covey.training.trainer import make_trainer
from covey.types import Array, Key, Metrics, Mode, Step
from tests.tasks import Counter, population, small_trainer


class Nothing(NamedTuple):
    """No hyper-parameters but one."""

    unused: float = 0.0


class Seen(NamedTuple):
    drawn: Array
    false: Array


@dataclass(frozen=True)
class Witness:
    """An agent that learns nothing but how many valid transitions it drew, and how many `Counter` never made."""

    plan = SamplePlan(64, 1)

    def init(self, hyper: Nothing, key: Key) -> Seen:
        return Seen(jnp.zeros(()), jnp.zeros(()))

    def begin(self, state: Seen, hyper: Nothing, key: Key) -> tuple[()]:
        return ()

    def act(self, state: Seen, hyper: Nothing, memory: Any, obs: Array, key: Key, mode: Mode) -> Decision:
        return Decision(jnp.zeros(1), (), {})

    def observe(self, state: Seen, hyper: Nothing, rollout: Step, key: Key) -> Seen:
        return state

    def update(self, state: Seen, hyper: Nothing, batch: Step, key: Key) -> tuple[Seen, Metrics]:
        (episode, step), (next_episode, next_step) = (jnp.moveaxis(x[:, 0], 1, 0) for x in (batch.obs, batch.next_obs))
        valid = batch.valid[:, 0]
        false = jnp.where((episode != next_episode) | (step + 1 != next_step), valid, 0.0)
        state = Seen(state.drawn + jnp.sum(valid), state.false + jnp.sum(false))
        return state, {"false": jnp.mean(false)}


def witnesses(on_host: bool, overlap: bool = True, members: int = 4, capacity: int = 500) -> DeviceLoop | HostLoop:
    env: Any = envs.make("gymnasium:tests.host_tasks:Counted") if on_host else Counter()
    trainer = make_trainer(Witness(), env, Nothing(), capacity=capacity, shared=True)
    return HostLoop(trainer, members, "map", overlap) if on_host else DeviceLoop(trainer, members, "map")


@pytest.mark.parametrize("loop", [(False,), (True, True), (True, False)], ids=["compiled", "overlapped", "in order"])
def test_members_draw_only_what_was_written_and_belongs_together(loop: tuple[bool, ...]):
    """Before the ring is full, and long after, when the row to be written next holds the oldest record."""
    ours = witnesses(*loop)
    state = population(ours)
    for _ in range(2):
        state = ours.advance(state, 4, warmup=False)
        assert np.all(np.asarray(state.members.agent.drawn) > 1000)
        np.testing.assert_array_equal(state.members.agent.false, 0)


def test_a_number_that_is_not_finite_stays_with_its_member():
    loop = DeviceLoop(small_trainer("td3", Point(), shared=True), 3, "map")
    state = population(loop)
    data = state.replay.data.at[1, 20, 0, 0].set(jnp.nan).at[1, 40, 0, 3].set(jnp.inf)
    state = loop.advance(state._replace(replay=state.replay._replace(data=data)), 2, warmup=False)
    np.testing.assert_array_equal(state.members.tally.fault[:, 0], -1)
    assert all(np.isfinite(x).all() for x in jax.tree.leaves(state.members.agent))


def test_a_shared_replay_holds_more_than_a_block():
    with pytest.raises(CoveyError, match=r"`capacity` 101 .* share.* at least 102"):
        witnesses(False, capacity=101)
    assert witnesses(False, capacity=102).trainer.replay.rows == 102
