"""A policy that was saved and loaded is the policy that was trained, its normaliser included."""

from functools import cache
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import covey
from covey.evaluation import EVALUATION, q_values
from covey.hyper.schedule import initial_hyper
from covey.run.config import default_config
from covey.run.policy import build_policy
from tests.runs import TINY, rows
from tests.tasks import SMALL

NORMALISED = TINY["agent"] | {"normalise": {"observations": True, "rewards": True}}


@pytest.mark.parametrize("agent", ["td3", "sac"])
def test_evaluated_after_saving_and_loading_it_is_the_same_to_the_bit(agent: str, tmp_path: Path):
    """The returns that were logged in training are those of the loaded policy on the same start states."""
    covey.train(agent, out=tmp_path / "run", quiet=True, preset=False, **(TINY | {"agent": NORMALISED}))
    run = covey.load(tmp_path / "run")
    program, state, hyper = run.best
    stats = state.statistics.observations
    assert float(stats.rows) > 0 and float(jnp.abs(stats.mean).max()) > 0, "the normaliser must know something"

    logged = rows(run.folder.episodes)
    best = max({r["step"] for r in logged}, key=lambda s: np.mean([r["return"] for r in logged if r["step"] == s]))
    one = jax.tree.map(lambda x: x[None], (state, hyper))
    found = program.evaluate(*one, program.stream(EVALUATION), run.config.episodes)
    assert [r["return"] for r in logged if r["step"] == best] == [float(x) for x in found.returns[0]]

    # The same actions from the plain function, from the agent, and not from an agent that forgot what it had seen.
    obs = np.linspace(-3.0, 5.0, program.env.spec.obs_size, dtype=np.float32)
    by_function = run.policy()(obs)
    np.testing.assert_array_equal(by_function, covey.load(run.path).policy()(obs))

    def act(state):
        decision = program.agent.act(state, hyper, (), jnp.asarray(obs), jax.random.key(0), "greedy")
        low, high = (jnp.asarray(x) for x in (program.env.spec.action_low, program.env.spec.action_high))
        return low + (decision.action + 1.0) / 2.0 * (high - low)

    np.testing.assert_allclose(by_function, act(state), atol=1e-6)
    forgot = state._replace(statistics=jax.tree.map(jnp.zeros_like, state.statistics))
    assert float(jnp.abs(act(forgot) - by_function).max()) > 1e-3


def policy_of(agent: str, env: str = "point", **options) -> covey.TrainedPolicy:
    """An untrained policy; no run is made."""
    program, state, hyper = untrained(agent, env)
    return program.function(state, hyper, **options)


@cache
def untrained(agent: str, env: str):
    config = default_config(agent, env=env, agent=SMALL[agent]).resolved()
    program = build_policy(config)
    hyper = jax.tree.map(jnp.float32, initial_hyper(config.schedules()))
    return program, program.agent.init(hyper, jax.random.key(0)), hyper


OBS = np.random.default_rng(0).normal(size=(3, 5, 6)).astype(np.float32)


@pytest.mark.parametrize("agent", ["sac", "taac-l"])
def test_a_batch_acts_as_its_rows_do_one_by_one(agent: str):
    """With memory (TAAC), each row has its own, which `reset(rows=...)` starts anew."""
    together = policy_of(agent)
    alone = [policy_of(agent) for _ in range(5)]
    for t, obs in enumerate(OBS):
        if t == 2:
            together.reset(rows=[1, 4])
            alone[1].reset(), alone[4].reset()
        found = together(obs)
        assert found.shape == (5, 2)
        np.testing.assert_allclose(found, [one(o) for one, o in zip(alone, obs, strict=True)], rtol=1e-5, atol=1e-6)


def test_exploring_is_noisy_repeatable_and_independent_in_each_row():
    same = np.repeat(OBS[0, :1], 5, axis=0)
    one, again, other = (policy_of("td3", explore=True, seed=seed)(same) for seed in (1, 1, 2))
    np.testing.assert_array_equal(one, again)
    assert len(np.unique(one[:, 0])) == 5 and not np.array_equal(one, other)
    explore, greedy = policy_of("td3", explore=True), policy_of("td3")
    noise = np.array([explore(OBS[0, 0]) for _ in range(200)]) - greedy(OBS[0, 0])
    high = np.array(untrained("td3", "point")[0].spec.action_high)
    np.testing.assert_allclose(noise.std(axis=0), 0.1 * high, rtol=0.3)  # hyper.exploration_noise is 0.1


