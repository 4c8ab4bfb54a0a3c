"""How smooth the actions of greedy episodes are: against numbers from NumPy, in compiled and in host environments."""

import dataclasses
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from covey import envs
from covey.agent import Decision
from covey.evaluation.evaluate import evaluate_members
from covey.evaluation.host import HostEvaluator
from covey.evaluation.rollout import Episodes
from covey.evaluation.stats import mean_interval
from covey.evaluation.summary import Evaluation
from covey.types import Array, Key, Mode
from tests.tasks import Counter

ACTIONS = np.array([[0.5, -1.0], [-0.5, 1.0], [1.0, 0.99], [0.98, 0.0], [0.0, -0.995]], np.float32)


@dataclass(frozen=True)
class Fixed:
    """Makes the same actions in every episode; those of member 1 are half as large."""

    def begin(self, state: Array, hyper: Any, key: Key) -> tuple[()]:
        return ()

    def act(self, state: Array, hyper: Any, memory: Any, obs: Array, key: Key, mode: Mode) -> Decision:
        return Decision(state * jnp.asarray(ACTIONS)[obs[1].astype(int)], memory, {"odd": obs[1] % 2.0})


@dataclass(frozen=True)
class TwoActions(Counter):
    @property
    def spec(self):
        return dataclasses.replace(super().spec, action_size=2, action_low=(-1.0, -1.0), action_high=(1.0, 1.0))


def episodes_of(env: Any) -> Episodes:
    states, hypers = jnp.array([1.0, 0.5]), jnp.zeros(2)
    if isinstance(env, envs.HostEnv):
        evaluator = HostEvaluator(Fixed(), env)
        found = evaluator(states, hypers, jax.random.key(1), 8)
        evaluator.close()
        return found
    return jax.device_get(evaluate_members(Fixed(), env, states, hypers, jax.random.key(1), 8))


@pytest.mark.parametrize("kind", ["compiled", "one step", "host"])
def test_change_and_limits(kind: str):
    if kind == "host":
        env: Any = envs.make("gymnasium:tests.host_tasks:CountedTwoActions")
    else:
        env = TwoActions(ends=1 if kind == "one step" else 3)
    found = episodes_of(env)
    assert set(np.unique(found.length)) == ({1, 5} if kind == "one step" else {3, 5})
    for member, episode in np.ndindex(found.returns.shape):
        actions = [1.0, 0.5][member] * ACTIONS[: found.length[member, episode]]
        change = np.abs(np.diff(actions, axis=0)).mean() if len(actions) > 1 else 0.0
        limits = (np.abs(actions) >= 0.99).mean()
        np.testing.assert_allclose(found.annotations["action_change"][member, episode], change, rtol=1e-5)
        np.testing.assert_allclose(found.annotations["action_limits"][member, episode], limits, rtol=1e-5)
    assert found.reported().keys() == {"odd"}


def test_what_a_user_sees():
    found = episodes_of(TwoActions())
    one = jax.tree.map(lambda x: x[0], found)
    result = Evaluation(mean_interval(one.returns), one, {})
    first, second = str(result).splitlines()
    assert first.endswith("mean length 4, mean odd 0.38") and "action" not in first and len(first) < 100
    change, limits = (np.mean(one.annotations[name]) for name in ("action_change", "action_limits"))
    assert second == f"  actions: mean change {change:.2f} per step, {100 * limits:.0f} % at the limits"
    assert "per step" in result._repr_html_() and "\n" not in repr(result)
    assert len(result.as_json()["action_change"]) == len(result.as_json()["action_limits"]) == 8
