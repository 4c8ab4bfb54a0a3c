"""An ensemble of critics Q_j(s, a), as TD3 and SAC use it, with all its options.

The options are independent of each other. A target combines all critics (minimum or mean) or a random subset (REDQ). A
critic gives a number, or a distribution (HL-Gauss, C51). Its torso may have layer normalisation and dropout (DroQ), or
batch normalisation, without target networks (CrossQ) or with them (XQC, FlashSAC).
"""

import math
from dataclasses import dataclass
from typing import Literal, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax

from covey.errors import require, require_at_least, unknown
from covey.nn.diagnostics import value_details, value_metrics
from covey.nn.histogram import Categorical, Histogram
from covey.nn.networks import CriticParams, apply, apply_ensemble, init, init_ensemble
from covey.nn.optim import Optimiser, polyak
from covey.nn.parts import Networks
from covey.nn.returns import DELTA, TDLoss, Transition, mean_valid, require_td_loss, td_loss
from covey.observation import Obs
from covey.types import Array, EnvSpec, Key, Metrics, Params, Scalar

LOW, HIGH = -10.0, 10.0


@dataclass(frozen=True)
class Critics:
    """Options of an ensemble of critics.

    Example:
        >>> SACConfig(critics=Critics(number=10, subset=2))  # REDQ
    """

    number: int = 2
    """Critics in the ensemble."""
    combine: Literal["min", "mean"] = "min"
    """How a target combines the critics' values."""
    subset: int = 0
    """REDQ (arXiv 2101.05982): a target combines only this many critics, drawn at random for each batch, and the actor
    maximises the mean of all critics; 0 combines all critics."""
    bins: int = 0
    """Distributional critics: bins or atoms of a distribution over values, such as 101; 0 for plain values."""
    distribution: Literal["hl-gauss", "c51"] = "hl-gauss"
    """The target of distributional critics: `hl-gauss` (arXiv 2403.03950), a normal density around the expected value;
    `c51` (arXiv 1707.06887), the distribution of the next state, moved by the reward and projected on the atoms."""
    low: float = LOW
    """Smallest value of the distribution."""
    high: float = HIGH
    """Largest value of the distribution. SAC's values include its entropy bonus."""
    batch_targets: bool = False
    """Critics with batch normalisation: keep target networks (XQC, FlashSAC), which normalise with the statistics of
    the batch. Without, there are none, as in CrossQ (arXiv 1902.05605)."""
    td_loss: TDLoss = "squared"
    """Loss of the TD error: `squared`, `huber` or `absolute`."""
    huber_delta: float = DELTA
    """Absolute TD error from which Huber's loss is linear."""

    def __post_init__(self) -> None:
        require_at_least(self, 1, "number")
        require_at_least(self, 0, "subset")
        require(
            self.subset <= self.number,
            f"`subset` {self.subset} can't be drawn from {self.number} critics. Raise `number` (REDQ draws 2 of 10).",
            self,
        )
        require(self.combine in ("min", "mean"), f"`combine` must be min or mean, not {self.combine!r}.", self)
        require(self.bins == 0 or self.bins >= 2, f"`bins` must be 0 or at least 2, not {self.bins}.", self)
        require(
            -math.inf < self.low < self.high < math.inf,
            f"`low` must be less than `high`, and both finite, not {self.low:g} and {self.high:g}.",
            self,
        )
        if self.distribution not in ("hl-gauss", "c51"):
            raise unknown("distribution", self.distribution, ("hl-gauss", "c51"))
        require(
            self.bins > 0 or ((self.low, self.high) == (LOW, HIGH) and self.distribution == "hl-gauss"),
            "`low`, `high` and `distribution` are options of distributional critics: give them `bins`, such as 101.",
            self,
        )
        require_td_loss(self)
        require(
            self.bins == 0 or self.td_loss == "squared",
            f"`td_loss` {self.td_loss} and `bins` exclude each other: the loss of a distribution is the cross-entropy.",
            self,
        )


class CriticState(NamedTuple):
    """The part of an agent's state that belongs to its critics.

    Args:
        online: Parameters that are trained.
        target: Slowly moving copy of the parameters; () without target networks.
        statistics: Batch statistics of the online critics; {} without batch normalisation.
        optimiser: State of the optimiser.
    """

    online: CriticParams
    target: CriticParams | tuple[()]
    statistics: Params
    optimiser: optax.OptState


