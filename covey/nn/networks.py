"""Networks from parts: an optional encoder, a torso, a head; any flax module can be any of them.

A part is named in the config, so that a config stays a file of plain values. `register` adds a part of one's own:

    @covey.register_torso("residual")
    class Residual(flax.linen.Module):
        hidden: tuple[int, ...]
        activation: str
        layer_norm: bool

        @flax.linen.compact
        def __call__(self, x): ...
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from covey.errors import require, unknown
from covey.types import Array, EnvSpec, Key, Params

ACTIVATIONS: dict[str, Callable[[Array], Array]] = {
    "relu": nn.relu,
    "tanh": nn.tanh,
    "elu": nn.elu,
    "gelu": nn.gelu,
    "silu": nn.silu,
}
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
    layer_norm: bool = False
    """Layer normalisation before each activation."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "hidden", tuple(self.hidden))
        require(all(size > 0 for size in self.hidden), f"hidden sizes must be positive, not {self.hidden}.")
        if self.activation not in ACTIVATIONS:
            raise unknown("activation", self.activation, ACTIVATIONS)

    def module(self) -> nn.Module:
        return _part(TORSOS, "torso", self.kind)(
            hidden=self.hidden, activation=self.activation, layer_norm=self.layer_norm
        )


def _part(registry: dict[str, type[nn.Module]], kind: str, name: str) -> Any:
    if name not in registry:
        error = unknown(kind, name, registry)
        raise type(error)(f"{error} A {kind} of your own must be registered first: import its module, or --plugin it.")
    return registry[name]


@register(TORSOS, "mlp")
class MLP(nn.Module):
    """Dense layers with an activation after each."""

    hidden: tuple[int, ...]
    activation: str
    layer_norm: bool

    @nn.compact
    def __call__(self, x: Array) -> Array:
        for size in self.hidden:
            x = nn.Dense(size)(x)
            if self.layer_norm:
                x = nn.LayerNorm()(x)
            x = ACTIVATIONS[self.activation](x)
        return x


@register(ACTOR_HEADS, "tanh")
class TanhHead(nn.Module):
    """A deterministic action in [-1, 1]."""

    action_size: int

    @nn.compact
    def __call__(self, features: Array) -> Array:
        return nn.tanh(nn.Dense(self.action_size)(features))


@register(CRITIC_HEADS, "linear")
class LinearHead(nn.Module):
    """One value."""

    @nn.compact
    def __call__(self, features: Array) -> Array:
        return nn.Dense(1)(features)[..., 0]


class Actor(nn.Module):
    """obs -> encoder -> torso -> head."""

    encoder: nn.Module
    torso: nn.Module
    head: nn.Module

    def __call__(self, obs: Array) -> Array:
        return self.head(self.torso(self.encoder(obs)))


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

    def __post_init__(self) -> None:
        require(
            not self.share_encoder or bool(self.encoder.hidden),
            "share_encoder needs an encoder to share: give it units, for example --agent.networks.encoder.hidden 64.",
        )

    def actor_module(self, spec: EnvSpec) -> Actor:
        head = _part(ACTOR_HEADS, "actor head", self.actor_head)(action_size=spec.action_size)
        return Actor(self._own_encoder(), self.actor.module(), head)

    def critic_module(self) -> Critic:
        return Critic(self._own_encoder(), self.critic.module(), _part(CRITIC_HEADS, "critic head", self.critic_head)())

    def encoder_module(self) -> nn.Module:
        """The shared encoder; without one, a module that returns its input."""
        return (self.encoder if self.share_encoder else Torso(hidden=())).module()

    def _own_encoder(self) -> nn.Module:
        return (Torso(hidden=()) if self.share_encoder else self.encoder).module()


def init(module: nn.Module, key: Key, *inputs: Array) -> Params:
    """New parameters of a module; an empty dictionary for one that has none."""
    return module.init(key, *inputs).get("params", {})


def apply(module: nn.Module, params: Params, *inputs: Array) -> Any:
    return module.apply({"params": params}, *inputs)


def init_ensemble(module: nn.Module, size: int, key: Key, *inputs: Array) -> Params:
    """Parameters of `size` independent copies, stacked on a leading axis, each from its own key."""
    return jax.vmap(lambda k: init(module, k, *inputs))(jax.random.split(key, size))


def apply_ensemble(module: nn.Module, params: Params, *inputs: Array) -> Array:
    """The output of every copy, [size, ...], as one batched call.

    The inputs are broadcast first: with a shared input XLA would merge the copies into one product and pay for it
    with two transposes.
    """
    size = jax.tree.leaves(params)[0].shape[0]
    inputs = tuple(jnp.broadcast_to(x, (size, *x.shape)) for x in inputs)
    return jax.vmap(lambda p, *x: apply(module, p, *x))(params, *inputs)
