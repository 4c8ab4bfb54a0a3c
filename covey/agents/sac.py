"""SAC: soft actor-critic with a learnt temperature (Haarnoja et al., 2018, arXiv 1812.05905)."""

from dataclasses import dataclass, field
from typing import NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax

from covey.agent import Decision, SamplePlan
from covey.errors import require
from covey.hyper.range import Range
from covey.nn.critics import Critics, CriticState, Ensemble
from covey.nn.distributions import TanhNormal
from covey.nn.networks import apply, init
from covey.nn.normalise import Normalise, Statistics
from covey.nn.optim import Optimiser
from covey.nn.parts import Networks
from covey.nn.returns import Transition, mean_valid, n_step
from covey.types import Array, EnvSpec, Key, Metrics, Mode, Params, Scalar, Step


@dataclass(frozen=True)
class SACConfig:
    """What never changes in a run."""

    networks: Networks = field(default_factory=lambda: Networks(actor_head="tanh_normal"))
    """The networks: torsos, encoder, heads."""
    critics: Critics = field(default_factory=Critics)
    """The ensemble of critics."""
    optimiser: Optimiser = field(default_factory=Optimiser)
    """The optimiser of the actor and the critics."""
    normalise: Normalise = field(default_factory=Normalise)
    """Running normalisation of observations and rewards."""
    batch_size: int = 256
    """Transitions per update."""
    policy_delay: int = 1
    """Critic updates per update of the actor and the temperature."""
    n_step: int = 1
    """Steps of reward before the bootstrap."""
    fixed_temperature: bool = False
    """Keep the temperature at --hyper.temperature instead of learning it."""

    def __post_init__(self) -> None:
        for name in ("batch_size", "policy_delay", "n_step"):
            value = getattr(self, name)
            require(value >= 1, f"--agent.{name.replace('_', '-')} must be at least 1, not {value}.")


class SACHyper(NamedTuple):
    """What tuning may change at any time."""

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
    """What learning changes. `temperature` is the logarithm of what learning made of --hyper.temperature."""

    actor: Params
    critic: CriticState
    temperature: Array
    actor_optimiser: optax.OptState
    temperature_optimiser: optax.OptState
    statistics: Statistics


