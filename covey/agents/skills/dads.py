"""DADS: dynamics-aware discovery of skills (Sharma et al., 2019, arXiv 1907.01657; off-policy, 2020, arXiv 2004.12974).

The reward of a skill is how much better a model of its dynamics predicts the next state than the same model with other
skills. The planner (planner.py) uses this model to reach goals.
"""

from dataclasses import dataclass, field
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax

from covey.agent import Decision, SamplePlan
from covey.agents.sac import SAC_SPACE, SACConfig, SACHyper, SACState
from covey.agents.skills.contract import Paths
from covey.agents.skills.prior import Moves, Skills, coverage, greedy_moves, moves, steps_of
from covey.agents.skills.skill_sac import Finished, SkillMemory, SkillSAC, require_one_skill_per_return
from covey.errors import require, require_at_least
from covey.hyper.range import Range
from covey.nn.diagnostics import mean_and_std
from covey.nn.mixture import Mixture, MixtureNetwork
from covey.nn.networks import apply, init
from covey.nn.normalise import RunningStats, deviation, init_stats, normalise, update_stats
from covey.nn.optim import Optimiser
from covey.nn.parts import Torso
from covey.nn.returns import mean_valid
from covey.types import Array, EnvSpec, Key, Metrics, Mode, Obs, Params, Scalar, Step

STD_LIMITS = (0.3, 10.0)
"""Limits of learnt standard deviations, in units of the deviation of all changes."""
MOST_RATIO = 50.0
"""Log-ratios of likelihoods are clipped to plus or minus this."""
HORIZON = 10
"""Steps of the longer of the two predictions that are measured."""


@dataclass(frozen=True)
class DADSConfig:
    """Static options of DADS; a new value means a new compiled program.

    Example:
        >>> DADSConfig(skills=Skills(kind="continuous", dimensions=3))
    """

    sac: SACConfig = field(default_factory=SACConfig)
    """The SAC that is conditioned on the skill."""
    skills: Skills = field(default_factory=lambda: Skills(kind="continuous"))
    """Prior of skills, and the descriptor in which they should differ."""
    dynamics: Torso = field(default_factory=Torso)
    """Torso of the skill dynamics."""
    dynamics_optimiser: Optimiser = field(default_factory=Optimiser)
    """Optimiser of the skill dynamics."""
    components: int = 4
    """Normal distributions in the mixture of the skill dynamics."""
    learn_variance: bool = False
    """Learn the standard deviations, between 0.3 and 10, instead of fixing them at 1."""
    normalise_targets: bool = True
    """Normalise the changes of the descriptor that the dynamics predict by their running statistics; without it the
    dynamics predict changes in the descriptor's own units, and standard deviations are in these units too."""
    omit: int = -1
    """Leading coordinates of the descriptor that the dynamics do not receive; -1 omits those of a position."""
    samples: int = 100
    """Skills drawn from the prior that a continuous skill is compared with."""
    dynamics_every: int = 1
    """Updates of SAC per update of the dynamics."""
    correction: float = 0.0
    """Off-policy correction: weight the likelihood of a transition by the probability ratio of its action under the new
    and the old policy, clipped between 1 over this and this; 10 is usual, 0 does not correct."""

    def __post_init__(self) -> None:
        require_one_skill_per_return(self)
        require_at_least(self, 1, "components", "samples", "dynamics_every")
        require(self.omit >= -1, f"`omit` must be a number of coordinates, or -1, not {self.omit}.", self)
        require(
            self.correction == 0 or self.correction >= 1,
            f"`correction` must be 0, or at least 1, not {self.correction:g}.",
            self,
        )


class DADSHyper(NamedTuple):
    """Hyper-parameters of DADS, which a schedule or a search may change at any time.

    Args:
        sac: Hyper-parameters of SAC.
        dynamics_lr: Learning rate of the skill dynamics.
        smerl_scale: Factor of the skill reward, if SMERL adds it to the environment's reward.

    Example:
        >>> DADSHyper(sac=SACHyper(target_entropy=-2.0), dynamics_lr=1e-3)
    """

    sac: SACHyper = SACHyper()
    dynamics_lr: Scalar = 3e-4
    smerl_scale: Scalar = 1.0


DADS_SPACE = {f"sac.{name}": space for name, space in SAC_SPACE.items()} | {
    "dynamics_lr": Range(1e-5, 3e-3),
    "smerl_scale": Range(0.1, 10.0, searched=False),
}


class DADSStatistics(NamedTuple):
    """Running statistics of the data.

    Args:
        descriptors: Statistics of the descriptors before a step.
        changes: Statistics of their changes.
        finished: The newest finished episodes.
    """

    descriptors: RunningStats
    changes: RunningStats
    finished: Finished


