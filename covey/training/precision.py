"""Agents whose matrix products run in another precision."""

from dataclasses import dataclass
from typing import Any, Literal

import jax

from covey.agent import Agent, Critic, Decision, SamplePlan
from covey.errors import require
from covey.observation import Obs
from covey.types import Array, Key, Metrics, Mode, Step

Precision = Literal["float32", "bfloat16"]


@dataclass(frozen=True)
class InPrecision:
    """An agent whose matrix products take bfloat16 inputs and accumulate in float32.

    Everything else stays in float32: parameters, optimiser, losses, and the environment.
    """

    agent: Agent[Any, Any, Any]
    precision: Precision

    @property
    def plan(self) -> SamplePlan:
        return self.agent.plan

    def init(self, hyper: Any, key: Key) -> Any:
        return self.agent.init(hyper, key)

    def begin(self, state: Any, hyper: Any, key: Key) -> Any:
        with jax.default_matmul_precision(self.precision):
            return self.agent.begin(state, hyper, key)

    def act(self, state: Any, hyper: Any, memory: Any, obs: Obs, key: Key, mode: Mode) -> Decision:
        with jax.default_matmul_precision(self.precision):
            return self.agent.act(state, hyper, memory, obs, key, mode)

    def q_values(self, state: Any, hyper: Any, memory: Any, obs: Obs, action: Array, target: bool) -> Array:
        require(isinstance(self.agent, Critic), f"{type(self.agent).__name__} has no `q_values`.")
        with jax.default_matmul_precision(self.precision):
            return self.agent.q_values(state, hyper, memory, obs, action, target)  # type: ignore[attr-defined]

    def observe(self, state: Any, hyper: Any, rollout: Step, key: Key) -> Any:
        with jax.default_matmul_precision(self.precision):
            return self.agent.observe(state, hyper, rollout, key)

    def update(self, state: Any, hyper: Any, batch: Step, key: Key) -> tuple[Any, Metrics]:
        with jax.default_matmul_precision(self.precision):
            return self.agent.update(state, hyper, batch, key)


def in_precision(agent: Agent[Any, Any, Any], precision: Precision) -> Agent[Any, Any, Any]:
    """Returns the agent with its matrix products in a precision."""
    return agent if precision == "float32" else InPrecision(agent, precision)
