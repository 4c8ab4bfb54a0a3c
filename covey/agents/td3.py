"""TD3: twin delayed deep deterministic policy gradient (Fujimoto, van Hoof and Meger, 2018, arXiv 1802.09477)."""

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
from covey.nn.networks import apply, init
from covey.nn.normalise import Normalise, Statistics
from covey.nn.optim import Optimiser, polyak
from covey.nn.parts import Networks
from covey.nn.returns import Transition, mean_valid, n_step
from covey.types import Array, EnvSpec, Key, Metrics, Mode, Params, Scalar, Step


@dataclass(frozen=True)
class TD3Config:
    """What never changes in a run."""

    networks: Networks = field(default_factory=Networks)
    """The networks: torsos, encoder, heads."""
    critics: Critics = field(default_factory=Critics)
    """The ensemble of critics."""
    optimiser: Optimiser = field(default_factory=Optimiser)
    """The optimiser of the actor and the critics."""
    normalise: Normalise = field(default_factory=Normalise)
    """Running normalisation of observations and rewards."""
    batch_size: int = 256
    """Transitions per update."""
    policy_delay: int = 2
    """Critic updates per actor update."""
    n_step: int = 1
    """Steps of reward before the bootstrap."""
    target_every_step: bool = False
    """Move the critics' targets at every update, not only with the actor."""

    def __post_init__(self) -> None:
        for name in ("batch_size", "policy_delay", "n_step"):
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
    "reward_scale": Range(0.1, 10.0, searched=False),
}


class TD3State(NamedTuple):
    """What learning changes."""

    actor: Params
    critic: CriticState
    target_actor: Params
    actor_optimiser: optax.OptState
    statistics: Statistics


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
    def critics(self) -> Ensemble:
        return Ensemble(self.config.critics, self.config.networks, self.config.optimiser)

    def init(self, hyper: TD3Hyper, key: Key) -> TD3State:
        key_critic, key_actor = jax.random.split(key)
        critic = self.critics.init(self.spec, key_critic)
        features = self.critics.features(critic.online, jnp.zeros(self.spec.obs_size))
        actor = init(self.actor, key_actor, features)
        action = jax.eval_shape(lambda: apply(self.actor, actor, features))
        require(
            getattr(action, "shape", None) == (self.spec.action_size,),
            f"The actor head {self.config.networks.actor_head!r} gives no action. TD3 needs one, as tanh does.",
        )
        return TD3State(
            actor=actor,
            critic=critic,
            target_actor=actor,
            actor_optimiser=self.config.optimiser.init(actor),
            statistics=self.config.normalise.init(self.spec.obs_size),
        )

    def begin(self, state: TD3State, hyper: TD3Hyper, key: Key) -> tuple[()]:
        return ()

    def act(self, state: TD3State, hyper: TD3Hyper, memory: tuple[()], obs: Array, key: Key, mode: Mode) -> Decision:
        if mode == "random":
            return Decision(jax.random.uniform(key, (self.spec.action_size,), minval=-1.0, maxval=1.0), memory, {})
        features = self.critics.features(state.critic.online, self.config.normalise.obs(state.statistics, obs))
        action = apply(self.actor, state.actor, features)
        if mode == "sample":
            noise = hyper.exploration_noise * jax.random.normal(key, action.shape)
            action = jnp.clip(action + noise, -1.0, 1.0)
        return Decision(action, memory, {})

    def observe(self, state: TD3State, hyper: TD3Hyper, rollout: Step, key: Key) -> TD3State:
        return state._replace(statistics=self.config.normalise.observe(state.statistics, rollout, hyper.discount))

    def update(self, state: TD3State, hyper: TD3Hyper, batch: Step, key: Key) -> tuple[TD3State, Metrics]:
        batch = self.config.normalise.batch(state.statistics, batch, hyper.reward_scale)
        data = n_step(batch, hyper.discount)
        key_noise, key_target, key_actor, *keys = jax.random.split(key, 3 + self.config.policy_delay)
        noise = jax.random.normal(key_noise, data.action.shape)
        next_action = self._target_action(state, hyper, data.next_obs, noise)
        # The targets rest within a block of updates, so one large product serves all of them.
        rests = self.critics.has_targets and not self.config.target_every_step
        target = self.critics.target(state.critic, data, next_action, key_target) if rests else None
        critic, part, metrics = state.critic, data, {}
        for i, key_critic in enumerate(keys):
            rows = slice(i * self.config.batch_size, (i + 1) * self.config.batch_size)
            part = jax.tree.map(lambda x, rows=rows: x[rows], data)
            goal = None if target is None else target[rows]
            critic, metrics = self.critics.update(critic, part, next_action[rows], hyper.critic_lr, key_critic, goal)
            if self.config.target_every_step:
                critic = self.critics.update_targets(critic, hyper.tau)
        if not self.config.target_every_step:
            critic = self.critics.update_targets(critic, hyper.tau)
        state, actor_metrics = self._update_actor(state._replace(critic=critic), hyper, part, key_actor)
        return state, metrics | actor_metrics

    def _target_action(self, state: TD3State, hyper: TD3Hyper, next_obs: Array, noise: Array) -> Array:
        """clip(pi_bar(s') + clip(sigma noise, -c, c), -1, 1)."""
        critic, clip = state.critic, hyper.target_noise_clip
        params = critic.target if self.critics.has_targets else critic.online
        action = apply(self.actor, state.target_actor, self.critics.features(params, next_obs))  # type: ignore[arg-type]
        return jnp.clip(action + jnp.clip(hyper.target_noise * noise, -clip, clip), -1.0, 1.0)

    def _update_actor(self, state: TD3State, hyper: TD3Hyper, data: Transition, key: Key) -> tuple[TD3State, Metrics]:
        """The loss -mean Q_1(s, pi(s)); the target actor follows."""
        features = self.critics.features(state.critic.online, data.obs)

        def loss(actor: Params) -> Array:
            action = apply(self.actor, actor, features)
            return -mean_valid(
                self.critics.actor_objective(state.critic, features, action, key, first=True), data.valid
            )

        value, gradient = jax.value_and_grad(loss)(state.actor)
        actor, optimiser = self.config.optimiser.step(state.actor, gradient, state.actor_optimiser, hyper.actor_lr)
        target_actor = polyak(state.target_actor, actor, hyper.tau)
        return state._replace(actor=actor, target_actor=target_actor, actor_optimiser=optimiser), {"actor_loss": value}
