"""Skills, the rewards of DIAYN and DADS, their models and the planner against references written in NumPy."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from covey.agents.skills.contract import Paths
from covey.agents.skills.dads import DADS, DADSConfig, DADSHyper
from covey.agents.skills.diayn import DIAYN, DIAYNConfig, DIAYNHyper
from covey.agents.skills.goals import PlannerState, Planning
from covey.agents.skills.planner import Planner
from covey.agents.skills.prior import Skills, coverage, moves
from covey.agents.skills.skill_sac import KEPT
from covey.agents.skills.view import view
from covey.envs.builtin.pendulum import Pendulum
from covey.envs.builtin.point import Point
from covey.envs.described import Described
from covey.errors import CoveyError
from covey.evaluation import skill_paths
from covey.evaluation.rollout import run_episodes
from covey.nn.encoders import Image
from covey.nn.mixture import Mixture
from covey.nn.normalise import Normalise
from covey.nn.parts import Torso
from covey.observation import Part
from covey.training.device import DeviceLoop
from covey.training.trainer import make_trainer
from covey.types import Descriptor, EnvSpec, Step
from tests.reference import dense
from tests.skills import CONTINUOUS, ENV, FIVE, SAC, SPEC, TORSO, batch_of, described, first_gradient, normalised, stats
from tests.tasks import population


def diayn(skills: Skills = FIVE, **options) -> DIAYN:
    return DIAYN(DIAYNConfig(SAC, skills, TORSO, **options), SPEC)


def dads(skills: Skills = CONTINUOUS, spec: EnvSpec = SPEC, **options) -> DADS:
    return DADS(DADSConfig(SAC, skills, TORSO, **({"omit": 0, "samples": 6} | options)), spec)


@functools.cache
def fresh(agent):
    return jax.jit(agent.init)(DIAYNHyper() if isinstance(agent, DIAYN) else DADSHyper(), jax.random.key(0))


def state_of(agent):
    """A new state whose statistics are not trivial."""
    state = jax.tree.map(lambda x: x, fresh(agent))
    if isinstance(agent, DIAYN):
        return state._replace(statistics=state.statistics._replace(arrivals=stats(1)))
    return state._replace(statistics=state.statistics._replace(descriptors=stats(1), changes=stats(2)))


# The prior, and what each part sees.


def test_priors():
    keys = jax.random.split(jax.random.key(0), 3)
    one_hot, uniform = FIVE.draw(keys[0], 500), CONTINUOUS.draw(keys[1], 500)
    normal = Skills(kind="continuous", dimensions=3, prior="normal").draw(keys[2], 500)
    np.testing.assert_array_equal(one_hot.sum(axis=1), 1.0)
    assert np.all(one_hot.sum(axis=0) > 50)
    assert np.abs(uniform).max() <= 1 and abs(float(uniform.std()) - 3**-0.5) < 0.03
    assert normal.shape == (500, 3) and abs(float(normal.std()) - 1) < 0.05
    np.testing.assert_allclose(FIVE.log_prior(one_hot[0]), -np.log(5), rtol=1e-6)
    np.testing.assert_allclose(CONTINUOUS.log_prior(uniform[0]), -2 * np.log(2), rtol=1e-6)
    z = np.asarray(normal[0], np.float64)
    expected = np.sum(-0.5 * z**2 - 0.5 * np.log(2 * np.pi))
    np.testing.assert_allclose(Skills(kind="continuous", prior="normal").log_prior(normal[0]), expected, rtol=1e-5)


@pytest.mark.parametrize(
    ("chosen", "hide", "policy", "part", "descriptor", "position"),
    [
        ((), True, (2, 3), "descriptor", (0, 1), (True, True)),
        ((), False, (0, 1, 2, 3), "descriptor", (0, 1), (True, True)),
        (("y",), True, (0, 2, 3), "descriptor", (1,), (True,)),
        (("observation",), True, (2, 3), "obs", (0, 1, 2, 3), (True, True, False, False)),
        (("1", "3"), True, (0, 2, 3), "obs", (1, 3), (True, False)),
    ],
)
def test_coordinates_of_policy_and_descriptor(chosen, hide, policy, part, descriptor, position):
    assert view(Skills(descriptor=chosen, hide_descriptor=hide), SPEC) == (policy, part, descriptor, position)
    agent = dads(Skills(kind="continuous", descriptor=chosen, hide_descriptor=hide), omit=-1)
    assert agent.inputs == tuple(i for i, p in enumerate(position) if not p)


@pytest.mark.parametrize(
    ("chosen", "spec", "says"),
    [
        (("z",), SPEC, "no coordinate of the descriptor called 'z'"),
        (("4",), SPEC, "names coordinate 4 of an observation that has 4: choose from 0 to 3"),
        (("1", "1"), SPEC, "twice"),
        ((), EnvSpec(3, 1, 9, (-1.0,), (1.0,)), "no state descriptor.*`descriptor` 0 1"),
        ((), Point().spec, "Wrap the environment"),
    ],
)
def test_a_descriptor_that_is_not_there(chosen, spec, says):
    with pytest.raises(CoveyError, match=says):
        DIAYN(DIAYNConfig(SAC, Skills(descriptor=chosen)), spec)


@pytest.mark.parametrize(
    "options",
    [{"number": 1}, {"dimensions": 0}, {"resample": 1.5}, {"resample_after": 0}, {"smerl_margin": -1.0}],
)
def test_wrong_skills(options):
    with pytest.raises(CoveyError, match=f"`{next(iter(options))}`"):
        Skills(**options)


@pytest.mark.parametrize("options", [{"omit": 3}, {"components": 0}, {"correction": 0.5}, {"omit": -2}])
def test_wrong_dynamics(options):
    with pytest.raises(CoveyError, match=f"`{next(iter(options))}`"):
        dads(**options)


@pytest.mark.parametrize("config", [DIAYNConfig, DADSConfig])
def test_no_return_over_several_steps_may_mix_skills(config):
    several = dataclasses.replace(SAC, n_step=3)
    config(sac=several)
    with pytest.raises(CoveyError, match=r"`sac.n_step`.*`skills.resample`") as error:
        config(sac=several, skills=Skills(resample=0.1))
    assert error.value.owner is config


def test_described_environments_tell_descriptor_and_return():
    env = Described(Pendulum())
    state, obs = env.reset(jax.random.key(0))
    rewards = []
    for i in range(3):
        np.testing.assert_array_equal(obs["descriptor"], env.descriptor(state))
        np.testing.assert_allclose(obs["return"], [np.sum(rewards)], rtol=1e-5)
        state, outcome = env.step(state, jnp.array([0.5]), jax.random.key(i))
        obs, rewards = outcome.obs, [*rewards, float(outcome.reward)]
    assert env.spec.described and not Pendulum().spec.described
    assert {name: part.shape for name, part in env.spec.observation.named} == {name: x.shape for name, x in obs.items()}
    assert {name: part.shape for name, part in env.spec.observation.named} == {
        "descriptor": (2,),
        "obs": (3,),
        "return": (1,),
    }


def test_a_skill_lasts_an_episode_or_is_drawn_again():
    once, again = diayn(), diayn(Skills(number=5, resample=1.0, resample_after=4))
    state, hyper = state_of(once), DIAYNHyper()

    def skills(agent, mode):
        memory, found = agent.begin(state, hyper, jax.random.key(1)), []
        act = jax.jit(lambda memory, key: agent.act(state, hyper, memory, described(jnp.ones(7)), key, mode))
        for key in jax.random.split(jax.random.key(2), 9):
            decision = act(memory, key)
            np.testing.assert_array_equal(decision.extras["skill"], decision.memory.skill)
            found, memory = [*found, decision.extras["skill"]], decision.memory
        return np.argmax(found, axis=1).tolist()

    assert len(set(skills(once, "sample"))) == 1 and len(set(skills(again, "greedy"))) == 1
    found = skills(again, "sample")
    assert len(set(found[:4])) == len(set(found[4:8])) == 1 and found == skills(again, "random")


# The models.


def log_normal(x, mean, std):
    return np.sum(-0.5 * ((x - mean) / std) ** 2 - np.log(std) - 0.5 * np.log(2 * np.pi), axis=-1)


def test_mixture():
    random = np.random.default_rng(0)
    logits, mean, std = random.normal(size=(3, 4)), random.normal(size=(3, 4, 2)), random.uniform(0.3, 2, (3, 4, 2))
    x = random.normal(size=(3, 2))
    weight = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    mixture = Mixture(*(jnp.asarray(a, jnp.float32) for a in (logits, mean, std)))
    expected = np.log(np.sum(weight * np.exp(log_normal(x[:, None], mean, std)), axis=1))
    np.testing.assert_allclose(mixture.log_prob(jnp.asarray(x, jnp.float32)), expected, rtol=1e-4)
    np.testing.assert_allclose(mixture.expected(), np.sum(weight[..., None] * mean, axis=1), rtol=1e-4)
    draws = jax.vmap(mixture.sample)(jax.random.split(jax.random.key(0), 4000))
    np.testing.assert_allclose(draws.mean(axis=0), mixture.expected(), atol=0.1)
    second = np.sum(weight[..., None] * (mean**2 + std**2), axis=1) - np.asarray(mixture.expected()) ** 2
    np.testing.assert_allclose(draws.var(axis=0), second, rtol=0.15)


def mixture_by_hand(agent: DADS, state, before, skill):
    """Weights, means and deviations of q(. | d, z)."""
    p = jax.tree.map(np.asarray, state.dynamics)
    x = np.concatenate([normalised(state.statistics.descriptors, before)[list(agent.inputs)], skill])
    features = np.maximum(dense(p["torso"]["Dense_0"], x), 0)
    mean, rest = dense(p["Dense_0"], features).reshape(4, 2), dense(p["Dense_1"], features)
    if agent.config.learn_variance:
        std, logits = np.clip(np.log1p(np.exp(rest)), 0.3, 10).reshape(4, 2), dense(p["Dense_2"], features)
    else:
        std, logits = np.ones((4, 2)), rest
    return np.exp(logits) / np.exp(logits).sum(), mean, std


def log_q(agent: DADS, state, before, after, skill):
    weight, mean, std = mixture_by_hand(agent, state, before, skill)
    return np.log(np.sum(weight * np.exp(log_normal(normalised(state.statistics.changes, after - before), mean, std))))


@pytest.mark.parametrize("skills", [CONTINUOUS, FIVE], ids=["continuous", "discrete"])
@pytest.mark.parametrize(
    "options", [{}, {"learn_variance": True}, {"omit": -1}], ids=["fixed", "learnt", "skill alone"]
)
def test_reward_of_dads(skills, options):
    agent = dads(skills, **options)
    state, data, key = state_of(agent), moves(agent.skill_sac.view, batch_of(agent)), jax.random.key(4)
    others = np.eye(5) if skills.discrete else np.asarray(skills.draw(key, 6))
    expected = []
    for before, after, skill, valid in zip(*(np.asarray(x, np.float64) for x in data), strict=True):
        own = log_q(agent, state, before, after, skill)
        ratio = [np.clip(log_q(agent, state, before, after, z) - own, -50, 50) for z in others]
        ratio = ratio if skills.discrete else [*ratio, 0.0]
        expected.append(np.log(len(ratio)) - np.log(np.sum(np.exp(ratio))) if valid else 0.0)
    information, _ = jax.jit(agent.information)(state, data, key)
    np.testing.assert_allclose(np.where(data.valid > 0, information, 0.0), expected, rtol=2e-3, atol=1e-4)


def test_reward_of_dads_is_clipped():
    """One skill explains the change hopelessly worse than all the others."""
    agent = dads(FIVE)
    state = state_of(agent)
    kernel = jnp.zeros_like(state.dynamics["torso"]["Dense_0"]["kernel"]).at[2, :].set(1e3)
    state.dynamics["torso"]["Dense_0"]["kernel"] = kernel
    data = moves(agent.skill_sac.view, batch_of(agent))
    worst = data._replace(skill=jnp.broadcast_to(jnp.eye(5)[0], data.skill.shape))
    information, _ = agent.information(state, worst, jax.random.key(0))
    np.testing.assert_allclose(information, np.log(5) - np.log(1 + 4 * np.exp(50.0)), rtol=1e-4)


def test_accuracy_of_dads_is_the_argmax_over_skills():
    """The likelihood of the own skill may round differently from that among all skills: that must not count.

    Here it differs by more than rounding, because the stored skills are shorter than 1 by a thousandth.
    """
    agent = dads(FIVE)
    state, data = state_of(agent), moves(agent.skill_sac.view, batch_of(agent))
    rows = zip(*(np.asarray(x, np.float64) for x in (data.before, data.after)), strict=True)
    likeliest = np.argmax([[log_q(agent, state, *row, z) for z in np.eye(5)] for row in rows], axis=1)
    stored = data._replace(skill=0.999 * jax.nn.one_hot(jnp.asarray(likeliest).at[:2].add(1) % 5, 5))
    _, right = jax.jit(agent.information)(state, stored, jax.random.key(0))
    np.testing.assert_array_equal(right, [0, 0, 1, 1, 1, 1, 1, 1])


@pytest.mark.parametrize("skills", [CONTINUOUS, FIVE], ids=["continuous", "discrete"])
def test_reward_of_diayn(skills):
    agent = diayn(skills)
    state, data = state_of(agent), moves(agent.skill_sac.view, batch_of(agent))
    p = jax.tree.map(np.asarray, state.discriminator)
    after, skill = (np.asarray(x, np.float64) for x in (data.after, data.skill))
    x = normalised(state.statistics.arrivals, after)
    if skills.discrete:
        features = np.maximum(dense(p["layers_0"]["Dense_0"], x), 0)
        logits = dense(p["layers_1"], features)
        expected = np.sum(skill * (logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))), axis=1) + np.log(5)
    else:
        features = np.maximum(dense(p["torso"]["Dense_0"], x), 0)
        std = np.clip(np.log1p(np.exp(dense(p["Dense_1"], features))), 0.1, 10)
        expected = log_normal(skill, dense(p["Dense_0"], features), std) + 2 * np.log(2)
    information = agent.information(state, state.discriminator, data)
    np.testing.assert_allclose(information, expected, rtol=1e-3, atol=1e-5)


def test_prediction():
    agent = dads()
    state, where, skill = state_of(agent), np.array([1.0, -2.0]), np.array([0.3, 0.9])
    weight, mean, _ = mixture_by_hand(agent, state, where, skill)
    scale = np.sqrt(np.asarray(state.statistics.changes.squares) / 10 + 1e-6)
    expected = where + np.asarray(state.statistics.changes.mean) + scale * (weight @ mean)
    start, z = jnp.asarray(where, jnp.float32), jnp.asarray(skill, jnp.float32)
    np.testing.assert_allclose(agent.predict(state, start, z), expected, rtol=1e-4)
    draws = jax.vmap(lambda k: agent.predict(state, start, z, k))(jax.random.split(jax.random.key(0), 4000))
    np.testing.assert_allclose(draws.mean(axis=0), expected, atol=0.1)


# Nothing across an episode's end, and only valid rows.


@pytest.mark.parametrize("agent", [diayn(), dads(correction=10.0)], ids=["diayn", "dads"])
def test_a_jump_at_an_end_changes_nothing(agent):
    """The record after an episode's end opens another one, anywhere at all."""
    state, batch, key = state_of(agent), batch_of(agent), jax.random.key(7)
    hyper = DIAYNHyper() if isinstance(agent, DIAYN) else DADSHyper()
    far = batch._replace(
        obs=jax.tree.map(lambda x: x.at[3].set(jnp.nan), batch.obs),
        next_obs=jax.tree.map(lambda x: x.at[3].set(1e9), batch.next_obs),
        reward=batch.reward.at[3].set(jnp.nan),
        extras=batch.extras | {"log_prob": batch.extras["log_prob"].at[3].set(jnp.nan)},
    )
    update = jax.jit(agent.update)
    one, two = (update(state, hyper, b, key) for b in (batch, far))
    model = "discriminator" if isinstance(agent, DIAYN) else "dynamics"
    jax.tree.map(np.testing.assert_array_equal, getattr(one[0], model), getattr(two[0], model))
    assert float(one[1]["information"]) == float(two[1]["information"])
    one, two = (agent.observe(state, hyper, jax.tree.map(lambda x: x[:, 0][None], b), key) for b in (batch, far))
    jax.tree.map(np.testing.assert_array_equal, one.statistics, two.statistics)


