"""Networks from named parts: encoders, a torso, a head. Any flax module can be registered as one of them.

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
from dataclasses import dataclass, field, fields, replace
from typing import Any, Literal

import flax.linen as nn
import jax

from covey.errors import CoveyError, require, unknown
from covey.nn.distributions import LOG_STD
from covey.nn.encoders import PRIVILEGED, DrQ, Encoders, Image, Impala, Joined, Nature, Numbers, shifted
from covey.nn.networks import ACTIVATIONS, MLP, Actor, Critic, LinearHead, TanhHead, TanhNormalHead
from covey.nn.precision import WEIGHTS
from covey.nn.torsos import XQC, Flash, Simba
from covey.observation import Observation, Part
from covey.types import EnvSpec, Key, Step

TORSOS: dict[str, type[nn.Module]] = {"mlp": MLP, "simba": Simba, "flash": Flash, "xqc": XQC}
ENCODERS: dict[str, type[nn.Module]] = {"drq": DrQ, "nature": Nature, "impala": Impala}
"""Encoders of images. Parts of observations may also name a torso as their encoder."""
ACTOR_HEADS: dict[str, type[nn.Module]] = {"tanh": TanhHead, "tanh_normal": TanhNormalHead}
CRITIC_HEADS: dict[str, type[nn.Module]] = {"linear": LinearHead}
BUILTIN = (*TORSOS, *ENCODERS, *ACTOR_HEADS, *CRITIC_HEADS)

AUGMENTATION = 2**32 - 1
"""The `fold_in` value of the random numbers of augmentation."""
DEFAULTS: dict[str, tuple[Any, ...]] = {
    "hidden": ((256, 256), ()),
    "activation": ("relu",),
    "norm": ("none",),
    "dropout": (0.0,),
    "weights": ("uniform", "lecun"),
    "outputs": (0,),
    "log_std": (LOG_STD,),
    "log_std_bound": ("clip",),
    "channels": ((),),
    "features": (0,),
}
"""Values of the options that a part without such a field accepts, because the user did not set them."""


def register(registry: dict[str, type[nn.Module]], name: str) -> Callable[[type], type]:
    """Returns a class decorator that adds a flax module to TORSOS, ENCODERS, ACTOR_HEADS or CRITIC_HEADS.

    Args:
        registry: One of the four registries.
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

    A shared encoder serves the actor and all critics. Only the critics' loss trains it; the actor uses its features
    without changing them, as is usual since SAC-AE (Yarats et al., 2021).

    Example:
        >>> small = Torso(hidden=(64, 64))
        >>> SACConfig(networks=Networks(actor=small, critic=small, actor_head="tanh_normal"))
    """

    actor: Torso = field(default_factory=Torso)
    """Torso of the actor."""
    critic: Torso = field(default_factory=Torso)
    """Torso of the critics."""
    encoder: Torso = field(default_factory=lambda: Torso(hidden=()))
    """Encoder of vectors, before the torsos; none by default."""
    share_encoder: bool = False
    """Use one encoder of vectors for the actor and all critics, trained by the critics' loss."""
    image: Image = field(default_factory=Image)
    """Encoder of images."""
    encoders: tuple[str, ...] = ()
    """Encoders of single parts of the observation, as PART=KIND, such as `camera=impala goal=mlp`. A kind is a
    registered encoder or torso, or `none`; its options are those of `image` or `encoder`."""
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
        object.__setattr__(self, "encoders", tuple(self.encoders))
        for each in self.encoders:
            require(each.count("=") == 1, f"`encoders` takes PART=KIND, such as camera=impala, not {each!r}.", self)
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

    def actor_module(self, spec: EnvSpec, names: tuple[str, ...] = ()) -> Actor:
        """Returns the flax module of the actor, which sees the parts `names` of an observation."""
        options = {
            "action_size": spec.action_size,
            "weights": self.weights,
            "log_std": self.log_std,
            "log_std_bound": self.log_std_bound,
        }
        head = _part(ACTOR_HEADS, "actor head", self.actor_head, options)
        seen = actor_parts(spec.observation, names)
        return Actor(self._own_encoder(spec.observation, seen), self.actor.module(self.weights), head)

    def critic_module(self, spec: EnvSpec, outputs: int = 0, names: tuple[str, ...] = ()) -> Critic:
        """Returns the flax module of one critic, with one value, or `outputs` numbers."""
        options = {"outputs": outputs, "weights": self.weights}
        head = _part(CRITIC_HEADS, "critic head", self.critic_head, options)
        seen = critic_parts(spec.observation, names)
        return Critic(self._own_encoder(spec.observation, seen), self.critic.module(self.weights), head)

    def encoder_module(self, spec: EnvSpec) -> nn.Module:
        """Returns the shared encoder; without one, a module that returns its input."""
        form = spec.observation
        self._check_encoders(form)
        shared = {name: self._encoder(name, part) for name, part in form.named if self._is_shared(part)}
        if form.is_array:
            return next(iter(shared.values()), nothing())
        return Encoders(shared) if shared else nothing()

    def augmented(self, batch: Step, spec: EnvSpec, key: Key) -> Step:
        """Returns a batch with randomly shifted images, if `image.shift` asks for it."""
        if not self.image.shift:
            return batch
        return shifted(batch, spec.observation, self.image.shift, jax.random.fold_in(key, AUGMENTATION))

    def _own_encoder(self, form: Observation, seen: tuple[str, ...]) -> nn.Module:
        """Returns the encoder inside the actor or a critic: of the parts that it sees and that have no shared one."""
        found: dict[str, nn.Module] = {}
        for name, part in form.named:
            if name in seen:
                found[name] = Numbers() if self._is_shared(part) else self._encoder(name, part)
        if not form.is_array:
            return Joined(found)
        return nothing() if self._is_shared(form.named[0][1]) else found[form.named[0][0]]

    def _is_shared(self, part: Part) -> bool:
        return self.image.shared if part.is_image else self.share_encoder and part.is_row

    def _encoder(self, name: str, part: Part) -> nn.Module:
        """Returns the encoder of one part of an observation."""
        own = dict(each.split("=") for each in self.encoders).get(name, "")
        if own == "none":
            return Numbers(len(part.shape))
        if own in TORSOS or (not own and not part.is_image):
            torso = replace(self.encoder, kind=own) if own else self.encoder
            if own and not torso.hidden:
                torso = replace(torso, hidden=self.actor.hidden)
            module = torso.module(self.weights)
            is_vector = len(part.shape) == 1 and part.dtype == "float32"
            return module if is_vector else nn.Sequential([Numbers(len(part.shape)), module])
        image = self.image
        options = {"channels": image.channels, "features": image.features, "weights": self.weights}
        options = {key: value for key, value in options.items() if value not in DEFAULTS[key]}
        return _part(ENCODERS, "encoder", own or image.kind, options)

    def _check_encoders(self, form: Observation) -> None:
        for each in self.encoders:
            name = each.split("=")[0]
            if name not in form.parts:
                raise unknown("part of the observation", name, form.parts)


