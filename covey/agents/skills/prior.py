"""Skills: their prior, what of an observation the policy and the models of skills see, and general measures."""

from dataclasses import dataclass
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp

from covey.agents.skills.contract import Paths
from covey.errors import require, unknown
from covey.types import Array, EnvSpec, Key, Metrics, Step

GRID = 5
"""Continuous skills of two dimensions are shown on a grid of so many by so many."""
SHOWN = 32
"""Of other continuous skills, so many draws are shown."""
CELLS = 20
"""Cells of the coverage along each of the descriptor's first two coordinates."""


@dataclass(frozen=True)
class Skills:
    """The prior of skills, and what they are to differ in."""

    kind: Literal["discrete", "continuous"] = "discrete"
    """A few skills with a number each, or a space of them."""
    number: int = 8
    """How many discrete skills."""
    dimensions: int = 2
    """Dimensions of continuous skills."""
    prior: Literal["uniform", "normal"] = "uniform"
    """Continuous skills are uniform on [-1, 1], or standard normal, in each dimension."""
    resample: float = 0.0
    """Probability of a new skill at each step within an episode; 0 keeps a skill for the episode."""
    resample_after: int = 10
    """Steps that a skill lasts at least."""
    descriptor: tuple[str, ...] = ()
    """What skills are to differ in: nothing given, the environment's own descriptor; names, such as `x y`, those
    coordinates of it; `observation`, the whole observation; numbers, such as `0 1`, those coordinates of that."""
    hide_descriptor: bool = True
    """Hide from the policy what the descriptor tells of a position, where the environment says where it shows that."""
    smerl: bool = False
    """SMERL (arXiv 2010.14484): the environment's reward and, for skills whose newest finished episode came up to
    the target less the margin, --hyper.smerl-scale times that of skills."""
    smerl_target: float = 0.0
    """Return of a good episode."""
    smerl_margin: float = 0.0
    """How far below it an episode may stay."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "descriptor", tuple(self.descriptor))
        for name, least in (("number", 2), ("dimensions", 1), ("resample_after", 1)):
            value = getattr(self, name)
            require(value >= least, f"--agent.skills.{name.replace('_', '-')} must be at least {least}, not {value}.")
        require(0 <= self.resample <= 1, f"--agent.skills.resample must lie in [0, 1], not {self.resample:g}.")
        require(self.smerl_margin >= 0, f"--agent.skills.smerl-margin must not be negative, not {self.smerl_margin:g}.")

    @property
    def discrete(self) -> bool:
        return self.kind == "discrete"

    @property
    def size(self) -> int:
        """Numbers in a skill: one-hot, or its coordinates."""
        return self.number if self.discrete else self.dimensions

    def draw(self, key: Key, count: int) -> Array:
        """Skills [count, size] of the prior."""
        if self.discrete:
            return jax.nn.one_hot(jax.random.randint(key, (count,), 0, self.number), self.number)
        shape = (count, self.dimensions)
        if self.prior == "normal":
            return jax.random.normal(key, shape)
        return jax.random.uniform(key, shape, minval=-1.0, maxval=1.0)

    def log_prior(self, skill: Array) -> Array:
        """log p(z) of skills [..., size]."""
        if self.discrete:
            return jnp.full(skill.shape[:-1], -jnp.log(self.number))
        if self.prior == "normal":
            return -0.5 * jnp.sum(skill**2 + jnp.log(2.0 * jnp.pi), axis=-1)
        return jnp.full(skill.shape[:-1], -self.dimensions * jnp.log(2.0))

    def show(self) -> Array:
        """Skills that stand for all: every discrete one, a grid of one or two dimensions, or draws, always the same."""
        if self.discrete:
            return jnp.eye(self.number)
        if self.dimensions > 2:
            return self.draw(jax.random.key(0), SHOWN)
        count = GRID if self.dimensions == 2 else SHOWN
        quantiles = (jnp.arange(float(count)) + 0.5) / count
        line = jax.scipy.special.ndtri(quantiles) if self.prior == "normal" else 2.0 * quantiles - 1.0
        return jnp.stack(jnp.meshgrid(*[line] * self.dimensions, indexing="ij"), axis=-1).reshape(-1, self.dimensions)


class View(NamedTuple):
    """Coordinates of what an agent is given: what the policy sees, the descriptor, and which of that is a position."""

    policy: tuple[int, ...]
    descriptor: tuple[int, ...]
    position: tuple[bool, ...]


def view(skills: Skills, spec: EnvSpec) -> View:
    """What the chosen descriptor means in an environment; an error where there is no such thing."""
    shown, own = spec.shown_size, spec.descriptor
    chosen = skills.descriptor
    if chosen == ("observation",):
        descriptor = tuple(range(shown))
    elif chosen and all(text.isdecimal() for text in chosen):
        descriptor = tuple(int(text) for text in chosen)
        beyond = [i for i in descriptor if i >= shown]
        require(
            not beyond,
            f"--agent.skills.descriptor names coordinate {''.join(map(str, beyond[:1]))} of an observation that has "
            f"{shown}: choose from 0 to {shown - 1}.",
        )
    else:
        descriptor = _named(chosen, spec)
    require(len(set(descriptor)) == len(descriptor), f"--agent.skills.descriptor names a coordinate twice: {chosen}.")
    # Where the position stands: behind the observation, and within it where the environment says so.
    positions = range(shown, shown + own.size) if own and own.is_position else ()
    twins = dict(zip(own.coordinates, positions, strict=True)) if own and own.is_position and own.coordinates else {}
    position = tuple(i in positions or i in twins for i in descriptor)
    hidden = {i for i, twin in twins.items() if i in descriptor or twin in descriptor}
    policy = tuple(i for i in range(shown) if not (skills.hide_descriptor and i in hidden))
    return View(policy, descriptor, position)


def _named(chosen: tuple[str, ...], spec: EnvSpec) -> tuple[int, ...]:
    """Coordinates of the environment's own descriptor, all of them unless some are named."""
    remedy = "Choose coordinates of the observation, as in --agent.skills.descriptor 0 1, or all: `observation`."
    own = spec.descriptor
    if own is None:
        require(bool(chosen), f"This environment has no state descriptor for skills to differ in. {remedy}")
        raise unknown("descriptor", chosen[0], ["observation"])
    require(spec.described, f"Wrap the environment: Described(env) tells an agent its descriptor. {remedy}")
    for name in chosen:
        if name not in own.names:
            error = unknown("coordinate of the descriptor", name, own.names)
            raise type(error)(f"{error} {remedy}")
    return tuple(spec.shown_size + own.names.index(name) for name in chosen or own.names)


