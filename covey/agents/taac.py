"""TAAC, TAAC-L, TAAC-Q: actors that learn when to repeat an action (Yu, Xu and Zhang, 2021, arXiv 2104.06521).

At each step the actor proposes a new trajectory of actions, and the critics compare it with continuing the old one. A
trajectory is constant (order 0, TAAC), linear (order 1, TAAC-L) or quadratic (order 2, TAAC-Q).
"""

import math
from dataclasses import dataclass, field
from typing import NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax

from covey.agent import Decision, SamplePlan
from covey.agents.targets import TargetInputs, target_named
from covey.agents.trajectory import Trajectories
from covey.errors import require, require_at_least
from covey.hyper.range import Range
from covey.nn.diagnostics import COUNT_BINS, count_histogram, mean_and_std, shares, value_details, value_metrics
from covey.nn.distributions import TanhNormal
from covey.nn.networks import CriticParams, TrajectoryActor, apply, apply_ensemble, init, init_ensemble
from covey.nn.normalise import Normalise, Statistics
from covey.nn.optim import Optimisers, every, polyak, target_age
from covey.nn.parts import Networks, actor_parts, nothing
from covey.nn.returns import DELTA, TDLoss, compare_through, mean_valid, require_td_loss, td_loss
from covey.observation import Obs
from covey.types import Array, EnvSpec, Key, Metrics, Mode, Params, Scalar, Step


