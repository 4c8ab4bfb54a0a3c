"""METRA: scalable unsupervised RL with metric-aware abstraction (Park et al., 2024, arXiv 2310.08887).

A representation phi of the descriptor moves at most a unit per step, so its distances count steps. The reward of a
skill is how far a step moves phi in the skill's direction, so skills go as far as they can, each in its own direction.
"""

from dataclasses import dataclass, field
from typing import NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax

from covey.agent import Decision, SamplePlan
from covey.agents.sac import SAC_SPACE, SACConfig, SACHyper, SACState
from covey.agents.skills.contract import Paths
from covey.agents.skills.prior import Moves, Skills, coverage, direction, greedy_moves, moves, steps_of
from covey.agents.skills.skill_sac import Finished, SkillMemory, SkillSAC, require_one_skill_per_return
from covey.errors import require
from covey.hyper.range import Range
from covey.nn.networks import apply, init
from covey.nn.normalise import RunningStats, init_stats, normalise, update_stats
from covey.nn.optim import Optimiser
from covey.nn.parts import Torso
from covey.nn.precision import dense
from covey.nn.returns import mean_valid
from covey.observation import Obs
from covey.types import Array, EnvSpec, Key, Metrics, Mode, Params, Scalar, Step


@dataclass(frozen=True)
class METRAConfig:
    """Static options of METRA; a new value means a new compiled program.

    Example:
        >>> METRAConfig(skills=Skills(kind="discrete", number=16))
    """

    sac: SACConfig = field(default_factory=SACConfig)
    """The SAC that is conditioned on the skill."""
    skills: Skills = field(default_factory=lambda: Skills(kind="continuous", prior="sphere"))
    """Prior of skills, and the descriptor in which they should differ."""
    representation: Torso = field(default_factory=Torso)
    """Torso of the representation."""
    representation_optimiser: Optimiser = field(default_factory=Optimiser)
    """Optimiser of the representation."""

    def __post_init__(self) -> None:
        require_one_skill_per_return(self)
        skills = self.skills
        require(
            skills.discrete or skills.prior == "sphere",
            f"METRA's continuous skills are directions: set `prior` to sphere, not {skills.prior}.",
            skills,
        )


class METRAHyper(NamedTuple):
    """Hyper-parameters of METRA, which a schedule or a search may change at any time.

    Args:
        sac: Hyper-parameters of SAC.
        representation_lr: Learning rate of the representation.
        dual_lr: Learning rate of the logarithm of the dual variable.
        dual: Factor of the learnt dual variable, and so its first value.
        slack: Steps in the representation that are shorter than 1 count as at most this much too short.
        smerl_scale: Factor of the skill reward, if SMERL adds it to the environment's reward.

    Example:
        >>> METRAHyper(sac=SACHyper(target_entropy=-0.5), representation_lr=1e-3)
    """

    sac: SACHyper = SACHyper()
    representation_lr: Scalar = 3e-4
    dual_lr: Scalar = 3e-4
    dual: Scalar = 30.0
    slack: Scalar = 1e-3
    smerl_scale: Scalar = 1.0


METRA_SPACE = {f"sac.{name}": space for name, space in SAC_SPACE.items()} | {
    "representation_lr": Range(1e-5, 3e-3),
    "dual_lr": Range(1e-5, 3e-3),
    "dual": Range(1.0, 100.0, searched=False),
    "slack": Range(1e-6, 1e-1, searched=False),
    "smerl_scale": Range(0.1, 10.0, searched=False),
}


class METRAStatistics(NamedTuple):
    """Running statistics of the data.

    Args:
        descriptors: Statistics of the descriptors after a step.
        finished: The newest finished episodes.
    """

    descriptors: RunningStats
    finished: Finished


class METRAState(NamedTuple):
    """The state of METRA, which `update` and `observe` change.

    Args:
        sac: State of the SAC.
        representation: Parameters of the representation.
        optimiser: State of the representation's optimiser.
        dual: Logarithm of the learnt factor of the hyper-parameter `dual`.
        dual_optimiser: State of the dual variable's optimiser, Adam.
        statistics: Running statistics of the data.
    """

    sac: SACState
    representation: Params
    optimiser: optax.OptState
    dual: Array
    dual_optimiser: optax.OptState
    statistics: METRAStatistics


