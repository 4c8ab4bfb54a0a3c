"""DIAYN: diversity is all you need (Eysenbach et al., 2018, arXiv 1802.06070).

The reward of a skill is how well a discriminator recognises it from the states that it visits.
"""

from dataclasses import dataclass, field
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax

from covey.agent import Decision, SamplePlan
from covey.agents.sac import SAC_SPACE, SACConfig, SACHyper, SACState
from covey.agents.skills.contract import Paths
from covey.agents.skills.prior import Moves, Skills, coverage, greedy_moves, moves, steps_of
from covey.agents.skills.skill_sac import Finished, SkillMemory, SkillSAC, require_one_skill_per_return
from covey.hyper.range import Range
from covey.nn.mixture import MixtureNetwork
from covey.nn.networks import apply, init
from covey.nn.normalise import RunningStats, init_stats, normalise, update_stats
from covey.nn.optim import Optimiser
from covey.nn.parts import Torso
from covey.nn.precision import dense
from covey.nn.returns import mean_valid
from covey.observation import Obs
from covey.types import Array, EnvSpec, Key, Metrics, Mode, Params, Scalar, Step

STD_LIMITS = (0.1, 10.0)
"""Limits of the standard deviation of the discriminator's Gaussian, for continuous skills."""


@dataclass(frozen=True)
class DIAYNConfig:
    """Static options of DIAYN; a new value means a new compiled program.

    Example:
        >>> DIAYNConfig(skills=Skills(number=16))
    """

    sac: SACConfig = field(default_factory=SACConfig)
    """The SAC that is conditioned on the skill."""
    skills: Skills = field(default_factory=Skills)
    """Prior of skills, and the descriptor in which they should differ."""
    discriminator: Torso = field(default_factory=Torso)
    """Torso of the discriminator."""
    discriminator_optimiser: Optimiser = field(default_factory=Optimiser)
    """Optimiser of the discriminator."""

    def __post_init__(self) -> None:
        require_one_skill_per_return(self)


class DIAYNHyper(NamedTuple):
    """Hyper-parameters of DIAYN, which a schedule or a search may change at any time.

    Args:
        sac: Hyper-parameters of SAC.
        discriminator_lr: Learning rate of the discriminator.
        smerl_scale: Factor of the skill reward, if SMERL adds it to the environment's reward.

    Example:
        >>> DIAYNHyper(sac=SACHyper(actor_lr=1e-3), discriminator_lr=1e-3)
    """

    sac: SACHyper = SACHyper()
    discriminator_lr: Scalar = 3e-4
    smerl_scale: Scalar = 1.0


DIAYN_SPACE = {f"sac.{name}": space for name, space in SAC_SPACE.items()} | {
    "discriminator_lr": Range(1e-5, 3e-3),
    "smerl_scale": Range(0.1, 10.0, searched=False),
}


class DIAYNStatistics(NamedTuple):
    """Running statistics of the data.

    Args:
        arrivals: Statistics of the descriptors after a step.
        finished: The newest finished episodes.
    """

    arrivals: RunningStats
    finished: Finished


class DIAYNState(NamedTuple):
    """The state of DIAYN, which `update` and `observe` change.

    Args:
        sac: State of the SAC.
        discriminator: Parameters of the discriminator.
        optimiser: State of the discriminator's optimiser.
        statistics: Running statistics of the data.
    """

    sac: SACState
    discriminator: Params
    optimiser: optax.OptState
    statistics: DIAYNStatistics


