"""TD3: twin delayed deep deterministic policy gradient (Fujimoto, van Hoof and Meger, 2018, arXiv 1802.09477)."""

from dataclasses import dataclass, field
from typing import NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax

from covey.agent import Decision, Range, SamplePlan
from covey.errors import require
from covey.nn.networks import Networks, apply, apply_ensemble, init, init_ensemble
from covey.nn.normalise import RunningStats, init_stats, normalise, update_stats
from covey.nn.optim import adam_init, adam_step, polyak
from covey.nn.returns import Transition, mean_valid, n_step
from covey.types import Array, EnvSpec, Key, Metrics, Mode, Params, Scalar, Step


@dataclass(frozen=True)
class TD3Config:
    """What never changes in a run."""

    networks: Networks = field(default_factory=Networks)
    """The networks: torsos, encoder, heads."""
    num_critics: int = 2
    """Critics in the ensemble; the target is their minimum."""
    batch_size: int = 256
    """Transitions per update."""
    policy_delay: int = 2
    """Critic updates per actor update."""
    n_step: int = 1
    """Steps of reward before the bootstrap."""
    target_every_step: bool = False
    """Move the critics' targets at every update, not only with the actor."""
    normalise_observations: bool = False
    """Running normalisation of observations, part of the policy."""

    def __post_init__(self) -> None:
        for name in ("num_critics", "batch_size", "policy_delay", "n_step"):
            value = getattr(self, name)
            require(value >= 1, f"--agent.{name.replace('_', '-')} must be at least 1, not {value}.")


class TD3Hyper(NamedTuple):
    """What tuning may change at any time."""

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
    "reward_scale": Range(0.1, 10.0),
}


class CriticParams(NamedTuple):
    """The shared encoder (empty without one) and the stacked critics."""

    encoder: Params
    ensemble: Params


class TD3State(NamedTuple):
    """What learning changes."""

    actor: Params
    critic: CriticParams
    target_actor: Params
    target_critic: CriticParams
    actor_optimiser: optax.OptState
    critic_optimiser: optax.OptState
    observations: RunningStats


