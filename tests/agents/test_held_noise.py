"""Held exploration noise: its distribution, its memory, and the agents that use it."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from covey import envs
from covey.agents.sac import SAC, SACConfig, SACHyper
from covey.agents.skills.dads import DADS, DADSConfig, DADSHyper
from covey.agents.skills.goals import PlannerState, Planning
from covey.agents.skills.planner import Planner
from covey.agents.td3 import TD3, TD3Config, TD3Hyper
from covey.envs.described import Described
from covey.errors import CoveyError
from covey.evaluation import FixedSkill
from covey.nn.held_noise import HeldNoise, NoiseMemory
from covey.nn.parts import Networks, Torso
from covey.training.collect import decide
from tests.export.policies import source
from tests.reference import SPEC
from tests.tasks import SMALL

TORSO = Torso(hidden=(8,))
OBS = jnp.array([0.3, -1.0, 0.5])
STEPS = 300


def td3(**options: Any) -> tuple[Any, Any]:
    return TD3(TD3Config(networks=Networks(TORSO, TORSO), **options), SPEC), TD3Hyper(exploration_noise=0.1)


def sac(**options: Any) -> tuple[Any, Any]:
    return SAC(SACConfig(networks=Networks(TORSO, TORSO, actor_head="tanh_normal"), **options), SPEC), SACHyper()


AGENTS = {"td3": td3, "sac": sac}


def expected_action(agent: Any, state: Any, hyper: Any, noise: np.ndarray) -> np.ndarray:
    """clip(pi(s) + sigma e) of TD3, tanh(mean + std e) of SAC."""
    if isinstance(agent, TD3):
        greedy = agent.act(state, hyper, (), OBS, jax.random.key(0), "greedy").action
        return np.clip(np.asarray(greedy) + 0.1 * noise, -1, 1)
    policy = agent.policy(state, OBS)
    return np.tanh(np.asarray(policy.mean) + np.exp(np.asarray(policy.log_std)) * noise)


def played(policy: Any, state: Any, hyper: Any, obs: Any, mode: Any = "sample", steps: int = STEPS) -> Any:
    """Actions and memories of one episode at the same observation."""

    def step(memory: Any, key: Any) -> Any:
        decision = policy.act(state, hyper, memory, obs, key, mode)
        return decision.memory, (decision.action, decision.memory)

    memory = policy.begin(state, hyper, jax.random.key(1))
    return jax.jit(lambda: jax.lax.scan(step, memory, jax.random.split(jax.random.key(2), steps))[1])()


def holds(x: Any) -> np.ndarray:
    """The lengths of the stretches of equal rows [T, A], without the last one, which the end may cut."""
    starts = np.flatnonzero(np.r_[True, np.any(np.diff(np.asarray(x), axis=0) != 0, axis=1)])
    return np.diff(starts)


@pytest.mark.parametrize("longest", [2, 16])
def test_lengths_of_holds(longest: int):
    held = HeldNoise(2, longest)
    count = 100_000
    noise, memory = jax.jit(jax.vmap(lambda k: held.draw(held.begin(), k)))(jax.random.split(jax.random.key(0), count))
    found = np.bincount(np.asarray(memory.left) + 1, minlength=longest + 1)[1:] / count
    probability = np.arange(1, longest + 1) ** -2.0
    probability /= probability.sum()
    assert np.all(np.abs(found - probability) < 4 * np.sqrt(probability * (1 - probability) / count))
    np.testing.assert_allclose(np.mean(noise, axis=0), 0.0, atol=0.02)
    np.testing.assert_allclose(np.std(noise, axis=0), 1.0, atol=0.02)


def test_a_vector_is_held_as_long_as_was_drawn():
    held = HeldNoise(2, 16)

    def step(memory: Any, key: Any) -> Any:
        noise, new = held.draw(memory, key)
        assert new
        return new, (noise, memory.left == 0, new.left + 1)

    noise, due, steps = jax.lax.scan(step, held.begin(), jax.random.split(jax.random.key(0), STEPS))[1]
    drawn = np.asarray(steps)[np.asarray(due)]
    assert len(drawn) > 50 and drawn.max() > 3
    np.testing.assert_array_equal(holds(noise), drawn[:-1])


@pytest.mark.parametrize("name", AGENTS)
def test_actions_have_the_held_noise(name: str):
    agent, hyper = AGENTS[name](noise_hold=16)
    state = agent.init(hyper, jax.random.key(0))
    actions, memory = played(agent, state, hyper, OBS)
    np.testing.assert_allclose(
        actions, expected_action(agent, state, hyper, np.asarray(memory.noise)), rtol=1e-5, atol=1e-6
    )
    np.testing.assert_array_equal(holds(actions), holds(memory.noise))
    assert holds(actions).max() > 3


@pytest.mark.parametrize("name", AGENTS)
def test_noise_that_is_not_held_is_as_before(name: str):
    agent, hyper = AGENTS[name]()
    state = agent.init(hyper, jax.random.key(0))
    assert agent.begin(state, hyper, jax.random.key(0)) == ()
    key = jax.random.key(5)
    noise = np.asarray(jax.random.normal(key, (SPEC.action_size,)))
    decision = agent.act(state, hyper, (), OBS, key, "sample")
    assert decision.memory == ()
    np.testing.assert_allclose(decision.action, expected_action(agent, state, hyper, noise), rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("name", AGENTS)
@pytest.mark.parametrize("mode", ["greedy", "random"])
def test_other_modes_leave_it_alone(name: str, mode: Any):
    (holding, hyper), (plain, _) = AGENTS[name](noise_hold=16), AGENTS[name]()
    state = plain.init(hyper, jax.random.key(0))
    memory = NoiseMemory(jnp.array([3.0, -3.0]), jnp.asarray(4))
    key = jax.random.key(3)
    one, two = holding.act(state, hyper, memory, OBS, key, mode), plain.act(state, hyper, (), OBS, key, mode)
    np.testing.assert_array_equal(one.action, two.action)
    assert one.memory is memory


def test_each_environment_has_its_own_clock_and_an_episode_begins_anew():
    agent, hyper = sac(noise_hold=16)
    state = agent.init(hyper, jax.random.key(0))
    memory = NoiseMemory(jnp.ones((3, 2)), jnp.array([5, 5, 0]))
    first = jnp.array([True, False, False])
    keys = jax.random.split(jax.random.key(0), (3, 3))
    after = decide(agent, state, hyper, memory, first, jnp.stack([OBS] * 3), keys, "sample").memory
    held = np.all(np.asarray(after.noise) == 1.0, axis=1)
    np.testing.assert_array_equal(held, [False, True, False])
    assert int(after.left[1]) == 4


def skilled(**options: Any) -> tuple[Any, Any, Any]:
    env = Described(envs.make("point"))
    networks = Networks(TORSO, TORSO, actor_head="tanh_normal")
    agent = DADS(DADSConfig(sac=SACConfig(networks=networks, **options), dynamics=TORSO), env.spec)
    return agent, agent.init(DADSHyper(), jax.random.key(0)), env.spec.observation.zeros()


def test_skills_and_plans_carry_the_noise():
    agent, state, obs = skilled(noise_hold=16)
    fixed = FixedSkill(agent, agent, (0.5, -0.5))
    actions, memory = played(fixed, state, DADSHyper(), obs)
    assert holds(memory.noise.noise).max() > 3
    np.testing.assert_array_equal(holds(actions), holds(memory.noise.noise))
    planner = PlannerState(state, jnp.ones((1, 2)), jnp.asarray(0.1))
    _, memory = played(Planner(agent, Planning(candidates=2, refinements=1)), planner, DADSHyper(), obs, steps=50)
    assert holds(memory.noise.noise).max() > 3
    plain, _, _ = skilled()
    assert len(jax.tree.leaves(plain.memory_for(jnp.zeros(2)))) == 2


def test_exported_policies_have_noise_only_if_they_explore():
    greedy, exploring = (source("sac", SMALL["sac"] | {"noise_hold": 4}, explore=explore) for explore in (False, True))
    assert not jax.tree.leaves(greedy.start())
    assert len(jax.tree.leaves(exploring.start())) == 2
    skills = source("diayn", SMALL["diayn"] | {"sac": SMALL["diayn"]["sac"] | {"noise_hold": 4}})
    assert jax.tree.leaves(skills.start()[2]) == [] and len(jax.tree.leaves(skills.start())) == 2


@pytest.mark.parametrize("value", [0, -3, 100_000])
@pytest.mark.parametrize("config", [SACConfig, TD3Config])
def test_wrong_holds(config: Any, value: int):
    with pytest.raises(CoveyError, match=r"`noise_hold` must be the longest hold"):
        config(noise_hold=value)


def test_acting_without_the_memory_is_an_error():
    agent, hyper = sac(noise_hold=4)
    with pytest.raises(CoveyError, match="`begin`"):
        agent.act(agent.init(hyper, jax.random.key(0)), hyper, (), OBS, jax.random.key(0), "sample")
