"""An ensemble of critics Q_j(s, a): what TD3 and SAC have in common, with every option of it.

The options are small and independent. Which critics make a target: all (their minimum or mean), or a random subset
(REDQ). What a critic is: a number, or a histogram (HL-Gauss). How its torso is normalised: with dropout and layer
normalisation it is DroQ's, with batch normalisation CrossQ's, which needs no target networks.
"""

import math
from dataclasses import dataclass
from typing import Literal, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax

from covey.errors import require
from covey.nn.histogram import Histogram
from covey.nn.networks import CriticParams, apply, apply_ensemble, init, init_ensemble
from covey.nn.optim import Optimiser, polyak
from covey.nn.parts import Networks
from covey.nn.returns import Transition, mean_valid
from covey.types import Array, EnvSpec, Key, Metrics, Params, Scalar

LOW, HIGH = -10.0, 10.0


@dataclass(frozen=True)
class Critics:
    """The critics of an agent."""

    number: int = 2
    """Critics in the ensemble."""
    combine: Literal["min", "mean"] = "min"
    """What of their values makes the target."""
    subset: int = 0
    """REDQ (arXiv 2101.05982): a target combines only so many critics, drawn at random each time, and the actor climbs
    the mean of all; 0 means that a target combines all."""
    bins: int = 0
    """Distributional critics, HL-Gauss (arXiv 2403.03950): bins of the histogram, such as 101; 0 means plain values."""
    low: float = LOW
    """The least value that the histogram can hold."""
    high: float = HIGH
    """The greatest value that the histogram can hold. SAC's values hold its entropy bonus too."""

    def __post_init__(self) -> None:
        require(self.number >= 1, f"--agent.critics.number must be at least 1, not {self.number}.")
        require(self.subset >= 0, f"--agent.critics.subset must not be negative, not {self.subset}.")
        require(
            self.subset <= self.number,
            f"--agent.critics.subset {self.subset} can't be drawn from {self.number} critics. Raise "
            f"--agent.critics.number (REDQ takes 2 of 10).",
        )
        require(self.combine in ("min", "mean"), f"--agent.critics.combine must be min or mean, not {self.combine!r}.")
        require(self.bins == 0 or self.bins >= 2, f"--agent.critics.bins must be 0 or at least 2, not {self.bins}.")
        require(
            -math.inf < self.low < self.high < math.inf,
            f"--agent.critics.low must be less than --agent.critics.high, and both finite, not {self.low:g} and "
            f"{self.high:g}.",
        )
        plain = self.bins == 0 and (self.low, self.high) != (LOW, HIGH)
        require(not plain, "--agent.critics.low and high are limits of a histogram: give it bins, such as 101.")


class CriticState(NamedTuple):
    """What learning changes. Without target networks `target` is ()."""

    online: CriticParams
    target: CriticParams | tuple[()]
    statistics: Params
    optimiser: optax.OptState