def test_normalisers_count_valid_rows_alone():
    agent = dads()
    state, batch = agent.init(DADSHyper(), jax.random.key(0)), batch_of(agent)
    found = agent.observe(
        state, DADSHyper(), jax.tree.map(lambda x: x[:, 0][None], batch), jax.random.key(1)
    ).statistics
    rows = np.delete(np.arange(8), 3)
    before, after = batch.obs["descriptor"], batch.next_obs["descriptor"]
    change = np.asarray(after - before)[rows, 0]
    assert float(found.changes.rows) == float(found.descriptors.rows) == 7
    np.testing.assert_allclose(found.changes.mean, change.mean(axis=0), rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(found.changes.squares, 7 * change.var(axis=0), rtol=1e-3)
    np.testing.assert_allclose(found.descriptors.mean, np.asarray(before)[rows, 0].mean(axis=0), rtol=1e-4)
    agent = diayn()
    state, batch = agent.init(DIAYNHyper(), jax.random.key(0)), batch_of(agent)
    found = agent.observe(
        state, DIAYNHyper(), jax.tree.map(lambda x: x[:, 0][None], batch), jax.random.key(1)
    ).statistics
    assert float(found.arrivals.rows) == 7
    after = batch.next_obs["descriptor"]
    np.testing.assert_allclose(found.arrivals.mean, np.asarray(after)[rows, 0].mean(axis=0), rtol=1e-4)


def test_observations_are_normalised_with_their_skill():
    sac = dataclasses.replace(SAC, normalise=Normalise(observations=True))
    for skills in (CONTINUOUS, dataclasses.replace(CONTINUOUS, descriptor=("observation",))):
        agent = DADS(DADSConfig(sac, skills, TORSO, samples=4), SPEC)
        state, batch = agent.init(DADSHyper(), jax.random.key(0)), batch_of(agent)
        state = agent.observe(state, DADSHyper(), jax.tree.map(lambda x: x[:, 0][None], batch), jax.random.key(1))
        expected = np.concatenate([batch.obs["obs"][:, 0, 2:4], batch.extras["skill"][:, 0]], axis=1).mean(axis=0)
        np.testing.assert_allclose(state.sac.statistics.observations.mean, expected, rtol=1e-3, atol=1e-6)


def test_the_discriminator_maximises_the_likelihood_of_valid_rows():
    """The gradient of the cross-entropy by the last bias is the mean of softmax - one-hot."""
    agent = diayn()
    state, batch = state_of(agent), batch_of(agent)
    data = moves(agent.skill_sac.view, batch)
    x = normalised(state.statistics.arrivals, np.asarray(data.after, np.float64))
    p = jax.tree.map(np.asarray, state.discriminator)
    odds = np.exp(dense(p["layers_1"], np.maximum(dense(p["layers_0"]["Dense_0"], x), 0)))
    expected = np.delete(odds / odds.sum(axis=1, keepdims=True) - np.asarray(data.skill), 3, axis=0).mean(axis=0)
    after, metrics = jax.jit(agent.update_discriminator)(state, DIAYNHyper(), data)
    np.testing.assert_allclose(first_gradient(after.optimiser)["layers_1"]["bias"], expected, rtol=2e-3, atol=1e-5)
    right = np.argmax(odds, axis=1) == np.argmax(data.skill, axis=1)
    np.testing.assert_allclose(metrics["accuracy"], np.delete(right, 3).mean(), rtol=1e-5)


def test_correction_weighs_by_the_policy():
    """The gradient of the dynamics is that of the likelihood weighted by clipped ratios."""
    agent = dads(correction=3.0)
    state, batch = state_of(agent), batch_of(agent)
    sac = agent.skill_sac.sac
    now = sac.policy(state.sac, agent.skill_sac.with_skill(batch.obs, batch.extras["skill"])).log_prob(batch.action)
    ratio = np.exp(np.asarray(now - batch.extras["log_prob"][..., 0])[:, 0])
    assert ratio.min() < 1 / 3 < ratio.max()
    weight = np.clip(ratio, 1 / 3, 3.0)
    updated, metrics = jax.jit(agent.update_dynamics)(state, DADSHyper(), batch)
    np.testing.assert_allclose(metrics["correction"], np.delete(weight, 3).mean(), rtol=1e-4)
    found = first_gradient(updated.optimiser)["Dense_0"]["bias"]  # that of the means
    data, expected = moves(agent.skill_sac.view, batch), np.zeros((4, 2))
    for i in np.delete(np.arange(8), 3):
        before, after, skill = (np.asarray(x[i], np.float64) for x in data[:3])
        share, mean, std = mixture_by_hand(agent, state, before, skill)
        change = normalised(state.statistics.changes, after - before)
        likely = share * np.exp(log_normal(change, mean, std))
        expected -= weight[i] / 7 * (likely / likely.sum())[:, None] * (change - mean)
    np.testing.assert_allclose(found.reshape(4, 2), expected, rtol=2e-3, atol=1e-5)


@pytest.mark.parametrize("agent", [diayn(), dads(FIVE, dynamics_every=2)], ids=["diayn", "dads"])
def test_sac_learns_from_the_reward_of_the_newest_model(agent):
    """First the model, then SAC with what that now pays: once, or on each half of a batch in turn."""
    state, batch, key = state_of(agent), batch_of(agent), jax.random.key(7)
    hyper = DIAYNHyper(discriminator_lr=0.1) if isinstance(agent, DIAYN) else DADSHyper(dynamics_lr=0.1)
    after, _ = jax.jit(agent.update)(state, hyper, batch, key)
    data, parts, keys = moves(agent.skill_sac.view, batch), 1, [key]
    if isinstance(agent, DIAYN):
        newest = state._replace(discriminator=after.discriminator)
        reward = agent.information(newest, newest.discriminator, data)
    else:
        newest, parts = state._replace(dynamics=after.dynamics), 2
        reward, _ = agent.information(newest, data, key)  # of discrete skills nothing is drawn
        keys = jax.random.split(jax.random.split(key)[1], 2)
    sac, rewarded, learn = (
        state.sac,
        agent.skill_sac.as_seen_by_sac(batch, reward[:, None]),
        jax.jit(agent.skill_sac.sac.update),
    )
    for i in range(parts):
        part = jax.tree.map(lambda x, i=i: x[8 * i : 8 * i + 8], rewarded)
        sac, _ = learn(sac, hyper.sac, part, keys[i])
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-6), after.sac, sac)


