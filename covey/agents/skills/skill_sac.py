"""A SAC conditioned on a skill: the part that DIAYN and DADS share."""

from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from covey.agent import Decision
from covey.agents.sac import SAC, SACConfig, SACHyper, SACState
from covey.agents.skills.prior import Skills
from covey.agents.skills.view import View, vector_size, view
from covey.envs.described import own_observation, own_parts
from covey.errors import require
from covey.nn.held_noise import Held
from covey.observation import OBS, RETURN, Obs, Observation, Part
from covey.types import Array, EnvSpec, Key, Mode, Scalar, Step

SKILL = "skill"
"""The name of the skill among the parts of SAC's observation, where that is a dictionary."""
KEPT = 256
"""Number of finished episodes whose returns SMERL remembers."""


class SkillMemory(NamedTuple):
    """The memory within an episode.

    Args:
        skill: The current skill [K].
        age: Steps it has lasted.
        noise: SAC's memory, the noise that it holds; () if it holds none.
    """

    skill: Array
    age: Array
    noise: Held = ()


class Finished(NamedTuple):
    """A ring of the newest finished episodes, for SMERL.

    Args:
        skill: The last skill that acted in each episode, [KEPT, K].
        returns: Their returns, [KEPT].
        total: Episodes ever finished.
    """

    skill: Array
    returns: Array
    total: Array


