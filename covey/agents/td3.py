"""TD3: twin delayed deep deterministic policy gradient (Fujimoto, van Hoof and Meger, 2018, arXiv 1802.09477)."""

from dataclasses import dataclass, field
from typing import NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax

from covey.agent import Decision, SamplePlan
from covey.errors import require, require_at_least
from covey.hyper.range import Range
from covey.nn.critics import Critics, CriticState, Ensemble
from covey.nn.held_noise import Held, HeldNoise, require_noise_hold
from covey.nn.networks import apply, init
from covey.nn.normalise import Normalise, Statistics
from covey.nn.optim import Optimiser, Optimisers, every, polyak, target_age
from covey.nn.parts import Networks
from covey.nn.returns import Transition, mean_valid, n_step
from covey.nn.smoothness import Smoothness
from covey.observation import Obs
from covey.types import Array, EnvSpec, Key, Metrics, Mode, Params, Scalar, Step


@dataclass(frozen=True)
class TD3Config:
    """Static options of TD3; a new value means a new compiled program.

    Example:
        >>> small = Torso(hidden=(64, 64))
        >>> TD3Config(networks=Networks(actor=small, critic=small), batch_size=64)
    """

    networks: Networks = field(default_factory=Networks)
    """Networks: torsos, encoder, heads."""
    critics: Critics = field(default_factory=Critics)
    """Ensemble of critics."""
    optimisers: Optimisers = field(default_factory=Optimisers)
    """Optimisers of the actor and the critics."""
    normalise: Normalise = field(default_factory=Normalise)
    """Running normalisation of observations and rewards."""
    actor_observations: tuple[str, ...] = ()
    """Parts of the observation that the actor sees; by default all but `privileged`."""
    critic_observations: tuple[str, ...] = ()
    """Parts of the observation that the critics see; by default all."""
    batch_size: int = 256
    """Transitions per critic update."""
    policy_delay: int = 2
    """Critic updates per actor update."""
    n_step: int = 1
    """Steps of reward in a target before it bootstraps."""
    target_every_step: bool = False
    """Update the target critics after every critic update, instead of once per actor update."""
    target_update_period: int = 1
    """Actor updates per update of the target networks."""
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
        require(
            self.target_update_period == 1 or not self.target_every_step,
            f"`target_update_period` {self.target_update_period} and `target_every_step` exclude each other.",
            self,
        )
        require(self.optimisers.temperature == Optimiser(), "TD3 has no temperature (`optimisers.temperature`).", self)
        require(
            not self.networks.actor.has_statistics,
            "TD3's actor can't have batch normalisation (`networks.actor`); its critics can. SAC's actor can as well.",
            self,
        )


class TD3Hyper(NamedTuple):
    """Hyper-parameters of TD3, which a schedule or a search may change at any time.

    Args:
        actor_lr: Learning rate of the actor.
        critic_lr: Learning rate of the critics.
        discount: Discount of one step.
        tau: Share by which the target networks move towards the online networks.
        exploration_noise: Standard deviation of the noise on actions in collection.
        target_noise: Standard deviation of the noise on the target action (target policy smoothing).
        target_noise_clip: Largest absolute value of that noise.
        reward_scale: Factor of the reward.

    Example:
        >>> TD3Hyper(actor_lr=1e-3, exploration_noise=0.3)
    """

    actor_lr: Scalar = 3e-4
    critic_lr: Scalar = 3e-4
    discount: Scalar = 0.99
    tau: Scalar = 0.005
    exploration_noise: Scalar = 0.1
    target_noise: Scalar = 0.2
    target_noise_clip: Scalar = 0.5
    reward_scale: Scalar = 1.0


