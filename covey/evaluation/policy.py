"""Trained policies as functions, and the values that their critics give to actions."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from covey.agent import Critic, Decision, Policy
from covey.agents.skills.contract import SkillAgent
from covey.errors import CoveyError, require
from covey.evaluation.used import used_parts, with_zeros
from covey.inputs import Inputs
from covey.observation import Obs
from covey.training.member import where
from covey.types import Array, EnvSpec, Key, Mode


class TrainedPolicy:
    """A trained policy as a function: observations in, actions out, both in the environment's units.

    It takes one observation, or those of N environments with a leading axis N, and keeps a memory for each: call
    `reset` at the start of each episode. An observation is an array or a dictionary of arrays, as `EnvSpec.observation`
    says; parts that the policy does not use, such as privileged ones of the critic, may be left out. A uint8 part takes
    whole numbers from 0 to 255, and no floats. Creating the policy compiles it for one observation; the first call with
    N of them compiles it for N.

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
        >>> actions = policy({"camera": images, "speed": speeds})        # [N, 64, 64, 3] and [N, 2]
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
        form = spec.observation

        def begin(key: Key) -> tuple[Any, Key]:
            key, key_begin = jax.random.split(key)
            return policy.begin(state, hyper, key_begin), key

        def decide(memory: Any, obs: Obs, key: Key) -> tuple[Array, Any, Key]:
            key, key_act = jax.random.split(key)
            decision = policy.act(state, hyper, memory, obs, key_act, mode)
            return spec.to_box(decision.action), decision.memory, key

        self._key = jax.random.key(seed)
        used = used_parts(lambda obs: decide(begin(self._key)[0], obs, self._key)[:2], form)

        def act(memory: Any, values: list[Array], key: Key) -> tuple[Array, Any, Key]:
            return decide(memory, with_zeros(form, dict(zip(used, values, strict=True))), key)

        def begin_some(chosen: Array, memory: Any, keys: Key) -> tuple[Any, Key]:
            return where(chosen, jax.vmap(begin)(keys), (memory, keys))

        self._begin = jax.jit(begin)
        self._act = jax.jit(act)
        self._begin_all = jax.jit(jax.vmap(begin))
        self._begin_some = jax.jit(begin_some)
        self._act_all = jax.jit(jax.vmap(act))
        self._inputs = Inputs.of(form, used)
        self.reset()
        zeros = [np.zeros(part.shape, part.dtype) for _, part in self._inputs.named]
        self._act(self._memory, zeros, self._key)  # compiles, so that the first real call is fast

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
        require(
            bool(self._rows), "`reset` of some rows needs a call with the observations of N environments before it."
        )
        chosen = np.zeros(self._rows or (), bool)
        given = np.asarray(rows, int)
        require(
            bool(np.all((given >= 0) & (given < len(chosen)))),
            f"`rows` must be indices from 0 to {len(chosen) - 1}, not {given.tolist()}.",
        )
        chosen[given] = True
        self._memory, self._keys = self._begin_some(chosen, self._memory, self._keys)

    def __call__(self, obs: Any) -> np.ndarray:
        """Returns the action [action_size] for one observation, or actions [N, action_size] for N of them."""
        values, rows = self._inputs.read(obs)
        if rows != self._rows:
            self._start(rows)
        if rows:
            action, self._memory, self._keys = self._act_all(self._memory, values, self._keys)
        else:
            action, self._memory, self._key = self._act(self._memory, values, self._key)
        return np.asarray(action)

    def _start(self, rows: tuple[int, ...]) -> None:
        """Prepares for as many environments as there are observations; an error in the middle of an episode."""
        shape = self._inputs.named[0][1].shape
        require(
            self._rows is None,
            f"Observations have shape {(*rows, *shape)}, and those before had {(*(self._rows or ()), *shape)}. Call "
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

    def act(self, state: Any, hyper: Any, memory: Any, obs: Obs, key: Key, mode: Mode) -> Decision:
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
        obs: Observations with any leading axes [...], an array or a dictionary. Parts that the critics do not use may
            be left out.
        action: Actions [..., action_size] in the environment's units.
        target: Whether the target critics are asked.
    """
    require(
        isinstance(agent, Critic), f"{type(agent).__name__} has no `q_values`. An agent provides it as `covey.Critic`."
    )
    used = _critic_parts(agent, policy, spec, state, hyper, obs, target)
    inputs = Inputs.of(spec.observation, used, finite=True, any_rows=True)
    action = np.asarray(action, np.float32)
    values, leading = inputs.read(obs)
    require(
        action.shape[-1:] == (spec.action_size,),
        f"`action` must have shape (..., {spec.action_size}), not {action.shape}.",
    )
    require(bool(np.isfinite(action).all()), "`action` must be finite.")
    try:
        rows = np.broadcast_shapes(leading, action.shape[:-1])
    except ValueError:
        raise CoveyError(f"`obs` {values[0].shape} and `action` {action.shape} do not belong together.") from None

    def flat(x: np.ndarray, axes: int) -> np.ndarray:
        own = x.shape[x.ndim - axes :]
        return np.broadcast_to(x, (*rows, *own)).reshape(-1, *own)

    parts = {name: flat(x, len(part.shape)) for (name, part), x in zip(inputs.named, values, strict=True)}
    found = _q_values(agent, policy, spec, target, state, hyper, parts, flat(spec.from_box(action), 1))
    return np.asarray(found).reshape(-1, *rows)


def _critic_parts(
    agent: Any, policy: Policy[Any, Any, Any], spec: EnvSpec, state: Any, hyper: Any, obs: Any, target: bool
) -> tuple[str, ...]:
    """Returns the parts that are needed: all if all are given, which spares tracing; otherwise those that are used."""
    names = tuple(spec.observation.parts)
    if isinstance(obs, Mapping) and all(name in obs for name in names):
        return names
    memory = policy.begin(state, hyper, jax.random.key(0))
    action = jnp.zeros(spec.action_size)
    return used_parts(lambda one: agent.q_values(state, hyper, memory, one, action, target), spec.observation)


@partial(jax.jit, static_argnames=("agent", "policy", "spec", "target"))
def _q_values(
    agent: Critic[Any, Any, Any],
    policy: Policy[Any, Any, Any],
    spec: EnvSpec,
    target: bool,
    state: Any,
    hyper: Any,
    parts: dict[str, Array],
    action: Array,
) -> Array:
    memory = policy.begin(state, hyper, jax.random.key(0))

    def values(given: dict[str, Array], action: Array) -> Array:
        return agent.q_values(state, hyper, memory, with_zeros(spec.observation, given), action, target)

    return jax.vmap(values, out_axes=1)(parts, action)