@dataclass(frozen=True)
class SkillSAC:
    """A SAC conditioned on a skill: it draws one per episode, adds it to the observation, and replaces the reward.

    If the environment's own observation is a vector, SAC's is the vector [chosen coordinates, skill]. Else it is a
    dictionary of the environment's parts and the part "skill".

    Args:
        config: Options of the SAC.
        skills: The prior of skills.
        spec: Sizes and limits of the environment.
    """

    config: SACConfig
    skills: Skills
    spec: EnvSpec

    def __post_init__(self) -> None:
        require(
            not self.skills.smerl or self.spec.described,
            "SMERL needs the return of an episode: wrap the environment in Described(env).",
        )
        require(
            SKILL not in own_observation(self.spec).parts,
            f"The observation has a part called {SKILL!r}, the name of the part that skill agents add to it. Give it "
            "another name.",
        )

    @property
    def view(self) -> View:
        """The numbers of an observation that the policy and the models receive."""
        return view(self.skills, self.spec)

    @property
    def observation(self) -> Observation:
        """SAC's observation: the vector [chosen coordinates, skill], or the environment's parts and the skill."""
        own = own_observation(self.spec)
        shown = len(self.view.policy)
        if own.is_vector:
            return Observation.of(shown + self.skills.size)
        parts = own.parts | {SKILL: Part((self.skills.size,))}
        if vector_size(self.spec):
            del parts[OBS]
            parts |= {OBS: Part((shown,))} if shown else {}
        return Observation.of(parts)

    @property
    def sac(self) -> SAC:
        """The SAC, whose observation is `observation`."""
        return SAC(self.config, replace(self.spec, observation=self.observation, rewards=(), reward_weights=()))

    def memory_for(self, skill: Array) -> SkillMemory:
        """Returns the memory at the first step of an episode with a given skill [K]."""
        return SkillMemory(skill, jnp.zeros((), jnp.int32), self.sac.noise.begin())

    def begin(self, key: Key) -> SkillMemory:
        """Draws the skill of a new episode."""
        return self.memory_for(self.skills.draw(key, 1)[0])

    def act(self, state: SACState, hyper: SACHyper, memory: SkillMemory, obs: Obs, key: Key, mode: Mode) -> Decision:
        """Returns SAC's decision, and stores the skill with it. Greedy acting keeps the skill for the whole episode."""
        key_again, key_skill, key_act = jax.random.split(key, 3)
        skill, age, noise = memory
        if self.skills.resample and mode != "greedy":
            again = (age >= self.skills.resample_after) & jax.random.bernoulli(key_again, self.skills.resample)
            skill = jnp.where(again, self.skills.draw(key_skill, 1)[0], skill)
            age = jnp.where(again, 0, age)
        decision = self.sac.act(state, hyper, noise, self.with_skill(obs, skill), key_act, mode)
        # A skill that is drawn at the final record of an episode never acts: the return belongs to the skill before it.
        before = {"skill_before": memory.skill} if self.skills.smerl and self.skills.resample else {}
        return Decision(decision.action, SkillMemory(skill, age + 1, decision.memory), {"skill": skill} | before)

    def with_skill(self, obs: Obs, skill: Array) -> Obs:
        """Returns the input of the policy and the critics, as `observation` says.

        Args:
            obs: Observations [...]: described, or the environment's own.
            skill: Skills [..., K].
        """
        parts = own_parts(obs)
        chosen = self.observation
        if OBS in parts and vector_size(self.spec):
            parts[OBS] = parts[OBS][..., np.array(self.view.policy, int)]
        if chosen.is_array:
            return jnp.concatenate([parts[OBS], skill], axis=-1)
        return chosen.of_names(parts | {SKILL: skill})

    def as_seen_by_sac(self, step: Step, reward: Array) -> Step:
        """Returns steps as SAC receives them: with the skill in the observation, and the given reward."""
        skill = step.extras["skill"]
        obs = self.with_skill(step.obs, skill)
        next_obs = self.with_skill(step.next_obs, skill)
        return step._replace(obs=obs, next_obs=next_obs, reward=reward, extras={})

    def no_episodes(self) -> Finished:
        """Returns an empty ring of finished episodes."""
        return Finished(jnp.zeros((KEPT, self.skills.size)), jnp.zeros(KEPT), jnp.zeros((), jnp.int32))

    def finish(self, finished: Finished, rollout: Step) -> Finished:
        """Adds the episodes that ended in fresh data [T, N], oldest first. Their final record holds the return."""
        if not self.skills.smerl:
            return finished
        ended = (1.0 - rollout.valid).reshape(-1).astype(jnp.int32)
        order = finished.total + jnp.cumsum(ended) - ended
        total = finished.total + jnp.sum(ended)
        place = jnp.where((ended > 0) & (order >= total - KEPT), order % KEPT, KEPT)
        skill = rollout.extras["skill_before" if self.skills.resample else "skill"].reshape(-1, self.skills.size)
        return Finished(
            skill=finished.skill.at[place].set(skill, mode="drop"),
            returns=finished.returns.at[place].set(rollout.obs[RETURN].reshape(-1), mode="drop"),
            total=total,
        )

    def reward(self, finished: Finished, step: Step, information: Array, scale: Scalar) -> Array:
        """Returns the reward of each step [...].

        Without SMERL it is the information. With SMERL it is r_env + 1[R(z) >= target - margin] scale r_skill, where
        R(z) is the return of the newest finished episode with this skill (continuous skills: with the nearest skill).
        The indicator is 0 if there is no such episode.

        Args:
            finished: The newest finished episodes.
            step: Steps [...].
            information: The skill reward of these steps, [rows].
            scale: Factor of the skill reward in SMERL.
        """
        reward = information.reshape(step.reward.shape)
        if not self.skills.smerl:
            return reward
        skill = step.extras["skill"].reshape(-1, 1, self.skills.size)
        distance = jnp.sum((skill - finished.skill[None]) ** 2, axis=-1)
        age = (finished.total - 1 - jnp.arange(KEPT)) % KEPT
        known = jnp.broadcast_to(jnp.arange(KEPT) < finished.total, distance.shape)
        if self.skills.discrete:  # an episode of another skill does not count
            known &= distance < 1.0
        # Among equally near skills, the newest episode wins.
        rank = jnp.where(known, distance + 1e-6 * age.astype(jnp.float32)[None], jnp.inf)
        returns = finished.returns[jnp.argmin(rank, axis=-1)].reshape(reward.shape)
        some = jnp.any(known, axis=-1).reshape(reward.shape)
        good = (returns >= self.skills.smerl_target - self.skills.smerl_margin) & some
        return step.reward + jnp.where(good, scale * reward, 0.0)


def require_one_skill_per_return(config: Any) -> None:
    """Raises a CoveyError if n-step returns would mix the rewards of different skills.

    Args:
        config: A configuration with the fields `sac` and `skills`.
    """
    require(
        config.sac.n_step == 1 or not config.skills.resample,
        "`sac.n_step` above 1 would mix the rewards of different skills. Set it to 1, or `skills.resample` to 0.",
        config,
    )
