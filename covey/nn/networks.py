"""Networks from parts: an optional encoder, a torso, a head; any flax module can be any of them.

A part is named in the config, so that a config stays a file of plain values. `register` adds a part of one's own:

    @covey.register_torso("residual")
    class Residual(flax.linen.Module):
        hidden: tuple[int, ...]
        activation: str

        @flax.linen.compact
        def __call__(self, x): ...

It is given those of the torso's options that it has fields for; to set another for it is an error.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, fields
from typing import Any, Literal

import flax.linen as nn
import jax
import jax.numpy as jnp

from covey.errors import require, unknown
from covey.nn.distributions import LOG_STD_HIGH, LOG_STD_LOW, TanhNormal
from covey.nn.layers import WEIGHTS, BatchRenorm, Dropout, dense
from covey.types import Array, EnvSpec, Key, Params

ACTIVATIONS: dict[str, Callable[[Array], Array]] = {
    "relu": nn.relu,
    "tanh": nn.tanh,
    "elu": nn.elu,
    "gelu": nn.gelu,
    "silu": nn.silu,
}
LECUN: Literal["lecun"] = "lecun"
"""How weights start unless another way is asked for."""
TORSOS: dict[str, type[nn.Module]] = {}
ACTOR_HEADS: dict[str, type[nn.Module]] = {}
CRITIC_HEADS: dict[str, type[nn.Module]] = {}


def register(registry: dict[str, type[nn.Module]], name: str) -> Callable[[type], type]:
    """A class decorator that puts a flax module into one of the registries above."""

    def add(module: type) -> type:
        require(issubclass(module, nn.Module), f"{module!r} is not a flax.linen.Module, so it can't be a network part.")
        registry[name] = module
        return module

    return add


@dataclass(frozen=True)
class Torso:
    """The body of a network: features of its input. `hidden ()` means none."""

    kind: str = "mlp"
    """Name of a registered torso."""
    hidden: tuple[int, ...] = (256, 256)
    """Units of each hidden layer."""
    activation: str = "relu"
    """One of relu, tanh, elu, gelu, silu."""
    norm: Literal["none", "layer", "batch"] = "none"
    """Normalisation: of each layer before its activation, or of the batch (critics only; this is CrossQ)."""
    dropout: float = 0.0
    """Share of units dropped while learning (critics only; with `norm layer` this is DroQ)."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "hidden", tuple(self.hidden))
        require(all(size > 0 for size in self.hidden), f"hidden sizes must be positive, not {self.hidden}.")
        require(0 <= self.dropout < 1, f"dropout must lie in [0, 1), not {self.dropout:g}.")
        for what, value, known in (
            ("activation", self.activation, ACTIVATIONS),
            ("normalisation", self.norm, ("none", "layer", "batch")),
        ):
            if value not in known:
                raise unknown(what, value, known)

    def module(self, weights: str = LECUN) -> nn.Module:
        plain = Torso()
        options = {name: getattr(self, name) for name in ("hidden", "activation", "norm", "dropout")}
        default = {name: getattr(plain, name) for name in options}
        if not self.hidden:  # an encoder's default asks for no layers, so a part needs no field for them
            default["hidden"] = ()
        return _part(TORSOS, "torso", self.kind, options | {"weights": weights}, default | {"weights": LECUN})


def _part(
    registry: dict[str, type[nn.Module]], kind: str, name: str, options: dict[str, Any], default: dict[str, Any]
) -> Any:
    """The registered module, with those of the options that it has fields for."""
    if name not in registry:
        error = unknown(kind, name, registry)
        raise type(error)(f"{error} A {kind} of your own must be registered first: import its module, or --plugin it.")
    takes = {f.name for f in fields(registry[name])}
    for option, value in options.items():
        require(
            option in takes or value == default.get(option),
            f"The {kind} {name!r} has no option {option!r}, so it can't be {value!r}. Give its class a "
            "field of that name.",
        )
    return registry[name](**{option: value for option, value in options.items() if option in takes})


@register(TORSOS, "mlp")
class MLP(nn.Module):
    """Dense layers with an activation after each.

    Dropout acts where a random stream of that name is given, batch statistics move where they are mutable.
    """

    hidden: tuple[int, ...]
    activation: str
    norm: str = "none"
    dropout: float = 0.0
    weights: str = LECUN

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


@register(ACTOR_HEADS, "tanh")
class TanhHead(nn.Module):
    """A deterministic action in [-1, 1]."""

    action_size: int
    weights: str = LECUN

    @nn.compact
    def __call__(self, features: Array) -> Array:
        return nn.tanh(dense(self.action_size, self.weights)(features))


@register(ACTOR_HEADS, "tanh_normal")
class TanhNormalHead(nn.Module):
    """A distribution over actions in [-1, 1] whose deviation depends on the state."""

    action_size: int
    weights: str = LECUN

    @nn.compact
    def __call__(self, features: Array) -> TanhNormal:
        mean, log_std = jnp.split(dense(2 * self.action_size, self.weights)(features), 2, axis=-1)
        return TanhNormal(mean, jnp.clip(log_std, LOG_STD_LOW, LOG_STD_HIGH))


