"""A SAC that follows a skill: what DIAYN and DADS have in common."""

from dataclasses import dataclass, replace
from typing import NamedTuple

import jax
import jax.numpy as jnp

from covey.agent import Decision
from covey.agents.sac import SAC, SACConfig, SACHyper, SACState
from covey.agents.skills.prior import Skills, View, view
from covey.errors import require
from covey.types import Array, EnvSpec, Key, Mode, Scalar, Step

KEPT = 256
"""Finished episodes whose returns are known, for SMERL."""


class SkillMemory(NamedTuple):
    """The skill [K] that is being followed, and for how many steps."""

    skill: Array
    age: Array


class Finished(NamedTuple):
    """The newest finished episodes: the last skills that acted in them [KEPT, K], their returns, how many finished."""

    skill: Array
    returns: Array
    total: Array


@dataclass(frozen=True)
class SkillSAC:
    """Draws a skill for each episode, shows it to a SAC behind the observation, and pays that for skills."""

    config: SACConfig
    skills: Skills
    spec: EnvSpec

    def __post_init__(self) -> None:
        require(
            self.config.n_step == 1 or not self.skills.resample,
            "--agent.sac.n-step above 1 would mix the rewards of different skills: don't --agent.skills.resample.",
        )
        require(
            not self.skills.smerl or self.spec.described,
            "SMERL needs the return of an episode: wrap the environment, Described(env).",
        )

    @property
    def view(self) -> View:
        return view(self.skills, self.spec)

    @property
    def sac(self) -> SAC:
        size = len(self.view.policy) + self.skills.size
        return SAC(self.config, replace(self.spec, obs_size=size, described=False, rewards=(), reward_weights=()))

    def memory_for(self, skill: Array) -> SkillMemory:
        return SkillMemory(skill, jnp.zeros((), jnp.int32))

    def begin(self, key: Key) -> SkillMemory:
        return self.memory_for(self.skills.draw(key, 1)[0])

    def act(self, state: SACState, hyper: SACHyper, memory: SkillMemory, obs: Array, key: Key, mode: Mode) -> Decision:
        """SAC's decision; the skill is stored with it. Greedy acting keeps a skill for the episode."""
        key_again, key_skill, key_act = jax.random.split(key, 3)
        skill, age = memory
        if self.skills.resample and mode != "greedy":
            again = (age >= self.skills.resample_after) & jax.random.bernoulli(key_again, self.skills.resample)
            skill = jnp.where(again, self.skills.draw(key_skill, 1)[0], skill)
            age = jnp.where(again, 0, age)
        decision = self.sac.act(state, hyper, (), self.with_skill(obs, skill), key_act, mode)
        # A skill that is drawn at an episode's final record never acts: its return is that of the one before.
        before = {"skill_before": memory.skill} if self.skills.smerl and self.skills.resample else {}
        return Decision(decision.action, SkillMemory(skill, age + 1), {"skill": skill} | before)

    def with_skill(self, obs: Array, skill: Array) -> Array:
        """What the policy and the critics see: [obs, skill]."""
        return jnp.concatenate([obs[..., jnp.array(self.view.policy, int)], skill], axis=-1)

    def as_seen_by_sac(self, step: Step, reward: Array) -> Step:
        """Steps as SAC sees them, with a reward for skills."""
        skill = step.extras["skill"]
        obs, next_obs = self.with_skill(step.obs, skill), self.with_skill(step.next_obs, skill)
        return step._replace(obs=obs, next_obs=next_obs, reward=reward, extras={})

    def no_episodes(self) -> Finished:
        return Finished(jnp.zeros((KEPT, self.skills.size)), jnp.zeros(KEPT), jnp.zeros((), jnp.int32))

    def finish(self, finished: Finished, rollout: Step) -> Finished:
        """With the episodes that ended in fresh data [T, N], oldest first, added. A final record holds the return."""
        if not self.skills.smerl:
            return finished
        ended = (1.0 - rollout.valid).reshape(-1).astype(jnp.int32)
        order = finished.total + jnp.cumsum(ended) - ended
        total = finished.total + jnp.sum(ended)
        place = jnp.where((ended > 0) & (order >= total - KEPT), order % KEPT, KEPT)
        skill = rollout.extras["skill_before" if self.skills.resample else "skill"].reshape(-1, self.skills.size)
        return Finished(
            skill=finished.skill.at[place].set(skill, mode="drop"),
            returns=finished.returns.at[place].set(rollout.obs[..., -1].reshape(-1), mode="drop"),
            total=total,
        )

    def reward(self, finished: Finished, step: Step, information: Array, scale: Scalar) -> Array:
        """The information [rows] as the reward of each step [...].

        With SMERL, r_env + 1[R(z) >= target - margin] scale r_skill, where R(z) is the return of the newest finished
        episode with that skill or, of continuous skills, with the nearest one; 0 for the bracket where there is none.
        """
        reward = information.reshape(step.reward.shape)
        if not self.skills.smerl:
            return reward
        skill = step.extras["skill"].reshape(-1, 1, self.skills.size)
        distance = jnp.sum((skill - finished.skill[None]) ** 2, axis=-1)
        age = (finished.total - 1 - jnp.arange(KEPT)) % KEPT
        known = jnp.broadcast_to(jnp.arange(KEPT) < finished.total, distance.shape)
        if self.skills.discrete:  # another skill's episode says nothing of this one
            known &= distance < 1.0
        # Equally near ones differ by their age alone.
        rank = jnp.where(known, distance + 1e-6 * age.astype(jnp.float32)[None], jnp.inf)
        returns = finished.returns[jnp.argmin(rank, axis=-1)].reshape(reward.shape)
        some = jnp.any(known, axis=-1).reshape(reward.shape)
        good = (returns >= self.skills.smerl_target - self.skills.smerl_margin) & some
        return step.reward + jnp.where(good, scale * reward, 0.0)