def test_log_prob_of_an_action_is_that_of_its_sample():
    agent = dads(correction=3.0)
    policy = agent.skill_sac.sac.policy(state_of(agent).sac, jnp.ones((5, 4)))
    action, log_prob = policy.sample(jax.random.normal(jax.random.key(0), (5, 2)))
    np.testing.assert_allclose(policy.log_prob(action), log_prob, rtol=1e-3)


# SMERL.


def test_smerl_pays_skills_whose_finished_episode_was_good():
    agent = diayn(Skills(number=5, smerl=True, smerl_target=10.0, smerl_margin=2.0))
    state, hyper = state_of(agent), DIAYNHyper(smerl_scale=3.0)
    batch = batch_of(agent)
    information = jnp.arange(8.0)

    def reward(finished):
        return np.asarray(agent.skill_sac.reward(finished, batch, information, hyper.smerl_scale))[:, 0]

    np.testing.assert_array_equal(reward(state.statistics.finished), batch.reward[:, 0])

    def finished_with(finished, skill, result, ended=1.0):
        """One environment, two steps: an episode under way and, if `ended`, its final record."""
        obs = described(jnp.zeros((2, 1, 7)).at[:, 0, 6].set(jnp.array([99.0, result])))
        extras = {"skill": jnp.broadcast_to(jnp.eye(5)[skill], (2, 1, 5))}
        zero = jnp.zeros((2, 1))
        valid = jnp.array([[1.0], [1.0 - ended]])
        return agent.skill_sac.finish(finished, Step(obs, jnp.zeros((2, 1, 2)), zero, zero, obs, valid, extras))

    finished = state.statistics.finished
    for skill in range(5):
        finished = finished_with(finished, skill, 7.0)
    np.testing.assert_array_equal(reward(finished), batch.reward[:, 0])
    alone = reward(finished_with(state.statistics.finished, 2, 8.5))
    same = finished_with(finished, 2, 8.5, ended=0.0)
    jax.tree.map(np.testing.assert_array_equal, same, finished)
    good = finished_with(finished, 2, 8.5)
    mine = np.argmax(batch.extras["skill"][:, 0], axis=1) == 2
    expected = np.asarray(batch.reward[:, 0]) + np.where(mine, 3.0 * np.arange(8.0), 0.0)
    np.testing.assert_allclose(reward(good), expected, rtol=1e-5)
    np.testing.assert_allclose(alone, expected, rtol=1e-5)  # episodes of other skills do not count
    # The ring keeps the newest, also where more end at once than it holds.
    many = jnp.zeros((KEPT + 3, 1))
    obs = described(many[..., None] + jnp.arange(float(KEPT + 3))[:, None, None] * jnp.ones((1, 1, 7)))
    extras = {"skill": jnp.broadcast_to(jnp.eye(5)[0], (KEPT + 3, 1, 5))}
    full = agent.skill_sac.finish(good, Step(obs, many[..., None], many, many, obs, many, extras))
    assert int(full.total) == 6 + KEPT + 3 and sorted(np.asarray(full.returns)) == list(range(3, KEPT + 3))


