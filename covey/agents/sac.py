"""SAC: soft actor-critic with a learnt temperature (Haarnoja et al., 2018, arXiv 1812.05905)."""

from dataclasses import dataclass, field
from typing import NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax

from covey.agent import Decision, SamplePlan
from covey.errors import require, require_at_least
from covey.hyper.range import Range
from covey.nn.critics import Critics, CriticState, Ensemble, valid_rows
from covey.nn.diagnostics import observation_metrics
from covey.nn.distributions import TanhNormal
from covey.nn.held_noise import Held, HeldNoise, require_noise_hold
from covey.nn.networks import apply, apply_learning, init_both
from covey.nn.normalise import Normalise, Statistics
from covey.nn.optim import Optimisers, every, target_age
from covey.nn.parts import Networks
from covey.nn.returns import Transition, mean_valid, n_step
from covey.nn.smoothness import Smoothness
from covey.observation import Obs
from covey.types import Array, EnvSpec, Key, Metrics, Mode, Params, Scalar, Step


@dataclass(frozen=True)
class SACConfig:
    """Static options of SAC; a new value means a new compiled program.

    Example:
        >>> SACConfig(batch_size=64, critics=Critics(number=10, subset=2))
    """

    networks: Networks = field(default_factory=lambda: Networks(actor_head="tanh_normal"))
    """Networks: torsos, encoder, heads."""
    critics: Critics = field(default_factory=Critics)
    """Ensemble of critics."""
    optimisers: Optimisers = field(default_factory=Optimisers)
    """Optimisers of the actor, the critics and the temperature."""
    normalise: Normalise = field(default_factory=Normalise)
    """Running normalisation of observations and rewards."""
    actor_observations: tuple[str, ...] = ()
    """Parts of the observation that the actor sees; by default all but `privileged`."""
    critic_observations: tuple[str, ...] = ()
    """Parts of the observation that the critics see; by default all."""
    batch_size: int = 256
    """Transitions per critic update."""
    policy_delay: int = 1
    """Critic updates per update of the actor and the temperature."""
    n_step: int = 1
    """Steps of reward in a target before it bootstraps."""
    fixed_temperature: bool = False
    """Keep the temperature at the hyper-parameter `temperature` instead of learning it."""
    target_update_period: int = 1
    """Critic updates per update of the target critics."""
    noise_hold: int = 1
    """Longest hold of the exploration noise, in steps: a vector is held for n steps with probability ~ n^-2. 1: every
    step has its own."""
    smoothness: Smoothness = field(default_factory=Smoothness)
    """Terms of the actor's loss that keep actions smooth (CAPS)."""
    diagnostics: bool = False
    """Log metrics of each critic as well, with histograms of values, targets and TD errors."""

    def __post_init__(self) -> None:
        require_at_least(self, 1, "batch_size", "policy_delay", "n_step", "target_update_period")
        require_noise_hold(self)


class SACHyper(NamedTuple):
    """Hyper-parameters of SAC, which a schedule or a search may change at any time.

    Args:
        actor_lr: Learning rate of the actor.
        critic_lr: Learning rate of the critics.
        temperature_lr: Learning rate of the temperature.
        discount: Discount of one step.
        tau: Share by which the target critics move towards the online critics.
        temperature: Initial temperature. Learning multiplies it by a factor that starts at 1.
        target_entropy: Target entropy of the policy, per dimension of the action.
        reward_scale: Factor of the reward.

    Example:
        >>> SACHyper(actor_lr=1e-3, discount=0.98)
    """

    actor_lr: Scalar = 3e-4
    critic_lr: Scalar = 3e-4
    temperature_lr: Scalar = 3e-4
    discount: Scalar = 0.99
    tau: Scalar = 0.005
    temperature: Scalar = 1.0
    target_entropy: Scalar = -1.0
    reward_scale: Scalar = 1.0


SAC_SPACE = {
    "actor_lr": Range(1e-5, 3e-3),
    "critic_lr": Range(1e-5, 3e-3),
    "temperature_lr": Range(1e-5, 3e-3),
    "discount": Range(0.9, 0.999, "one_minus", most=1.0),
    "tau": Range(1e-3, 5e-2, most=1.0),
    "temperature": Range(0.01, 10.0, least=1e-6),
    "target_entropy": Range(-2.0, 0.0, "linear", least=-1e6),
    "reward_scale": Range(0.1, 10.0, searched=False),
}


