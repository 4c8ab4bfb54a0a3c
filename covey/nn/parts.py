"""Networks from named parts: an optional encoder, a torso, a head. Any flax module can be registered as one of them.

A config names its parts, so that it stays a file of plain values. To add a part of your own, register it:

    @covey.register_torso("residual")
    class Residual(flax.linen.Module):
        hidden: tuple[int, ...]
        activation: str

        @flax.linen.compact
        def __call__(self, x): ...

A module receives the options that it has fields for. It is an error to set an option that it has no field for. A torso
with batch normalisation says so with the class attribute `batch_statistics = True`.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, fields
from typing import Any, Literal

import flax.linen as nn

from covey.errors import CoveyError, require, unknown
from covey.nn.distributions import LOG_STD
from covey.nn.networks import ACTIVATIONS, MLP, Actor, Critic, LinearHead, TanhHead, TanhNormalHead
from covey.nn.precision import WEIGHTS
from covey.nn.torsos import XQC, Flash, Simba
from covey.types import EnvSpec

TORSOS: dict[str, type[nn.Module]] = {"mlp": MLP, "simba": Simba, "flash": Flash, "xqc": XQC}
ACTOR_HEADS: dict[str, type[nn.Module]] = {"tanh": TanhHead, "tanh_normal": TanhNormalHead}
CRITIC_HEADS: dict[str, type[nn.Module]] = {"linear": LinearHead}

DEFAULTS: dict[str, tuple[Any, ...]] = {
    "hidden": ((256, 256), ()),
    "activation": ("relu",),
    "norm": ("none",),
    "dropout": (0.0,),
    "weights": ("uniform", "lecun"),
    "outputs": (0,),
    "log_std": (LOG_STD,),
    "log_std_bound": ("clip",),
}
"""Values of the options that a part without such a field accepts, because the user did not set them."""


def register(registry: dict[str, type[nn.Module]], name: str) -> Callable[[type], type]:
    """Returns a class decorator that adds a flax module to TORSOS, ACTOR_HEADS or CRITIC_HEADS.

    Args:
        registry: One of the three registries.
        name: Its name in a config.

    Returns:
        The decorator, which returns the class unchanged.

    Example:
        >>> @register(TORSOS, "residual")
        ... class Residual(flax.linen.Module): ...
    """

    def add(module: type) -> type:
        require(issubclass(module, nn.Module), f"{module!r} is not a flax.linen.Module, so it can't be a network part.")
        registry[name] = module
        return module

    return add


@dataclass(frozen=True)
class Torso:
    """The body of a network, which maps its input to features. With `hidden=()` it has no layers.

    Example:
        >>> Torso(hidden=(64, 64), norm="layer")
    """

    kind: str = "mlp"
    """Name of a registered torso: `mlp`; `simba`, residual blocks with layer normalisation; `flash`, residual blocks
    with batch normalisation; `xqc`, layers with batch normalisation before each activation; or your own."""
    hidden: tuple[int, ...] = (256, 256)
    """Units of each hidden layer; of each residual block, which must be equal."""
    activation: str = "relu"
    """Activation function: relu, tanh, elu, gelu or silu."""
    norm: Literal["none", "layer", "batch"] = "none"
    """Normalisation of an mlp: `layer` before each activation, or `batch` after it (in critics, this is CrossQ)."""
    dropout: float = 0.0
    """Share of units dropped while learning (critics only; with layer normalisation this is DroQ)."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "hidden", tuple(self.hidden))
        require(all(size > 0 for size in self.hidden), f"`hidden` sizes must be positive, not {self.hidden}.", self)
        require(0 <= self.dropout < 1, f"`dropout` must lie in [0, 1), not {self.dropout:g}.", self)
        if self.activation not in ACTIVATIONS:
            raise unknown("activation", self.activation, ACTIVATIONS)
        if self.norm not in ("none", "layer", "batch"):
            raise unknown("normalisation", self.norm, ("none", "layer", "batch"))
        require(
            self.kind not in ("simba", "flash") or len(set(self.hidden)) == 1,
            f"The residual blocks of a {self.kind} torso add up, so the sizes in `hidden` must be equal, such as 128 "
            f"128, not {' '.join(map(str, self.hidden)) or 'none'}.",
            self,
        )

    @property
    def has_statistics(self) -> bool:
        """Whether the torso has batch normalisation, and so running statistics."""
        return self.norm == "batch" or getattr(TORSOS.get(self.kind), "batch_statistics", False)

    def module(self, weights: str = "lecun") -> nn.Module:
        """Returns the flax module."""
        options = {name: getattr(self, name) for name in ("hidden", "activation", "norm", "dropout")}
        return _part(TORSOS, "torso", self.kind, options | {"weights": weights})


