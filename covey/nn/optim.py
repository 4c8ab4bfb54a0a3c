"""Optimisers by name. The learning rate is an argument: it can be scheduled, tuned and mapped over a population.

An optimiser is an optax transformation that returns a direction; `Optimiser.step` multiplies it by the learning rate.
To add one of your own, register it:

    covey.register_optimiser("lion", lambda options: optax.scale_by_lion(options.beta1, 0.99))
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

import jax
import jax.numpy as jnp
import optax
import optax.contrib

from covey.errors import CoveyError, require, unknown
from covey.types import Array, Params, Scalar

RMS = 0.2
"""Size of Muon's steps, as the root mean square over a matrix, near Adam's (arXiv 2502.16982)."""


@dataclass(frozen=True)
class Optimiser:
    """An optimiser: the rule that turns gradients into steps, with weight decay and gradient clipping.

    Example:
        >>> optimiser = Optimiser(kind="adamw", weight_decay=0.01, clip_norm=10.0)
        >>> state = optimiser.init(params)
        >>> params, state = optimiser.step(params, gradient, state, 3e-4)
    """

    kind: str = "adam"
    """Name of an optimiser: adam, adamw, rmsprop, sgd, muon, or a registered one."""
    weight_decay: float = 0.0
    """Decoupled weight decay, as in AdamW: each step also shrinks every weight by the learning rate times this. Biases
    and the scales of normalisation do not decay. Adam with weight decay is called adamw."""
    clip_norm: float = 0.0
    """Clip the norm of a gradient, over all parameters of the actor or of all critics; 0 does not clip."""
    beta1: float = 0.9
    """adam, adamw: decay of the first moment. CrossQ uses 0.5."""
    beta2: float = 0.999
    """adam, adamw: decay of the second moment."""
    epsilon: float = 1e-8
    """adam, adamw, rmsprop: added to the root of the second moment."""
    momentum: float = 0.0
    """sgd, rmsprop, muon: decay of the momentum. Muon needs one; 0.95 is usual."""
    decay: float = 0.99
    """rmsprop: decay of the second moment."""
    unit_norm: Literal["none", "weights", "layers"] = "none"
    """Keep the weights on a sphere: after each step, the incoming weights of every unit are divided by their norm.
    `weights` includes the unit's bias in it (XQC); `layers` does not, and scales the parameters of every normalisation
    layer to a root mean square of 1 as well (FlashSAC)."""

    def __post_init__(self) -> None:
        for name in ("weight_decay", "clip_norm"):
            value = getattr(self, name)
            require(0 <= value < math.inf, f"`{name}` must be finite and not negative, not {value:g}.", self)
        for name in ("beta1", "beta2", "momentum", "decay"):
            value = getattr(self, name)
            require(0 <= value < 1, f"`{name}` must lie in [0, 1), not {value:g}.", self)
        require(0 < self.epsilon < math.inf, f"`epsilon` must be positive, not {self.epsilon:g}.", self)
        used = OPTIONS.get(self.kind, tuple(DEFAULTS))
        for name, default in DEFAULTS.items():
            require(
                name in used or getattr(self, name) == default,
                f"`{name}` is not an option of {self.kind}, which has {', '.join(used)}.",
                self,
            )
        require(
            self.kind != "adam" or not self.weight_decay,
            f"`weight_decay` {self.weight_decay:g} needs another `kind`: adamw is Adam with decoupled weight decay.",
            self,
        )
        require(
            self.kind != "adamw" or self.weight_decay > 0,
            "`kind` adamw needs a `weight_decay`, such as 0.01. Without, it is adam.",
            self,
        )
        require(self.kind != "muon" or self.momentum > 0, "`kind` muon needs a `momentum`, such as 0.95.", self)
        if self.unit_norm not in ("none", "weights", "layers"):
            raise unknown("unit norm", self.unit_norm, ("none", "weights", "layers"))

    def init(self, params: Params) -> optax.OptState:
        """Returns the state of the optimiser before the first step."""
        return self.transformation().init(params)

    def transformation(self) -> optax.GradientTransformation:
        """Returns the optax transformation from gradients to directions. It has no learning rate and no decay."""
        if self.kind not in OPTIMISERS:
            raise CoveyError(
                f"{unknown('optimiser', self.kind, OPTIMISERS)} Register an optimiser of your own first: import its "
                "module, or on the command line add --plugin MODULE."
            )
        return OPTIMISERS[self.kind](self)

    def step(
        self, params: Params, gradient: Params, state: optax.OptState, learning_rate: Scalar
    ) -> tuple[Params, optax.OptState]:
        """Makes one step.

        Args:
            params: Parameters.
            gradient: Gradient of the loss.
            state: State of the optimiser.
            learning_rate: Step size; it may be traced.

        Returns:
            The parameters and the state of the optimiser after the step.
        """
        with jax.numpy_dtype_promotion("standard"):  # optax raises a float to an integer count
            if self.clip_norm:
                gradient, _ = optax.clip_by_global_norm(self.clip_norm).update(gradient, optax.EmptyState())
            updates, state = self.transformation().update(gradient, state, params)
        if self.weight_decay:
            updates = jax.tree.map_with_path(self._decayed, updates, params)
        return self.project(jax.tree.map(lambda p, u: p - learning_rate * u, params, updates)), state

    def project(self, params: Params) -> Params:
        """Returns parameters with unit norm, if the option `unit_norm` is on; also for parameters before any step."""
        if self.unit_norm == "none":
            return params

        def is_layer(part: Any) -> bool:
            return isinstance(part, dict) and ("kernel" in part or "scale" in part)

        return jax.tree.map(self._unit, params, is_leaf=is_layer)

    def _unit(self, layer: Any) -> Any:
        """Returns the parameters of one layer with unit norm."""
        if not isinstance(layer, dict):
            return layer
        if "kernel" in layer:
            squares = jnp.sum(layer["kernel"] ** 2, axis=-2)
            if self.unit_norm == "layers":
                return layer | {"kernel": layer["kernel"] / _root(squares)[..., None, :]}
            norm = _root(squares + layer["bias"] ** 2) if "bias" in layer else _root(squares)
            return {name: x / (norm[..., None, :] if name == "kernel" else norm) for name, x in layer.items()}
        if self.unit_norm == "weights":
            return layer
        size = layer["scale"].shape[-1]
        norm = _root(sum(jnp.sum(x**2, axis=-1, keepdims=True) for x in layer.values()) / size)
        return {name: x / norm for name, x in layer.items()}

    def _decayed(self, path: tuple, update: jax.Array, weight: jax.Array) -> jax.Array:
        """Adds the decay of one leaf to its update."""
        exempt = _name(path) in ("bias", "scale")
        return update if exempt else update + self.weight_decay * weight


@dataclass(frozen=True)
class Optimisers:
    """The optimisers of an agent.

    Example:
        >>> SACConfig(optimisers=Optimisers(critic=Optimiser(kind="adamw", weight_decay=0.01)))
    """

    actor: Optimiser = field(default_factory=Optimiser)
    """Optimiser of the actor."""
    critic: Optimiser = field(default_factory=Optimiser)
    """Optimiser of the critics and the shared encoder."""
    temperature: Optimiser = field(default_factory=Optimiser)
    """Optimiser of the temperatures."""

    def __post_init__(self) -> None:
        require(
            not self.temperature.weight_decay,
            f"`temperature.weight_decay` must be 0, not {self.temperature.weight_decay:g}: a temperature is not a "
            "weight. Set `temperature.kind` adam.",
            self,
        )
        require(self.temperature.unit_norm == "none", "A temperature has no `unit_norm`: it is not a layer.", self)


def _adam(options: Optimiser) -> optax.GradientTransformation:
    return optax.scale_by_adam(options.beta1, options.beta2, options.epsilon)


def _rmsprop(options: Optimiser) -> optax.GradientTransformation:
    """As in PyTorch: epsilon is added to the root, and the momentum is that of directions, before the learning rate."""
    scale = optax.scale_by_rms(options.decay, options.epsilon, eps_in_sqrt=False)
    return optax.chain(scale, _sgd(options))


def _sgd(options: Optimiser) -> optax.GradientTransformation:
    return optax.trace(options.momentum) if options.momentum else optax.identity()


def _muon(options: Optimiser) -> optax.GradientTransformation:
    """Orthogonalises the momentum of every kernel; Adam, with Nesterov's momentum, moves all other parameters."""
    return optax.contrib.muon(
        -1.0,  # optax subtracts the rate times the direction: this returns the direction
        beta=options.momentum,
        eps=options.epsilon,
        adam_b1=options.beta1,
        adam_b2=options.beta2,
        muon_weight_dimension_numbers=_matrices,
        consistent_rms=RMS,
    )