def actor_parts(form: Observation, names: tuple[str, ...]) -> tuple[str, ...]:
    """Returns the parts of an observation that the actor sees: those named, by default all but `privileged`."""
    return _checked(form, names) or tuple(name for name in form.parts if name != PRIVILEGED)


def critic_parts(form: Observation, names: tuple[str, ...]) -> tuple[str, ...]:
    """Returns the parts of an observation that the critics see: those named, by default all."""
    return _checked(form, names) or tuple(form.parts)


def _checked(form: Observation, names: tuple[str, ...]) -> tuple[str, ...]:
    for name in names:
        if name not in form.parts:
            raise unknown("part of the observation", name, form.parts)
    return tuple(names)


def nothing() -> nn.Module:
    """Returns a module that returns its input."""
    return Torso(hidden=()).module()


def _part(registry: dict[str, type[nn.Module]], kind: str, name: str, options: dict[str, Any]) -> Any:
    """Builds a registered module with the options that it has fields for."""
    if name not in registry:
        raise CoveyError(
            f"{unknown(kind, name, registry)} Register a {kind} of your own first: import its module, or on the "
            "command line add --plugin MODULE."
        )
    takes = {f.name for f in fields(registry[name])}
    if name not in BUILTIN:  # a preset may set the sizes of layers, which a module of the user's need not have
        options = {option: value for option, value in options.items() if option in takes or option != "hidden"}
    for option, value in options.items():
        require(
            option in takes or value in DEFAULTS.get(option, ()),
            f"The {kind} {name!r} has no option {option!r}, so it can't be {value!r}. Give its class a field of that "
            "name.",
        )
    return registry[name](**{option: value for option, value in options.items() if option in takes})