def test_smerl_credits_the_skill_that_acted():
    """A skill drawn at an episode's final record acts no more: the return belongs to the one before it."""
    agent = diayn(Skills(number=5, resample=1.0, resample_after=1, smerl=True))
    state, hyper = state_of(agent), DIAYNHyper()
    act = jax.jit(lambda memory, key: agent.act(state, hyper, memory, described(jnp.ones(7)), key, "sample"))
    memory, records = agent.begin(state, hyper, jax.random.key(1)), []
    for key in jax.random.split(jax.random.key(5), 4):
        decision = act(memory, key)
        memory, records = decision.memory, [*records, decision.extras]
    skills = np.array([np.argmax(r["skill"]) for r in records])
    assert skills[2] != skills[3], "another skill is drawn at the final record"
    finished = state.statistics.finished
    for t, extras in enumerate(records):  # an iteration may collect but one row
        row = jax.tree.map(lambda x: x[None, None], extras)
        obs, zero, valid = described(jnp.full((1, 1, 7), 7.0)), jnp.zeros((1, 1)), jnp.full((1, 1), float(t < 3))
        finished = agent.skill_sac.finish(finished, Step(obs, zero[..., None], zero, zero, obs, valid, row))
    assert int(finished.total) == 1 and float(finished.returns[0]) == 7.0
    assert int(np.argmax(finished.skill[0])) == skills[2]