@dataclass(frozen=True)
class DIAYN:
    """The DIAYN agent.

    One call of `update` makes one update of the discriminator, then SAC's updates with the reward of the new
    discriminator.

    Args:
        config: Static options.
        spec: Sizes and limits of the environment, whose observation must have its descriptor (see `Described`) unless
            skills differ in the observation itself.

    Example:
        >>> env = Described(covey.envs.make("point-free"))
        >>> agent = covey.DIAYN(covey.DIAYNConfig(), env.spec)
        >>> trainer = covey.make_trainer(agent, env, covey.DIAYNHyper())
    """

    config: DIAYNConfig
    spec: EnvSpec

    def __post_init__(self) -> None:
        _ = self.skill_sac.view  # raises if the environment has no such descriptor

    @property
    def skill_sac(self) -> SkillSAC:
        """The SAC that is conditioned on the skill."""
        return SkillSAC(self.config.sac, self.config.skills, self.spec)

    @property
    def plan(self) -> SamplePlan:
        """The batches of SAC."""
        return self.skill_sac.sac.plan

    @property
    def discriminator(self) -> nn.Module:
        """The flax module: descriptor -> logits of discrete skills, or a Gaussian of continuous ones."""
        torso = self.config.discriminator.module()
        skills = self.config.skills
        if skills.discrete:
            return nn.Sequential([torso, dense(skills.number)])
        return MixtureNetwork(torso, skills.size, 1, 0.0, STD_LIMITS)

    def init(self, hyper: DIAYNHyper, key: Key) -> DIAYNState:
        """Returns a new state."""
        key_sac, key_discriminator = jax.random.split(key)
        size = len(self.skill_sac.view.descriptor)
        discriminator = init(self.discriminator, key_discriminator, jnp.zeros(size))
        discriminator = self.config.discriminator_optimiser.project(discriminator)
        return DIAYNState(
            sac=self.skill_sac.sac.init(hyper.sac, key_sac),
            discriminator=discriminator,
            optimiser=self.config.discriminator_optimiser.init(discriminator),
            statistics=DIAYNStatistics(init_stats(size), self.skill_sac.no_episodes()),
        )

    def begin(self, state: DIAYNState, hyper: DIAYNHyper, key: Key) -> SkillMemory:
        """Draws the skill of a new episode."""
        return self.skill_sac.begin(key)

    def act(
        self, state: DIAYNState, hyper: DIAYNHyper, memory: SkillMemory, obs: Obs, key: Key, mode: Mode
    ) -> Decision:
        """Decides at one observation with the current skill."""
        return self.skill_sac.act(state.sac, hyper.sac, memory, obs, key, mode)

    def q_values(
        self, state: DIAYNState, hyper: DIAYNHyper, memory: SkillMemory, obs: Obs, action: Array, target: bool = False
    ) -> Array:
        """Returns SAC's values of an action with the current skill, [critics]."""
        with_skill = self.skill_sac.with_skill(obs, memory.skill)
        return self.skill_sac.sac.q_values(state.sac, hyper.sac, (), with_skill, action, target)

    def observe(self, state: DIAYNState, hyper: DIAYNHyper, rollout: Step, key: Key) -> DIAYNState:
        """Updates the running statistics with fresh data [T, N]."""
        data = moves(self.skill_sac.view, rollout)
        statistics = DIAYNStatistics(
            arrivals=update_stats(state.statistics.arrivals, data.after, data.valid),
            finished=self.skill_sac.finish(state.statistics.finished, rollout),
        )
        state = state._replace(statistics=statistics)
        reward = rollout.reward
        if self.config.sac.normalise.rewards:
            reward = self._reward(state, hyper, rollout)
        sac_view = self.skill_sac.as_seen_by_sac(rollout, reward)
        return state._replace(sac=self.skill_sac.sac.observe(state.sac, hyper.sac, sac_view, key))

    def update(self, state: DIAYNState, hyper: DIAYNHyper, batch: Step, key: Key) -> tuple[DIAYNState, Metrics]:
        """Makes one update of the discriminator, then SAC's updates."""
        state, metrics = self.update_discriminator(state, hyper, moves(self.skill_sac.view, batch))
        rewarded = self.skill_sac.as_seen_by_sac(batch, self._reward(state, hyper, batch))
        sac, sac_metrics = self.skill_sac.sac.update(state.sac, hyper.sac, rewarded, key)
        return state._replace(sac=sac), metrics | sac_metrics

    def information(self, state: DIAYNState, discriminator: Params, data: Moves) -> Array:
        """Returns the skill reward log q(z | d') - log p(z) at the descriptor d' after the step, [rows]."""
        found = self._posterior(state, discriminator, data.after)
        if self.config.skills.discrete:
            log_prob = jnp.sum(data.skill * jax.nn.log_softmax(found), axis=-1)
        else:
            log_prob = found.log_prob(data.skill)
        return log_prob - self.config.skills.log_prior(data.skill)

    def show_skills(self) -> Array:
        """Returns skills [S, K] that represent all skills."""
        return self.config.skills.show()

    def memory_for(self, skill: Array) -> SkillMemory:
        """Returns the memory at the first step of an episode with a given skill [K]."""
        return self.skill_sac.memory_for(skill)

    def skill_reward(
        self, state: DIAYNState, hyper: DIAYNHyper, memory: SkillMemory, obs: Obs, next_obs: Obs, key: Key
    ) -> Array:
        """Returns the intrinsic reward of steps [rows]: their information."""
        data = greedy_moves(self.skill_sac.view, memory.skill, obs, next_obs)
        return self.information(state, state.discriminator, data)

    def measure(self, state: DIAYNState, hyper: DIAYNHyper, paths: Paths, key: Key) -> Metrics:
        """Measures the information between skills and descriptors, the discriminator's accuracy, and the coverage."""
        return self._measured(state, moves(self.skill_sac.view, steps_of(paths))) | coverage(paths, self.spec)

    def skill_for(self, state: DIAYNState, where: Array, goal: Array) -> Array:
        """Returns the skill [K] that the discriminator recognises at a goal: the likeliest, or the mean."""
        found = self._posterior(state, state.discriminator, goal)
        skills = self.config.skills
        if skills.discrete:
            return jax.nn.one_hot(jnp.argmax(found), skills.number)
        return skills.within(found.expected())

    def _reward(self, state: DIAYNState, hyper: DIAYNHyper, step: Step) -> Array:
        information = self.information(state, state.discriminator, moves(self.skill_sac.view, step))
        return self.skill_sac.reward(state.statistics.finished, step, information, hyper.smerl_scale)

    def update_discriminator(self, state: DIAYNState, hyper: DIAYNHyper, data: Moves) -> tuple[DIAYNState, Metrics]:
        """Makes one step of maximum likelihood of the skill, on the same states as the reward."""

        def loss(discriminator: Params) -> Array:
            return -mean_valid(self.information(state, discriminator, data), data.valid)

        metrics = self._measured(state, data)
        gradient = jax.grad(loss)(state.discriminator)
        discriminator, optimiser = self.config.discriminator_optimiser.step(
            state.discriminator, gradient, state.optimiser, hyper.discriminator_lr
        )
        return state._replace(discriminator=discriminator, optimiser=optimiser), metrics

    def _measured(self, state: DIAYNState, data: Moves) -> Metrics:
        """Returns a lower bound of the mutual information in nats, its share of the maximum log K, and the accuracy."""
        information = mean_valid(self.information(state, state.discriminator, data), data.valid)
        if not self.config.skills.discrete:
            return {"information": information}
        likeliest = jnp.argmax(self._posterior(state, state.discriminator, data.after), axis=-1)
        right = (likeliest == jnp.argmax(data.skill, axis=-1)).astype(jnp.float32)
        share = information / jnp.log(self.config.skills.number)
        return {"information": information, "information_share": share, "accuracy": mean_valid(right, data.valid)}

    def _posterior(self, state: DIAYNState, discriminator: Params, descriptor: Array) -> Any:
        """Returns q(. | d) at descriptors [..., D]."""
        return apply(self.discriminator, discriminator, normalise(state.statistics.arrivals, descriptor))
