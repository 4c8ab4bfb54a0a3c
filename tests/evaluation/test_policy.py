"""A policy that was saved and loaded is the policy that was trained, its normaliser included."""

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import covey
from covey.evaluation import EVALUATION
from tests.runs import TINY, rows

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
