"""The compiled loop: no recompilation, no influence of chunks, members as if alone."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from covey.agents.td3 import TD3, TD3Config
from covey.envs.builtin.point import Point
from covey.errors import CoveyError
from covey.evaluation.evaluate import evaluate_members
from covey.hyper.schedule import Schedule
from covey.training.device import DeviceLoop
from covey.training.trainer import Trainer, make_trainer
from tests.tasks import Breaks, assert_same, population, small_trainer


def trainer_of_two() -> Trainer:
    """One trainer for most tests of this file, so that they share its programs."""
    return small_trainer("td3", Point(), envs=2)


@pytest.mark.parametrize("axis", ["map", "vmap"])
def test_one_compilation_of_each_kind(axis: str):
    """A chunk of any length, a second run with equal values, and an evaluation use the programs there are."""
    compiled: list[str] = []

    def count(event: str, seconds: float, **details: object) -> None:
        if event == "/jax/core/compile/jaxpr_trace_duration":
            compiled.append(str(details.get("fun_name")))

    def work(seed: int) -> None:
        trainer = trainer_of_two()
        loop = DeviceLoop(trainer, 2, axis)  # type: ignore[arg-type]
        state = population(loop, seed)
        for blocks in (1, 2, 5, 1):
            state = loop.advance(state, blocks, warmup=False)
            members = state.members
            evaluate_members(trainer.agent, trainer.env, members.agent, members.hyper, jax.random.key(0), 4)

    work(0)
    jax.monitoring.register_event_duration_secs_listener(count)
    try:
        work(1)
    finally:
        jax.monitoring.unregister_event_duration_listener(count)
    traced = [name for name in compiled if name in ("_advance", "_init", "_evaluate")]
    assert not traced, f"traced again: {traced}"


@pytest.mark.parametrize("axis", ["map", "vmap"])
def test_where_a_run_is_cut_into_chunks_does_not_matter(axis: str):
    loop = DeviceLoop(trainer_of_two(), 2, axis)  # type: ignore[arg-type]
    whole = loop.advance(population(loop), 6, warmup=False)
    parts = population(loop)
    for blocks in (1, 0, 3, 2):
        parts = loop.advance(parts, blocks, warmup=False)
    assert_same(whole, parts)


def test_a_member_in_a_population_is_the_same_alone():
    """To the bit with map; with vmap, batched products may round differently."""
    trainer = trainer_of_two()
    alone = [DeviceLoop(trainer, 1, "map") for _ in range(2)]
    singles = [loop.advance(population(loop, seed), 2, warmup=False) for seed, loop in enumerate(alone)]
    together = jax.tree.map(lambda *x: jnp.concatenate(x), *(s.members for s in singles))
    by_map = DeviceLoop(trainer, 2, "map")
    assert_same(by_map.advance(population(by_map), 2, warmup=False).members, together)
    by_vmap = DeviceLoop(trainer, 2, "vmap")
    members = by_vmap.advance(population(by_vmap), 2, warmup=False).members
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-4), members.agent, together.agent)


def test_a_chunk_reuses_its_replay():
    """The program's output takes the place of its input, and no scratch space is as large as the replay."""
    loop = DeviceLoop(small_trainer("td3", Point(), envs=2, capacity=200_000), 2, "map")
    hyper = jax.tree.map(lambda s: jax.ShapeDtypeStruct((2,), jnp.float32), loop.trainer.schedules)
    keys = jax.eval_shape(lambda: jax.random.split(jax.random.key(0), 2))
    shapes = jax.eval_shape(loop.init, hyper, keys)
    compiled = type(loop)._advance.lower(loop, shapes, jnp.int32(1), warmup=False).compile()
    memory, replay = compiled.memory_analysis(), 4 * np.prod(shapes.replay.data.shape)
    assert memory.alias_size_in_bytes >= replay
    assert memory.temp_size_in_bytes < replay / 4


def test_members_differ():
    loop = DeviceLoop(trainer_of_two(), 2, "map")
    members = loop.advance(population(loop), 1, warmup=False).members
    kernel = members.agent.actor["torso"]["Dense_0"]["kernel"]
    assert float(jnp.abs(kernel[0] - kernel[1]).max()) > 0.01
    assert float(jnp.abs(members.world.obs[0] - members.world.obs[1]).max()) > 0


def test_evaluating_does_not_touch_training():
    trainer = trainer_of_two()
    loop = DeviceLoop(trainer, 2, "map")
    one = loop.advance(population(loop), 2, warmup=False)
    two = population(loop)
    for _ in range(2):
        two = loop.advance(two, 1, warmup=False)
        evaluate_members(trainer.agent, trainer.env, two.members.agent, two.members.hyper, jax.random.key(5), 4)
    assert_same(one, two)


def test_a_schedule_moves_the_value_that_the_agent_uses():
    """With the learning rates scheduled to 0 from the start, nothing is learned; a constant rate learns."""
    trainer = trainer_of_two()
    none = Schedule("linear", 0.0, 0.0, 100)
    frozen = dataclasses.replace(trainer, schedules=trainer.schedules._replace(actor_lr=none, critic_lr=none))
    results = []
    for each in (trainer, frozen):
        loop = DeviceLoop(each, 2, "map")
        before = population(loop)
        start = np.asarray(before.members.agent.actor["torso"]["Dense_0"]["kernel"])
        after = loop.advance(before, 1, warmup=False)
        results.append(np.abs(np.asarray(after.members.agent.actor["torso"]["Dense_0"]["kernel"]) - start).max())
    assert results[0] > 0 and results[1] == 0


@pytest.mark.parametrize(
    ("envs", "per_step", "delay", "unroll", "updates"),
    [
        (1, 1.0, 2, 2, 1),
        (1, 1.0, 1, 1, 1),
        (16, 1.0, 2, 1, 8),
        (1, 0.25, 2, 8, 1),
        (4, 0.5, 1, 1, 2),
        (3, 1.0, 2, 2, 3),
    ],
)
def test_updates_per_step_are_exact(envs, per_step, delay, unroll, updates):
    env = Point()
    agent = TD3(TD3Config(policy_delay=delay), env.spec)
    trainer = make_trainer(agent, env, small_trainer("td3", env).schedules, envs=envs, updates_per_step=per_step)
    assert (trainer.unroll, trainer.updates) == (unroll, updates)
    assert updates * delay == unroll * envs * per_step


def test_numbers_that_can_not_be_met_are_errors():
    with pytest.raises(CoveyError, match="`capacity` 1 does not hold"):
        small_trainer("td3", Point(), capacity=1)
    with pytest.raises(CoveyError, match="Close to it is 1/500"):
        small_trainer("td3", Point(), updates_per_step=0.0017)
    with pytest.raises(CoveyError, match="`envs` must be positive"):
        small_trainer("td3", Point(), envs=0)


@pytest.mark.parametrize("what", ["observation", "reward"])
def test_the_first_quantity_that_is_not_finite_is_remembered(what: str):
    trainer = small_trainer("td3", Breaks(what=what))
    loop = DeviceLoop(trainer, 2, "map")
    tally = population(loop).members.tally
    for quantity, iteration in np.asarray(tally.fault):
        assert trainer.quantities[quantity] == what
        step = iteration * trainer.unroll
        assert 18 <= step <= 20
