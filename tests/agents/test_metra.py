"""METRA against references written in NumPy: its reward, its constraint, its dual variable, and the way to a goal."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from covey.agents.skills.contract import Paths
from covey.agents.skills.diayn import DIAYN, DIAYNConfig, DIAYNHyper
from covey.agents.skills.goals import PlannerState, Planning, Towards
from covey.agents.skills.metra import METRA, METRAConfig, METRAHyper
from covey.agents.skills.prior import Skills, moves, sectors
from covey.errors import CoveyError
from covey.nn.parts import Torso
from tests.reference import dense
from tests.skills import FIVE, SAC, SPEC, TORSO, batch_of, described, first_gradient, normalised, stats

SPHERE = Skills(kind="continuous", prior="sphere")
BOTH = pytest.mark.parametrize("skills", [SPHERE, FIVE], ids=["continuous", "discrete"])


def metra(skills: Skills = SPHERE, torso: Torso = TORSO) -> METRA:
    return METRA(METRAConfig(SAC, skills, torso), SPEC)


def state_of(agent: METRA):
    state = agent.init(METRAHyper(), jax.random.key(0))
    return state._replace(statistics=state.statistics._replace(descriptors=stats(1)), dual=jnp.float32(-0.7))


def steps_by_hand(state, data) -> np.ndarray:
    """phi(d') - phi(d) in NumPy."""
    p = jax.tree.map(np.asarray, state.representation)

    def phi(d):
        x = normalised(state.statistics.descriptors, np.asarray(d, np.float64))
        return dense(p["layers_1"], np.maximum(dense(p["layers_0"]["Dense_0"], x), 0))

    return phi(data.after) - phi(data.before)


def directed(skills: Skills, skill) -> np.ndarray:
    """What stands for the skill in the reward."""
    z = np.asarray(skill, np.float64)
    return (z - 1 / 5) * 5 / 4 if skills.discrete else z


def test_the_prior_of_directions():
    drawn = np.asarray(SPHERE.draw(jax.random.key(0), 500))
    np.testing.assert_allclose(np.linalg.norm(drawn, axis=1), 1.0, rtol=1e-6)
    assert np.all(np.abs(drawn.mean(axis=0)) < 0.1)
    np.testing.assert_allclose(SPHERE.log_prior(drawn[:1]), -np.log(2 * np.pi), rtol=1e-6)
    three = Skills(kind="continuous", dimensions=3, prior="sphere")
    np.testing.assert_allclose(three.log_prior(jnp.ones((1, 3))), -np.log(4 * np.pi), rtol=1e-6)
    shown = np.asarray(SPHERE.show())
    assert shown.shape == (16, 2) and np.all(sectors(2.0 * shown, 1.0)) and not np.any(sectors(2.0 * shown, 3.0))
    one = Skills(kind="continuous", dimensions=1, prior="sphere")
    assert set(np.asarray(one.show()).ravel()) == {1.0, -1.0}
    np.testing.assert_allclose(SPHERE.within(jnp.array([3.0, 4.0])), [0.6, 0.8], rtol=1e-6)


def test_continuous_skills_are_directions():
    with pytest.raises(CoveyError, match="set `prior` to sphere, not uniform"):
        METRAConfig(skills=Skills(kind="continuous"))


def test_sectors():
    """East and a little north of it are one sector; south-west, not far enough, is none."""
    found = np.asarray(sectors(jnp.array([[4.0, 0.0], [4.0, 0.7], [0.0, 5.0], [-1.0, -1.0]]), 3.0))
    assert list(np.flatnonzero(found)) == [0, 4]


@BOTH
def test_reward(skills):
    agent = metra(skills)
    state, data = state_of(agent), moves(agent.skill_sac.view, batch_of(agent))
    expected = np.sum(steps_by_hand(state, data) * directed(skills, data.skill), axis=1)
    found = agent.progress(agent.step_of(state, state.representation, data), data.skill)
    np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-5)