class SACState(NamedTuple):
    """The state of SAC, which `update` and `observe` change.

    Args:
        actor: Parameters of the actor.
        critic: The critics and their targets.
        temperature: Logarithm of the learnt factor of the hyper-parameter `temperature`.
        actor_optimiser: State of the actor's optimiser.
        temperature_optimiser: State of the temperature's optimiser.
        statistics: Running statistics of observations and returns.
        target_age: Critic updates since the targets last moved; () if they move at each.
        actor_statistics: Batch statistics of the actor; {} without batch normalisation.
    """

    actor: Params
    critic: CriticState
    temperature: Array
    actor_optimiser: optax.OptState
    temperature_optimiser: optax.OptState
    statistics: Statistics
    target_age: Array | tuple[()]
    actor_statistics: Params


@dataclass(frozen=True)
class SAC:
    """The SAC agent: a stochastic actor whose entropy is kept near a target by a learnt temperature.

    One call of `update` makes `policy_delay` critic updates, and one update of the actor and the temperature.

    Args:
        config: Static options.
        spec: Sizes and limits of the environment.

    Example:
        >>> env = covey.envs.make("pendulum")
        >>> agent = covey.SAC(covey.SACConfig(batch_size=64), env.spec)
        >>> trainer = covey.make_trainer(agent, env, covey.SACHyper())
    """

    config: SACConfig
    spec: EnvSpec

    @property
    def plan(self) -> SamplePlan:
        """One batch per critic update."""
        delay = self.config.policy_delay
        return SamplePlan(self.config.batch_size * delay, self.config.n_step, delay)

    @property
    def actor(self) -> nn.Module:
        """The flax module of the actor."""
        return self.config.networks.actor_module(self.spec, self.config.actor_observations)

    @property
    def critics(self) -> Ensemble:
        """The ensemble of critics."""
        config = self.config
        optimiser, seen = config.optimisers.critic, config.critic_observations
        return Ensemble(config.critics, config.networks, optimiser, self.spec, seen, config.diagnostics)

    @property
    def noise(self) -> HeldNoise:
        """The exploration noise."""
        return HeldNoise(self.spec.action_size, self.config.noise_hold)

    def init(self, hyper: SACHyper, key: Key) -> SACState:
        """Returns a new state. The target critics start as copies."""
        key_critic, key_actor = jax.random.split(key)
        critic = self.critics.init(key_critic)
        features = self.critics.features(critic.online, self.spec.observation.zeros())
        actor, actor_statistics = init_both(self.actor, key_actor, features)
        actor = self.config.optimisers.actor.project(actor)
        require(
            isinstance(
                jax.eval_shape(lambda: apply(self.actor, actor, features, statistics=actor_statistics)), TanhNormal
            ),
            f"The actor head {self.config.networks.actor_head!r} returns no distribution. SAC needs one, as "
            "tanh_normal does.",
        )
        temperature = jnp.zeros(())
        return SACState(
            actor=actor,
            critic=critic,
            temperature=temperature,
            actor_optimiser=self.config.optimisers.actor.init(actor),
            temperature_optimiser=self.config.optimisers.temperature.init(temperature),
            statistics=self.config.normalise.init(self.spec.observation),
            target_age=target_age(self.config.target_update_period),
            actor_statistics=actor_statistics,
        )

    def begin(self, state: SACState, hyper: SACHyper, key: Key) -> Held:
        """Returns the memory of held noise; () without `noise_hold`."""
        return self.noise.begin()

    def act(self, state: SACState, hyper: SACHyper, memory: Held, obs: Obs, key: Key, mode: Mode) -> Decision:
        """Decides at one observation: a uniform action, a sample of the policy, or its mode."""
        if mode == "random":
            return Decision(jax.random.uniform(key, (self.spec.action_size,), minval=-1.0, maxval=1.0), memory, {})
        policy = self.policy(state, self.config.normalise.obs(state.statistics, obs))
        if mode == "greedy":
            return Decision(policy.mode(), memory, {})
        noise, memory = self.noise.draw(memory, key)
        return Decision(policy.sample(noise)[0], memory, {})

    def q_values(
        self, state: SACState, hyper: SACHyper, memory: Held, obs: Obs, action: Array, target: bool = False
    ) -> Array:
        """Returns Q_j(s, a) of every critic, [critics], for one observation and action."""
        obs = self.config.normalise.obs(state.statistics, obs)
        return self.critics.q_values(state.critic, obs, action, target)

    def observe(self, state: SACState, hyper: SACHyper, rollout: Step, key: Key) -> SACState:
        """Updates the running statistics with fresh data [T, N]."""
        return state._replace(statistics=self.config.normalise.observe(state.statistics, rollout, hyper.discount))

    def policy(self, state: SACState, obs: Obs) -> TanhNormal:
        """Returns pi(. | s) for normalised observations [...]."""
        features = self.critics.features(state.critic.online, obs)
        return apply(self.actor, state.actor, features, statistics=state.actor_statistics)

    def temperature(self, state: SACState, hyper: SACHyper) -> Array:
        """Returns the temperature alpha."""
        return hyper.temperature * jnp.exp(state.temperature)

    def update(self, state: SACState, hyper: SACHyper, batch: Step, key: Key) -> tuple[SACState, Metrics]:
        """Makes `policy_delay` critic updates, and one update of the actor and the temperature."""
        seen = observation_metrics(batch)
        batch = self.config.networks.augmented(batch, self.spec, key)
        batch = self.config.normalise.batch(state.statistics, batch, hyper.reward_scale)
        data = n_step(batch, hyper.discount)
        size = self.config.batch_size
        delay = self.config.policy_delay
        key_noise, key_actor, *keys = jax.random.split(key, 2 + delay)
        noise = jax.random.normal(key_noise, ((delay + 1) * size, self.spec.action_size))
        # The actor does not change while the critics learn, so one large matrix product computes the next actions of
        # all updates. (With a shared encoder, they use its features from before these updates.)
        next_action, log_prob = self.policy(state, data.next_obs).sample(noise[size:])
        # The entropy of the next state enters through the reward: y = r + discount (min_j Q_j - alpha log pi). The
        # critics then need not know about entropy, and its bonus vanishes at a termination, where the discount is 0.
        entropy_bonus = -self.temperature(state, hyper) * log_prob
        data = data._replace(reward=data.reward + data.discount * entropy_bonus)
        critic = state.critic
        age = state.target_age
        part = data
        metrics = {}
        for i, key_critic in enumerate(keys):
            rows = slice(i * size, (i + 1) * size)
            part = jax.tree.map(lambda x, rows=rows: x[rows], data)
            critic, metrics = self.critics.update(critic, part, next_action[rows], hyper.critic_lr, key_critic)
            age, tau = every(self.config.target_update_period, age, hyper.tau)
            critic = self.critics.update_targets(critic, tau)
        state = state._replace(critic=critic, target_age=age)
        state, actor_metrics = self.update_actor(state, hyper, part, noise[:size], key_actor)
        return state, metrics | actor_metrics | seen

    def update_actor(
        self, state: SACState, hyper: SACHyper, data: Transition, noise: Array, key: Key
    ) -> tuple[SACState, Metrics]:
        """Makes one step of the actor on mean[alpha log pi - Q(s, a~)] + smoothness, and one of the temperature.

        The loss of the temperature is mean[log alpha sg(-log pi - target)], from the same pass. Its gradient in
        log alpha is written out as `slope`.
        """
        temperature = self.temperature(state, hyper)
        features = self.critics.features(state.critic.online, data.obs)

        def loss(actor: Params) -> tuple[Array, tuple[Array, Params, Metrics]]:
            policy, statistics = self._learning_policy(state, actor, data, features)
            action, log_prob = policy.sample(noise)
            value = self.critics.actor_objective(state.critic, features, action, key)
            now = state._replace(actor=actor)
            smoothness = self.config.smoothness.loss(lambda obs: self.policy(now, obs).mode(), data, key)
            total = sum(smoothness.values(), start=mean_valid(temperature * log_prob - value, data.valid))
            return total, (log_prob, statistics, smoothness)

        (value, (log_prob, statistics, smoothness)), gradient = jax.value_and_grad(loss, has_aux=True)(state.actor)
        actor, optimiser = self.config.optimisers.actor.step(
            state.actor, gradient, state.actor_optimiser, hyper.actor_lr
        )
        state = state._replace(actor=actor, actor_optimiser=optimiser, actor_statistics=statistics)
        entropy = -mean_valid(log_prob, data.valid)
        metrics = {"actor_loss": value, "entropy": entropy, "temperature": temperature} | smoothness
        if not self.config.fixed_temperature:
            slope = mean_valid(-log_prob - hyper.target_entropy * self.spec.action_size, data.valid)
            logarithm, optimiser = self.config.optimisers.temperature.step(
                state.temperature, slope, state.temperature_optimiser, hyper.temperature_lr
            )
            state = state._replace(temperature=logarithm, temperature_optimiser=optimiser)
            metrics["temperature_loss"] = jnp.log(temperature) * slope
        return state, metrics

    def _learning_policy(
        self, state: SACState, actor: Params, data: Transition, features: Obs
    ) -> tuple[TanhNormal, Params]:
        """Returns pi(. | s), and the new batch statistics of the actor.

        Batch normalisation sees the states and the next states as one batch, because the actor acts in both.
        """
        if not self.config.networks.actor.has_statistics:
            return apply(self.actor, actor, features), state.actor_statistics
        rows = valid_rows(data.valid)
        after = self.critics.features(state.critic.online, data.next_obs)
        both = jax.tree.map(lambda x, y: jnp.concatenate([x[rows], y[rows]]), features, after)
        policy, statistics = apply_learning(self.actor, actor, state.actor_statistics, both)
        return jax.tree.map(lambda x: x[: len(rows)], policy), statistics