@register(CRITIC_HEADS, "linear")
class LinearHead(nn.Module):
    """One value, or several numbers: a value for each reward, or the logits of a histogram."""

    outputs: int = 0
    weights: str = LECUN

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
    """[obs, E(a), E(v), E(u)] -> torso -> head, each E one affine layer of its own."""

    embedding: int
    actor: nn.Module
    weights: str = LECUN

    @nn.compact
    def __call__(self, features: Array, trajectory: Array) -> Any:
        parts = [dense(self.embedding, self.weights)(trajectory[..., i, :]) for i in range(trajectory.shape[-2])]
        return self.actor(jnp.concatenate([features, *parts], axis=-1))


class Critic(nn.Module):
    """[encoder(obs), action] -> torso -> head: observation and action meet before the torso."""

    encoder: nn.Module
    torso: nn.Module
    head: nn.Module

    def __call__(self, obs: Array, action: Array) -> Array:
        return self.head(self.torso(jnp.concatenate([self.encoder(obs), action], axis=-1)))


@dataclass(frozen=True)
class Networks:
    """The networks of an actor-critic agent, by name.

    With `share_encoder` one encoder serves the actor and all critics. It learns from the critics' loss alone; the
    actor reads its features without moving them, as is usual since SAC-AE (Yarats et al., 2021).
    """

    actor: Torso = field(default_factory=Torso)
    """The actor's torso."""
    critic: Torso = field(default_factory=Torso)
    """The critics' torso."""
    encoder: Torso = field(default_factory=lambda: Torso(hidden=()))
    """An encoder of the observation before the torsos; none by default."""
    share_encoder: bool = False
    """One encoder for the actor and all critics, trained by the critics' loss."""
    actor_head: str = "tanh"
    """Name of a registered actor head."""
    critic_head: str = "linear"
    """Name of a registered critic head."""
    weights: Literal["lecun", "uniform"] = LECUN
    """What all of them start with: normal weights of deviation 1/sqrt(inputs), as in flax, or uniform ones within
    +-1/sqrt(inputs), as in PyTorch."""

    def __post_init__(self) -> None:
        if self.weights not in WEIGHTS:
            raise unknown("start of weights", self.weights, WEIGHTS)
        require(
            not self.share_encoder or bool(self.encoder.hidden) or self.encoder.kind != "mlp",
            "share_encoder needs an encoder to share: give it units, for example --agent.networks.encoder.hidden 64, "
            "or name one of your own, --agent.networks.encoder.kind NAME.",
        )
        for name in ("actor", "encoder"):
            torso = getattr(self, name)
            require(
                torso.norm != "batch" and not torso.dropout,
                f"Batch normalisation and dropout are for the critics' torso, not the {name}'s.",
            )

    def actor_module(self, spec: EnvSpec) -> Actor:
        head = self._head(ACTOR_HEADS, "actor head", self.actor_head, {"action_size": spec.action_size}, {})
        return Actor(self._own_encoder(), self.actor.module(self.weights), head)

    def critic_module(self, outputs: int = 0) -> Critic:
        head = self._head(CRITIC_HEADS, "critic head", self.critic_head, {"outputs": outputs}, {"outputs": 0})
        return Critic(self._own_encoder(), self.critic.module(self.weights), head)

    def encoder_module(self) -> nn.Module:
        """The shared encoder; without one, a module that returns its input."""
        return (self.encoder if self.share_encoder else Torso(hidden=())).module(self.weights)

    def _own_encoder(self) -> nn.Module:
        return (Torso(hidden=()) if self.share_encoder else self.encoder).module(self.weights)

    def _head(self, registry: Any, kind: str, name: str, options: dict[str, Any], default: dict[str, Any]) -> nn.Module:
        return _part(registry, kind, name, options | {"weights": self.weights}, default | {"weights": LECUN})


def init(module: nn.Module, key: Key, *inputs: Array) -> Params:
    """New parameters of a module; an empty dictionary for one that has none."""
    return module.init(key, *inputs).get("params", {})


def apply(module: nn.Module, params: Params, *inputs: Array) -> Any:
    return module.apply({"params": params}, *inputs)


def init_ensemble(module: nn.Module, size: int, key: Key, *inputs: Array) -> tuple[Params, Params]:
    """Parameters and batch statistics of `size` independent copies, stacked in front, each from its own key."""

    def one(key: Key) -> tuple[Params, Params]:
        variables = module.init(key, *inputs)
        return variables["params"], variables.get("batch_stats", {})

    return jax.vmap(one)(jax.random.split(key, size))


def apply_ensemble(
    module: nn.Module, params: Params, statistics: Params, key: Key | None, *inputs: Array, learning: bool = False
) -> Any:
    """The output of every copy, [size, ...], as one batched call; with `learning`, also the batch statistics after it.

    With a key, dropout acts, in each copy on its own. The inputs are broadcast first: with a shared input XLA would
    merge the copies into one product and pay for it with two transposes.
    """
    size = jax.tree.leaves(params)[0].shape[0]
    inputs = tuple(jnp.broadcast_to(x, (size, *x.shape)) for x in inputs)
    keys = None if key is None else jax.random.split(key, size)

    def one(params: Params, statistics: Params, key: Key | None, *x: Array) -> Any:
        variables = {"params": params, "batch_stats": statistics}
        rngs = None if key is None else {"dropout": key}
        if not learning:
            return module.apply(variables, *x, rngs=rngs)
        output, changed = module.apply(variables, *x, rngs=rngs, mutable=["batch_stats"])
        return output, changed.get("batch_stats", {})

    return jax.vmap(one)(params, statistics, keys, *inputs)