class DADSState(NamedTuple):
    """The state of DADS, which `update` and `observe` change.

    Args:
        sac: State of the SAC.
        dynamics: Parameters of the skill dynamics.
        optimiser: State of the dynamics' optimiser.
        statistics: Running statistics of the data.
    """

    sac: SACState
    dynamics: Params
    optimiser: optax.OptState
    statistics: DADSStatistics


@dataclass(frozen=True)
class DADS:
    """The DADS agent.

    One call of `update` makes one update of the skill dynamics, then `dynamics_every` updates of SAC with the reward of
    the new dynamics.

    Args:
        config: Static options.
        spec: Sizes and limits of the environment, whose observation must have its descriptor (see `Described`) unless
            skills differ in the observation itself.

    Example:
        >>> env = Described(covey.envs.make("point-free"))
        >>> agent = covey.DADS(covey.DADSConfig(), env.spec)
        >>> trainer = covey.make_trainer(agent, env, covey.DADSHyper())
    """

    config: DADSConfig
    spec: EnvSpec

    def __post_init__(self) -> None:
        size = len(self.skill_sac.view.descriptor)  # raises if the environment has no such descriptor
        require(
            self.config.omit <= size,
            f"`omit` {self.config.omit} is more than the descriptor's {size} coordinates.",
            self.config,
        )

    @property
    def skill_sac(self) -> SkillSAC:
        """The SAC that is conditioned on the skill."""
        return SkillSAC(self.config.sac, self.config.skills, self.spec)

    @property
    def plan(self) -> SamplePlan:
        """The batches of `dynamics_every` updates of SAC."""
        batch_size, window, updates = self.skill_sac.sac.plan
        every = self.config.dynamics_every
        return SamplePlan(batch_size * every, window, updates * every)

    @property
    def inputs(self) -> tuple[int, ...]:
        """The coordinates of the descriptor that the dynamics receive."""
        position = self.skill_sac.view.position
        omit = self.config.omit
        return tuple(i for i, p in enumerate(position) if (not p if omit < 0 else i >= omit))

    @property
    def dynamics(self) -> MixtureNetwork:
        """The flax module: [descriptor, skill] -> mixture of normalised changes of the descriptor."""
        std = 0.0 if self.config.learn_variance else 1.0
        size = len(self.skill_sac.view.descriptor)
        return MixtureNetwork(self.config.dynamics.module(), size, self.config.components, std, STD_LIMITS)

    def init(self, hyper: DADSHyper, key: Key) -> DADSState:
        """Returns a new state."""
        key_sac, key_dynamics = jax.random.split(key)
        size = len(self.skill_sac.view.descriptor)
        dynamics = init(self.dynamics, key_dynamics, jnp.zeros(len(self.inputs) + self.config.skills.size))
        dynamics = self.config.dynamics_optimiser.project(dynamics)
        return DADSState(
            sac=self.skill_sac.sac.init(hyper.sac, key_sac),
            dynamics=dynamics,
            optimiser=self.config.dynamics_optimiser.init(dynamics),
            statistics=DADSStatistics(init_stats(size), init_stats(size), self.skill_sac.no_episodes()),
        )

    def begin(self, state: DADSState, hyper: DADSHyper, key: Key) -> SkillMemory:
        """Draws the skill of a new episode."""
        return self.skill_sac.begin(key)

    def act(self, state: DADSState, hyper: DADSHyper, memory: SkillMemory, obs: Obs, key: Key, mode: Mode) -> Decision:
        """Decides at one observation with the current skill; stores log pi(a | s, z) for the off-policy correction."""
        decision = self.skill_sac.act(state.sac, hyper.sac, memory, obs, key, mode)
        if not self.config.correction:
            return decision
        if mode == "random":
            log_prob = jnp.full(1, -self.spec.action_size * jnp.log(2.0))
        else:
            log_prob = self._log_prob(state, obs, decision.extras["skill"], decision.action)[None]
        return decision._replace(extras=decision.extras | {"log_prob": log_prob})

    def q_values(
        self, state: DADSState, hyper: DADSHyper, memory: SkillMemory, obs: Obs, action: Array, target: bool = False
    ) -> Array:
        """Returns SAC's values of an action with the current skill, [critics]."""
        with_skill = self.skill_sac.with_skill(obs, memory.skill)
        return self.skill_sac.sac.q_values(state.sac, hyper.sac, (), with_skill, action, target)

    def observe(self, state: DADSState, hyper: DADSHyper, rollout: Step, key: Key) -> DADSState:
        """Updates the running statistics with fresh data [T, N]."""
        key_reward, key_sac = jax.random.split(key)
        data = moves(self.skill_sac.view, rollout)
        statistics = DADSStatistics(
            descriptors=update_stats(state.statistics.descriptors, data.before, data.valid),
            changes=update_stats(state.statistics.changes, data.after - data.before, data.valid),
            finished=self.skill_sac.finish(state.statistics.finished, rollout),
        )
        state = state._replace(statistics=statistics)
        reward = rollout.reward
        if self.config.sac.normalise.rewards:
            reward, _ = self._reward(state, hyper, rollout, key_reward)
        sac_view = self.skill_sac.as_seen_by_sac(rollout, reward)
        return state._replace(sac=self.skill_sac.sac.observe(state.sac, hyper.sac, sac_view, key_sac))

    def update(self, state: DADSState, hyper: DADSHyper, batch: Step, key: Key) -> tuple[DADSState, Metrics]:
        """Makes one update of the dynamics, then `dynamics_every` updates of SAC."""
        key_reward, key_sac = jax.random.split(key)
        state, metrics = self.update_dynamics(state, hyper, batch)
        reward, metrics["information"] = self._reward(state, hyper, batch, key_reward)
        rewarded = self.skill_sac.as_seen_by_sac(batch, reward)
        every = self.config.dynamics_every

        def learn(sac: SACState, x: tuple[Step, Key]) -> tuple[SACState, Metrics]:
            return self.skill_sac.sac.update(sac, hyper.sac, *x)

        parts = jax.tree.map(lambda x: x.reshape(every, -1, *x.shape[1:]), rewarded)
        sac, sac_metrics = jax.lax.scan(learn, state.sac, (parts, jax.random.split(key_sac, every)))
        return state._replace(sac=sac), metrics | jax.tree.map(lambda x: jnp.mean(x, axis=0), sac_metrics)

    def information(self, state: DADSState, data: Moves, key: Key) -> tuple[Array, Array]:
        """Returns the skill reward log L - log sum_i exp(clip(log q(d' | d, z_i) - log q(d' | d, z))), [rows].

        The z_i are all L discrete skills, which is exact; or, for continuous skills, draws from the prior and the skill
        itself.

        Returns:
            The reward, and 1 for rows where z is the likeliest of the discrete skills (0 for continuous skills).
        """
        skills = self.config.skills
        others = jnp.eye(skills.number) if skills.discrete else skills.draw(key, self.config.samples)
        # If the dynamics receive no coordinate of the descriptor, their output is the same for all rows: compute one.
        where = data.before[None] if self.inputs else data.before[None, :1]
        shape = (len(others), where.shape[1])
        skill = jnp.broadcast_to(others[:, None], (*shape, skills.size))
        change = self.targets(state, data)
        own = self._mixture(state, state.dynamics, data.before, data.skill).log_prob(change)
        mixture = self._mixture(state, state.dynamics, jnp.broadcast_to(where, (*shape, where.shape[-1])), skill)
        other = mixture.log_prob(change[None])
        ratio = jnp.clip(other - own[None], -MOST_RATIO, MOST_RATIO)
        if skills.discrete:
            # Not `ratio <= 0`: `own` comes from another matrix product and may be rounded differently from `other`.
            right = jnp.argmax(other, axis=0) == jnp.argmax(data.skill, axis=-1)
        else:
            right = jnp.zeros_like(own)
            ratio = jnp.concatenate([ratio, right[None]])
        return jnp.log(float(len(ratio))) - jax.nn.logsumexp(ratio, axis=0), right.astype(jnp.float32)

    def predict(self, state: DADSState, descriptor: Array, skill: Array, key: Key | None = None) -> Array:
        """Predicts the next descriptor [..., D]: its mean, or with a key a draw."""
        mixture = self._mixture(state, state.dynamics, descriptor, skill)
        change = mixture.expected() if key is None else mixture.sample(key)
        if not self.config.normalise_targets:
            return descriptor + change
        shape = (1,) * (descriptor.ndim - 1) + (-1,)
        scale = deviation(state.statistics.changes).reshape(shape)
        mean = state.statistics.changes.mean.reshape(shape)
        return descriptor + mean + scale * change

    def show_skills(self) -> Array:
        """Returns skills [S, K] that represent all skills."""
        return self.config.skills.show()

    def memory_for(self, skill: Array) -> SkillMemory:
        """Returns the memory at the first step of an episode with a given skill [K]."""
        return self.skill_sac.memory_for(skill)

    def skill_reward(
        self, state: DADSState, hyper: DADSHyper, memory: SkillMemory, obs: Obs, next_obs: Obs, key: Key
    ) -> Array:
        """Returns the intrinsic reward of steps [rows]: their information."""
        data = greedy_moves(self.skill_sac.view, memory.skill, obs, next_obs)
        return self.information(state, data, key)[0]

    def measure(self, state: DADSState, hyper: DADSHyper, paths: Paths, key: Key) -> Metrics:
        """Measures the information, the predictions of the dynamics over 1 and HORIZON steps, and the coverage."""
        data = moves(self.skill_sac.view, steps_of(paths))
        information, right = self.information(state, data, key)
        change = self.targets(state, data)
        mixture = self._mixture(state, state.dynamics, data.before, data.skill)
        found = {
            "information": mean_valid(information, data.valid),
            "log_likelihood": mean_valid(mixture.log_prob(change), data.valid),
        }
        if self.config.skills.discrete:
            found["information_share"] = found["information"] / jnp.log(self.config.skills.number)
            found["accuracy"] = mean_valid(right, data.valid)
        return (
            found
            | self._prediction(state, paths, 1)
            | self._prediction(state, paths, HORIZON)
            | coverage(paths, self.spec)
        )

    def _prediction(self, state: DADSState, paths: Paths, horizon: int) -> Metrics:
        """Returns the error of the mean prediction over `horizon` steps, and the share of displacement explained."""
        horizon = min(horizon, paths.valid.shape[-1])
        where = self.skill_sac.view.of(paths.obs)
        begin, end, valid = where[:, :, :-horizon], where[:, :, horizon:], paths.valid[..., horizon - 1 :]
        skill = jnp.broadcast_to(paths.skills[:, None, None], (*begin.shape[:3], paths.skills.shape[-1]))
        found = jax.lax.fori_loop(0, horizon, lambda _, d: self.predict(state, d, skill), begin)
        made, valid = (end - begin).reshape(-1, where.shape[-1]), valid.reshape(-1)
        error = mean_valid(jnp.sum((end - found).reshape(made.shape) ** 2, axis=-1), valid)
        mean = mean_valid(made.T, valid[None])
        variance = mean_valid(jnp.sum((made - mean[None]) ** 2, axis=-1), valid)
        return {f"error_{horizon}": jnp.sqrt(error), f"explained_{horizon}": 1.0 - error / jnp.maximum(variance, 1e-12)}

    def _reward(self, state: DADSState, hyper: DADSHyper, step: Step, key: Key) -> tuple[Array, Array]:
        """Returns the reward of each step, and the mean information."""
        data = moves(self.skill_sac.view, step)
        information, _ = self.information(state, data, key)
        reward = self.skill_sac.reward(state.statistics.finished, step, information, hyper.smerl_scale)
        return reward, mean_valid(information, data.valid)

    def targets(self, state: DADSState, data: Moves) -> Array:
        """Returns the changes of the descriptor [rows, D] that the dynamics learn to predict."""
        change = data.after - data.before
        return normalise(state.statistics.changes, change) if self.config.normalise_targets else change

    def update_dynamics(self, state: DADSState, hyper: DADSHyper, batch: Step) -> tuple[DADSState, Metrics]:
        """Makes one step of maximum likelihood of the descriptor's change, weighted by the off-policy correction."""
        data = moves(self.skill_sac.view, batch)
        change = self.targets(state, data)
        weight = jnp.ones_like(data.valid)
        if self.config.correction:
            now = self._log_prob(state, batch.obs, batch.extras["skill"], batch.action)
            ratio = jnp.exp(now - batch.extras["log_prob"][..., 0]).reshape(-1)
            weight = jnp.where(
                data.valid > 0, jnp.clip(ratio, 1.0 / self.config.correction, self.config.correction), 0.0
            )

        def loss(dynamics: Params) -> tuple[Array, Array]:
            log_prob = self._mixture(state, dynamics, data.before, data.skill).log_prob(change)
            return -mean_valid(weight * log_prob, data.valid), log_prob

        (_, log_prob), gradient = jax.value_and_grad(loss, has_aux=True)(state.dynamics)
        dynamics, optimiser = self.config.dynamics_optimiser.step(
            state.dynamics, gradient, state.optimiser, hyper.dynamics_lr
        )
        mean, std = mean_and_std(change.reshape(-1), jnp.repeat(data.valid, change.shape[-1]))
        metrics = {
            "log_likelihood": mean_valid(log_prob, data.valid),
            "dynamics_target_mean": mean,
            "dynamics_target_std": std,
        }
        if self.config.correction:
            metrics["correction"] = mean_valid(weight, data.valid)
        return state._replace(dynamics=dynamics, optimiser=optimiser), metrics

    def _mixture(self, state: DADSState, dynamics: Params, descriptor: Array, skill: Array) -> Mixture:
        """Returns q(. | d, z) of normalised changes."""
        inputs = normalise(state.statistics.descriptors, descriptor)[..., jnp.array(self.inputs, int)]
        return apply(self.dynamics, dynamics, jnp.concatenate([inputs, skill], axis=-1))

    def _log_prob(self, state: DADSState, obs: Obs, skill: Array, action: Array) -> Array:
        """Returns log pi(a | s, z) under the current policy."""
        sac = self.skill_sac.sac
        inputs = sac.config.normalise.obs(state.sac.statistics, self.skill_sac.with_skill(obs, skill))
        return sac.policy(state.sac, inputs).log_prob(action)