@dataclass(frozen=True)
class Ensemble:
    """How critics are evaluated and learn."""

    critics: Critics
    networks: Networks
    optimiser: Optimiser

    @property
    def has_targets(self) -> bool:
        """CrossQ (arXiv 1902.05605): with batch normalisation the online critics make their own targets."""
        return self.networks.critic.norm != "batch"

    @property
    def encoder(self) -> nn.Module:
        return self.networks.encoder_module()

    @property
    def module(self) -> nn.Module:
        return self.networks.critic_module(self.critics.bins)

    @property
    def histogram(self) -> Histogram:
        return Histogram(self.critics.low, self.critics.high, self.critics.bins)

    def init(self, spec: EnvSpec, key: Key) -> CriticState:
        key_encoder, key_ensemble = jax.random.split(key)
        obs, action = jnp.zeros(spec.obs_size), jnp.zeros(spec.action_size)
        encoder = init(self.encoder, key_encoder, obs)
        features = apply(self.encoder, encoder, obs)
        ensemble, statistics = init_ensemble(self.module, self.critics.number, key_ensemble, features, action)
        online = CriticParams(encoder, ensemble)
        return CriticState(online, online if self.has_targets else (), statistics, self.optimiser.init(online))

    def features(self, params: CriticParams, obs: Array) -> Array:
        """What the actor and the critics see of an observation."""
        return apply(self.encoder, params.encoder, obs)

    def values(self, params: CriticParams, statistics: Params, obs: Array, action: Array, key: Key) -> Array:
        """Q_j(s, a) of every critic, [number, ...]."""
        return self._mean(self._outputs(params.ensemble, statistics, key, self.features(params, obs), action))

    def actor_objective(
        self, state: CriticState, features: Array, action: Array, key: Key, first: bool = False
    ) -> Array:
        """What the actor climbs: the critics' minimum or the first; with `combine mean` or a subset, the mean."""
        mean = self.critics.combine == "mean" or self.critics.subset > 0
        ensemble, statistics = state.online.ensemble, state.statistics
        if first and not mean:
            ensemble, statistics = jax.tree.map(lambda x: x[:1], (ensemble, statistics))
        values = self._mean(self._outputs(ensemble, statistics, key, features, action))
        return jnp.mean(values, axis=0) if mean else jnp.min(values, axis=0)

    def target(self, state: CriticState, data: Transition, next_action: Array, key: Key) -> Array:
        """y = r + discount min_j Qbar_j(s', a'), the minimum over all target critics or a random subset."""
        params, (key_subset, key_dropout) = state.target, jax.random.split(key)
        assert isinstance(params, CriticParams)
        if self.critics.subset:
            chosen = self._chosen(key_subset)
            params = params._replace(ensemble=jax.tree.map(lambda x: x[chosen], params.ensemble))
        values = self.values(params, state.statistics, data.next_obs, next_action, key_dropout)
        return data.reward + data.discount * self._combine(values)

    def update(
        self,
        state: CriticState,
        data: Transition,
        next_action: Array,
        learning_rate: Scalar,
        key: Key,
        target: Array | None = None,
    ) -> tuple[CriticState, Metrics]:
        """One gradient step towards the target, which is computed here unless it is given."""
        key_target, key_dropout = jax.random.split(key)
        if target is None and self.has_targets:
            target = self.target(state, data, next_action, key_target)

        def loss(params: CriticParams) -> tuple[Array, tuple[Array, Array, Params]]:
            features = self.features(params, data.obs)
            if self.has_targets:
                y, statistics = target, state.statistics
                outputs = self._outputs(params.ensemble, statistics, key_dropout, features, data.action)
            else:
                rows = _rows(data.valid)
                both = jnp.stack([features, self.features(params, data.next_obs)])[:, rows]
                actions = jnp.stack([data.action, next_action])[:, rows]
                outputs, next_values, statistics = self._jointly(params, state.statistics, both, actions, key_dropout)
                if self.critics.subset:
                    next_values = next_values[self._chosen(key_target)]
                y = data.reward + data.discount * jax.lax.stop_gradient(self._combine(next_values))
            assert y is not None
            return jnp.sum(mean_valid(self._error(outputs, y), data.valid[None])), (outputs, y, statistics)

        (value, (outputs, y, statistics)), gradient = jax.value_and_grad(loss, has_aux=True)(state.online)
        online, optimiser = self.optimiser.step(state.online, gradient, state.optimiser, learning_rate)
        metrics = {"critic_loss": value, "q_mean": mean_valid(self._mean(outputs[0]), data.valid)}
        if self.critics.bins:
            outside = (y < self.critics.low) | (y > self.critics.high)
            metrics["beyond_limits"] = mean_valid(outside.astype(jnp.float32), data.valid)
        return state._replace(online=online, statistics=statistics, optimiser=optimiser), metrics

    def update_targets(self, state: CriticState, tau: Scalar) -> CriticState:
        """The target networks moved towards the critics."""
        return state._replace(target=polyak(state.target, state.online, tau)) if self.has_targets else state

    def _jointly(
        self, params: CriticParams, statistics: Params, features: Array, actions: Array, key: Key
    ) -> tuple[Array, Array, Params]:
        """Outputs of (s, a) and values of (s', a') from one pass, so that both are normalised by the same batch."""
        inputs = (jnp.concatenate(features), jnp.concatenate(actions))
        both, statistics = apply_ensemble(self.module, params.ensemble, statistics, key, *inputs, learning=True)
        outputs, next_outputs = jnp.split(both, 2, axis=1)
        return outputs, self._mean(next_outputs), statistics

    def _outputs(self, ensemble: Params, statistics: Params, key: Key, features: Array, action: Array) -> Array:
        dropout = key if self.networks.critic.dropout else None
        return apply_ensemble(self.module, ensemble, statistics, dropout, features, action)

    def _chosen(self, key: Key) -> Array:
        """The numbers of a random subset of the critics."""
        return jax.random.permutation(key, self.critics.number)[: self.critics.subset]

    def _combine(self, values: Array) -> Array:
        return jnp.mean(values, axis=0) if self.critics.combine == "mean" else jnp.min(values, axis=0)

    def _mean(self, outputs: Array) -> Array:
        """Values from what the networks give."""
        return self.histogram.value(outputs) if self.critics.bins else outputs

    def _error(self, outputs: Array, target: Array) -> Array:
        """The loss of each critic and transition: squared error, or cross-entropy to the target's histogram."""
        return self.histogram.cross_entropy(outputs, target) if self.critics.bins else (outputs - target[None]) ** 2


def _rows(valid: Array) -> Array:
    """The numbers of a batch's rows, with a valid one in the place of those that are not: no statistic may see them."""
    return jnp.where(valid > 0, jnp.arange(valid.shape[0]), jnp.argmax(valid))