TD3_SPACE = {
    "actor_lr": Range(1e-5, 3e-3),
    "critic_lr": Range(1e-5, 3e-3),
    "discount": Range(0.9, 0.999, "one_minus", most=1.0),
    "tau": Range(1e-3, 5e-2, most=1.0),
    "exploration_noise": Range(0.02, 0.5),
    "target_noise": Range(0.05, 0.5),
    "target_noise_clip": Range(0.1, 1.0, "linear"),
    "reward_scale": Range(0.1, 10.0, searched=False),
}


class TD3State(NamedTuple):
    """The state of TD3, which `update` and `observe` change.

    Args:
        actor: Parameters of the actor.
        critic: The critics and their targets.
        target_actor: Slowly moving copy of the actor.
        actor_optimiser: State of the actor's optimiser.
        statistics: Running statistics of observations and returns.
        target_age: Actor updates since the targets last moved; () if they move at each.
    """

    actor: Params
    critic: CriticState
    target_actor: Params
    actor_optimiser: optax.OptState
    statistics: Statistics
    target_age: Array | tuple[()]


@dataclass(frozen=True)
class TD3:
    """The TD3 agent: two critics, a delayed actor, and a smoothed target policy.

    One call of `update` makes `policy_delay` critic updates and one actor update. The number is static, so the compiled
    program has no branch.

    Args:
        config: Static options.
        spec: Sizes and limits of the environment.

    Example:
        >>> env = covey.envs.make("pendulum")
        >>> agent = covey.TD3(covey.TD3Config(batch_size=64), env.spec)
        >>> state = agent.init(covey.TD3Hyper(), jax.random.key(0))
        >>> agent.act(state, covey.TD3Hyper(), (), env.spec.observation.zeros(), jax.random.key(1), "greedy").action
    """

    config: TD3Config
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
        """The exploration noise, of standard deviation 1."""
        return HeldNoise(self.spec.action_size, self.config.noise_hold)

    def init(self, hyper: TD3Hyper, key: Key) -> TD3State:
        """Returns a new state. The targets start as copies of the online networks."""
        key_critic, key_actor = jax.random.split(key)
        critic = self.critics.init(key_critic)
        features = self.critics.features(critic.online, self.spec.observation.zeros())
        actor = self.config.optimisers.actor.project(init(self.actor, key_actor, features))
        action = jax.eval_shape(lambda: apply(self.actor, actor, features))
        require(
            getattr(action, "shape", None) == (self.spec.action_size,),
            f"The actor head {self.config.networks.actor_head!r} returns no action. TD3 needs one, as tanh does.",
        )
        return TD3State(
            actor=actor,
            critic=critic,
            target_actor=actor,
            actor_optimiser=self.config.optimisers.actor.init(actor),
            statistics=self.config.normalise.init(self.spec.observation),
            target_age=target_age(self.config.target_update_period),
        )

    def begin(self, state: TD3State, hyper: TD3Hyper, key: Key) -> Held:
        """Returns the memory of held noise; () without `noise_hold`."""
        return self.noise.begin()

    def act(self, state: TD3State, hyper: TD3Hyper, memory: Held, obs: Obs, key: Key, mode: Mode) -> Decision:
        """Decides at one observation: a uniform, noisy or deterministic action."""
        if mode == "random":
            return Decision(jax.random.uniform(key, (self.spec.action_size,), minval=-1.0, maxval=1.0), memory, {})
        action = self.policy(state, self.config.normalise.obs(state.statistics, obs))
        if mode == "sample":
            noise, memory = self.noise.draw(memory, key)
            action = jnp.clip(action + hyper.exploration_noise * noise, -1.0, 1.0)
        return Decision(action, memory, {})

    def q_values(
        self, state: TD3State, hyper: TD3Hyper, memory: Held, obs: Obs, action: Array, target: bool = False
    ) -> Array:
        """Returns Q_j(s, a) of every critic, [critics], for one observation and action."""
        obs = self.config.normalise.obs(state.statistics, obs)
        return self.critics.q_values(state.critic, obs, action, target)

    def observe(self, state: TD3State, hyper: TD3Hyper, rollout: Step, key: Key) -> TD3State:
        """Updates the running statistics with fresh data [T, N]."""
        return state._replace(statistics=self.config.normalise.observe(state.statistics, rollout, hyper.discount))

    def policy(self, state: TD3State, obs: Obs) -> Array:
        """Returns pi(s) for normalised observations [...]."""
        return apply(self.actor, state.actor, self.critics.features(state.critic.online, obs))

    def update(self, state: TD3State, hyper: TD3Hyper, batch: Step, key: Key) -> tuple[TD3State, Metrics]:
        """Makes `policy_delay` critic updates and one actor update."""
        batch = self.config.networks.augmented(batch, self.spec, key)
        batch = self.config.normalise.batch(state.statistics, batch, hyper.reward_scale)
        age, tau = every(self.config.target_update_period, state.target_age, hyper.tau)
        hyper = hyper._replace(tau=tau)
        data = n_step(batch, hyper.discount)
        key_noise, key_target, key_actor, *keys = jax.random.split(key, 3 + self.config.policy_delay)
        noise = jax.random.normal(key_noise, data.action.shape)
        next_action = self.target_action(state, hyper, data.next_obs, noise)
        # The targets do not move during these updates, so one large matrix product computes all of them.
        together = self.critics.has_targets and not self.config.target_every_step
        target = self.critics.target(state.critic, data, next_action, key_target) if together else None
        critic = state.critic
        part = data
        metrics = {}
        for i, key_critic in enumerate(keys):
            rows = slice(i * self.config.batch_size, (i + 1) * self.config.batch_size)
            part = jax.tree.map(lambda x, rows=rows: x[rows], data)
            y = None if target is None else target[rows]
            critic, metrics = self.critics.update(critic, part, next_action[rows], hyper.critic_lr, key_critic, y)
            if self.config.target_every_step:
                critic = self.critics.update_targets(critic, hyper.tau)
        if not self.config.target_every_step:
            critic = self.critics.update_targets(critic, hyper.tau)
        state, actor_metrics = self.update_actor(state._replace(critic=critic, target_age=age), hyper, part, key_actor)
        return state, metrics | actor_metrics

    def target_action(self, state: TD3State, hyper: TD3Hyper, next_obs: Obs, noise: Array) -> Array:
        """Returns clip(pi_bar(s') + clip(sigma noise, -c, c), -1, 1), for standard normal noise."""
        params = state.critic.target if self.critics.has_targets else state.critic.online
        clip = hyper.target_noise_clip
        action = apply(self.actor, state.target_actor, self.critics.features(params, next_obs))  # type: ignore[arg-type]
        return jnp.clip(action + jnp.clip(hyper.target_noise * noise, -clip, clip), -1.0, 1.0)

    def update_actor(self, state: TD3State, hyper: TD3Hyper, data: Transition, key: Key) -> tuple[TD3State, Metrics]:
        """Makes one step on the loss -mean Q_1(s, pi(s)) + smoothness, and moves the target actor."""
        features = self.critics.features(state.critic.online, data.obs)

        def loss(actor: Params) -> tuple[Array, Metrics]:
            action = apply(self.actor, actor, features)
            value = self.critics.actor_objective(state.critic, features, action, key, first=True)
            now = state._replace(actor=actor)
            smoothness = self.config.smoothness.loss(lambda obs: self.policy(now, obs), data, key)
            return sum(smoothness.values(), start=-mean_valid(value, data.valid)), smoothness

        (value, metrics), gradient = jax.value_and_grad(loss, has_aux=True)(state.actor)
        actor, optimiser = self.config.optimisers.actor.step(
            state.actor, gradient, state.actor_optimiser, hyper.actor_lr
        )
        target_actor = polyak(state.target_actor, actor, hyper.tau)
        state = state._replace(actor=actor, target_actor=target_actor, actor_optimiser=optimiser)
        return state, {"actor_loss": value} | metrics
