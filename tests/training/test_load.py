"""Loaded data: in the replay of every member, and shown to its agent once, as if it had been collected."""

from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from covey.agent import Decision, SamplePlan
from covey.replay import Stored
from covey.training.device import DeviceLoop
from covey.training.trainer import Trainer, make_trainer
from covey.types import Array, EnvSpec, Key, Step
from tests.tasks import Counter, assert_same, population, small_trainer


class Hyper(NamedTuple):
    rate: float = 0.1


@dataclass(frozen=True)
class Ledger:
    """Learns nothing, and adds up what it observes. It stores a whole number and a matrix with every step."""

    spec: EnvSpec

    @property
    def plan(self) -> SamplePlan:
        return SamplePlan(4)

    def init(self, hyper: Hyper, key: Key) -> dict[str, Array]:
        return {name: jnp.zeros(()) for name in ("records", "valid", "moved", "reward", "ended", "skill", "corner")}

    def begin(self, state: Any, hyper: Hyper, key: Key) -> tuple[()]:
        return ()

    def act(self, state: Any, hyper: Hyper, memory: Any, obs: Array, key: Key, mode: str) -> Decision:
        extras = {"skill": (obs[1] * 2).astype(jnp.int32), "matrix": jnp.stack([obs, obs * 3])}
        return Decision(jnp.zeros(1), memory, extras)

    def observe(self, state: dict[str, Array], hyper: Hyper, rollout: Step, key: Key) -> dict[str, Array]:
        assert rollout.extras["skill"].dtype == jnp.int32 and rollout.extras["matrix"].shape[2:] == (2, 2)
        seen = {
            "records": jnp.ones(rollout.reward.shape),
            "valid": rollout.valid,
            "moved": jnp.where(rollout.valid > 0, rollout.next_obs[..., 1] - rollout.obs[..., 1], 0.0),
            "reward": rollout.reward,
            "ended": rollout.terminated,
            "skill": rollout.extras["skill"].astype(jnp.float32),
            "corner": rollout.extras["matrix"][..., 1, 1],
        }
        return {name: state[name] + jnp.sum(x) for name, x in seen.items()}

    def update(self, state: Any, hyper: Hyper, batch: Step, key: Key) -> tuple[Any, dict[str, Array]]:
        return state, {"loss": jnp.zeros(())}


def ledger(envs: int) -> Trainer:
    env = Counter()
    return make_trainer(Ledger(env.spec), env, Hyper(), envs=envs, updates_per_step=1 / 3, capacity=1000)


def fresh(loop: DeviceLoop) -> Any:
    hyper = jax.tree.map(lambda s: jnp.full(loop.members, s.start), loop.trainer.schedules)
    return loop.init(hyper, jax.vmap(jax.random.key)(7 + jnp.arange(loop.members)))


@pytest.mark.parametrize("envs", [1, 3])
@pytest.mark.parametrize("axis", ["map", "vmap"])
def test_an_agent_sees_loaded_data_as_it_saw_them_fresh(envs: int, axis: str):
    """The same sums as the agent that collected them: successors, validity, extras in their own shape and type."""
    loop = DeviceLoop(ledger(envs), 2, axis)  # type: ignore[arg-type]
    before = population(loop)
    rows = int(before.replay.written)
    data = np.asarray(before.replay.data[:, :rows])
    last = data[:, -1, :, loop.trainer.replay.columns["last"]]
    after = loop.load(fresh(loop), Stored(jnp.asarray(data), {}))
    old, new = before.members.agent, after.members.agent
    for name in old:
        if name not in ("valid", "moved"):
            np.testing.assert_allclose(old[name], new[name], rtol=1e-6, err_msg=name)
    np.testing.assert_array_equal(new["records"], [rows * envs] * 2)
    # The newest record's successor is not in the data: a loader marks it `last`, which this test leaves out.
    np.testing.assert_array_equal(new["valid"], old["valid"])
    np.testing.assert_array_equal(new["moved"], np.asarray(old["moved"]) - (1 - last).sum(axis=(1, 2)))
    np.testing.assert_array_equal(after.replay.data[:, :rows], data)
    assert int(after.replay.written) == rows and int(after.block) == 0
    for part in ("world", "tally", "key"):
        assert_same(getattr(fresh(loop).members, part), getattr(after.members, part))


@pytest.mark.parametrize("axis", ["map", "vmap"])
def test_the_normaliser_sees_each_record_once(axis: str):
    loop = DeviceLoop(small_trainer("td3", Counter(), envs=2), 2, axis)  # type: ignore[arg-type]
    before = population(loop)
    rows = int(before.replay.written)
    data = before.replay.data[:, :rows]
    obs = np.asarray(data[..., :2]).reshape(2, -1, 2)
    stats = loop.load(fresh(loop), Stored(data, {})).members.agent.statistics.observations
    np.testing.assert_array_equal(stats.rows, [rows * 2] * 2)
    np.testing.assert_allclose(stats.mean, obs.mean(1), rtol=1e-4)
    np.testing.assert_allclose(stats.squares / stats.rows[:, None], obs.var(1), rtol=1e-3)


def test_a_member_that_loads_among_others_is_the_same_alone():
    trainer = small_trainer("td3", Counter(), envs=2)
    together, alone = DeviceLoop(trainer, 2, "map"), DeviceLoop(trainer, 1, "map")
    data = jax.tree.map(lambda x: x[:, :100], population(together).replay.stored)
    both = together.load(fresh(together), data)
    one = alone.load(fresh(alone), jax.tree.map(lambda x: x[:1], data))
    assert_same(jax.tree.map(lambda x: x[:1], both.members), one.members)