def test_wrong_observations_are_named():
    policy = policy_of("td3")
    policy(OBS[0])
    for obs, message in (
        (OBS[0, :3], r"shape \(3, 6\), and those before had \(5, 6\). Call `reset`"),
        (OBS[0, 0], r"shape \(6,\), and those before had \(5, 6\)"),
        (OBS, r"shape \(6,\), or a batch \(N, 6\)"),
        (OBS[0, :, :4], r"shape \(6,\), or a batch \(N, 6\)"),
        (np.full((5, 6), np.nan), "holds NaN"),
    ):
        with pytest.raises(covey.CoveyError, match=message):
            policy(obs)
    with pytest.raises(covey.CoveyError, match="indices from 0 to 4"):
        policy.reset(rows=[5])
    policy.reset()
    assert policy(OBS[0, :3]).shape == (3, 2)
    policy.reset()
    with pytest.raises(covey.CoveyError, match=r"`reset` of some rows needs"):
        policy.reset(rows=[0])


def test_a_skill_can_be_chosen():
    one, two, same = (policy_of("diayn", skill=skill)(OBS[0, 0]) for skill in (0, 3, np.eye(8)[3]))
    assert not np.array_equal(one, two)
    np.testing.assert_array_equal(two, same)
    for skill, message in ((8, "index from 0 to 7"), ([1.0], "8 finite numbers")):
        with pytest.raises(covey.CoveyError, match=message):
            policy_of("diayn", skill=skill)
    with pytest.raises(covey.CoveyError, match="for agents that learn skills"):
        policy_of("sac", skill=0)


@pytest.mark.parametrize("agent", ["td3", "sac", "taac", "taac-q", "diayn", "dads"])
def test_values_of_actions(agent: str):
    """By every critic, for one pair, many, and one observation with many actions; normalised inside."""
    program, state, hyper = untrained(agent, "point")
    state = jax.tree.map(lambda x: x, state)
    skill = 0 if program.skill_agent else None
    actions = np.array([[1.0, -2.0], [0.0, 0.5], [3.0, 3.0]], np.float32)

    def ask(obs, action, **options):
        return program.q_values(state, hyper, obs, action, options.get("skill", skill), options.get("target", False))

    many = ask(OBS[0, :3], actions)
    assert many.shape == (2, 3)
    np.testing.assert_allclose(many[:, 1], ask(OBS[0, 1], actions[1]), rtol=1e-5, atol=1e-6)
    assert ask(OBS[0, 0], actions).shape == (2, 3)
    np.testing.assert_allclose(ask(OBS[0, 0], actions)[:, 0], many[:, 0], rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(ask(OBS[0, :3], actions, target=True), many)  # targets start as copies
    if program.skill_agent:
        assert not np.array_equal(ask(OBS[0, :3], actions, skill=program.skill_agent.show_skills()[-1]), many)
        with pytest.raises(covey.CoveyError, match="depends on the skill"):
            ask(OBS[0, 0], actions[0], skill=None)
    for obs, action, message in (
        (OBS[0, 0, :4], actions[0], r"`obs` must have shape \(..., 6\)"),
        (OBS[0, 0], actions[0, :1], r"`action` must have shape \(..., 2\)"),
        (OBS[0, :2], actions, "do not belong together"),
        (OBS[0, 0] * np.nan, actions[0], "`obs` must be finite"),
    ):
        with pytest.raises(covey.CoveyError, match=message):
            ask(obs, action)


def test_values_are_those_of_the_critics_with_the_actions_in_their_box():
    program, state, hyper = untrained("td3", "point")
    rows = jnp.float32(10.0)
    seen = state.statistics.observations._replace(rows=rows, mean=jnp.ones(6), squares=40.0 * jnp.ones(6))
    state = state._replace(statistics=state.statistics._replace(observations=seen))
    high = np.array(program.spec.action_high)
    found = program.q_values(state, hyper, OBS[0, 0], 0.5 * high, None, False)
    obs = program.agent.config.normalise.obs(state.statistics, jnp.asarray(OBS[0, 0]))
    assert not np.array_equal(obs, OBS[0, 0])
    key = jax.random.key(0)
    expected = program.agent.critics.values(state.critic.online, {}, obs, jnp.full(2, 0.5), key)
    np.testing.assert_allclose(found, expected, rtol=1e-5)


def test_an_agent_without_values_says_so():
    program, state, hyper = untrained("td3", "point")

    class Silent:
        begin = staticmethod(program.agent.begin)
        act = staticmethod(program.agent.act)

    with pytest.raises(covey.CoveyError, match="Silent has no `q_values`"):
        q_values(Silent(), Silent(), program.spec, state, hyper, OBS[0, 0], np.zeros(2), False)
    trajectory = covey.TAAC(covey.TAACConfig(inverse=False), program.spec, order=1)
    made = trajectory.init(covey.TAACHyper(), jax.random.key(0))
    with pytest.raises(covey.CoveyError, match="Without `inverse`"):
        q_values(trajectory, trajectory, program.spec, made, covey.TAACHyper(), OBS[0, 0], np.zeros(2), False)