@dataclass(frozen=True)
class Networks:
    """The networks of an actor-critic agent.

    With `share_encoder` one encoder serves the actor and all critics. Only the critics' loss trains it; the actor uses
    its features without changing them, as is usual since SAC-AE (Yarats et al., 2021).

    Example:
        >>> small = Torso(hidden=(64, 64))
        >>> SACConfig(networks=Networks(actor=small, critic=small, actor_head="tanh_normal"))
    """

    actor: Torso = field(default_factory=Torso)
    """Torso of the actor."""
    critic: Torso = field(default_factory=Torso)
    """Torso of the critics."""
    encoder: Torso = field(default_factory=lambda: Torso(hidden=()))
    """Encoder of the observation, before the torsos; none by default."""
    share_encoder: bool = False
    """Use one encoder for the actor and all critics, trained by the critics' loss."""
    actor_head: str = "tanh"
    """Name of a registered actor head."""
    critic_head: str = "linear"
    """Name of a registered critic head."""
    weights: Literal["lecun", "uniform", "orthogonal", "he"] = "uniform"
    """Initial weights: `uniform` is uniform within +-1/sqrt(inputs), PyTorch's, with which most results are published;
    `lecun` is normal with deviation 1/sqrt(inputs), as in flax; `orthogonal` is a random orthogonal matrix, as in DrQ;
    `he` is normal with deviation sqrt(2/inputs)."""
    log_std: tuple[float, float] = LOG_STD
    """tanh_normal: smallest and largest logarithm of the standard deviation."""
    log_std_bound: Literal["clip", "tanh"] = "clip"
    """tanh_normal: how the limits are imposed: `clip`, or `tanh`, which approaches them smoothly."""

    def __post_init__(self) -> None:
        if self.weights not in WEIGHTS:
            raise unknown("start of weights", self.weights, WEIGHTS)
        require(
            not self.share_encoder or bool(self.encoder.hidden) or self.encoder.kind != "mlp",
            "`share_encoder` needs an encoder to share. Give it units, for example `encoder.hidden` 64, or name one of "
            "your own as `encoder.kind`.",
            self,
        )
        require(
            not self.actor.dropout and not self.encoder.dropout, "Dropout is for the torso of the critics only.", self
        )
        require(not self.encoder.has_statistics, "Batch normalisation is for the torsos, not for the encoder.", self)
        object.__setattr__(self, "log_std", tuple(self.log_std))
        require(
            len(self.log_std) == 2 and -20.0 <= self.log_std[0] < self.log_std[1] <= 5.0,
            f"`log_std` takes a lower and an upper limit between -20 and 5, such as -10 and 2, not {self.log_std}.",
            self,
        )
        if self.log_std_bound not in ("clip", "tanh"):
            raise unknown("bound of log_std", self.log_std_bound, ("clip", "tanh"))

    def actor_module(self, spec: EnvSpec) -> Actor:
        """Returns the flax module of the actor."""
        options = {
            "action_size": spec.action_size,
            "weights": self.weights,
            "log_std": self.log_std,
            "log_std_bound": self.log_std_bound,
        }
        head = _part(ACTOR_HEADS, "actor head", self.actor_head, options)
        return Actor(self._own_encoder(), self.actor.module(self.weights), head)

    def critic_module(self, outputs: int = 0) -> Critic:
        """Returns the flax module of one critic, with one value, or `outputs` numbers."""
        options = {"outputs": outputs, "weights": self.weights}
        head = _part(CRITIC_HEADS, "critic head", self.critic_head, options)
        return Critic(self._own_encoder(), self.critic.module(self.weights), head)

    def encoder_module(self) -> nn.Module:
        """Returns the shared encoder; without one, a module that returns its input."""
        return (self.encoder if self.share_encoder else Torso(hidden=())).module(self.weights)

    def _own_encoder(self) -> nn.Module:
        """Returns the encoder inside the actor or a critic; if it is shared, a module that returns its input."""
        return (Torso(hidden=()) if self.share_encoder else self.encoder).module(self.weights)


def _part(registry: dict[str, type[nn.Module]], kind: str, name: str, options: dict[str, Any]) -> Any:
    """Builds a registered module with the options that it has fields for."""
    if name not in registry:
        raise CoveyError(
            f"{unknown(kind, name, registry)} Register a {kind} of your own first: import its module, or on the "
            "command line add --plugin MODULE."
        )
    takes = {f.name for f in fields(registry[name])}
    for option, value in options.items():
        require(
            option in takes or value in DEFAULTS.get(option, ()),
            f"The {kind} {name!r} has no option {option!r}, so it can't be {value!r}. Give its class a field of that "
            "name.",
        )
    return registry[name](**{option: value for option, value in options.items() if option in takes})