# Measures and plans.


def test_spread():
    """Two skills that go right and up for four steps; the second episode of the second ends after two."""
    where = np.zeros((2, 2, 5, 2), np.float32)
    where[0, :, :, 0] = where[1, :, :, 1] = np.arange(5.0)
    where[1, 1, 3:] = 9.0  # after its end: of no account
    obs = np.concatenate([np.zeros((2, 2, 5, 4)), where, np.zeros((2, 2, 5, 1))], axis=-1)
    valid = np.ones((2, 2, 4))
    valid[1, 1, 2:] = 0.0
    obs = described(jnp.asarray(obs, jnp.float32))
    found = coverage(Paths(jnp.eye(2), obs, jnp.asarray(valid, jnp.float32)), SPEC)
    assert float(found["cells"]) == 9
    ends = np.array([[[4, 0], [4, 0]], [[0, 4], [0, 2]]], np.float64)
    centre = ends.mean(axis=1, keepdims=True)
    np.testing.assert_allclose(found["spread_within"], np.sqrt(((ends - centre) ** 2).sum(-1).mean()), rtol=1e-5)
    between = ((centre - centre.mean(axis=0)) ** 2).sum(-1).mean()
    np.testing.assert_allclose(found["spread_between"], np.sqrt(between), rtol=1e-5)


