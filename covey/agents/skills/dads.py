"""DADS: dynamics-aware discovery of skills (Sharma et al., 2019, arXiv 1907.01657; off-policy, 2020, arXiv 2004.12974).

Skills are rewarded for leading where a model of their dynamics, and of no other skill's, said that they would. That
model then serves to plan with them: planner.py.
"""

from dataclasses import dataclass, field
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax

from covey.agent import Decision, SamplePlan
from covey.agents.sac import SAC_SPACE, SACConfig, SACHyper, SACState
from covey.agents.skills.contract import Paths
from covey.agents.skills.prior import Moves, Skills, coverage, moves, steps_of
from covey.agents.skills.skill_sac import Finished, SkillMemory, SkillSAC
from covey.errors import require
from covey.hyper.range import Range
from covey.nn.mixture import Mixture, MixtureNetwork
from covey.nn.networks import apply, init
from covey.nn.normalise import RunningStats, deviation, init_stats, normalise, update_stats
from covey.nn.optim import Optimiser
from covey.nn.parts import Torso
from covey.nn.returns import mean_valid
from covey.types import Array, EnvSpec, Key, Metrics, Mode, Params, Scalar, Step

STD_LIMITS = (0.3, 10.0)
"""Of learnt deviations, in units of the deviation of all changes."""
MOST_RATIO = 50.0
"""Where a log-ratio of likelihoods is clipped."""
HORIZON = 10
"""Steps of the longer prediction that is measured."""


@dataclass(frozen=True)
class DADSConfig:
    """What never changes in a run."""

    sac: SACConfig = field(default_factory=SACConfig)
    """The SAC that follows the skills."""
    skills: Skills = field(default_factory=lambda: Skills(kind="continuous"))
    """The prior of skills, and what they are to differ in."""
    dynamics: Torso = field(default_factory=Torso)
    """The torso of the skill dynamics."""
    components: int = 4
    """Normal distributions in their mixture."""
    learn_variance: bool = False
    """Learn the deviations, between 0.3 and 10, instead of 1."""
    omit: int = -1
    """Leading coordinates of the descriptor that the dynamics don't see; -1 means those of a position."""
    samples: int = 100
    """Skills of the prior that a continuous one is compared with."""
    dynamics_every: int = 1
    """Updates of SAC for each of the dynamics."""
    correction: float = 0.0
    """Off-policy correction: the likelihood of a transition is weighted by how much likelier its action has become,
    between 1 over this and this; 10 is usual, 0 means none."""

    def __post_init__(self) -> None:
        for name in ("components", "samples", "dynamics_every"):
            value = getattr(self, name)
            require(value >= 1, f"--agent.{name.replace('_', '-')} must be at least 1, not {value}.")
        require(self.omit >= -1, f"--agent.omit must be a number of coordinates, or -1, not {self.omit}.")
        require(
            self.correction == 0 or self.correction >= 1,
            f"--agent.correction must be 0, or at least 1, not {self.correction:g}.",
        )


class DADSHyper(NamedTuple):
    """What tuning may change at any time."""

    sac: SACHyper = SACHyper()
    dynamics_lr: Scalar = 3e-4
    smerl_scale: Scalar = 1.0


DADS_SPACE = {f"sac.{name}": space for name, space in SAC_SPACE.items()} | {
    "dynamics_lr": Range(1e-5, 3e-3),
    "smerl_scale": Range(0.1, 10.0, searched=False),
}


class DADSStatistics(NamedTuple):
    """What is known of the data: descriptors and their changes over valid transitions, and finished episodes."""

    descriptors: RunningStats
    changes: RunningStats
    finished: Finished


class DADSState(NamedTuple):
    """What learning changes."""

    sac: SACState
    dynamics: Params
    optimiser: optax.OptState
    statistics: DADSStatistics


