"""DIAYN: diversity is all you need (Eysenbach et al., 2018, arXiv 1802.06070).

Skills are rewarded for leading to states from which a discriminator can tell them apart.
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
from covey.agents.skills.prior import Moves, Skills, coverage, moves, steps_of
from covey.agents.skills.skill_sac import Finished, SkillMemory, SkillSAC
from covey.hyper.range import Range
from covey.nn.mixture import MixtureNetwork
from covey.nn.networks import apply, init
from covey.nn.normalise import RunningStats, init_stats, normalise, update_stats
from covey.nn.optim import Optimiser
from covey.nn.parts import Torso
from covey.nn.precision import dense
from covey.nn.returns import mean_valid
from covey.types import Array, EnvSpec, Key, Metrics, Mode, Params, Scalar, Step

STD_LIMITS = (0.1, 10.0)
"""Of the discriminator's Gaussian for continuous skills."""


@dataclass(frozen=True)
class DIAYNConfig:
    """What never changes in a run."""

    sac: SACConfig = field(default_factory=SACConfig)
    """The SAC that follows the skills."""
    skills: Skills = field(default_factory=Skills)
    """The prior of skills, and what they are to differ in."""
    discriminator: Torso = field(default_factory=Torso)
    """The discriminator's torso."""


class DIAYNHyper(NamedTuple):
    """What tuning may change at any time."""

    sac: SACHyper = SACHyper()
    discriminator_lr: Scalar = 3e-4
    smerl_scale: Scalar = 1.0


DIAYN_SPACE = {f"sac.{name}": space for name, space in SAC_SPACE.items()} | {
    "discriminator_lr": Range(1e-5, 3e-3),
    "smerl_scale": Range(0.1, 10.0, searched=False),
}


class DIAYNStatistics(NamedTuple):
    """What is known of the data: arrivals (the descriptors), and finished episodes."""

    arrivals: RunningStats
    finished: Finished


class DIAYNState(NamedTuple):
    """What learning changes."""

    sac: SACState
    discriminator: Params
    optimiser: optax.OptState
    statistics: DIAYNStatistics


