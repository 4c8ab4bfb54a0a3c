"""The contract of every algorithm in the registry."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from covey import agents
from covey.agents import REGISTRY
from covey.envs.builtin.point import Point
from covey.training.device import DeviceLoop
from tests.tasks import SMALL, assert_same, population, small_trainer

ENV = Point()
NAMES = sorted(REGISTRY)


# TAAC-Q stands for its family: the same code, with more of it in use.
@pytest.fixture(scope="module", params=[name for name in NAMES if name not in ("taac", "taac-l")])
def loop(request) -> DeviceLoop:
    return DeviceLoop(small_trainer(request.param, ENV, envs=2), 2, "map")


def test_every_agent_has_a_small_configuration_for_tests():
    assert set(SMALL) == set(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_hash_and_equality_by_value(name: str):
    one, two = small_trainer(name, ENV), small_trainer(name, ENV)
    assert one == two and hash(one) == hash(two)
    assert one.agent == two.agent and one.agent is not two.agent


@pytest.mark.parametrize("name", NAMES)
def test_every_hyper_parameter_has_a_range_and_its_default_lies_in_it(name: str):
    """A value that is not given by default (None or no numbers) has a range too, but is not searched."""
    entry = agents.entry(name)
    leaves = jax.tree.flatten_with_path(entry.hyper(), is_leaf=lambda x: x is None or x == ())[0]
    for path, default in leaves:
        key = jax.tree_util.keystr(path, simple=True, separator=".")
        assert key in entry.space, f"{key} has no range"
        if default in (None, ()):
            assert not entry.space[key].searched
        else:
            assert entry.space[key].low <= default <= entry.space[key].high
    assert len(entry.space) == len(leaves)


def test_state_keeps_structure_shape_and_dtype(loop):
    before = population(loop)
    shapes = jax.tree.map(lambda x: (x.shape, x.dtype), before)
    after = loop.advance(before, 1, warmup=False)
    assert jax.tree.structure(shapes) == jax.tree.structure(jax.tree.map(lambda x: (x.shape, x.dtype), after))
    assert shapes == jax.tree.map(lambda x: (x.shape, x.dtype), after)


def test_learning_changes_the_agent_and_stays_finite(loop):
    before = population(loop)
    start = jax.tree.map(np.asarray, before.members.agent)
    after = loop.advance(before, 2, warmup=False)
    assert all(bool(np.isfinite(x).all()) for x in jax.tree.leaves(after.members.agent))
    assert np.asarray(after.members.tally.fault).max() == -1
    changed = jax.tree.map(lambda a, b: not np.array_equal(a, b), start, jax.tree.map(np.asarray, after.members.agent))
    assert np.mean(jax.tree.leaves(changed)) > 0.9


def test_warm_up_learns_nothing(loop):
    hyper = jax.tree.map(lambda s: jnp.full(loop.members, s.start), loop.trainer.schedules)
    fresh = loop.init(hyper, jax.random.split(jax.random.key(0), loop.members))
    start = jax.tree.map(np.asarray, fresh.members.agent)
    after = loop.advance(fresh, 1, warmup=True)
    moved = jax.tree.map(lambda a, b: not np.array_equal(a, b), start, jax.tree.map(np.asarray, after.members.agent))
    # What it has observed may change.
    names = {jax.tree_util.keystr(path): x for path, x in jax.tree.flatten_with_path(moved)[0]}
    assert not [name for name, x in names.items() if x and ".statistics" not in name]


def test_same_seed_same_result_and_another_seed_another(loop):
    one, two, other = (loop.advance(population(loop, seed), 1, warmup=False) for seed in (0, 0, 7))
    assert_same(one, two)
    with pytest.raises(AssertionError):
        assert_same(one.members.agent, other.members.agent)


def test_a_member_of_a_population_is_as_if_alone(loop):
    """To the bit: the same key and hyper-parameters give the same agent, whatever the other members are."""
    hypers = jax.tree.map(
        lambda s: jnp.stack([jnp.float32(s.start), jnp.float32(0.8 * s.start)]), loop.trainer.schedules
    )
    keys = jax.random.split(jax.random.key(3), loop.members)

    def trained(loop: DeviceLoop, members: slice):
        new = loop.init(*jax.tree.map(lambda x: x[members], (hypers, keys)))
        return loop.advance(loop.advance(new, 2, warmup=True), 1, warmup=False)

    whole = trained(loop, slice(None))
    for i in range(loop.members):
        alone = trained(DeviceLoop(loop.trainer, 1, "map"), slice(i, i + 1))
        assert_same(jax.tree.map(lambda x, i=i: x[i : i + 1], whole.members), alone.members)
        assert_same(whole.replay.data[i : i + 1], alone.replay.data)


def test_vmap_over_members_is_the_loop_over_them(loop):
    lock_step = DeviceLoop(loop.trainer, loop.members, "vmap")
    one = loop.advance(population(loop), 1, warmup=False).members.agent
    two = lock_step.advance(population(lock_step), 1, warmup=False).members.agent
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-5), one, two)


def test_every_hyper_parameter_changes_the_outcome(loop):
    def outcome(hyper):
        state = population(loop)
        state = state._replace(members=state.members._replace(hyper=hyper))
        return loop.advance(state, 1, warmup=False)

    leaves, structure = jax.tree.flatten_with_path(loop.trainer.schedules)

    def outcome_with(moved: int | None):
        values = [s.start * (0.7 if i == moved else 1.0) for i, (_, s) in enumerate(leaves)]
        return outcome(jax.tree.unflatten(structure, [jnp.full(loop.members, v) for v in values]))

    start = outcome_with(None)
    reference = jax.tree.leaves((start.members.agent, start.replay.data))
    for i, (path, _) in enumerate(leaves):
        result = outcome_with(i)
        found = jax.tree.leaves((result.members.agent, result.replay.data))
        changed = [not np.array_equal(a, b) for a, b in zip(reference, found, strict=True)]
        assert any(changed), f"{jax.tree_util.keystr(path)} changes nothing"


def test_the_same_on_either_device():
    """The result of a member does not depend on its device."""
    loop = DeviceLoop(small_trainer("sac", ENV, envs=2), 2, "map")
    results = []
    for device in jax.devices()[:2]:
        with jax.default_device(device):
            state = loop.advance(population(loop), 1, warmup=False)
        assert state.members.key.devices() == {device}
        results.append(jax.device_get(state.members.agent))
    assert len(results) == 2
    assert_same(*results)


@pytest.mark.parametrize("mode", ["random", "sample", "greedy"])
def test_actions_lie_in_the_box(loop, mode):
    agent = loop.trainer.agent
    members = population(loop).members
    state, hyper = jax.tree.map(lambda x: x[0], (members.agent, members.hyper))
    zeros = loop.trainer.env.spec.observation.zeros(200)
    obs = jax.tree.map(lambda x: 100.0 * jax.random.normal(jax.random.key(0), x.shape), zeros)
    keys = jax.random.split(jax.random.key(1), 200)
    memory = jax.vmap(lambda k: agent.begin(state, hyper, k))(keys)
    decision = jax.vmap(lambda m, o, k: agent.act(state, hyper, m, o, k, mode))(memory, obs, keys)
    assert decision.action.shape == (200, ENV.spec.action_size)
    assert float(jnp.abs(decision.action).max()) <= 1.0
    assert jax.tree.structure(decision.memory) == jax.tree.structure(memory)
    again = jax.vmap(lambda m, o, k: agent.act(state, hyper, m, o, k, mode))(memory, obs, keys)
    assert_same(decision, again)