def exact(skills: Skills) -> tuple[DADS, object]:
    """Dynamics by which the descriptor moves by its skill: linear in it, with nothing else."""
    agent = DADS(DADSConfig(SAC, skills, Torso(hidden=()), components=1), SPEC)
    state = agent.init(DADSHyper(), jax.random.key(0))
    towards = jnp.array([[1.0, 0.0], [0.0, 1.0], [-1.0, 0.0], [0.0, -1.0], [0.0, 0.0]])
    kernel = towards if skills.discrete else jnp.eye(2)
    state.dynamics["Dense_0"] = {"kernel": kernel, "bias": jnp.zeros(2)}
    return agent, state


def test_predictions_are_measured_within_episodes():
    """Skills that lead half as far as predicted; the second one's episode ends a step early."""
    agent, state = exact(CONTINUOUS)
    skills, steps = np.array([[0.5, 0.0], [0.0, -0.25]]), np.minimum(np.arange(13), [[12], [11]])
    where = 0.5 * skills[:, None, None] * steps[:, None, :, None]
    obs = np.concatenate([np.zeros((2, 1, 13, 4)), where, np.zeros((2, 1, 13, 1))], axis=-1)
    valid = np.ones((2, 1, 12))
    valid[1, 0, 11] = 0.0
    skills, obs, valid = (jnp.asarray(x, jnp.float32) for x in (skills, obs, valid))
    paths = Paths(skills, described(obs), valid)
    found = jax.jit(agent.measure)(state, DADSHyper(), paths, jax.random.key(0))
    for horizon, rows in ((1, (12, 11)), (10, (3, 2))):
        made = np.repeat(0.5 * horizon * skills, rows, axis=0)  # as far off as they went
        error, variance = (made**2).sum(axis=1).mean(), ((made - made.mean(axis=0)) ** 2).sum(axis=1).mean()
        np.testing.assert_allclose(found[f"error_{horizon}"], np.sqrt(error), rtol=1e-3)
        np.testing.assert_allclose(found[f"explained_{horizon}"], 1 - error / variance, rtol=1e-2)


@pytest.mark.parametrize(
    ("skills", "planning"),
    [
        (CONTINUOUS, Planning(hold=5, horizon=2, smoothing=0.5)),
        (FIVE, Planning(hold=2, horizon=3)),
        (FIVE, Planning(hold=2, horizon=5, candidates=200)),
    ],
    ids=["mppi", "exhaustive", "sampled"],
)
def test_plans_lead_to_their_goals(skills, planning):
    agent, state = exact(skills)
    planner = Planner(agent, planning)
    goals = jnp.array([[2.0, 1.0], [-2.0, 2.0]])
    planned = PlannerState(state, goals, jnp.float32(0.6))
    memory, where, path = planner.begin(planned, DADSHyper(), jax.random.key(0)), np.zeros(2), []
    act = jax.jit(lambda m, o, k: planner.act(planned, DADSHyper(), m, o, k, "greedy"))
    for key in jax.random.split(jax.random.key(1), 40):
        obs = described(jnp.zeros(7).at[4:6].set(jnp.asarray(where, jnp.float32)))
        decision = act(memory, obs, key)
        memory, skill = decision.memory, decision.extras["skill"]
        where = np.asarray(agent.predict(state, jnp.asarray(where, jnp.float32), skill))
        path.append(float(decision.extras["reached"]))
    assert planner.exhaustive == (skills.discrete and planning.horizon == 3)
    assert path[0] == 0.0 and 0.5 in path and path[-1] == 1.0


def test_candidates_draw_closer_and_change_smoothly():
    planner = Planner(exact(CONTINUOUS)[0], Planning(horizon=2, candidates=2000, smoothing=0.9))
    plan, key = np.array([[0.2, -0.1], [0.2, -0.1]], np.float32), jax.random.key(0)
    far, near = (np.asarray(planner.candidates(jnp.asarray(plan), jnp.int32(i), key)) for i in (6, 7))
    np.testing.assert_allclose(far[0], plan, rtol=1e-5)  # the plan itself is one of them
    np.testing.assert_allclose(near - plan, 0.7 * (far - plan), atol=1e-6)
    first, own = far[:, 0] - plan[0], far[:, 1] - 0.9 * far[:, 0] - 0.1 * plan[1]
    np.testing.assert_allclose(first.std(axis=0), 0.7**6, rtol=0.1)
    np.testing.assert_allclose(own.std(axis=0), 0.1 * 0.7**6, rtol=0.1)