class Moves(NamedTuple):
    """Transitions as models of skills see them, [rows, ...]: where from, where to, with which skill."""

    before: Array
    after: Array
    skill: Array
    valid: Array


def moves(chosen: View, step: Step) -> Moves:
    """The transitions of a step as rows. Those that are not valid hold zeros: nothing of them enters anywhere."""
    valid = step.valid.reshape(-1)
    where = jnp.array(chosen.descriptor)

    def rows(x: Array) -> Array:
        return jnp.where(valid[:, None] > 0, x.reshape(valid.shape[0], -1), 0.0)

    return Moves(rows(step.obs[..., where]), rows(step.next_obs[..., where]), rows(step.extras["skill"]), valid)


def steps_of(paths: Paths) -> Step:
    """Paths as the transitions [S, N, T] that they are made of."""
    obs, next_obs = paths.obs[:, :, :-1], paths.obs[:, :, 1:]
    nothing = jnp.zeros(paths.valid.shape)
    skill = jnp.broadcast_to(paths.skills[:, None, None], (*paths.valid.shape, paths.skills.shape[-1]))
    return Step(obs, nothing, nothing, nothing, next_obs, paths.valid, {"skill": skill})


def coverage(paths: Paths, spec: EnvSpec) -> Metrics:
    """Cells of the descriptor's limits that were visited, and how far ends lie apart, between skills and within one."""
    own = spec.descriptor
    if own is None:
        return {}
    where = paths.obs[..., spec.shown_size : spec.shown_size + own.size]
    been = jnp.concatenate([jnp.ones((*paths.valid.shape[:2], 1)), paths.valid], axis=-1)
    low, high = (jnp.array(x[:2]).reshape(1, 1, 1, -1) for x in (own.low, own.high))
    cell = jnp.clip(CELLS * (where[..., :2] - low) / (high - low), 0.0, CELLS - 1.0).astype(jnp.int32)
    flat = cell[..., 0] if own.size == 1 else cell[..., 0] * CELLS + cell[..., 1]
    visits = jnp.zeros(CELLS**2).at[flat.reshape(-1)].add(been.reshape(-1))
    length = jnp.sum(paths.valid, axis=-1).astype(jnp.int32)
    end = jnp.take_along_axis(where, length[..., None, None], axis=2)[:, :, 0]
    centre = jnp.mean(end, axis=1, keepdims=True)
    between = centre - jnp.mean(centre, axis=0, keepdims=True)
    return {
        "cells": jnp.sum(visits > 0).astype(jnp.float32),
        "spread_between": jnp.sqrt(jnp.mean(jnp.sum(between**2, axis=-1))),
        "spread_within": jnp.sqrt(jnp.mean(jnp.sum((end - centre) ** 2, axis=-1))),
    }
