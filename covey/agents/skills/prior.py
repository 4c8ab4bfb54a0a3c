"""Skills: their prior, the transitions that the models of skills receive, and general measures."""

from dataclasses import dataclass
from math import lgamma, log, pi
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp

from covey.agents.skills.contract import Paths
from covey.agents.skills.view import View
from covey.errors import require, require_at_least
from covey.observation import DESCRIPTOR, Obs
from covey.types import Array, EnvSpec, Key, Metrics, Scalar, Step

GRID = 5
"""Side of the grid on which continuous skills of two dimensions are shown."""
DIRECTIONS = 16
"""Skills on a circle that are shown, one for each compass point."""
SHOWN = 32
"""Number of other continuous skills that are shown."""
SECTORS = 16
"""Compass sectors of the measure of directions."""
FAR = 0.1
"""An episode has gone far in a direction if it ends beyond this share of half the width of the descriptor's limits."""
CELLS = 20
"""Cells along each of the descriptor's first two coordinates, for the coverage."""


@dataclass(frozen=True)
class Skills:
    """The prior of skills, and the descriptor in which they should differ.

    Example:
        >>> DIAYNConfig(skills=Skills(number=16, descriptor=("x", "y")))
    """

    kind: Literal["discrete", "continuous"] = "discrete"
    """`discrete`: a finite number of skills; `continuous`: a space of skills."""
    number: int = 8
    """Number of discrete skills."""
    dimensions: int = 2
    """Dimensions of continuous skills."""
    prior: Literal["uniform", "normal", "sphere"] = "uniform"
    """Prior of continuous skills: uniform on [-1, 1] or standard normal, in each dimension; sphere: directions, uniform
    on the unit sphere."""
    resample: float = 0.0
    """Probability of a new skill at each step within an episode; 0 keeps a skill for the episode."""
    resample_after: int = 10
    """Minimum number of steps of a skill."""
    descriptor: tuple[str, ...] = ()
    """In what skills should differ. Empty: the environment's descriptor. Names, such as x y: these coordinates of the
    descriptor. observation: the whole observation. Numbers, such as 0 1: these coordinates of the observation."""
    hide_descriptor: bool = True
    """Hide the coordinates of a position in the descriptor from the policy, if the environment says which they are."""
    smerl: bool = False
    """SMERL (arXiv 2010.14484): reward the environment's reward, plus the hyper-parameter `smerl_scale` times the skill
    reward if the newest episode of the skill reached the target return minus the margin."""
    smerl_target: float = 0.0
    """Target return of SMERL."""
    smerl_margin: float = 0.0
    """Margin below the target return within which an episode counts as good."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "descriptor", tuple(self.descriptor))
        require_at_least(self, 2, "number")
        require_at_least(self, 1, "dimensions", "resample_after")
        require_at_least(self, 0, "smerl_margin")
        require(0 <= self.resample <= 1, f"`resample` must lie in [0, 1], not {self.resample:g}.", self)

    @property
    def discrete(self) -> bool:
        """True for discrete skills."""
        return self.kind == "discrete"

    @property
    def size(self) -> int:
        """Numbers in a skill: a one-hot vector, or coordinates."""
        return self.number if self.discrete else self.dimensions

    def draw(self, key: Key, count: int) -> Array:
        """Draws skills [count, size] from the prior."""
        if self.discrete:
            return jax.nn.one_hot(jax.random.randint(key, (count,), 0, self.number), self.number)
        shape = (count, self.dimensions)
        if self.prior == "normal":
            return jax.random.normal(key, shape)
        if self.prior == "sphere":
            return direction(jax.random.normal(key, shape))
        return jax.random.uniform(key, shape, minval=-1.0, maxval=1.0)

    def within(self, skill: Array) -> Array:
        """Returns continuous skills [..., size] that lie where the prior has its mass, as near as possible to these."""
        if self.prior == "sphere":
            return direction(skill)
        edge = 2.0 if self.prior == "normal" else 1.0
        return jnp.clip(skill, -edge, edge)

    def log_prior(self, skill: Array) -> Array:
        """Returns log p(z) of skills [..., size]."""
        if self.discrete:
            return jnp.full(skill.shape[:-1], -jnp.log(self.number))
        if self.prior == "normal":
            return -0.5 * jnp.sum(skill**2 + jnp.log(2.0 * jnp.pi), axis=-1)
        if self.prior == "sphere":  # 1 over the area of the sphere
            half = self.dimensions / 2
            return jnp.full(skill.shape[:-1], lgamma(half) - log(2.0) - half * log(pi))
        return jnp.full(skill.shape[:-1], -self.dimensions * jnp.log(2.0))

    def show(self) -> Array:
        """Returns skills for display: all discrete ones, a grid or a circle in two dimensions, or a fixed set of draws.

        In one dimension it is a line of skills, or both directions.
        """
        if self.discrete:
            return jnp.eye(self.number)
        if self.dimensions > 2:
            return self.draw(jax.random.key(0), SHOWN)
        if self.prior == "sphere":
            angles = 2.0 * jnp.pi * jnp.arange(float(DIRECTIONS)) / DIRECTIONS
            circle = jnp.stack([jnp.cos(angles), jnp.sin(angles)], axis=-1)
            return circle if self.dimensions == 2 else jnp.array([[1.0], [-1.0]])
        count = GRID if self.dimensions == 2 else SHOWN
        quantiles = (jnp.arange(float(count)) + 0.5) / count
        line = jax.scipy.special.ndtri(quantiles) if self.prior == "normal" else 2.0 * quantiles - 1.0
        return jnp.stack(jnp.meshgrid(*[line] * self.dimensions, indexing="ij"), axis=-1).reshape(-1, self.dimensions)


def direction(x: Array) -> Array:
    """Returns vectors [..., D] divided by their length; a vector of length 0 stays 0."""
    return x / jnp.sqrt(jnp.maximum(jnp.sum(x**2, axis=-1, keepdims=True), 1e-12))


class Moves(NamedTuple):
    """Transitions as the models of skills receive them, [rows, ...].

    Args:
        before: Descriptors before the step.
        after: Descriptors after the step.
        skill: Skills.
        valid: 0 for rows that are not transitions; these hold zeros.
    """

    before: Array
    after: Array
    skill: Array
    valid: Array


def moves(chosen: View, step: Step) -> Moves:
    """Returns the transitions of steps as rows. Rows that are not valid hold zeros, so that no NaN can leak."""
    valid = step.valid.reshape(-1)

    def rows(x: Array) -> Array:
        return jnp.where(valid[:, None] > 0, x.reshape(valid.shape[0], -1), 0.0)

    return Moves(rows(chosen.of(step.obs)), rows(chosen.of(step.next_obs)), rows(step.extras["skill"]), valid)


def greedy_moves(chosen: View, skill: Array, obs: Obs, next_obs: Obs) -> Moves:
    """Returns the transitions of steps [rows] that were all made, with one skill [rows, K] each."""
    return Moves(chosen.of(obs), chosen.of(next_obs), skill, jnp.ones(skill.shape[0]))


def steps_of(paths: Paths) -> Step:
    """Returns the transitions [S, N, T] of paths."""
    obs = jax.tree.map(lambda x: x[:, :, :-1], paths.obs)
    next_obs = jax.tree.map(lambda x: x[:, :, 1:], paths.obs)
    nothing = jnp.zeros(paths.valid.shape)
    skill = jnp.broadcast_to(paths.skills[:, None, None], (*paths.valid.shape, paths.skills.shape[-1]))
    return Step(obs, nothing, nothing, nothing, next_obs, paths.valid, {"skill": skill})


def coverage(paths: Paths, spec: EnvSpec) -> Metrics:
    """Measures how far skills spread in the descriptor's space.

    Returns:
        `cells`: visited cells of a grid over the descriptor's limits. `spread_between`: standard deviation of the
        skills' mean end points. `spread_within`: standard deviation of the end points of one skill. `sectors`, of a
        descriptor with two or more coordinates: share of 16 compass sectors in which an episode ends far from its
        start. Empty if the observation has no descriptor.
    """
    own = spec.descriptor
    if own is None or not spec.described:
        return {}
    where = paths.obs[DESCRIPTOR]
    been = jnp.concatenate([jnp.ones((*paths.valid.shape[:2], 1)), paths.valid], axis=-1)
    low, high = (jnp.array(x[:2]).reshape(1, 1, 1, -1) for x in (own.low, own.high))
    cell = jnp.clip(CELLS * (where[..., :2] - low) / (high - low), 0.0, CELLS - 1.0).astype(jnp.int32)
    flat = cell[..., 0] if own.size == 1 else cell[..., 0] * CELLS + cell[..., 1]
    visits = jnp.zeros(CELLS**2).at[flat.reshape(-1)].add(been.reshape(-1))
    length = jnp.sum(paths.valid, axis=-1).astype(jnp.int32)
    end = jnp.take_along_axis(where, length[..., None, None], axis=2)[:, :, 0]
    centre = jnp.mean(end, axis=1, keepdims=True)
    between = centre - jnp.mean(centre, axis=0, keepdims=True)
    found = {
        "cells": jnp.sum(visits > 0).astype(jnp.float32),
        "spread_between": jnp.sqrt(jnp.mean(jnp.sum(between**2, axis=-1))),
        "spread_within": jnp.sqrt(jnp.mean(jnp.sum((end - centre) ** 2, axis=-1))),
    }
    if own.size > 1:
        far = FAR * jnp.mean(high - low) / 2.0
        found["sectors"] = jnp.mean(sectors((end - where[:, :, 0])[..., :2].reshape(-1, 2), far).astype(jnp.float32))
    return found


def sectors(ways: Array, far: Scalar) -> Array:
    """Returns for each of 16 compass sectors whether one of the displacements [rows, 2] ends in it beyond `far`."""
    turn = jnp.arctan2(ways[:, 1], ways[:, 0]) / (2.0 * jnp.pi)
    # The first sector is centred on the direction of the first coordinate.
    sector = jnp.floor(SECTORS * turn + 0.5).astype(jnp.int32) % SECTORS
    beyond = jnp.sum(ways**2, axis=-1) > far**2
    return jnp.zeros(SECTORS, jnp.int32).at[sector].add(beyond.astype(jnp.int32)) > 0