@BOTH
def test_the_representation_ascends_the_lagrangian(skills):
    """The gradient by the last kernel, whose features are linear in it; and the dual variable's."""
    agent = metra(skills)
    state, batch = state_of(agent), batch_of(agent)
    # Steps that are too long and steps that are short enough, so that both branches of the minimum count.
    state.representation["layers_1"]["kernel"] *= 0.8
    data = moves(agent.skill_sac.view, batch)
    hyper = METRAHyper(slack=0.2, dual=20.0)
    dual = 20.0 * np.exp(-0.7)
    step = steps_by_hand(state, data)
    z, valid = directed(skills, data.skill), np.arange(8) != 3
    squared = np.sum(step**2, axis=1)
    assert 0 < np.sum(1 - squared[valid] < 0.2) < 7
    p = jax.tree.map(np.asarray, state.representation)["layers_0"]["Dense_0"]
    features = [
        np.maximum(dense(p, normalised(state.statistics.descriptors, np.asarray(d, np.float64))), 0)
        for d in (data.after, data.before)
    ]
    # d/dW of (features' - features) W . z + dual * min(slack, 1 - |.|^2)
    towards = z - dual * np.where(1 - squared < 0.2, 2.0, 0.0)[:, None] * step
    expected = -np.einsum("bi,bj->ij", (features[0] - features[1])[valid], towards[valid]) / 7
    after, metrics = jax.jit(agent.update_representation)(state, hyper, data)
    np.testing.assert_allclose(first_gradient(after.optimiser)["layers_1"]["kernel"], expected, rtol=2e-3, atol=1e-4)
    left = np.minimum(0.2, 1 - squared)[valid].mean()
    np.testing.assert_allclose(first_gradient(after.dual_optimiser), left, rtol=1e-3)
    assert float(after.dual - state.dual) * left < 0  # the dual variable grows where steps are too long
    np.testing.assert_allclose(metrics["dual"], dual, rtol=1e-5)
    np.testing.assert_allclose(metrics["squared_step"], squared[valid].mean(), rtol=1e-3)
    np.testing.assert_allclose(metrics["progress"], np.sum(step * z, axis=1)[valid].mean(), rtol=1e-3, atol=1e-5)


def test_a_jump_at_an_end_changes_nothing():
    agent = metra()
    state, batch, key = state_of(agent), batch_of(agent), jax.random.key(7)
    far = batch._replace(
        obs=jax.tree.map(lambda x: x.at[3].set(jnp.nan), batch.obs),
        next_obs=jax.tree.map(lambda x: x.at[3].set(1e9), batch.next_obs),
        reward=batch.reward.at[3].set(jnp.nan),
    )
    update = jax.jit(agent.update)
    (one, first), (two, second) = (update(state, METRAHyper(), b, key) for b in (batch, far))
    jax.tree.map(np.testing.assert_array_equal, one.representation, two.representation)
    assert float(one.dual) == float(two.dual) and float(first["progress"]) == float(second["progress"])
    rollouts = (jax.tree.map(lambda x: x[:, 0][None], b) for b in (batch, far))
    one, two = (agent.observe(state, METRAHyper(), rollout, key) for rollout in rollouts)
    jax.tree.map(np.testing.assert_array_equal, one.statistics, two.statistics)


def test_sac_learns_from_the_reward_of_the_newest_representation():
    agent = metra()
    state, batch, key = state_of(agent), batch_of(agent), jax.random.key(7)
    hyper = METRAHyper(representation_lr=0.1)
    after, _ = jax.jit(agent.update)(state, hyper, batch, key)
    data = moves(agent.skill_sac.view, batch)
    reward = agent.progress(agent.step_of(state, after.representation, data), data.skill)
    sac, _ = jax.jit(agent.skill_sac.sac.update)(
        state.sac, hyper.sac, agent.skill_sac.as_seen_by_sac(batch, reward[:, None]), key
    )
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-6), after.sac, sac)