@dataclass(frozen=True)
class DADS:
    """The agent. `update` makes one update of the dynamics, then `dynamics_every` of SAC with the rewards they give."""

    config: DADSConfig
    spec: EnvSpec

    def __post_init__(self) -> None:
        size = len(self.skill_sac.view.descriptor)  # raises where there is no such descriptor
        require(self.config.omit <= size, f"--agent.omit {self.config.omit} is more than the descriptor's {size}.")

    @property
    def skill_sac(self) -> SkillSAC:
        return SkillSAC(self.config.sac, self.config.skills, self.spec)

    @property
    def plan(self) -> SamplePlan:
        batch_size, window, updates = self.skill_sac.sac.plan
        every = self.config.dynamics_every
        return SamplePlan(batch_size * every, window, updates * every)

    @property
    def inputs(self) -> tuple[int, ...]:
        """The coordinates of the descriptor that the dynamics see."""
        position, omit = self.skill_sac.view.position, self.config.omit
        return tuple(i for i, p in enumerate(position) if (not p if omit < 0 else i >= omit))

    @property
    def dynamics(self) -> MixtureNetwork:
        std = 0.0 if self.config.learn_variance else 1.0
        size = len(self.skill_sac.view.descriptor)
        return MixtureNetwork(self.config.dynamics.module(), size, self.config.components, std, STD_LIMITS)

    def init(self, hyper: DADSHyper, key: Key) -> DADSState:
        key_sac, key_dynamics = jax.random.split(key)
        size = len(self.skill_sac.view.descriptor)
        dynamics = init(self.dynamics, key_dynamics, jnp.zeros(len(self.inputs) + self.config.skills.size))
        return DADSState(
            sac=self.skill_sac.sac.init(hyper.sac, key_sac),
            dynamics=dynamics,
            optimiser=Optimiser().init(dynamics),
            statistics=DADSStatistics(init_stats(size), init_stats(size), self.skill_sac.no_episodes()),
        )

    def begin(self, state: DADSState, hyper: DADSHyper, key: Key) -> SkillMemory:
        return self.skill_sac.begin(key)

    def act(
        self, state: DADSState, hyper: DADSHyper, memory: SkillMemory, obs: Array, key: Key, mode: Mode
    ) -> Decision:
        decision = self.skill_sac.act(state.sac, hyper.sac, memory, obs, key, mode)
        if not self.config.correction:
            return decision
        if mode == "random":
            log_prob = jnp.full(1, -self.spec.action_size * jnp.log(2.0))
        else:
            log_prob = self._log_prob(state, obs, decision.extras["skill"], decision.action)[None]
        return decision._replace(extras=decision.extras | {"log_prob": log_prob})

    def observe(self, state: DADSState, hyper: DADSHyper, rollout: Step, key: Key) -> DADSState:
        key_reward, key_sac = jax.random.split(key)
        data = moves(self.skill_sac.view, rollout)
        statistics = DADSStatistics(
            descriptors=update_stats(state.statistics.descriptors, data.before, data.valid),
            changes=update_stats(state.statistics.changes, data.after - data.before, data.valid),
            finished=self.skill_sac.finish(state.statistics.finished, rollout),
        )
        state, reward = state._replace(statistics=statistics), rollout.reward
        if self.config.sac.normalise.rewards:
            reward, _ = self._reward(state, hyper, rollout, key_reward)
        sac_view = self.skill_sac.as_seen_by_sac(rollout, reward)
        return state._replace(sac=self.skill_sac.sac.observe(state.sac, hyper.sac, sac_view, key_sac))

    def update(self, state: DADSState, hyper: DADSHyper, batch: Step, key: Key) -> tuple[DADSState, Metrics]:
        key_reward, key_sac = jax.random.split(key)
        state, metrics = self._update_dynamics(state, hyper, batch)
        reward, metrics["information"] = self._reward(state, hyper, batch, key_reward)
        rewarded, every = self.skill_sac.as_seen_by_sac(batch, reward), self.config.dynamics_every

        def learn(sac: SACState, x: tuple[Step, Key]) -> tuple[SACState, Metrics]:
            return self.skill_sac.sac.update(sac, hyper.sac, *x)

        parts = jax.tree.map(lambda x: x.reshape(every, -1, *x.shape[1:]), rewarded)
        sac, sac_metrics = jax.lax.scan(learn, state.sac, (parts, jax.random.split(key_sac, every)))
        return state._replace(sac=sac), metrics | jax.tree.map(jnp.mean, sac_metrics)

    def information(self, state: DADSState, data: Moves, key: Key) -> tuple[Array, Array]:
        """log L - log sum_i exp(clip(log q(z_i) - log q(z))) [rows], and whether z is the likeliest of discrete skills.

        z_i are all discrete skills, so that it is exact; or draws of the prior, and the skill itself.
        """
        skills = self.config.skills
        others = jnp.eye(skills.number) if skills.discrete else skills.draw(key, self.config.samples)
        # Where the dynamics see the skill alone, one row of them serves for all.
        where = data.before[None] if self.inputs else data.before[None, :1]
        shape = (len(others), where.shape[1])
        skill = jnp.broadcast_to(others[:, None], (*shape, skills.size))
        change = normalise(state.statistics.changes, data.after - data.before)
        own = self._mixture(state, state.dynamics, data.before, data.skill).log_prob(change)
        mixture = self._mixture(state, state.dynamics, jnp.broadcast_to(where, (*shape, where.shape[-1])), skill)
        other = mixture.log_prob(change[None])
        ratio = jnp.clip(other - own[None], -MOST_RATIO, MOST_RATIO)
        if skills.discrete:
            # Not `ratio <= 0`: `own` is another product, which may round to less than the same number in `other`.
            right = jnp.argmax(other, axis=0) == jnp.argmax(data.skill, axis=-1)
        else:
            right = jnp.zeros_like(own)
            ratio = jnp.concatenate([ratio, right[None]])
        return jnp.log(float(len(ratio))) - jax.nn.logsumexp(ratio, axis=0), right.astype(jnp.float32)

    def predict(self, state: DADSState, descriptor: Array, skill: Array, key: Key | None = None) -> Array:
        """The next descriptor [..., D]: its mean, or with a key a draw."""
        mixture = self._mixture(state, state.dynamics, descriptor, skill)
        change = mixture.expected() if key is None else mixture.sample(key)
        shape = (1,) * (descriptor.ndim - 1) + (-1,)
        scale, mean = deviation(state.statistics.changes).reshape(shape), state.statistics.changes.mean.reshape(shape)
        return descriptor + mean + scale * change

    def show_skills(self) -> Array:
        return self.config.skills.show()

    def memory_for(self, skill: Array) -> SkillMemory:
        return self.skill_sac.memory_for(skill)

    def measure(self, state: DADSState, hyper: DADSHyper, paths: Paths, key: Key) -> Metrics:
        data = moves(self.skill_sac.view, steps_of(paths))
        information, right = self.information(state, data, key)
        change = normalise(state.statistics.changes, data.after - data.before)
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
        """The mean prediction over some steps: its root mean squared error, the share of the displacement explained."""
        horizon = min(horizon, paths.valid.shape[-1])
        where = paths.obs[..., jnp.array(self.skill_sac.view.descriptor)]
        begin, end, valid = where[:, :, :-horizon], where[:, :, horizon:], paths.valid[..., horizon - 1 :]
        skill = jnp.broadcast_to(paths.skills[:, None, None], (*begin.shape[:3], paths.skills.shape[-1]))
        found = jax.lax.fori_loop(0, horizon, lambda _, d: self.predict(state, d, skill), begin)
        made, valid = (end - begin).reshape(-1, where.shape[-1]), valid.reshape(-1)
        error = mean_valid(jnp.sum((end - found).reshape(made.shape) ** 2, axis=-1), valid)
        mean = mean_valid(made.T, valid[None])
        variance = mean_valid(jnp.sum((made - mean[None]) ** 2, axis=-1), valid)
        return {f"error_{horizon}": jnp.sqrt(error), f"explained_{horizon}": 1.0 - error / jnp.maximum(variance, 1e-12)}

    def _reward(self, state: DADSState, hyper: DADSHyper, step: Step, key: Key) -> tuple[Array, Array]:
        """The reward of each step, and the mean information in it."""
        data = moves(self.skill_sac.view, step)
        information, _ = self.information(state, data, key)
        reward = self.skill_sac.reward(state.statistics.finished, step, information, hyper.smerl_scale)
        return reward, mean_valid(information, data.valid)

    def _update_dynamics(self, state: DADSState, hyper: DADSHyper, batch: Step) -> tuple[DADSState, Metrics]:
        """Maximum likelihood of the normalised change of the descriptor, weighted by the off-policy correction."""
        data = moves(self.skill_sac.view, batch)
        change = normalise(state.statistics.changes, data.after - data.before)
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
        dynamics, optimiser = Optimiser().step(state.dynamics, gradient, state.optimiser, hyper.dynamics_lr)
        metrics = {"log_likelihood": mean_valid(log_prob, data.valid)}
        if self.config.correction:
            metrics["correction"] = mean_valid(weight, data.valid)
        return state._replace(dynamics=dynamics, optimiser=optimiser), metrics

    def _mixture(self, state: DADSState, dynamics: Params, descriptor: Array, skill: Array) -> Mixture:
        """q(. | d, z) of normalised changes."""
        statistics = normalise(state.statistics.descriptors, descriptor)[..., jnp.array(self.inputs, int)]
        return apply(self.dynamics, dynamics, jnp.concatenate([statistics, skill], axis=-1))

    def _log_prob(self, state: DADSState, obs: Array, skill: Array, action: Array) -> Array:
        """log pi(a | s, z) with the current policy."""
        sac = self.skill_sac.sac
        statistics = sac.config.normalise.obs(state.sac.statistics, self.skill_sac.with_skill(obs, skill))
        return sac.policy(state.sac, statistics).log_prob(action)