@dataclass(frozen=True)
class Ensemble:
    """Evaluates and trains the critics.

    Args:
        critics: Options of the ensemble.
        networks: Networks of the agent.
        optimiser: Optimiser of the critics and the shared encoder.
        spec: Sizes and limits of the environment.
        observations: The parts of an observation that the critics see; () for all.
        diagnostics: Report metrics of each critic, with histograms.
    """

    critics: Critics
    networks: Networks
    optimiser: Optimiser
    spec: EnvSpec
    observations: tuple[str, ...] = ()
    diagnostics: bool = False

    def __post_init__(self) -> None:
        require(
            self.has_statistics or not self.critics.batch_targets,
            "`batch_targets` is for critics with batch normalisation, such as `networks.critic.kind` xqc. Others "
            "always have target networks.",
            self.critics,
        )

    @property
    def has_statistics(self) -> bool:
        """True with batch normalisation: the critics then see (s, a) and (s', a') as one batch."""
        return self.networks.critic.has_statistics

    @property
    def has_targets(self) -> bool:
        """False with batch normalisation, unless `batch_targets`: the online critics then make their own targets."""
        return not self.has_statistics or self.critics.batch_targets

    @property
    def encoder(self) -> nn.Module:
        """The shared encoder; without one, a module that returns its input."""
        return self.networks.encoder_module(self.spec)

    @property
    def module(self) -> nn.Module:
        """The flax module of one critic."""
        return self.networks.critic_module(self.spec, self.critics.bins, self.observations)

    @property
    def support(self) -> Histogram | Categorical:
        """The distribution over values, if the critics are distributional."""
        kind = Categorical if self.critics.distribution == "c51" else Histogram
        return kind(self.critics.low, self.critics.high, self.critics.bins)

    def init(self, key: Key) -> CriticState:
        """Returns new critics, each drawn from its own key. The targets start as a copy."""
        key_encoder, key_ensemble = jax.random.split(key)
        obs = self.spec.observation.zeros()
        action = jnp.zeros(self.spec.action_size)
        encoder = init(self.encoder, key_encoder, obs)
        features = apply(self.encoder, encoder, obs)
        ensemble, statistics = init_ensemble(self.module, self.critics.number, key_ensemble, features, action)
        online = self.optimiser.project(CriticParams(encoder, ensemble))
        return CriticState(online, online if self.has_targets else (), statistics, self.optimiser.init(online))

    def features(self, params: CriticParams, obs: Obs) -> Obs:
        """Returns the output of the shared encoder; without one, the observation itself."""
        return apply(self.encoder, params.encoder, obs)

    def values(self, params: CriticParams, statistics: Params, obs: Obs, action: Array, key: Key) -> Array:
        """Returns Q_j(s, a) of every critic, [number, ...]. The key is for dropout."""
        return self._mean(self._outputs(params.ensemble, statistics, key, self.features(params, obs), action))

    def q_values(self, state: CriticState, obs: Obs, action: Array, target: bool) -> Array:
        """Returns Q_j(s, a) of every online or target critic, [number, ...], without dropout."""
        require(not target or self.has_targets, "Critics with batch normalisation have no target networks.")
        params = state.target if target else state.online
        assert isinstance(params, CriticParams)
        features = self.features(params, obs)
        return self._mean(apply_ensemble(self.module, params.ensemble, state.statistics, None, features, action))

    def actor_objective(self, state: CriticState, features: Obs, action: Array, key: Key, first: bool = False) -> Array:
        """Returns the Q-value that the actor maximises.

        It is the minimum over critics (SAC), critic 0 with `first` (TD3), or the mean of all critics if
        `combine="mean"` or a target combines a subset (REDQ).

        Args:
            state: The critics.
            features: Features of the observations, from `features`.
            action: Actions, through which the gradient reaches the actor.
            key: Key of dropout.
            first: Evaluate critic 0 alone.
        """
        mean = self.critics.combine == "mean" or self.critics.subset > 0
        ensemble, statistics = state.online.ensemble, state.statistics
        if first and not mean:
            ensemble, statistics = jax.tree.map(lambda x: x[:1], (ensemble, statistics))
        values = self._mean(self._outputs(ensemble, statistics, key, features, action))
        return jnp.mean(values, axis=0) if mean else jnp.min(values, axis=0)

    def target(self, state: CriticState, data: Transition, next_action: Array, key: Key) -> Array:
        """Returns y = r + discount min_j Qbar_j(s', a'), over all target critics or a random subset of them.

        With C51, y is a distribution [B, bins], that of the critic with the smallest mean.
        """
        key_subset, key_dropout = jax.random.split(key)
        params = state.target
        assert isinstance(params, CriticParams)
        statistics = state.statistics
        if self.critics.subset:
            chosen = self._chosen(key_subset)
            ensemble, statistics = jax.tree.map(lambda x: x[chosen], (params.ensemble, statistics))
            params = params._replace(ensemble=ensemble)
        if self.has_statistics:
            outputs = self._jointly(params, statistics, data, next_action, key_dropout)[1]
        else:
            features = self.features(params, data.next_obs)
            outputs = self._outputs(params.ensemble, statistics, key_dropout, features, next_action)
        return self._bootstrap(outputs, data)

    def update(
        self,
        state: CriticState,
        data: Transition,
        next_action: Array,
        learning_rate: Scalar,
        key: Key,
        target: Array | None = None,
    ) -> tuple[CriticState, Metrics]:
        """Makes one gradient step towards the target.

        Args:
            state: The critics.
            data: Transitions [B, ...].
            next_action: Actions at the next observations.
            learning_rate: Step size.
            key: Key of dropout and of the subset.
            target: Targets [B]; None computes them here.

        Returns:
            The critics after the step, and metrics. The target networks do not move: call `update_targets`.
        """
        key_target, key_dropout = jax.random.split(key)
        if target is None and self.has_targets:
            target = self.target(state, data, next_action, key_target)

        def loss(params: CriticParams) -> tuple[Array, tuple[Array, Array, Params]]:
            y, statistics = target, state.statistics
            if self.has_statistics:
                outputs, after, statistics = self._jointly(params, statistics, data, next_action, key_dropout)
                if y is None:
                    after = after[self._chosen(key_target)] if self.critics.subset else after
                    y = self._bootstrap(jax.lax.stop_gradient(after), data)
            else:
                features = self.features(params, data.obs)
                outputs = self._outputs(params.ensemble, statistics, key_dropout, features, data.action)
            assert y is not None
            return jnp.sum(mean_valid(self._error(outputs, y), data.valid[None])), (outputs, y, statistics)

        (value, (outputs, y, statistics)), gradient = jax.value_and_grad(loss, has_aux=True)(state.online)
        online, optimiser = self.optimiser.step(state.online, gradient, state.optimiser, learning_rate)
        values = self._mean(outputs)
        at_limits = self._beyond(y)
        y = self.support.mean(y) if isinstance(self.support, Categorical) else y
        metrics = {"critic_loss": value} | value_metrics(values[0], y, data.valid)
        if self.diagnostics:
            metrics |= value_details(values[..., None], y[:, None], data.valid)
        if self.critics.bins:
            metrics["beyond_limits"] = mean_valid(at_limits, data.valid)
        return state._replace(online=online, statistics=statistics, optimiser=optimiser), metrics

    def update_targets(self, state: CriticState, tau: Scalar) -> CriticState:
        """Moves the target networks a share `tau` towards the online critics, if there are any."""
        return state._replace(target=polyak(state.target, state.online, tau)) if self.has_targets else state

    def _jointly(
        self, params: CriticParams, statistics: Params, data: Transition, next_action: Array, key: Key
    ) -> tuple[Array, Array, Params]:
        """Returns the outputs at (s, a) and (s', a') from one pass, and the new statistics.

        CrossQ normalises both by one joint batch.
        """
        rows = valid_rows(data.valid)
        now, after = (self.features(params, obs) for obs in (data.obs, data.next_obs))
        features = jax.tree.map(lambda x, y: jnp.concatenate([x[rows], y[rows]]), now, after)
        actions = jnp.concatenate([data.action[rows], next_action[rows]])
        both, statistics = apply_ensemble(
            self.module, params.ensemble, statistics, key, features, actions, learning=True
        )
        outputs, next_outputs = jnp.split(both, 2, axis=1)
        return outputs, next_outputs, statistics

    def _bootstrap(self, outputs: Array, data: Transition) -> Array:
        """Returns the target y of the outputs at (s', a') [critics, B, ...]: a number, or C51's distribution."""
        support = self.support
        if not isinstance(support, Categorical):
            return data.reward + data.discount * self._combine(self._mean(outputs))
        probabilities = jax.nn.softmax(outputs)
        if self.critics.combine == "mean":
            chosen = jnp.mean(probabilities, axis=0)
        else:
            least = jnp.argmin(support.mean(probabilities), axis=0)
            chosen = jnp.take_along_axis(probabilities, least[None, :, None], axis=0)[0]
        return support.project(chosen, data.reward, data.discount)

    def _outputs(self, ensemble: Params, statistics: Params, key: Key, features: Obs, action: Array) -> Array:
        dropout = key if self.networks.critic.dropout else None
        return apply_ensemble(self.module, ensemble, statistics, dropout, features, action)

    def _chosen(self, key: Key) -> Array:
        """Draws the indices of a random subset of the critics."""
        return jax.random.permutation(key, self.critics.number)[: self.critics.subset]

    def _combine(self, values: Array) -> Array:
        return jnp.mean(values, axis=0) if self.critics.combine == "mean" else jnp.min(values, axis=0)

    def _mean(self, outputs: Array) -> Array:
        """Converts the outputs of the networks to values."""
        return self.support.value(outputs) if self.critics.bins else outputs

    def _beyond(self, target: Array) -> Array:
        """Returns 1 for each target outside the support; with C51, its probability at the first and the last atom."""
        if isinstance(self.support, Categorical):
            return target[:, 0] + target[:, -1]
        return ((target < self.critics.low) | (target > self.critics.high)).astype(jnp.float32)

    def _error(self, outputs: Array, target: Array) -> Array:
        """Returns the loss of each critic and transition: of the TD error, or a cross-entropy of distributions."""
        if self.critics.bins:
            return self.support.cross_entropy(outputs, target)
        return td_loss(self.critics.td_loss, outputs - target[None], self.critics.huber_delta)


def valid_rows(valid: Array) -> Array:
    """Returns the row indices of a batch, with a valid row in place of each invalid one.

    Batch statistics must not include invalid rows, and the shape of a batch is fixed.
    """
    return jnp.where(valid > 0, jnp.arange(valid.shape[0]), jnp.argmax(valid))