def linear(skills: Skills):
    """A representation that is the descriptor itself; of discrete skills, four directions and a constant."""
    agent = metra(skills, Torso(hidden=()))
    state = agent.init(METRAHyper(), jax.random.key(0))
    compass = jnp.array([[1.0, 0.0, -1.0, 0.0, 0.0], [0.0, 1.0, 0.0, -1.0, 0.0]])
    kernel = compass if skills.discrete else jnp.eye(2)
    state.representation["layers_1"] = {"kernel": kernel, "bias": jnp.zeros(kernel.shape[1])}
    # Statistics of mean 0 and deviation 1 leave the descriptor as it is.
    plain = stats(1)._replace(mean=jnp.zeros(2), squares=jnp.full(2, 10.0))
    return agent, state._replace(statistics=state.statistics._replace(descriptors=plain))


@BOTH
def test_the_skill_points_to_the_goal(skills):
    agent, state = linear(skills)
    towards = Towards(agent)
    planned = PlannerState(state, jnp.array([[3.0, 4.0], [0.0, -2.0]]), jnp.float32(0.5))
    memory = towards.begin(planned, METRAHyper(), jax.random.key(0))

    def act(memory, where):
        obs = described(jnp.concatenate([jnp.zeros(4), jnp.asarray(where, jnp.float32), jnp.zeros(1)]))
        return towards.act(planned, METRAHyper(), memory, obs, jax.random.key(1), "greedy")

    first = act(memory, [0.0, 0.0])
    north, south = ([0, 1, 0, 0, 0], [0, 0, 0, 1, 0]) if skills.discrete else ([0.6, 0.8], [-3 / 45**0.5, -6 / 45**0.5])
    np.testing.assert_allclose(first.extras["skill"], north, rtol=1e-4)
    assert float(first.extras["reached"]) == 0.0
    second = act(first.memory, [3.0, 4.0])  # there: on to the second goal
    np.testing.assert_allclose(second.extras["skill"], south, rtol=1e-4)
    assert float(second.extras["reached"]) == 0.5
    assert float(act(second.memory, [0.1, -2.0]).extras["reached"]) == 1.0


def test_there_is_nothing_to_plan():
    with pytest.raises(CoveyError, match="makes no plan"):
        Towards(metra(), Planning(horizon=2))


def test_diayn_takes_the_skill_that_it_recognises_at_the_goal():
    agent = DIAYN(DIAYNConfig(SAC, FIVE, Torso(hidden=())), SPEC)
    state = agent.init(DIAYNHyper(), jax.random.key(0))
    kernel = jnp.zeros((2, 5)).at[0, 2].set(1.0)
    state.discriminator["layers_1"] = {"kernel": kernel, "bias": jnp.zeros(5).at[4].set(0.5)}
    state = state._replace(statistics=state.statistics._replace(arrivals=stats(1)))
    skill = [
        int(jnp.argmax(agent.skill_for(state, jnp.zeros(2), jnp.array(goal)))) for goal in ([9.0, 0.0], [-9.0, 0.0])
    ]
    assert skill == [2, 4]


@BOTH
def test_measures(skills):
    """Five skills that go one unit east: the reward is the skill's east, the constraint is met exactly."""
    agent, state = linear(skills)
    z = np.asarray(skills.show())[:5]
    where = np.zeros((5, 1, 4, 2), np.float32)
    where[..., 0] = np.arange(4.0)
    obs = np.concatenate([np.zeros((5, 1, 4, 4)), where, np.zeros((5, 1, 4, 1))], axis=-1)
    paths = Paths(jnp.asarray(z), described(jnp.asarray(obs, jnp.float32)), jnp.ones((5, 1, 3)))
    found = agent.measure(state, METRAHyper(), paths, jax.random.key(0))
    steps = np.array([1.0, 0.0, -1.0, 0.0, 0.0] if skills.discrete else [1.0, 0.0])
    expected = np.mean(directed(skills, z) @ steps)
    np.testing.assert_allclose(found["progress"], expected, rtol=1e-3, atol=1e-6)
    np.testing.assert_allclose(found["squared_step"], np.sum(steps**2), rtol=1e-3)
    bound = np.sqrt(max(np.sum(steps**2), 1))
    np.testing.assert_allclose(found["dependency"], expected / bound, rtol=1e-3, atol=1e-6)
    if skills.discrete:
        np.testing.assert_allclose(found["accuracy"], 0.2)
    np.testing.assert_allclose(found["sectors"], 1 / 16)