def test_a_plan_moves_on_by_the_skill_that_was_followed():
    """With one candidate, the plan itself, a new plan is the old one without its first skill; smoothing changes none
    of two equal skills."""
    agent, state = exact(CONTINUOUS)
    planner = Planner(agent, Planning(horizon=2, hold=5, candidates=1, refinements=1))
    planned = PlannerState(state, jnp.array([[9.0, 9.0]]), jnp.float32(0.1))
    first, second = jnp.array([0.5, -0.5]), jnp.array([-0.25, 0.75])
    begun = planner.begin(planned, DADSHyper(), jax.random.key(0))
    memory = begun._replace(plan=jnp.stack([first, second]), skill=first)
    for age, skill, plan in ((4, first, [first, second]), (5, second, [second, second])):
        found = planner.act(
            planned,
            DADSHyper(),
            memory._replace(age=jnp.int32(age)),
            described(jnp.zeros(7)),
            jax.random.key(1),
            "greedy",
        )
        np.testing.assert_allclose(found.extras["skill"], skill, rtol=1e-6)
        np.testing.assert_allclose(found.memory.plan, plan, rtol=1e-6)


@pytest.mark.parametrize("options", [{"horizon": 0}, {"candidates": 0}, {"temperature": 0.0}, {"smoothing": 1.0}])
def test_wrong_planning(options):
    with pytest.raises(CoveyError, match=f"`{next(iter(options))}`"):
        Planning(**options)


def test_the_targets_of_dads_may_stay_as_they_are():
    agent = dads(normalise_targets=False)
    state, batch = state_of(agent), batch_of(agent)
    data = moves(agent.skill_sac.view, batch)
    np.testing.assert_array_equal(agent.targets(state, data), data.after - data.before)
    normal = dads().targets(state, data)
    assert np.abs(np.asarray(normal - (data.after - data.before))).max() > 0.01
    weights, means, _ = mixture_by_hand(agent, state, np.asarray(data.before)[0], np.asarray(data.skill)[0])
    moved = agent.predict(state, data.before, data.skill) - data.before
    np.testing.assert_allclose(moved[0], weights @ means, rtol=1e-3, atol=1e-5)  # no mean and no scale are added
    for one, wanted in ((agent, data.after - data.before), (dads(), normal)):
        _, metrics = one.update_dynamics(state, DADSHyper(), batch)
        kept = np.asarray(wanted)[np.asarray(data.valid) > 0]
        np.testing.assert_allclose(metrics["dynamics_target_mean"], kept.mean(), rtol=1e-3, atol=1e-6)
        np.testing.assert_allclose(metrics["dynamics_target_std"], kept.std(), rtol=1e-3)


@pytest.mark.parametrize("agent", [diayn(), dads(FIVE)], ids=["diayn", "dads"])
def test_the_diversity_return_is_the_sum_of_the_intrinsic_reward(agent):
    """Step by step, with the episode of the evaluation run again. Discrete skills need no random numbers."""
    state = state_of(agent)
    hyper = DIAYNHyper() if isinstance(agent, DIAYN) else DADSHyper()
    key = jax.random.key(5)
    found = jax.jit(lambda: run_episodes(agent, ENV, state, hyper, key, 3, agent))()
    plain = jax.jit(lambda: run_episodes(agent, ENV, state, hyper, key, 3))()
    np.testing.assert_allclose(found.returns, plain.returns, rtol=1e-6)
    assert "diversity_return" not in plain.annotations
    key_reset, key_begin, key_run = jax.random.split(key, 3)
    envs, obs = jax.vmap(ENV.reset)(jax.random.split(key_reset, 3))
    memory = jax.vmap(lambda k: agent.begin(state, hyper, k))(jax.random.split(key_begin, 3))

    @jax.jit
    def step(envs, obs, memory, t):
        acts, steps = jax.random.split(jax.random.fold_in(key_run, t), (2, 3))
        decision = jax.vmap(lambda m, o, k: agent.act(state, hyper, m, o, k, "greedy"))(memory, obs, acts)
        envs, outcome = jax.vmap(ENV.step)(envs, decision.action, steps)
        none = jnp.zeros((3, 1))
        extras = {"skill": memory.skill[:, None]}
        before, after = jax.tree.map(lambda x: x[:, None], (obs, outcome.obs))
        made = Step(before, none, none, none, after, jnp.ones((3, 1)), extras)
        data = moves(agent.skill_sac.view, made)
        if isinstance(agent, DIAYN):
            return envs, outcome.obs, decision.memory, agent.information(state, state.discriminator, data)
        return envs, outcome.obs, decision.memory, agent.information(state, data, key)[0]

    total = np.zeros(3)
    for t in range(ENV.spec.episode_length):
        envs, obs, memory, reward = step(envs, obs, memory, jnp.int32(t))
        total += np.asarray(reward)
    np.testing.assert_allclose(found.annotations["diversity_return"], total, rtol=1e-3, atol=1e-4)


# Observations that are not a vector.