@dataclass(frozen=True)
class METRA:
    """The METRA agent.

    One call of `update` makes one update of the representation and of the dual variable, then SAC's updates with the
    reward of the new representation.

    Args:
        config: Static options.
        spec: Sizes and limits of the environment, whose observation must have its descriptor (see `Described`) unless
            skills differ in the observation itself.

    Example:
        >>> env = Described(covey.envs.make("point-free"))
        >>> agent = covey.METRA(covey.METRAConfig(), env.spec)
        >>> trainer = covey.make_trainer(agent, env, covey.METRAHyper())
    """

    config: METRAConfig
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
    def representation(self) -> nn.Module:
        """The flax module: descriptor -> phi, with as many numbers as a skill has."""
        return nn.Sequential([self.config.representation.module(), dense(self.config.skills.size)])

    def init(self, hyper: METRAHyper, key: Key) -> METRAState:
        """Returns a new state."""
        key_sac, key_representation = jax.random.split(key)
        size = len(self.skill_sac.view.descriptor)
        representation = init(self.representation, key_representation, jnp.zeros(size))
        representation = self.config.representation_optimiser.project(representation)
        dual = jnp.zeros(())
        return METRAState(
            sac=self.skill_sac.sac.init(hyper.sac, key_sac),
            representation=representation,
            optimiser=self.config.representation_optimiser.init(representation),
            dual=dual,
            dual_optimiser=Optimiser().init(dual),
            statistics=METRAStatistics(init_stats(size), self.skill_sac.no_episodes()),
        )

    def begin(self, state: METRAState, hyper: METRAHyper, key: Key) -> SkillMemory:
        """Draws the skill of a new episode."""
        return self.skill_sac.begin(key)

    def act(
        self, state: METRAState, hyper: METRAHyper, memory: SkillMemory, obs: Obs, key: Key, mode: Mode
    ) -> Decision:
        """Decides at one observation with the current skill."""
        return self.skill_sac.act(state.sac, hyper.sac, memory, obs, key, mode)

    def q_values(
        self, state: METRAState, hyper: METRAHyper, memory: SkillMemory, obs: Obs, action: Array, target: bool = False
    ) -> Array:
        """Returns SAC's values of an action with the current skill, [critics]."""
        with_skill = self.skill_sac.with_skill(obs, memory.skill)
        return self.skill_sac.sac.q_values(state.sac, hyper.sac, (), with_skill, action, target)

    def observe(self, state: METRAState, hyper: METRAHyper, rollout: Step, key: Key) -> METRAState:
        """Updates the running statistics with fresh data [T, N]."""
        data = moves(self.skill_sac.view, rollout)
        statistics = METRAStatistics(
            descriptors=update_stats(state.statistics.descriptors, data.after, data.valid),
            finished=self.skill_sac.finish(state.statistics.finished, rollout),
        )
        state = state._replace(statistics=statistics)
        reward = rollout.reward
        if self.config.sac.normalise.rewards:
            reward = self._reward(state, hyper, rollout)
        sac_view = self.skill_sac.as_seen_by_sac(rollout, reward)
        return state._replace(sac=self.skill_sac.sac.observe(state.sac, hyper.sac, sac_view, key))

    def update(self, state: METRAState, hyper: METRAHyper, batch: Step, key: Key) -> tuple[METRAState, Metrics]:
        """Makes one update of the representation and the dual variable, then SAC's updates."""
        state, metrics = self.update_representation(state, hyper, moves(self.skill_sac.view, batch))
        rewarded = self.skill_sac.as_seen_by_sac(batch, self._reward(state, hyper, batch))
        sac, sac_metrics = self.skill_sac.sac.update(state.sac, hyper.sac, rewarded, key)
        return state._replace(sac=sac), metrics | sac_metrics

    def update_representation(self, state: METRAState, hyper: METRAHyper, data: Moves) -> tuple[METRAState, Metrics]:
        """Ascends E[(phi' - phi) . z] with steps in phi of at most 1, by dual gradient descent."""
        dual = hyper.dual * jnp.exp(state.dual)

        def loss(representation: Params) -> tuple[Array, tuple[Array, Array, Array]]:
            step = self.step_of(state, representation, data)
            progress = mean_valid(self.progress(step, data.skill), data.valid)
            squared = jnp.sum(step**2, axis=-1)
            left = mean_valid(jnp.minimum(hyper.slack, 1.0 - squared), data.valid)
            return -(progress + dual * left), (progress, mean_valid(squared, data.valid), left)

        gradient, (progress, squared, left) = jax.grad(loss, has_aux=True)(state.representation)
        representation, optimiser = self.config.representation_optimiser.step(
            state.representation, gradient, state.optimiser, hyper.representation_lr
        )
        # The dual variable grows while steps are too long: log(dual) descends log(dual) * left.
        log_dual, dual_optimiser = Optimiser().step(state.dual, left, state.dual_optimiser, hyper.dual_lr)
        state = state._replace(
            representation=representation, optimiser=optimiser, dual=log_dual, dual_optimiser=dual_optimiser
        )
        return state, {"progress": progress, "squared_step": squared, "dual": dual}

    def phi(self, state: METRAState, representation: Params, descriptor: Array) -> Array:
        """Returns the representation [..., size] of descriptors [..., D]."""
        return apply(self.representation, representation, normalise(state.statistics.descriptors, descriptor))

    def step_of(self, state: METRAState, representation: Params, data: Moves) -> Array:
        """Returns phi(d') - phi(d) of transitions, [rows, size]."""
        return self.phi(state, representation, data.after) - self.phi(state, representation, data.before)

    def progress(self, step: Array, skill: Array) -> Array:
        """Returns the skill reward (phi' - phi) . z, [rows]; of a discrete skill (z - 1/K) K/(K-1) stands for z."""
        skills = self.config.skills
        if skills.discrete:
            skill = (skill - 1.0 / skills.number) * (skills.number / (skills.number - 1.0))
        return jnp.sum(step * skill, axis=-1)

    def show_skills(self) -> Array:
        """Returns skills [S, K] that represent all skills."""
        return self.config.skills.show()

    def memory_for(self, skill: Array) -> SkillMemory:
        """Returns the memory at the first step of an episode with a given skill [K]."""
        return self.skill_sac.memory_for(skill)

    def skill_reward(
        self, state: METRAState, hyper: METRAHyper, memory: SkillMemory, obs: Obs, next_obs: Obs, key: Key
    ) -> Array:
        """Returns the intrinsic reward of steps [rows]: their progress."""
        data = greedy_moves(self.skill_sac.view, memory.skill, obs, next_obs)
        return self.progress(self.step_of(state, state.representation, data), data.skill)

    def measure(self, state: METRAState, hyper: METRAHyper, paths: Paths, key: Key) -> Metrics:
        """Measures the progress of skills, whether the constraint holds, and the coverage.

        Returns:
            `progress`: the mean skill reward. `squared_step`: the mean squared length of a step, at most about 1.
            `dependency`: the progress over the root mean square of the steps, or over 1 if that is less; so that a
            representation that breaks the constraint does not count more. `accuracy` of discrete skills: how often a
            step goes farthest in the direction of its skill.
        """
        data = moves(self.skill_sac.view, steps_of(paths))
        step = self.step_of(state, state.representation, data)
        progress = mean_valid(self.progress(step, data.skill), data.valid)
        squared = mean_valid(jnp.sum(step**2, axis=-1), data.valid)
        found = {
            "progress": progress,
            "squared_step": squared,
            "dependency": progress / jnp.sqrt(jnp.maximum(squared, 1.0)),
        }
        if self.config.skills.discrete:
            right = jnp.argmax(step, axis=-1) == jnp.argmax(data.skill, axis=-1)
            found["accuracy"] = mean_valid(right.astype(jnp.float32), data.valid)
        return found | coverage(paths, self.spec)

    def skill_for(self, state: METRAState, where: Array, goal: Array) -> Array:
        """Returns the skill [K] for a goal: the direction, or the argmax, of phi(g) - phi(d)."""
        way = self.phi(state, state.representation, goal) - self.phi(state, state.representation, where)
        skills = self.config.skills
        return jax.nn.one_hot(jnp.argmax(way), skills.number) if skills.discrete else direction(way)

    def _reward(self, state: METRAState, hyper: METRAHyper, step: Step) -> Array:
        data = moves(self.skill_sac.view, step)
        progress = self.progress(self.step_of(state, state.representation, data), data.skill)
        return self.skill_sac.reward(state.statistics.finished, step, progress, hyper.smerl_scale)