@dataclass(frozen=True)
class TD3:
    """The agent. `update` makes `policy_delay` critic updates and one actor update, a static pattern."""

    config: TD3Config
    spec: EnvSpec

    @property
    def plan(self) -> SamplePlan:
        delay = self.config.policy_delay
        return SamplePlan(self.config.batch_size * delay, self.config.n_step, delay)

    @property
    def actor(self) -> nn.Module:
        return self.config.networks.actor_module(self.spec)

    @property
    def critic(self) -> nn.Module:
        return self.config.networks.critic_module()

    @property
    def encoder(self) -> nn.Module:
        return self.config.networks.encoder_module()

    def init(self, hyper: TD3Hyper, key: Key) -> TD3State:
        key_encoder, key_actor, key_critic = jax.random.split(key, 3)
        obs, action = jnp.zeros(self.spec.obs_size), jnp.zeros(self.spec.action_size)
        encoder = init(self.encoder, key_encoder, obs)
        features = apply(self.encoder, encoder, obs)
        actor = init(self.actor, key_actor, features)
        critic = CriticParams(
            encoder, init_ensemble(self.critic, self.config.num_critics, key_critic, features, action)
        )
        return TD3State(
            actor=actor,
            critic=critic,
            target_actor=actor,
            target_critic=critic,
            actor_optimiser=adam_init(actor),
            critic_optimiser=adam_init(critic),
            observations=init_stats(self.spec.obs_size),
        )

    def begin(self, state: TD3State, hyper: TD3Hyper, key: Key) -> tuple[()]:
        return ()

    def act(self, state: TD3State, hyper: TD3Hyper, memory: tuple[()], obs: Array, key: Key, mode: Mode) -> Decision:
        if mode == "random":
            return Decision(jax.random.uniform(key, (self.spec.action_size,), minval=-1.0, maxval=1.0), memory, {})
        obs = self._normalised(state, obs)
        action = self._action(state.actor, state.critic.encoder, obs)
        if mode == "sample":
            noise = hyper.exploration_noise * jax.random.normal(key, action.shape)
            action = jnp.clip(action + noise, -1.0, 1.0)
        return Decision(action, memory, {})

    def observe(self, state: TD3State, hyper: TD3Hyper, rollout: Step, key: Key) -> TD3State:
        """Every record holds an observation of its own, so each is counted once, final ones included."""
        if not self.config.normalise_observations:
            return state
        everything = jnp.ones(rollout.reward.shape)
        return state._replace(observations=update_stats(state.observations, rollout.obs, everything))

    def update(self, state: TD3State, hyper: TD3Hyper, batch: Step, key: Key) -> tuple[TD3State, Metrics]:
        batch = batch._replace(
            obs=self._normalised(state, batch.obs),
            next_obs=self._normalised(state, batch.next_obs),
            reward=hyper.reward_scale * batch.reward,
        )
        data = n_step(batch, hyper.discount)
        noise = jax.random.normal(key, data.action.shape)
        # The targets rest within a block of updates, so one large product serves all of them.
        target = self._target(state, hyper, data, noise)
        part, metrics = data, {}
        for i in range(self.config.policy_delay):
            rows = slice(i * self.config.batch_size, (i + 1) * self.config.batch_size)
            part = jax.tree.map(lambda x, rows=rows: x[rows], data)
            goal = target[rows]
            if self.config.target_every_step and i > 0:
                goal = self._target(state, hyper, part, noise[rows])
            state, metrics = self._update_critic(state, hyper, part, goal)
            if self.config.target_every_step:
                state = state._replace(target_critic=polyak(state.target_critic, state.critic, hyper.tau))
        state, actor_metrics = self._update_actor(state, hyper, part)
        state = state._replace(target_actor=polyak(state.target_actor, state.actor, hyper.tau))
        if not self.config.target_every_step:
            state = state._replace(target_critic=polyak(state.target_critic, state.critic, hyper.tau))
        return state, metrics | actor_metrics

    def _target(self, state: TD3State, hyper: TD3Hyper, data: Transition, noise: Array) -> Array:
        """y = r + discount min_j Qbar_j(s', clip(pi_bar(s') + clip(sigma noise, -c, c), -1, 1))."""
        clip = hyper.target_noise_clip
        noise = jnp.clip(hyper.target_noise * noise, -clip, clip)
        next_action = self._action(state.target_actor, state.target_critic.encoder, data.next_obs)
        next_action = jnp.clip(next_action + noise, -1.0, 1.0)
        value = jnp.min(self._values(state.target_critic, data.next_obs, next_action), axis=0)
        return data.reward + data.discount * value

    def _update_critic(
        self, state: TD3State, hyper: TD3Hyper, data: Transition, target: Array
    ) -> tuple[TD3State, Metrics]:
        def loss(critic: CriticParams) -> tuple[Array, Array]:
            values = self._values(critic, data.obs, data.action)
            return jnp.sum(mean_valid((values - target[None]) ** 2, data.valid[None])), values

        (value, values), gradient = jax.value_and_grad(loss, has_aux=True)(state.critic)
        critic, optimiser = adam_step(state.critic, gradient, state.critic_optimiser, hyper.critic_lr)
        metrics = {"critic_loss": value, "q_mean": mean_valid(values[0], data.valid)}
        return state._replace(critic=critic, critic_optimiser=optimiser), metrics

    def _update_actor(self, state: TD3State, hyper: TD3Hyper, data: Transition) -> tuple[TD3State, Metrics]:
        first = jax.tree.map(lambda x: x[:1], state.critic.ensemble)
        features = apply(self.encoder, state.critic.encoder, data.obs)

        def loss(actor: Params) -> Array:
            action = apply(self.actor, actor, features)
            return -mean_valid(apply_ensemble(self.critic, first, features, action)[0], data.valid)

        value, gradient = jax.value_and_grad(loss)(state.actor)
        actor, optimiser = adam_step(state.actor, gradient, state.actor_optimiser, hyper.actor_lr)
        return state._replace(actor=actor, actor_optimiser=optimiser), {"actor_loss": value}

    def _action(self, actor: Params, encoder: Params, obs: Array) -> Array:
        return apply(self.actor, actor, apply(self.encoder, encoder, obs))

    def _values(self, critic: CriticParams, obs: Array, action: Array) -> Array:
        """Q_j(s, a) of every critic, [num_critics, ...]."""
        return apply_ensemble(self.critic, critic.ensemble, apply(self.encoder, critic.encoder, obs), action)

    def _normalised(self, state: TD3State, obs: Array) -> Array:
        return normalise(state.observations, obs) if self.config.normalise_observations else obs
