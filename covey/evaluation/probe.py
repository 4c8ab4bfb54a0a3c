"""Examines the networks of an agent with observations: values, actions, units, and the size of their gradients.

It knows no algorithm: values and actions come from the agent's contract, the units from every torso that the agent
evaluates meanwhile, and gradients from the second moments that an optimiser keeps.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from covey.agent import Agent, Critic
from covey.nn.parts import TORSOS
from covey.types import Array, Key

SAMPLES = 8
"""Sampled actions at every observation."""
SAME = 1e-6
"""A unit whose output varies by less than this share of its mean gives the same output everywhere."""


class Units(NamedTuple):
    """The last hidden layer of a network over observations: the share of dead units, and the largest output."""

    dead: float
    largest: float


class Probe(NamedTuple):
    """The networks of a member on n observations and actions from its replay.

    Args:
        values: Values [critics, n]; None if the agent can't say.
        greedy: Greedy actions [n, A].
        spread: Standard deviation of sampled actions at one observation, averaged over observations, [A].
        units: The last hidden layers by the name of the network, `actor` and `critic`.
        gradients: The root mean square of the gradient's norm over about the last thousand updates, by the name of the
            optimiser's state, such as `actor_optimiser`; without optimisers that keep no second moments.
    """

    values: np.ndarray | None
    greedy: np.ndarray
    spread: np.ndarray
    units: dict[str, Units]
    gradients: dict[str, float]


def probe(agent: Agent[Any, Any, Any], state: Any, hyper: Any, obs: Any, action: np.ndarray) -> Probe:
    """Examines the networks of one member.

    Args:
        agent: The agent.
        state: Its state.
        hyper: Its hyper-parameters.
        obs: Observations [n, ...], not normalised.
        action: Actions [n, A].
    """
    key = jax.random.key(0)
    seen: dict[str, dict[Any, np.ndarray]] = {}
    greedy, seen["actor"] = _with_units(partial(_greedy, agent), state, hyper, obs, key)
    spread = jax.jit(partial(_spread, agent))(state, hyper, obs, key)
    values = None
    if isinstance(agent, Critic):
        values, seen["critic"] = _with_units(partial(_values, agent), state, hyper, obs, action, key)
    critics = seen.get("critic", {})  # TAAC's critics decide with its actor
    seen["actor"] = {name: x for name, x in seen["actor"].items() if name not in critics}
    found = {name: _summary(outputs) for name, outputs in seen.items() if outputs}
    values = None if values is None else np.asarray(values)
    return Probe(values, np.asarray(greedy), np.asarray(spread), found, gradients(state))


def _greedy(agent: Any, state: Any, hyper: Any, obs: Array, key: Key) -> Array:
    memory = agent.begin(state, hyper, key)
    return jax.lax.map(lambda o: agent.act(state, hyper, memory, o, key, "greedy").action, obs)


def _spread(agent: Any, state: Any, hyper: Any, obs: Array, key: Key) -> Array:
    memory = agent.begin(state, hyper, key)

    def deviation(o: Array) -> Array:
        keys = jax.random.split(key, SAMPLES)
        return jnp.std(jax.vmap(lambda k: agent.act(state, hyper, memory, o, k, "sample").action)(keys), axis=0)

    return jnp.mean(jax.vmap(deviation)(obs), axis=0)


def _values(agent: Any, state: Any, hyper: Any, obs: Array, action: Array, key: Key) -> Array:
    memory = agent.begin(state, hyper, key)
    return jax.lax.map(lambda x: agent.q_values(state, hyper, memory, *x, False), (obs, action)).T


def _with_units(function: Callable[..., Any], *inputs: Any) -> tuple[Any, dict[Any, np.ndarray]]:
    """Returns the result of a function, and the outputs [n, units] of every torso that it evaluates.

    Critics are evaluated within `vmap`, so outputs reach Python by a callback. They are told apart by the path and the
    first weight of their torso: the critics of an ensemble have the same path. The function maps over rows with
    `lax.map`, because `vmap` would compile a callback for each row.
    """
    outputs: dict[Any, list[np.ndarray]] = {}

    def collect(path: str, weight: Any, output: Any) -> None:
        outputs.setdefault((path, float(weight)), []).append(np.array(output))

    def intercept(call: Any, args: Any, kwargs: Any, context: Any) -> Any:
        result = call(*args, **kwargs)
        module = context.module
        is_torso = isinstance(module, tuple(TORSOS.values())) and getattr(module, "hidden", True)
        if is_torso and context.method_name == "__call__":
            weights = jax.tree.leaves(module.variables.get("params", {}))
            first = weights[0].reshape(-1)[0] if weights else jnp.zeros(())
            jax.debug.callback(partial(collect, "/".join(module.path)), first, result)
        return result

    with nn.intercept_methods(intercept):
        found = jax.block_until_ready(jax.jit(function)(*inputs))
    jax.effects_barrier()
    return found, {key: np.stack(rows) for key, rows in outputs.items() if len({x.shape for x in rows}) == 1}


def _summary(outputs: dict[Any, np.ndarray]) -> Units:
    """Returns the worst of several networks."""
    dead = [np.mean(np.ptp(x, axis=0) <= SAME * (1e-3 + np.abs(x).max(axis=0))) for x in outputs.values()]
    return Units(float(np.max(dead)), float(max(np.abs(x).max() for x in outputs.values())))


def gradients(state: Any) -> dict[str, float]:
    """Returns the root mean square of the gradient's norm by the name of each optimiser's state.

    Adam and RMSprop keep a running mean of the squares of every component of the gradient; the square of the norm is
    their sum.
    """
    sums: dict[str, float] = {}
    leaves, _ = jax.tree.flatten_with_path(state)
    for path, leaf in leaves:
        names = [str(getattr(key, "name", getattr(key, "key", ""))) for key in path]
        if "nu" in names and jnp.issubdtype(leaf.dtype, jnp.inexact):
            owner = ".".join(name for name in names[: names.index("nu")] if name)
            sums[owner] = sums.get(owner, 0.0) + float(np.sum(np.asarray(leaf, np.float64)))
    return {name: float(np.sqrt(total)) for name, total in sums.items()}