@dataclass(frozen=True)
class TAACConfig:
    """Static options of TAAC; a new value means a new compiled program.

    Example:
        >>> TAACConfig(batch_size=64, max_repeat=10)
    """

    networks: Networks = field(default_factory=lambda: Networks(actor_head="tanh_normal"))
    """Networks: torsos, encoder, heads."""
    optimisers: Optimisers = field(default_factory=Optimisers)
    """Optimisers of the actor, the critics and the temperatures."""
    normalise: Normalise = field(default_factory=Normalise)
    """Running normalisation of observations and rewards."""
    num_critics: int = 2
    """Critics in the ensemble."""
    embedding: int = 32
    """Units of the affine layer that embeds each part of the old trajectory for the actor."""
    actor_observations: tuple[str, ...] = ()
    """Parts of the observation that the actor sees; by default all but `privileged`."""
    critic_observations: tuple[str, ...] = ()
    """Parts of the observation that the critics see; by default those of the actor, which decides with the critics'
    help."""
    batch_size: int = 64
    """Windows per update."""
    window: int = 4
    """Steps in a window; 2 gives one-step targets."""
    target: str = "expected"
    """How a target continues at steps where the behaviour repeated: `expected` weights both choices by their
    probability, `sampled` draws one of them, and `alf` is the rule of ALF, which is biased and kept for comparison.
    Also the name of a registered target."""
    target_update_period: int = 1
    """Updates per update of the target critics."""
    td_loss: TDLoss = "squared"
    """Loss of the TD error: `squared`, `huber` or `absolute`."""
    huber_delta: float = DELTA
    """Absolute TD error from which Huber's loss is linear."""
    inverse: bool = True
    """The actor of TAAC-L and TAAC-Q proposes the next action instead of the highest derivative."""
    max_repeat: int = 0
    """Maximum number of steps of a trajectory; 0 for no limit."""
    advantage_clip: tuple[float, ...] = ()
    """Limits of q(new) - q(old) in the switch. For example, 0 and inf make a switch at least as likely as not."""
    randomize_first: bool = False
    """In collection, draw the trajectory before the first step of an episode at random; otherwise it is 0."""
    random_switch: float = 0.1
    """Probability that the random action of the warm-up changes at a step."""
    epsilon: float = 0.0
    """Probability that evaluation samples instead of taking the best, for the action and the switch independently."""
    diagnostics: bool = False
    """Log metrics of each critic and reward as well, with histograms, and how long trajectories last, which the replay
    then stores."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "advantage_clip", tuple(self.advantage_clip))
        require_at_least(self, 1, "num_critics", "embedding", "batch_size", "target_update_period")
        require_at_least(self, 2, "window")
        require_at_least(self, 0, "max_repeat")
        require_td_loss(self)
        clip = self.advantage_clip
        require(
            not clip or (len(clip) == 2 and clip[0] < clip[1]),
            f"`advantage_clip` takes a lower and an upper limit, such as 0 and inf, not {clip}.",
            self,
        )
        require(0 <= self.epsilon <= 1, f"`epsilon` must lie in [0, 1], not {self.epsilon:g}.", self)
        require(0 < self.random_switch <= 1, f"`random_switch` must lie in (0, 1], not {self.random_switch:g}.", self)
        require(
            not (self.networks.critic.has_statistics or self.networks.critic.dropout),
            "TAAC's critics decide at every step, so they can't have dropout (`networks.critic.dropout`) or batch "
            "normalisation (`networks.critic.norm` batch, `networks.critic.kind` flash or xqc).",
            self,
        )
        require(
            not self.networks.actor.has_statistics,
            "TAAC's actor can't have batch normalisation (`networks.actor`).",
            self,
        )


class TAACHyper(NamedTuple):
    """Hyper-parameters of TAAC, which a schedule or a search may change at any time.

    Args:
        actor_lr: Learning rate of the actor.
        critic_lr: Learning rate of the critics.
        temperature_lr: Learning rate of both temperatures.
        discount: Discount of one step.
        tau: Share by which the target critics move towards the online critics.
        action_temperature: Initial temperature of the action.
        switch_temperature: Initial temperature of the switch.
        action_probability: Target entropy of the action, as the share of the box that it would cover uniformly.
        switch_probability: Target entropy of the switch, as the probability of a coin.
        reward_scale: Factor of the reward.
        action_entropy: Target entropy of the action as a number in nats, per dimension of the action; it replaces
            `action_probability`.
        switch_entropy: Target entropy of the switch as a number in nats; it replaces `switch_probability`.
        discounts: Discount of each reward; they replace `discount` in the targets.
        reward_weights: Weight of each reward in decisions; they replace the environment's weights.

    Example:
        >>> TAACHyper(switch_probability=0.1)
        >>> TAACHyper(reward_weights=(1.0, -0.5), discounts=(0.99, 0.9))
    """

    actor_lr: Scalar = 3e-4
    critic_lr: Scalar = 3e-4
    temperature_lr: Scalar = 3e-4
    discount: Scalar = 0.99
    tau: Scalar = 0.005
    action_temperature: Scalar = 1.0
    switch_temperature: Scalar = 1.0
    action_probability: Scalar = 0.1
    switch_probability: Scalar = 0.05
    reward_scale: Scalar = 1.0
    action_entropy: Scalar | None = None
    switch_entropy: Scalar | None = None
    discounts: tuple[Scalar, ...] = ()
    reward_weights: tuple[Scalar, ...] = ()


TAAC_SPACE = {
    "actor_lr": Range(1e-5, 3e-3),
    "critic_lr": Range(1e-5, 3e-3),
    "temperature_lr": Range(1e-5, 3e-3),
    "discount": Range(0.9, 0.999, "one_minus", most=1.0),
    "tau": Range(1e-3, 5e-2, most=1.0),
    "action_temperature": Range(0.01, 10.0, least=1e-6),
    "switch_temperature": Range(0.01, 10.0, least=1e-6),
    "action_probability": Range(0.03, 0.5, least=1e-6, most=1.0),
    "switch_probability": Range(0.01, 0.5, least=1e-6, most=1.0 - 1e-6),
    "reward_scale": Range(0.1, 10.0, searched=False),
    "action_entropy": Range(-2.0, 0.5, "linear", least=-1e6, most=math.log(2.0), searched=False),
    "switch_entropy": Range(0.05, 0.65, "linear", least=1e-6, most=math.log(2.0), searched=False),
    "discounts": Range(0.9, 0.999, "one_minus", most=1.0, searched=False),
    "reward_weights": Range(-10.0, 10.0, "linear", least=-1e6, searched=False),
}


class TAACMemory(NamedTuple):
    """The memory of TAAC within an episode.

    Args:
        trajectory: The current trajectory, [order + 1, A].
        repeats: Steps it has lasted; 0 before the first step of an episode.
    """

    trajectory: Array
    repeats: Array


class Temperatures(NamedTuple):
    """Temperatures of the action and the switch; in TAACState, the logarithms of their learnt factors."""

    action: Array
    switch: Array


class TAACState(NamedTuple):
    """The state of TAAC, which `update` and `observe` change.

    Args:
        actor: Parameters of the actor.
        critic: Parameters of the critics.
        target_critic: Slowly moving copy of the critics.
        temperatures: Logarithms of the learnt factors of the temperatures.
        actor_optimiser: State of the actor's optimiser.
        critic_optimiser: State of the critics' optimiser.
        temperature_optimiser: State of the temperatures' optimiser.
        statistics: Running statistics of observations and returns.
        target_age: Updates since the targets last moved; () if they move at every update.
        collected: With `diagnostics`, the mean of the repeats in the newest rows and their histogram; otherwise ().
    """

    actor: Params
    critic: CriticParams
    target_critic: CriticParams
    temperatures: Temperatures
    actor_optimiser: optax.OptState
    critic_optimiser: optax.OptState
    temperature_optimiser: optax.OptState
    statistics: Statistics
    target_age: Array | tuple[()]
    collected: Array | tuple[()] = ()


class Choice(NamedTuple):
    """The choice between continuing a trajectory and starting a new one.

    Args:
        old: The old trajectory, one step later.
        new: The new trajectory.
        value: Value of the new trajectory.
        advantage: Value of the new trajectory minus that of the old one, clipped by `advantage_clip`.
        beta: Probability beta_1 of the new trajectory.
        unclipped: The advantage before the clip.
    """

    old: Array
    new: Array
    value: Array
    advantage: Array
    beta: Array
    unclipped: Array


@dataclass(frozen=True)
class TAAC:
    """The TAAC agent.

    Args:
        config: Static options.
        spec: Sizes and limits of the environment.
        order: 0 for TAAC, 1 for TAAC-L, 2 for TAAC-Q.

    Example:
        >>> env = covey.envs.make("mountaincar")
        >>> agent = covey.TAAC(covey.TAACConfig(max_repeat=10), env.spec, order=0)
        >>> trainer = covey.make_trainer(agent, env, covey.TAACHyper())
    """

    config: TAACConfig
    spec: EnvSpec
    order: int = 0

    @property
    def plan(self) -> SamplePlan:
        """One batch of windows per update."""
        return SamplePlan(self.config.batch_size, self.config.window)

    @property
    def actor(self) -> nn.Module:
        """The flax module of the actor, which receives features and the old trajectory."""
        networks = self.config.networks
        actor = networks.actor_module(self.spec, self.config.actor_observations)
        if self.spec.observation.is_vector:
            return TrajectoryActor(self.config.embedding, actor, networks.weights)
        after = actor.clone(encoder=nothing(), parent=None)
        return TrajectoryActor(self.config.embedding, after, networks.weights, actor.encoder)

    @property
    def critic(self) -> nn.Module:
        """The flax module of one critic, which receives features and a trajectory."""
        form = self.spec.observation
        seen = actor_parts(form, self.config.actor_observations)
        names = self.config.critic_observations or seen
        require(
            set(names) <= set(seen),
            f"`critic_observations` {', '.join(names)}: TAAC decides with its critics when it acts, so they may see "
            f"only what its actor sees ({', '.join(seen)}).",
            self.config,
        )
        return self.config.networks.critic_module(self.spec, len(self.weights), names)

    @property
    def encoder(self) -> nn.Module:
        """The shared encoder; without one, a module that returns its input."""
        return self.config.networks.encoder_module(self.spec)

    @property
    def trajectories(self) -> Trajectories:
        """Continues trajectories and starts new ones."""
        return Trajectories(self.order, self.config.inverse)

    @property
    def weights(self) -> tuple[float, ...]:
        """The environment's weight of each reward."""
        return self.spec.reward_weights or (1.0,)

    def init(self, hyper: TAACHyper, key: Key) -> TAACState:
        """Returns a new state. The target critics start as copies."""
        for name, given in (("discounts", hyper.discounts), ("reward_weights", hyper.reward_weights)):
            require(
                len(given) in (0, len(self.weights)),
                f"`hyper.{name}` needs one value for each of the {len(self.weights)} rewards of the environment "
                f"({', '.join(self.spec.rewards) or 'it has no parts'}), or none at all, not {len(given)}.",
            )
        key_encoder, key_actor, key_critic = jax.random.split(key, 3)
        obs = self.spec.observation.zeros()
        trajectory = jnp.zeros((self.order + 1, self.spec.action_size))
        encoder = init(self.encoder, key_encoder, obs)
        features = apply(self.encoder, encoder, obs)
        actor = self.config.optimisers.actor.project(init(self.actor, key_actor, features, trajectory))
        require(
            isinstance(jax.eval_shape(lambda: apply(self.actor, actor, features, trajectory)), TanhNormal),
            f"The actor head {self.config.networks.actor_head!r} returns no distribution. TAAC needs one, as "
            "tanh_normal does.",
        )
        ensemble, _ = init_ensemble(self.critic, self.config.num_critics, key_critic, features, trajectory.reshape(-1))
        critic = self.config.optimisers.critic.project(CriticParams(encoder, ensemble))
        temperatures = Temperatures(jnp.zeros(()), jnp.zeros(()))
        return TAACState(
            actor=actor,
            critic=critic,
            target_critic=critic,
            temperatures=temperatures,
            actor_optimiser=self.config.optimisers.actor.init(actor),
            critic_optimiser=self.config.optimisers.critic.init(critic),
            temperature_optimiser=self.config.optimisers.temperature.init(temperatures),
            statistics=self.config.normalise.init(self.spec.observation),
            target_age=target_age(self.config.target_update_period),
            collected=jnp.zeros(1 + COUNT_BINS) if self.config.diagnostics else (),
        )

    def begin(self, state: TAACState, hyper: TAACHyper, key: Key) -> TAACMemory:
        """Returns the memory before the first step of an episode: a trajectory of zeros."""
        return TAACMemory(jnp.zeros((self.order + 1, self.spec.action_size)), jnp.zeros((), jnp.int32))

    def act(self, state: TAACState, hyper: TAACHyper, memory: TAACMemory, obs: Obs, key: Key, mode: Mode) -> Decision:
        """Decides at one observation whether to continue the trajectory, and returns its action."""
        key_first, key_x, key_switch, key_epsilon = jax.random.split(key, 4)
        previous = memory.trajectory
        if self.config.randomize_first and mode != "greedy":
            anything = jax.random.uniform(key_first, previous.shape, minval=-1.0, maxval=1.0)
            previous = jnp.where(memory.repeats == 0, anything, previous)
        shape = (self.spec.action_size,)
        if mode == "random":
            x = jax.random.uniform(key_x, shape, minval=-1.0, maxval=1.0)
            old = self.trajectories.carry_on(previous)
            new = self.trajectories.start(x, previous)
            switch = jax.random.bernoulli(key_switch, self.config.random_switch)
        else:
            features = self._features(state.critic, self.config.normalise.obs(state.statistics, obs))
            policy = apply(self.actor, state.actor, features, previous)
            sampled, _ = policy.sample(jax.random.normal(key_x, shape))
            explore = (
                jnp.ones(2, bool) if mode == "sample" else jax.random.uniform(key_epsilon, (2,)) < self.config.epsilon
            )
            choice = self.compare(state, hyper, features, previous, jnp.where(explore[0], sampled, policy.mode()))
            old, new = choice.old, choice.new
            switch = jnp.where(explore[1], jax.random.bernoulli(key_switch, choice.beta), choice.advantage > 0)
        if self.config.max_repeat:
            switch |= memory.repeats >= self.config.max_repeat
        trajectory = jnp.where(switch, new, old)
        extras = {"previous": previous, "trajectory": trajectory, "repeated": 1.0 - switch.astype(jnp.float32)}
        repeats = jnp.where(switch, 0, memory.repeats) + 1
        if self.config.diagnostics:
            extras["repeats"] = repeats.astype(jnp.float32)
        return Decision(trajectory[0], TAACMemory(trajectory, repeats), extras)

    def q_values(
        self, state: TAACState, hyper: TAACHyper, memory: TAACMemory, obs: Obs, action: Array, target: bool = False
    ) -> Array:
        """Returns the value by every critic, [critics], of a new trajectory that starts with the action.

        Several rewards are summed by their weights.
        """
        require(
            self.config.inverse or self.order == 0,
            "Without `inverse` a trajectory does not start with a given action, so the action has no value.",
            self.config,
        )
        critic = state.target_critic if target else state.critic
        features = self._features(critic, self.config.normalise.obs(state.statistics, obs))
        values = self.values(critic, features, self.trajectories.start(action, memory.trajectory))
        return self._weighted(hyper, values)

    def observe(self, state: TAACState, hyper: TAACHyper, rollout: Step, key: Key) -> TAACState:
        """Updates the running statistics with fresh data [T, N]."""
        state = state._replace(statistics=self.config.normalise.observe(state.statistics, rollout, hyper.discount))
        if not self.config.diagnostics:
            return state
        found = self.repeats(rollout)
        return state._replace(collected=jnp.where(jnp.any(rollout.valid > 0), found, state.collected))  # type: ignore[arg-type]

    def repeats(self, step: Step) -> Array:
        """Returns the mean number of steps that the trajectories have lasted, and its histogram, [1 + COUNT_BINS]."""
        count = step.extras["repeats"].reshape(-1)
        valid = step.valid.reshape(-1)
        return jnp.concatenate([mean_valid(count, valid)[None], count_histogram(count, valid)])

    def update(self, state: TAACState, hyper: TAACHyper, batch: Step, key: Key) -> tuple[TAACState, Metrics]:
        """Makes one gradient step of actor, critics and temperatures, all from the parameters before it."""
        batch = self.config.networks.augmented(batch, self.spec, key)
        batch = self.config.normalise.batch(state.statistics, batch, hyper.reward_scale)
        key_noise, key_target = jax.random.split(key)
        noise = jax.random.normal(key_noise, batch.action.shape)
        actor_state, choice, metrics = self.update_actor(state, hyper, batch, noise)
        critic_state, critic_metrics = self.update_critic(state, hyper, batch, choice, key_target)
        age, tau = every(self.config.target_update_period, state.target_age, hyper.tau)
        if self.config.diagnostics:
            for name, found in (("collected", jnp.asarray(state.collected)), ("replayed", self.repeats(batch))):
                metrics |= {f"{name}_repeats": found[0], f"{name}_repeats_histogram": found[1:]}
        return (
            actor_state._replace(
                critic=critic_state.critic,
                critic_optimiser=critic_state.critic_optimiser,
                target_critic=polyak(state.target_critic, critic_state.critic, tau),
                target_age=age,
            ),
            metrics | critic_metrics,
        )

    def update_actor(
        self, state: TAACState, hyper: TAACHyper, batch: Step, noise: Array
    ) -> tuple[TAACState, Choice, Metrics]:
        """Makes one step of the actor on -sg(beta_1) q(new) + alpha log pi, and one of the temperatures.

        The temperatures move so that the entropies of action and switch approach their targets.
        """
        features = self._features(state.critic, batch.obs)
        previous = self.stored_trajectory(batch, "previous")
        alpha = self._temperatures(state, hyper)

        action_target, switch_target = self.target_entropies(hyper)

        def loss(actor: Params) -> tuple[Array, tuple[Choice, Array]]:
            x, log_prob = apply(self.actor, actor, features, previous).sample(noise)
            choice = self.compare(state, hyper, features, previous, x)
            losses = alpha.action * log_prob - choice.beta * choice.value
            return _mean(losses, batch.valid), (choice, -log_prob)

        (value, (choice, entropy)), gradient = jax.value_and_grad(loss, has_aux=True)(state.actor)
        actor, optimiser = self.config.optimisers.actor.step(
            state.actor, gradient, state.actor_optimiser, hyper.actor_lr
        )
        switch_entropy = _bernoulli_entropy(choice.beta)
        slope = Temperatures(
            _mean(entropy - action_target, batch.valid), _mean(switch_entropy - switch_target, batch.valid)
        )
        temperatures, temperature_optimiser = self.config.optimisers.temperature.step(
            state.temperatures, slope, state.temperature_optimiser, hyper.temperature_lr
        )
        state = state._replace(
            actor=actor,
            actor_optimiser=optimiser,
            temperatures=temperatures,
            temperature_optimiser=temperature_optimiser,
        )
        metrics = {
            "actor_loss": value,
            "entropy": _mean(entropy, batch.valid),
            "switch_entropy": _mean(switch_entropy, batch.valid),
            "action_temperature": alpha.action,
            "switch_temperature": alpha.switch,
            "action_temperature_loss": jnp.log(alpha.action) * slope.action,
            "switch_temperature_loss": jnp.log(alpha.switch) * slope.switch,
        }
        return state, choice, metrics | _switch_metrics(choice, batch)

    def update_critic(
        self, state: TAACState, hyper: TAACHyper, batch: Step, choice: Choice, key: Key
    ) -> tuple[TAACState, Metrics]:
        """Makes one step on the loss of the error to the compare-through target, at the executed trajectories.

        All rewards count equally, whatever their weight, so that a reward of weight 0 is learnt too.
        """
        target, steps = self.target(state, hyper, batch, choice, key)
        trajectory = self.stored_trajectory(batch, "trajectory")[:, :-1]
        obs, valid = jax.tree.map(lambda x: x[:, :-1], (batch.obs, batch.valid))

        def loss(critic: CriticParams) -> tuple[Array, Array]:
            values = self.values(critic, self._features(critic, obs), trajectory)
            error = jnp.mean(td_loss(self.config.td_loss, values - target[None], self.config.huber_delta), axis=-1)
            return jnp.sum(jax.vmap(lambda e: _mean(e, valid))(error)), values

        (value, values), gradient = jax.value_and_grad(loss, has_aux=True)(state.critic)
        critic, optimiser = self.config.optimisers.critic.step(
            state.critic, gradient, state.critic_optimiser, hyper.critic_lr
        )
        metrics = {"critic_loss": value, "bootstrap_steps": _mean(steps, valid)}
        rows = valid.reshape(-1)
        metrics |= value_metrics(
            self._weighted(hyper, values[0]).reshape(-1), self._weighted(hyper, target).reshape(-1), rows
        )
        if self.config.diagnostics:
            count = len(self.weights)
            values = values.reshape(len(values), -1, count)
            metrics |= value_details(values, target.reshape(-1, count), rows, self.spec.rewards or ("",))
        return state._replace(critic=critic, critic_optimiser=optimiser), metrics

    def target(self, state: TAACState, hyper: TAACHyper, batch: Step, choice: Choice, key: Key) -> tuple[Array, Array]:
        """Returns y [B, T - 1, rewards], and the expected number of steps [B, T - 1] before each target bootstraps."""
        features = self._features(state.target_critic, batch.obs)
        old, new = (self._conservative(hyper, state.target_critic, features, t) for t in (choice.old, choice.new))
        inputs = TargetInputs(old, new, choice.beta[..., None], batch.extras["repeated"] > 0)
        keep, instead = target_named(self.config.target)(inputs, key)
        within = batch.valid[..., None].at[:, -1].set(0.0) > 0
        keep = jnp.where(within, keep, 0.0)
        instead = jnp.where(within, instead, inputs.value)
        reward = batch.extras["rewards"] if self.spec.rewards else batch.reward[..., None]
        each = jnp.asarray(hyper.discounts).reshape(1, 1, -1) if hyper.discounts else hyper.discount
        discount = each * (1.0 - batch.terminated[..., None])
        ones = jnp.ones_like(keep)
        steps = compare_through(ones, ones, keep, jnp.zeros_like(keep))[..., 0]
        return compare_through(reward, discount, keep, instead), steps

    def compare(self, state: TAACState, hyper: TAACHyper, features: Obs, previous: Array, x: Array) -> Choice:
        """Compares the old and the new trajectory by the online critics: beta_1 = sigmoid((q_1 - q_0) / alpha)."""
        old = self.trajectories.carry_on(previous)
        new = self.trajectories.start(x, previous)
        value = self._value(hyper, state.critic, features, new)
        unclipped = jax.lax.stop_gradient(value - self._value(hyper, state.critic, features, old))
        advantage = jnp.clip(unclipped, *self.config.advantage_clip) if self.config.advantage_clip else unclipped
        beta = jax.nn.sigmoid(advantage / self._temperatures(state, hyper).switch)
        return Choice(old, new, value, advantage, beta, unclipped)

    def target_entropies(self, hyper: TAACHyper) -> tuple[Array, Array]:
        """Returns the target entropies of action and switch: given as numbers, or by their probabilities."""
        action, switch = hyper.action_entropy, hyper.switch_entropy
        if action is None:
            action = jnp.log(2.0) + jnp.log(hyper.action_probability)
        if switch is None:
            switch = _bernoulli_entropy(jnp.asarray(hyper.switch_probability))
        return self.spec.action_size * jnp.asarray(action), jnp.asarray(switch)

    def _temperatures(self, state: TAACState, hyper: TAACHyper) -> Temperatures:
        action, switch = state.temperatures
        return Temperatures(hyper.action_temperature * jnp.exp(action), hyper.switch_temperature * jnp.exp(switch))

    def _features(self, critic: CriticParams, obs: Obs) -> Obs:
        return apply(self.encoder, critic.encoder, obs)

    def values(self, critic: CriticParams, features: Obs, trajectory: Array) -> Array:
        """Returns Q_j of every critic and reward, [critics, ..., rewards]."""
        flat = trajectory.reshape(*trajectory.shape[:-2], -1)
        return apply_ensemble(self.critic, critic.ensemble, {}, None, features, flat)

    def _conservative(self, hyper: TAACHyper, critic: CriticParams, features: Obs, trajectory: Array) -> Array:
        """Returns the least favourable critic for each reward: the minimum; the maximum if its weight is negative."""
        sign = jnp.where(self._weights(hyper) < 0, -1.0, 1.0)
        values = self.values(critic, features, trajectory)
        sign = sign.reshape((1,) * (values.ndim - 1) + (-1,))
        return sign[0] * jnp.min(sign * values, axis=0)

    def _value(self, hyper: TAACHyper, critic: CriticParams, features: Obs, trajectory: Array) -> Array:
        return self._weighted(hyper, self._conservative(hyper, critic, features, trajectory))

    def _weighted(self, hyper: TAACHyper, values: Array) -> Array:
        return values @ self._weights(hyper)

    def _weights(self, hyper: TAACHyper) -> Array:
        return jnp.asarray(hyper.reward_weights or self.weights)

    def stored_trajectory(self, batch: Step, name: str) -> Array:
        """Returns the trajectories [..., order + 1, A] that `act` stored as `previous` or `trajectory`."""
        return batch.extras[name].reshape(*batch.reward.shape, self.order + 1, self.spec.action_size)


def _mean(x: Array, valid: Array) -> Array:
    """Returns the mean over the valid steps of all windows."""
    return mean_valid(x.reshape(-1), valid.reshape(-1))


def _switch_metrics(choice: Choice, batch: Step) -> Metrics:
    """Returns metrics of the switch; the histogram has the share of the valid steps in each tenth of [0, 1]."""
    repeat = 1.0 - choice.beta.reshape(-1)
    valid = batch.valid.reshape(-1)
    mean, std = mean_and_std(repeat, valid)
    return {
        "repeat_probability": mean,
        "repeat_probability_std": std,
        "repeat_probabilities": shares(jnp.minimum(jnp.floor(10.0 * repeat), 9.0), 10, valid),
        "repeat_rate": _mean(batch.extras["repeated"][..., 0], batch.valid),
        "advantage": _mean(choice.advantage, batch.valid),
        "advantage_unclipped": _mean(choice.unclipped, batch.valid),
    }


def _bernoulli_entropy(p: Array) -> Array:
    return -(jax.scipy.special.xlogy(p, p) + jax.scipy.special.xlog1py(1.0 - p, -p))