@dataclass(frozen=True)
class SAC:
    """The agent. `update` makes `policy_delay` critic updates and one of the actor and the temperature."""

    config: SACConfig
    spec: EnvSpec

    @property
    def plan(self) -> SamplePlan:
        delay = self.config.policy_delay
        return SamplePlan(self.config.batch_size * delay, self.config.n_step, delay)

    @property
    def actor(self) -> nn.Module:
        return self.config.networks.actor_module(self.spec)

    @property
    def critics(self) -> Ensemble:
        return Ensemble(self.config.critics, self.config.networks, self.config.optimiser)

    def init(self, hyper: SACHyper, key: Key) -> SACState:
        key_critic, key_actor = jax.random.split(key)
        critic = self.critics.init(self.spec, key_critic)
        features = self.critics.features(critic.online, jnp.zeros(self.spec.obs_size))
        actor = init(self.actor, key_actor, features)
        require(
            isinstance(jax.eval_shape(lambda: apply(self.actor, actor, features)), TanhNormal),
            f"The actor head {self.config.networks.actor_head!r} gives no distribution. SAC needs one, as "
            "tanh_normal is.",
        )
        temperature = jnp.zeros(())
        return SACState(
            actor=actor,
            critic=critic,
            temperature=temperature,
            actor_optimiser=self.config.optimiser.init(actor),
            temperature_optimiser=Optimiser().init(temperature),
            statistics=self.config.normalise.init(self.spec.obs_size),
        )

    def begin(self, state: SACState, hyper: SACHyper, key: Key) -> tuple[()]:
        return ()

    def act(self, state: SACState, hyper: SACHyper, memory: tuple[()], obs: Array, key: Key, mode: Mode) -> Decision:
        if mode == "random":
            return Decision(jax.random.uniform(key, (self.spec.action_size,), minval=-1.0, maxval=1.0), memory, {})
        policy = self.policy(state, self.config.normalise.obs(state.statistics, obs))
        noise = jax.random.normal(key, policy.mean.shape)
        return Decision(policy.sample(noise)[0] if mode == "sample" else policy.mode(), memory, {})

    def observe(self, state: SACState, hyper: SACHyper, rollout: Step, key: Key) -> SACState:
        return state._replace(statistics=self.config.normalise.observe(state.statistics, rollout, hyper.discount))

    def policy(self, state: SACState, obs: Array) -> TanhNormal:
        """pi(. | s) of normalised observations."""
        return apply(self.actor, state.actor, self.critics.features(state.critic.online, obs))

    def temperature(self, state: SACState, hyper: SACHyper) -> Array:
        """alpha."""
        return hyper.temperature * jnp.exp(state.temperature)

    def update(self, state: SACState, hyper: SACHyper, batch: Step, key: Key) -> tuple[SACState, Metrics]:
        batch = self.config.normalise.batch(state.statistics, batch, hyper.reward_scale)
        data = n_step(batch, hyper.discount)
        size, delay = self.config.batch_size, self.config.policy_delay
        key_noise, key_actor, *keys = jax.random.split(key, 2 + delay)
        noise = jax.random.normal(key_noise, ((delay + 1) * size, self.spec.action_size))
        # The actor rests while the critics learn, so one large product serves all of their updates. (What a shared
        # encoder learns meanwhile, the next block sees.)
        next_action, log_prob = self.policy(state, data.next_obs).sample(noise[size:])
        entropy_bonus = -self.temperature(state, hyper) * log_prob
        data = data._replace(reward=data.reward + data.discount * entropy_bonus)
        critic, part, metrics = state.critic, data, {}
        for i, key_critic in enumerate(keys):
            rows = slice(i * size, (i + 1) * size)
            part = jax.tree.map(lambda x, rows=rows: x[rows], data)
            critic, metrics = self.critics.update(critic, part, next_action[rows], hyper.critic_lr, key_critic)
            critic = self.critics.update_targets(critic, hyper.tau)
        state, actor_metrics = self._update_actor(state._replace(critic=critic), hyper, part, noise[:size], key_actor)
        return state, metrics | actor_metrics

    def _update_actor(
        self, state: SACState, hyper: SACHyper, data: Transition, noise: Array, key: Key
    ) -> tuple[SACState, Metrics]:
        """Both losses from one pass: mean[alpha log pi - Q(s, a~)], and mean[log alpha sg(-log pi - target)]."""
        temperature = self.temperature(state, hyper)
        features = self.critics.features(state.critic.online, data.obs)

        def loss(actor: Params) -> tuple[Array, Array]:
            action, log_prob = apply(self.actor, actor, features).sample(noise)
            value = self.critics.actor_objective(state.critic, features, action, key)
            return mean_valid(temperature * log_prob - value, data.valid), log_prob

        (value, log_prob), gradient = jax.value_and_grad(loss, has_aux=True)(state.actor)
        actor, optimiser = self.config.optimiser.step(state.actor, gradient, state.actor_optimiser, hyper.actor_lr)
        state = state._replace(actor=actor, actor_optimiser=optimiser)
        if not self.config.fixed_temperature:
            slope = mean_valid(-log_prob - hyper.target_entropy * self.spec.action_size, data.valid)
            logarithm, optimiser = Optimiser().step(
                state.temperature, slope, state.temperature_optimiser, hyper.temperature_lr
            )
            state = state._replace(temperature=logarithm, temperature_optimiser=optimiser)
        entropy = -mean_valid(log_prob, data.valid)
        return state, {"actor_loss": value, "entropy": entropy, "temperature": temperature}
