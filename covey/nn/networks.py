"""Flax modules of actors and critics, and functions to initialise and apply them, alone or as an ensemble."""

from collections.abc import Callable
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp

from covey.nn.distributions import LOG_STD, TanhNormal
from covey.nn.precision import dense
from covey.nn.regularise import BatchRenorm, Dropout
from covey.types import Array, Key, Params

ACTIVATIONS: dict[str, Callable[[Array], Array]] = {
    "relu": nn.relu,
    "tanh": nn.tanh,
    "elu": nn.elu,
    "gelu": nn.gelu,
    "silu": nn.silu,
}


class CriticParams(NamedTuple):
    """Parameters of an ensemble of critics.

    Args:
        encoder: Parameters of the shared encoder; empty if there is none.
        ensemble: Parameters of the critics, stacked: [critics, ...].
    """

    encoder: Params
    ensemble: Params


class MLP(nn.Module):
    """Dense layers, each followed by an activation.

    Dropout is active only if the random stream `dropout` is given. Batch statistics are updated only while the
    collection `batch_stats` is mutable.
    """

    hidden: tuple[int, ...]
    activation: str
    norm: str = "none"
    dropout: float = 0.0
    weights: str = "lecun"

    @nn.compact
    def __call__(self, x: Array) -> Array:
        if self.norm == "batch":
            x = BatchRenorm()(x)
        for size in self.hidden:
            x = dense(size, self.weights)(x)
            if self.dropout:
                x = Dropout(self.dropout)(x)
            if self.norm == "layer":
                x = nn.LayerNorm()(x)
            x = ACTIVATIONS[self.activation](x)
            if self.norm == "batch":
                x = BatchRenorm()(x)
        return x


class TanhHead(nn.Module):
    """A deterministic action in [-1, 1]."""

    action_size: int
    weights: str = "lecun"

    @nn.compact
    def __call__(self, features: Array) -> Array:
        return nn.tanh(dense(self.action_size, self.weights)(features))


class TanhNormalHead(nn.Module):
    """A distribution over actions in [-1, 1]; its standard deviation depends on the state."""

    action_size: int
    weights: str = "lecun"
    log_std: tuple[float, float] = LOG_STD
    log_std_bound: str = "clip"

    @nn.compact
    def __call__(self, features: Array) -> TanhNormal:
        mean, log_std = jnp.split(dense(2 * self.action_size, self.weights)(features), 2, axis=-1)
        low, high = self.log_std
        if self.log_std_bound == "tanh":
            return TanhNormal(mean, low + 0.5 * (high - low) * (1.0 + jnp.tanh(log_std)))
        return TanhNormal(mean, jnp.clip(log_std, low, high))


class LinearHead(nn.Module):
    """One value [...] if `outputs` is 0, else [..., outputs]: a value per reward, or the logits of a histogram."""

    outputs: int = 0
    weights: str = "lecun"

    @nn.compact
    def __call__(self, features: Array) -> Array:
        values = dense(self.outputs or 1, self.weights)(features)
        return values if self.outputs else values[..., 0]


class Actor(nn.Module):
    """obs -> encoder -> torso -> head."""

    encoder: nn.Module
    torso: nn.Module
    head: nn.Module

    def __call__(self, obs: Array) -> Any:
        return self.head(self.torso(self.encoder(obs)))


class TrajectoryActor(nn.Module):
    """[obs, E(a), E(v), E(u)] -> actor; each E is its own affine layer (TAAC).

    `encoder` encodes an observation that is not a vector before that.
    """

    embedding: int
    actor: nn.Module
    weights: str = "lecun"
    encoder: nn.Module | None = None

    @nn.compact
    def __call__(self, features: Any, trajectory: Array) -> Any:
        if self.encoder is not None:
            features = self.encoder(features)
        parts = [dense(self.embedding, self.weights)(trajectory[..., i, :]) for i in range(trajectory.shape[-2])]
        return self.actor(jnp.concatenate([features, *parts], axis=-1))


class Critic(nn.Module):
    """[encoder(obs), action] -> torso -> head. Observation and action are joined before the torso."""

    encoder: nn.Module
    torso: nn.Module
    head: nn.Module

    def __call__(self, obs: Array, action: Array) -> Array:
        return self.head(self.torso(jnp.concatenate([self.encoder(obs), action], axis=-1)))


def init(module: nn.Module, key: Key, *inputs: Any) -> Params:
    """Returns new parameters of a module; an empty dictionary if it has none."""
    return init_both(module, key, *inputs)[0]


def init_both(module: nn.Module, key: Key, *inputs: Any) -> tuple[Params, Params]:
    """Returns new parameters and batch statistics of a module; each an empty dictionary if it has none."""
    variables = module.init(key, *inputs)
    return variables.get("params", {}), variables.get("batch_stats", {})


def apply(module: nn.Module, params: Params, *inputs: Any, statistics: Params | None = None) -> Any:
    """Returns the output of a module without random streams. Batch normalisation uses the running statistics."""
    return module.apply({"params": params, "batch_stats": statistics or {}}, *inputs)


def apply_learning(module: nn.Module, params: Params, statistics: Params, *inputs: Any) -> tuple[Any, Params]:
    """Returns the output of a module, normalised with the statistics of the batch, and the new running statistics."""
    output, changed = module.apply({"params": params, "batch_stats": statistics}, *inputs, mutable=["batch_stats"])
    return output, changed.get("batch_stats", {})


def init_ensemble(module: nn.Module, size: int, key: Key, *inputs: Any) -> tuple[Params, Params]:
    """Returns parameters and batch statistics [size, ...] of independent copies, each drawn from its own key."""
    return jax.vmap(lambda key: init_both(module, key, *inputs))(jax.random.split(key, size))


def apply_ensemble(
    module: nn.Module, params: Params, statistics: Params, key: Key | None, *inputs: Any, learning: bool = False
) -> Any:
    """Evaluates every copy of an ensemble in one batched call.

    Args:
        module: The module that all copies share.
        params: Parameters [size, ...].
        statistics: Batch statistics [size, ...]; {} if the module has none.
        key: Key of dropout, which is independent in each copy; None switches dropout off.
        inputs: Inputs of the module, the same for every copy.
        learning: Also update the batch statistics.

    Returns:
        The outputs [size, ...]; with `learning`, a pair of the outputs and the new batch statistics.
    """
    size = jax.tree.leaves(params)[0].shape[0]
    # Broadcast the inputs: XLA would merge the copies of a shared input into one product, and add two transposes.
    inputs = jax.tree.map(lambda x: jnp.broadcast_to(x, (size, *x.shape)), inputs)
    keys = None if key is None else jax.random.split(key, size)

    def one(params: Params, statistics: Params, key: Key | None, *x: Any) -> Any:
        variables = {"params": params, "batch_stats": statistics}
        rngs = None if key is None else {"dropout": key}
        if not learning:
            return module.apply(variables, *x, rngs=rngs)
        output, changed = module.apply(variables, *x, rngs=rngs, mutable=["batch_stats"])
        return output, changed.get("batch_stats", {})

    return jax.vmap(one)(params, statistics, keys, *inputs)
