"""Population-based training as a library: two loops, in memory, with no run folder."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from covey import agents, envs
from covey.envs.builtin.point import Point
from covey.errors import CoveyError
from covey.hyper.range import Range
from covey.hyper.schedule import Schedule
from covey.hyper.space import draw_hypers
from covey.nn.normalise import forget_episode
from covey.population.exchange import exchange, rank
from covey.population.pbt import PBT
from covey.training.device import DeviceLoop
from covey.training.host import HostLoop
from covey.training.member import Population
from tests.tasks import arrays, assert_same, small_trainer

SPACE = agents.entry("td3").space
HALF = PBT(bottom=0.5, top=0.25, resample=0.0)
RETURNS = np.array([[0.0, 2.0], [9.0, 7.0], [1.0, 3.0], [5.0, 5.0]])
"""Member 1 is the best; 0 and 2 are the worst."""


def device_loop(**options: Any) -> DeviceLoop:
    return DeviceLoop(small_trainer("td3", Point(), envs=2, **options), 4)


def host_loop() -> HostLoop:
    trainer = small_trainer("td3", envs.make("gymnasium:tests.host_tasks:Drift"), envs=2)
    return HostLoop(dataclasses.replace(trainer, iterations=5), 4)


def warmed_up(loop: DeviceLoop | HostLoop) -> Population:
    population = loop.init(draw_hypers(SPACE, seed=0, members=4), seed=0)
    return loop.advance(population, 2, warmup=True)


def copied(tree: Any) -> Any:
    """A copy in NumPy: `exchange` may reuse the memory of the population it is given."""
    return jax.device_get(arrays(tree))


def row(tree: Any, member: int) -> Any:
    return jax.tree.map(lambda x: x[member], tree)


@pytest.mark.parametrize("make", [device_loop, host_loop])
def test_the_worst_copy_the_best_and_learn_on(make: Any):
    loop = make()
    population = warmed_up(loop)
    before = copied(population.members)
    population, successors = exchange(HALF, loop, population, RETURNS, SPACE, seed=0, generation=1)
    after = copied(population.members)
    assert [s.parent for s in successors] == [1, 1, 1, 3]
    assert [s.reason for s in successors] == ["worse", "kept", "worse", "kept"]
    for member, successor in enumerate(successors):
        donor = row(before.agent, successor.parent)
        expected = donor if successor.parent == member else forget_episode(donor)
        assert_same(row(after.agent, member), expected)
        for name, value in successor.hyper.items():
            assert np.float32(value) == getattr(after.hyper, name)[member]
    assert after.hyper.actor_lr[0] not in (before.hyper.actor_lr[0], before.hyper.actor_lr[1])
    assert_same(after.key, before.key)
    assert_same(after.world, before.world)
    population = loop.advance(population, 1)
    assert all(np.isfinite(x).all() for x in jax.tree.leaves(copied(population.members.agent)))
    loop.close()


def test_an_exchange_follows_from_seed_and_generation():
    loop = device_loop()
    pbt = PBT(bottom=0.5, top=0.5)

    def carried_out(seed: int, generation: int) -> Any:
        population, successors = exchange(pbt, loop, warmed_up(loop), RETURNS, SPACE, seed, generation)
        return copied(population), successors

    first, successors = carried_out(0, 1)
    again, same = carried_out(0, 1)
    assert successors == same
    assert_same(first, again)
    assert successors != carried_out(0, 2)[1] and successors != carried_out(1, 1)[1]


@pytest.mark.parametrize("make", [device_loop, host_loop])
def test_a_failed_member_is_replaced_and_counts_as_sound_afterwards(make: Any):
    loop = make()
    population = warmed_up(loop)
    members = population.members
    fault = jnp.asarray(members.tally.fault).at[3].set(jnp.array([1, 7], jnp.int32))
    broken = jax.tree.map(lambda x: x.at[3].set(jnp.nan), members.agent.actor)
    members = members._replace(tally=members.tally._replace(fault=fault), agent=members.agent._replace(actor=broken))
    data = population.replay.data.at[3, 0, 0, 0].set(jnp.nan)
    population = population._replace(members=members, replay=population.replay._replace(data=data))
    keep = PBT(bottom=0.0)
    population, successors = exchange(keep, loop, population, RETURNS, SPACE, generation=1)
    assert [s.reason for s in successors] == ["kept", "kept", "kept", "failed"] and successors[3].parent == 1
    assert np.asarray(population.members.tally.fault)[:, 0].tolist() == [-1] * 4
    assert np.isfinite(population.replay.data).all()
    population = loop.advance(population, 2)
    _, successors = exchange(keep, loop, population, RETURNS, SPACE, generation=2)
    assert [s.reason for s in successors] == ["kept"] * 4
    loop.close()


def test_returns_that_are_not_finite_count_as_failed():
    loop = device_loop()
    returns = RETURNS.copy()
    returns[1, 0] = np.nan
    _, successors = exchange(PBT(bottom=0.0), loop, warmed_up(loop), returns, SPACE)
    assert [s.reason for s in successors] == ["kept", "failed", "kept", "kept"] and successors[1].parent == 3


def test_a_ranking_replaces_the_returns():
    """The mean return is the default fitness; a ranking may hold any other."""
    loop = device_loop()
    population = warmed_up(loop)
    by_return = rank(population, RETURNS.mean(axis=1), RETURNS, SPACE)
    by_loss = rank(population, -RETURNS.mean(axis=1), -RETURNS, SPACE)
    assert by_return.hypers.keys() == {name for name, each in SPACE.items() if each.searched}
    kept = copied(population)
    one, ranked = exchange(HALF, loop, population, by_return, SPACE, generation=1)
    two, plain = exchange(HALF, loop, loop.place(warmed_up(loop)), RETURNS, SPACE, generation=1)
    assert ranked == plain
    assert_same(copied(one), copied(two))
    assert_same(copied(warmed_up(loop)), kept)
    _, reverse = exchange(HALF, loop, warmed_up(loop), by_loss, SPACE, generation=1)
    assert [s.parent for s in reverse] == [0, 0, 2, 0]


def test_nothing_changes_if_nobody_is_replaced():
    loop = device_loop()
    population = warmed_up(loop)
    before = copied(population)
    population, successors = exchange(PBT(bottom=0.0), loop, population, RETURNS, SPACE)
    assert [s.parent for s in successors] == [0, 1, 2, 3]
    assert_same(copied(population), before)


def test_wrong_arguments_are_errors():
    loop = device_loop()
    population = warmed_up(loop)
    with pytest.raises(CoveyError, match=r"\[members, episodes\] with 4 members, not \[4\]"):
        exchange(HALF, loop, population, RETURNS.mean(axis=1), SPACE)
    with pytest.raises(CoveyError, match="with 4 members"):
        exchange(HALF, loop, population, RETURNS[:3], SPACE)
    with pytest.raises(CoveyError, match=r"no hyper-parameter called 'actor_rate'\. Did you mean 'actor_lr'"):
        exchange(HALF, loop, population, RETURNS, {"actor_rate": Range(1e-5, 1e-2)})
    with pytest.raises(CoveyError, match="shared=True"):
        exchange(PBT(replay="share"), loop, population, RETURNS, SPACE)


@pytest.mark.parametrize("make", [device_loop, host_loop])
def test_wrong_hyper_parameters_of_new_members_are_errors(make: Any):
    loop = make()
    with pytest.raises(CoveyError, match=r"no hyper-parameter called 'taw'\. Did you mean 'tau'"):
        loop.init({"taw": np.zeros(4)})
    with pytest.raises(CoveyError, match=r"tau needs one value for each of the 4 members, .* shape \(3,\)"):
        loop.init({"tau": np.zeros(3)})
    with pytest.raises(CoveyError, match="`seed` must lie between"):
        loop.init(seed=2**40)
    schedules = loop.trainer.schedules._replace(tau=Schedule("linear", 0.1, 0.2, 100))
    scheduled = type(loop)(dataclasses.replace(loop.trainer, schedules=schedules), 4)
    with pytest.raises(CoveyError, match=r"tau follows the schedule linear:0\.1:0\.2:100"):
        scheduled.init({"tau": np.full(4, 0.1)})
