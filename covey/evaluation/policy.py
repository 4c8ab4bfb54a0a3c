"""Trained policies as functions, and the values that their critics give to actions."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from covey.agent import Critic, Decision, Policy
from covey.agents.skills.contract import SkillAgent
from covey.errors import CoveyError, require
from covey.training.member import where
from covey.types import Array, EnvSpec, Key, Mode


class TrainedPolicy:
    """A trained policy as a function: observations in, actions out, both in the environment's units.

    It takes one observation [obs_size], or those of N environments [N, obs_size], and keeps a memory for each: call
    `reset` at the start of each episode. Creating it compiles it for one observation; the first call with N of them
    compiles it for N.

    Args:
        policy: The policy or agent.
        spec: The spec of its environment.
        state: The policy's state, such as one member's row of `population.members.agent`.
        hyper: Its hyper-parameters, likewise.
        seed: The seed of its random numbers; most policies need none to act greedily.
        explore: Act as in collection, with the policy's noise, instead of greedily.

    Example:
        >>> policy = covey.load("runs/pendulum-sac-0").policy()          # a TrainedPolicy
        >>> policy.reset()
        >>> obs, _ = env.reset()
        >>> obs, reward, terminated, truncated, _ = env.step(policy(obs))
    """

    def __init__(
        self,
        policy: Policy[Any, Any, Any],
        spec: EnvSpec,
        state: Any,
        hyper: Any,
        seed: int = 0,
        explore: bool = False,
    ) -> None:
        mode: Mode = "sample" if explore else "greedy"

        def begin(key: Key) -> tuple[Any, Key]:
            key, key_begin = jax.random.split(key)
            return policy.begin(state, hyper, key_begin), key

        def act(memory: Any, obs: Array, key: Key) -> tuple[Array, Any, Key]:
            key, key_act = jax.random.split(key)
            decision = policy.act(state, hyper, memory, obs, key_act, mode)
            return spec.to_box(decision.action), decision.memory, key

        def begin_some(chosen: Array, memory: Any, keys: Key) -> tuple[Any, Key]:
            return where(chosen, jax.vmap(begin)(keys), (memory, keys))

        self._begin = jax.jit(begin)
        self._act = jax.jit(act)
        self._begin_all = jax.jit(jax.vmap(begin))
        self._begin_some = jax.jit(begin_some)
        self._act_all = jax.jit(jax.vmap(act))
        self._size = spec.obs_size
        self._key = jax.random.key(seed)
        self.reset()
        self._act(self._memory, jnp.zeros(self._size), self._key)  # compiles, so that the first real call is fast

    def reset(self, rows: Sequence[int] | None = None) -> None:
        """Starts new episodes, with new memories.

        Args:
            rows: The environments whose episodes start, of those of the last call; by default all. After a reset of
                all, the next call may have another number of observations.

        Example:
            >>> policy.reset(rows=np.flatnonzero(terminated | truncated))
        """
        if rows is None:
            self._memory, self._key = self._begin(self._key)
            self._rows: tuple[int, ...] | None = None
            return
        require(bool(self._rows), "`reset` of some rows needs a call with observations [N, obs_size] before it.")
        chosen = np.zeros(self._rows or (), bool)
        given = np.asarray(rows, int)
        require(
            bool(np.all((given >= 0) & (given < len(chosen)))),
            f"`rows` must be indices from 0 to {len(chosen) - 1}, not {given.tolist()}.",
        )
        chosen[given] = True
        self._memory, self._keys = self._begin_some(chosen, self._memory, self._keys)

    def __call__(self, obs: Any) -> np.ndarray:
        """Returns the action [action_size] for an observation [obs_size], or actions [N, action_size] for N of them."""
        obs = np.asarray(obs, np.float32)
        if obs.shape[:-1] != self._rows or obs.shape[-1] != self._size:
            self._start(obs)
        if np.isnan(obs).any():
            raise CoveyError("The observation holds NaN: the action would too.")
        if obs.ndim == 1:
            action, self._memory, self._key = self._act(self._memory, obs, self._key)
        else:
            action, self._memory, self._keys = self._act_all(self._memory, obs, self._keys)
        return np.asarray(action)

    def _start(self, obs: np.ndarray) -> None:
        """Prepares for as many environments as there are observations; an error in the middle of an episode."""
        fits = obs.ndim in (1, 2) and obs.shape[-1] == self._size and len(obs) > 0
        require(
            fits, f"An observation has shape ({self._size},), or (N, {self._size}) for N environments, not {obs.shape}."
        )
        rows = obs.shape[:-1]
        require(
            self._rows is None,
            f"Observations have shape {obs.shape}, and those before had {(*(self._rows or ()), self._size)}. Call "
            "`reset` before another number of environments.",
        )
        self._rows = rows
        if rows:
            self._memory, self._keys = self._begin_all(jax.random.split(self._key, rows[0]))


@dataclass(frozen=True)
class FixedSkill:
    """A policy that begins every episode with the same skill.

    Args:
        policy: The policy.
        agent: Its agent, which makes the memory.
        skill: The skill [K].
    """

    policy: Policy[Any, Any, Any]
    agent: SkillAgent[Any, Any, Any]
    skill: tuple[float, ...]

    def begin(self, state: Any, hyper: Any, key: Key) -> Any:
        """Returns the memory of the skill."""
        return self.agent.memory_for(jnp.asarray(self.skill))

    def act(self, state: Any, hyper: Any, memory: Any, obs: Array, key: Key, mode: Mode) -> Decision:
        """Decides as the policy does."""
        return self.policy.act(state, hyper, memory, obs, key, mode)


def chosen_skill(agent: SkillAgent[Any, Any, Any] | None, skill: Any) -> tuple[float, ...]:
    """Returns a skill [K], from its numbers or from its index among the skills that are shown."""
    require(agent is not None, "`skill` is for agents that learn skills, such as diayn and dads.")
    assert agent is not None
    shown = np.asarray(agent.show_skills())
    if np.ndim(skill) == 0:
        number = int(skill)
        require(0 <= number < len(shown), f"`skill` must be an index from 0 to {len(shown) - 1}, not {skill}.")
        return tuple(shown[number].tolist())
    found = np.asarray(skill, np.float32)
    require(
        found.shape == shown[0].shape and bool(np.isfinite(found).all()),
        f"`skill` must be an index, or {shown.shape[1]} finite numbers, not {skill!r}.",
    )
    return tuple(found.tolist())


def q_values(
    agent: Any,
    policy: Policy[Any, Any, Any],
    spec: EnvSpec,
    state: Any,
    hyper: Any,
    obs: Any,
    action: Any,
    target: bool,
) -> np.ndarray:
    """Returns the values of actions by every critic, [critics, ...] (see `Run.q_values`).

    Args:
        agent: The agent.
        policy: The policy whose memory begins the episode: the agent, or one with a fixed skill.
        spec: The spec of the environment.
        state: The agent's state.
        hyper: Its hyper-parameters.
        obs: Observations [..., obs_size].
        action: Actions [..., action_size] in the environment's units.
        target: Whether the target critics are asked.
    """
    require(
        isinstance(agent, Critic), f"{type(agent).__name__} has no `q_values`. An agent provides it as `covey.Critic`."
    )
    obs = np.asarray(obs, np.float32)
    action = np.asarray(action, np.float32)
    for name, x, size in (("obs", obs, spec.obs_size), ("action", action, spec.action_size)):
        require(x.shape[-1:] == (size,), f"`{name}` must have shape (..., {size}), not {x.shape}.")
        require(bool(np.isfinite(x).all()), f"`{name}` must be finite.")
    try:
        rows = np.broadcast_shapes(obs.shape[:-1], action.shape[:-1])
    except ValueError:
        raise CoveyError(f"`obs` {obs.shape} and `action` {action.shape} do not belong together.") from None
    obs, action = (
        np.broadcast_to(x, (*rows, x.shape[-1])).reshape(-1, x.shape[-1]) for x in (obs, spec.from_box(action))
    )
    found = np.asarray(_q_values(agent, policy, target, state, hyper, obs, action))
    return found.reshape(-1, *rows)


@partial(jax.jit, static_argnames=("agent", "policy", "target"))
def _q_values(
    agent: Critic[Any, Any, Any],
    policy: Policy[Any, Any, Any],
    target: bool,
    state: Any,
    hyper: Any,
    obs: Array,
    action: Array,
) -> Array:
    memory = policy.begin(state, hyper, jax.random.key(0))
    return jax.vmap(lambda o, a: agent.q_values(state, hyper, memory, o, a, target), out_axes=1)(obs, action)