def _matrices(params: Params) -> Any:
    """Returns the axes of the matrix in every kernel, [..., inputs, outputs], and None for all other parameters.

    A stacked ensemble [critics, inputs, outputs] has one matrix per critic, and its biases are no matrices.
    """
    axes = optax.contrib.MuonDimensionNumbers(-2, -1)
    return jax.tree.map_with_path(lambda path, x: axes if _name(path) == "kernel" and x.ndim > 1 else None, params)


def _root(squares: Any) -> Array:
    """Returns the root of sums of squares; a unit whose weights are all 0 stays so."""
    return jnp.sqrt(jnp.maximum(squares, 1e-12))


def _name(path: tuple) -> str:
    """Returns the name of a leaf; "" for a parameter that is a bare array."""
    return getattr(path[-1], "key", "") if path else ""


Factory = Callable[[Optimiser], optax.GradientTransformation]
OPTIMISERS: dict[str, Factory] = {"adam": _adam, "adamw": _adam, "rmsprop": _rmsprop, "sgd": _sgd, "muon": _muon}
OPTIONS = {
    "adam": ("beta1", "beta2", "epsilon"),
    "adamw": ("beta1", "beta2", "epsilon"),
    "rmsprop": ("decay", "epsilon", "momentum"),
    "sgd": ("momentum",),
    "muon": ("momentum", "beta1", "beta2", "epsilon"),
}
"""The options that each kind of optimiser has, besides `weight_decay` and `clip_norm`. A registered one has all."""
DEFAULTS = {name: getattr(Optimiser, name) for name in ("beta1", "beta2", "epsilon", "momentum", "decay")}