@dataclass(frozen=True)
class DIAYN:
    """The agent. `update` makes one update of the discriminator, and SAC's with the rewards that it then gives."""

    config: DIAYNConfig
    spec: EnvSpec

    def __post_init__(self) -> None:
        _ = self.skill_sac.view  # raises where there is no such descriptor

    @property
    def skill_sac(self) -> SkillSAC:
        return SkillSAC(self.config.sac, self.config.skills, self.spec)

    @property
    def plan(self) -> SamplePlan:
        return self.skill_sac.sac.plan

    @property
    def discriminator(self) -> nn.Module:
        """d -> the logits of discrete skills, or a Gaussian of continuous ones."""
        torso, skills = self.config.discriminator.module(), self.config.skills
        if skills.discrete:
            return nn.Sequential([torso, dense(skills.number)])
        return MixtureNetwork(torso, skills.size, 1, 0.0, STD_LIMITS)

    def init(self, hyper: DIAYNHyper, key: Key) -> DIAYNState:
        key_sac, key_discriminator = jax.random.split(key)
        size = len(self.skill_sac.view.descriptor)
        discriminator = init(self.discriminator, key_discriminator, jnp.zeros(size))
        return DIAYNState(
            sac=self.skill_sac.sac.init(hyper.sac, key_sac),
            discriminator=discriminator,
            optimiser=Optimiser().init(discriminator),
            statistics=DIAYNStatistics(init_stats(size), self.skill_sac.no_episodes()),
        )

    def begin(self, state: DIAYNState, hyper: DIAYNHyper, key: Key) -> SkillMemory:
        return self.skill_sac.begin(key)

    def act(
        self, state: DIAYNState, hyper: DIAYNHyper, memory: SkillMemory, obs: Array, key: Key, mode: Mode
    ) -> Decision:
        return self.skill_sac.act(state.sac, hyper.sac, memory, obs, key, mode)

    def observe(self, state: DIAYNState, hyper: DIAYNHyper, rollout: Step, key: Key) -> DIAYNState:
        data = moves(self.skill_sac.view, rollout)
        statistics = DIAYNStatistics(
            arrivals=update_stats(state.statistics.arrivals, data.after, data.valid),
            finished=self.skill_sac.finish(state.statistics.finished, rollout),
        )
        state, reward = state._replace(statistics=statistics), rollout.reward
        if self.config.sac.normalise.rewards:
            reward = self._reward(state, hyper, rollout)
        sac_view = self.skill_sac.as_seen_by_sac(rollout, reward)
        return state._replace(sac=self.skill_sac.sac.observe(state.sac, hyper.sac, sac_view, key))

    def update(self, state: DIAYNState, hyper: DIAYNHyper, batch: Step, key: Key) -> tuple[DIAYNState, Metrics]:
        state, metrics = self._update_discriminator(state, hyper, moves(self.skill_sac.view, batch))
        rewarded = self.skill_sac.as_seen_by_sac(batch, self._reward(state, hyper, batch))
        sac, sac_metrics = self.skill_sac.sac.update(state.sac, hyper.sac, rewarded, key)
        return state._replace(sac=sac), metrics | sac_metrics

    def information(self, state: DIAYNState, discriminator: Params, data: Moves) -> Array:
        """log q(z | d') - log p(z) at the arrival d', [rows]."""
        found = self._posterior(state, discriminator, data)
        if self.config.skills.discrete:
            log_prob = jnp.sum(data.skill * jax.nn.log_softmax(found), axis=-1)
        else:
            log_prob = found.log_prob(data.skill)
        return log_prob - self.config.skills.log_prior(data.skill)

    def show_skills(self) -> Array:
        return self.config.skills.show()

    def memory_for(self, skill: Array) -> SkillMemory:
        return self.skill_sac.memory_for(skill)

    def measure(self, state: DIAYNState, hyper: DIAYNHyper, paths: Paths, key: Key) -> Metrics:
        return self._measured(state, moves(self.skill_sac.view, steps_of(paths))) | coverage(paths, self.spec)

    def _reward(self, state: DIAYNState, hyper: DIAYNHyper, step: Step) -> Array:
        information = self.information(state, state.discriminator, moves(self.skill_sac.view, step))
        return self.skill_sac.reward(state.statistics.finished, step, information, hyper.smerl_scale)

    def _update_discriminator(self, state: DIAYNState, hyper: DIAYNHyper, data: Moves) -> tuple[DIAYNState, Metrics]:
        """Maximum likelihood of the skill at the same states as the reward."""

        def loss(discriminator: Params) -> Array:
            return -mean_valid(self.information(state, discriminator, data), data.valid)

        metrics = self._measured(state, data)
        gradient = jax.grad(loss)(state.discriminator)
        discriminator, optimiser = Optimiser().step(
            state.discriminator, gradient, state.optimiser, hyper.discriminator_lr
        )
        return state._replace(discriminator=discriminator, optimiser=optimiser), metrics

    def _measured(self, state: DIAYNState, data: Moves) -> Metrics:
        """Nats of mutual information (a lower bound), of the log K that there can be, and the discriminator's hits."""
        information = mean_valid(self.information(state, state.discriminator, data), data.valid)
        if not self.config.skills.discrete:
            return {"information": information}
        likeliest = jnp.argmax(self._posterior(state, state.discriminator, data), axis=-1)
        right = (likeliest == jnp.argmax(data.skill, axis=-1)).astype(jnp.float32)
        share = information / jnp.log(self.config.skills.number)
        return {"information": information, "information_share": share, "accuracy": mean_valid(right, data.valid)}

    def _posterior(self, state: DIAYNState, discriminator: Params, data: Moves) -> Any:
        """q(. | d')."""
        return apply(self.discriminator, discriminator, normalise(state.statistics.arrivals, data.after))