@dataclasses.dataclass(frozen=True)
class Watched:
    """A point without a goal, whose observation is a dictionary with a small image, or the image alone."""

    vector: bool = True
    descriptor_of: Descriptor | None = Point(goal=False).spec.descriptor

    @property
    def point(self) -> Point:
        return Point(goal=False)

    @property
    def spec(self) -> EnvSpec:
        camera = Part((12, 12, 1), "uint8")
        parts = {"camera": camera, "obs": Part((4,))} if self.vector else camera
        return dataclasses.replace(self.point.spec, observation=parts, descriptor=self.descriptor_of)

    def reset(self, key):
        state, obs = self.point.reset(key)
        return state, self._seen(obs)

    def step(self, state, action, key):
        state, outcome = self.point.step(state, action, key)
        return state, outcome._replace(obs=self._seen(outcome.obs))

    def descriptor(self, state):
        return self.point.descriptor(state)

    def _seen(self, obs):
        camera = jnp.broadcast_to(jnp.clip(128.0 + 10.0 * obs[0], 0, 255), (12, 12, 1)).astype(jnp.uint8)
        return {"camera": camera, "obs": obs} if self.vector else camera


IMAGE = Image(channels=(2, 2), features=4)
WATCHING = dataclasses.replace(SAC, networks=dataclasses.replace(SAC.networks, image=IMAGE))


@pytest.mark.parametrize(("kind", "vector"), [(DIAYN, True), (DADS, False)], ids=["diayn-dictionary", "dads-image"])
def test_skills_with_images(kind, vector):
    """SAC observes the environment's parts and the skill; hidden coordinates are those of the part `obs`."""
    env = Described(Watched(vector))
    if kind is DIAYN:
        agent, hyper = DIAYN(DIAYNConfig(WATCHING, FIVE, TORSO), env.spec), DIAYNHyper()
    else:
        agent, hyper = DADS(DADSConfig(WATCHING, CONTINUOUS, TORSO, samples=3, correction=5.0), env.spec), DADSHyper()
    seen = {name: part.shape for name, part in agent.skill_sac.sac.spec.observation.named}
    size = 5 if kind is DIAYN else 2
    hidden = {"camera": (12, 12, 1), "obs": (2,)} if vector else {"obs": (12, 12, 1)}
    assert seen == hidden | {"skill": (size,)}
    _, obs = env.reset(jax.random.key(0))
    skill = jnp.arange(float(size))
    shown = agent.skill_sac.with_skill(obs, skill)
    np.testing.assert_array_equal(shown["skill"], skill)
    np.testing.assert_array_equal(shown["obs"], obs["obs"][2:] if vector else obs["obs"])

    loop = DeviceLoop(make_trainer(agent, env, hyper, envs=2, capacity=400), 1, "map")
    members = population(loop)
    after = loop.advance(members, 1, warmup=False).members.agent
    assert all(bool(np.isfinite(x).all()) for x in jax.tree.leaves(after))
    one = jax.tree.map(lambda x: x[0], after)
    memory = agent.memory_for(agent.show_skills()[0])
    own = {name: x for name, x in obs.items() if name in ("camera", "obs")} if vector else obs["obs"]
    act = jax.jit(lambda obs: agent.act(one, hyper, memory, obs, jax.random.key(1), "greedy").action)
    np.testing.assert_array_equal(act(obs), act(own))  # a trained policy receives the environment's own observation
    paths = skill_paths(agent, env, one, hyper, jax.random.key(2), 2)
    assert set(paths.obs) == {"descriptor", "return"} | ({"obs"} if vector else set())  # without images
    assert float(agent.measure(one, hyper, paths, jax.random.key(3))["cells"]) >= 1


@pytest.mark.parametrize("chosen", [(), ("observation",), ("0", "1")])
def test_images_need_a_descriptor(chosen):
    spec = Described(Watched(vector=False, descriptor_of=None)).spec
    says = "no state descriptor" if not chosen else r"which is not a vector: uint8\[12, 12, 1\]"
    with pytest.raises(CoveyError, match=f"{says}.*give the environment a descriptor"):
        DIAYN(DIAYNConfig(WATCHING, Skills(descriptor=chosen)), spec)


@dataclasses.dataclass(frozen=True)
class Named:
    """An environment whose observation has a part with a given name."""

    name: str

    @property
    def spec(self) -> EnvSpec:
        return dataclasses.replace(SPEC, observation={self.name: Part((2,)), "other": Part((1,))})


@pytest.mark.parametrize("name", ["descriptor", "return"])
def test_a_part_with_the_name_of_one_that_is_added(name):
    with pytest.raises(CoveyError, match=f"Named has a part called '{name}'.*another name"):
        Described(Named(name))  # type: ignore[arg-type]


def test_a_part_called_skill():
    with pytest.raises(CoveyError, match=r"a part called 'skill'.*another name"):
        DIAYN(DIAYNConfig(SAC), Described(Named("skill")).spec)  # type: ignore[arg-type]


@pytest.mark.parametrize("agent", [diayn(), dads(correction=2.0)], ids=["diayn", "dads"])
def test_sac_observes_chosen_coordinates_and_the_skill(agent):
    """A vector: [coordinates of the policy, skill], from a described observation or from the environment's own."""
    batch = batch_of(agent)
    skill = batch.extras["skill"]
    expected = np.concatenate([np.asarray(batch.obs["obs"])[..., 2:], skill], axis=-1)
    np.testing.assert_array_equal(agent.skill_sac.with_skill(batch.obs, skill), expected)
    np.testing.assert_array_equal(agent.skill_sac.with_skill(batch.obs["obs"], skill), expected)
    assert agent.skill_sac.sac.spec.obs_size == expected.shape[-1]
    with pytest.raises(CoveyError, match=r"no part 'descriptor'.*Described\(env\)"):
        agent.skill_sac.view.of(batch.obs["obs"])