def register_optimiser(name: str, factory: Factory) -> None:
    """Registers an optimiser under a name, for `Optimiser.kind` and the command line.

    Args:
        name: Its name, as in `--agent.optimisers.critic.kind NAME`.
        factory: `factory(options)` receives the `Optimiser` with its options (`beta1`, `epsilon` and so on) and returns
            an optax transformation without a learning rate: `optax.scale_by_lion(...)`, not `optax.lion(...)`. covey
            multiplies its result by the learning rate and subtracts it.

    Example:
        >>> covey.register_optimiser("lion", lambda options: optax.scale_by_lion(options.beta1, 0.99))
    """
    require(name not in OPTIMISERS, f"There is already an optimiser called {name!r}.")
    OPTIMISERS[name] = factory


def polyak(target: Params, online: Params, rate: Scalar) -> Params:
    """Returns target + rate (online - target): the target moved towards the online parameters."""
    return jax.tree.map(lambda t, o: t + rate * (o - t), target, online)


def target_age(period: int) -> Array | tuple[()]:
    """Returns the count of updates that `every` needs: 0, or () if the targets move at every update."""
    return jnp.zeros((), jnp.int32) if period > 1 else ()


def every(period: int, age: Array | tuple[()], tau: Scalar) -> tuple[Array | tuple[()], Scalar]:
    """Counts an update, for targets that move only at every `period`-th one.

    Args:
        period: Updates per move of the targets.
        age: Updates since the last move; () if the period is 1.
        tau: Share by which the targets move.

    Returns:
        The new age, and the share of this update: `tau`, or 0.
    """
    if period == 1:
        return age, tau
    age = (jnp.asarray(age) + 1) % period
    return age, jnp.where(age == 0, tau, 0.0)
