"""The proof that an exported file is the trained policy: both decide at the same observations and memories."""

import itertools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from covey.errors import require
from covey.export.names import input_name, observation_parts
from covey.export.opened import Arrays, Opened
from covey.export.source import Source, as_keys, key_data
from covey.export.trace import DRAWS, memory_names, needed_equations
from covey.observation import Obs
from covey.training.jaxprs import CALLS, inner_jaxpr

LIMIT = 1e-5
"""The largest difference, as a share of the range of an action."""
KEYS = 8
"""Random keys with which a greedy policy decides at each observation, always alike."""
NEARBY, SHIFT = 16, 1e-5
"""A decision is a tie if the trained policy itself decides like the file at one of so many observations nearby."""
BLOCK, LARGE = 50, 4096
"""Observations that are decided at a time, if one of them has more numbers than `LARGE`: a convolution needs memory."""


class Proof(NamedTuple):
    """The result of comparing a file with the trained policy.

    Args:
        rows: Observations that were compared.
        difference: The largest difference, as a share of the range of an action.
        ties: Decisions between two equally good choices, in which file and policy differ. They are not compared.
    """

    rows: int
    difference: float
    ties: int

    def __str__(self) -> str:
        ties = f"; {self.ties} ties, which were decided otherwise" if self.ties else ""
        return f"largest difference {self.difference:.1e} of the action range, on {self.rows:,} observations{ties}"


def prove(source: Source, opened: Opened) -> Proof:
    """Compares an opened file with the policy that it was made of, teacher-forced.

    Args:
        source: The trained policy.
        opened: The opened file.

    Returns:
        The result.

    Raises:
        CoveyError: The file decides differently, or does not fit the policy.
    """
    _check_inputs(source, opened.about)
    obs, memory = source.situations
    rows, block = _sizes(source)
    noise = _noise(opened.about["noise"], rows)
    decide = _policy(source)

    def step(obs: Obs, memory: Any, noise: Arrays) -> Arrays:
        parts = {input_name(name): x for name, x in source.inputs.by_name(obs).items()}
        return opened.step(parts | dict(zip(memory_names(memory), jax.tree.leaves(memory), strict=True)) | noise)

    expected = _in_blocks(decide, block, obs, memory, noise)
    found = _in_blocks(step, block, obs, memory, noise)
    error = _differences(source, expected, found)
    limit = 0.0 if opened.is_exact else LIMIT
    wrong = np.flatnonzero(~(error <= limit))

    def is_tie(row: int) -> bool:
        """Returns whether the trained policy decides like the file at an observation that is almost the same."""
        taken = jax.tree.map(lambda x: np.repeat(x[row : row + 1], block, axis=0), (obs, memory, noise, found))
        answers = decide(jax.tree.map(lambda x: _nearby(x, row), taken[0]), *taken[1:3])
        return bool((_differences(source, answers, taken[3])[:NEARBY] < 100 * SHIFT).any())

    ties = [row for row in map(int, wrong) if is_tie(row)]
    compared = np.delete(error, ties)
    proof = Proof(rows, float(compared.max(initial=0.0)), len(ties))
    require(
        bool((compared <= limit).all()) and len(ties) <= rows // 100,
        f"The file decides differently from the trained policy: {proof}. At most {limit:g} is allowed.",
    )
    return proof


def _check_inputs(source: Source, about: dict[str, Any]) -> None:
    """Raises an error if the inputs of a file are not those of the policy."""
    form = source.inputs
    own = [(input_name(name), list(part.shown), part.dtype) for name, part in form.named]
    found = [(each["name"], each["shape"], each["dtype"]) for each in observation_parts(about)]
    require(own == found, f"The file takes observations {found}, the policy {own}.")
    names = [each["name"] for each in about["memory"]]
    own_names = list(memory_names(source.start()))
    require(names == own_names, f"The file has the memory {names}, the policy {own_names}.")


def _sizes(source: Source) -> tuple[int, int]:
    """Returns the number of observations that are compared, and of those that are decided at a time."""
    rows = len(jax.tree.leaves(source.situations[0])[0])
    numbers = sum(part.size * part.stack for _, part in source.inputs.named)
    return rows, rows if numbers <= LARGE else min(BLOCK, rows)


def _in_blocks(function: Callable[..., Arrays], block: int, *arrays: Any) -> Arrays:
    """Calls a function with a few rows of arrays at a time. Returns the results of all rows."""
    rows = len(jax.tree.leaves(arrays)[0])
    starts = range(0, rows, block)
    parts = [function(*jax.tree.map(lambda x, i=i: x[i : i + block], arrays)) for i in starts]
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def _nearby(x: np.ndarray, seed: int) -> np.ndarray:
    """Returns rows of observations, the first ones changed a little: uint8 by 1 in one element, which is the least."""
    random = np.random.default_rng(seed)
    found = np.array(x)
    near = found[:NEARBY]
    if x.dtype == np.uint8:
        flat = near.reshape(len(near), -1)
        at = np.arange(len(near)), random.integers(0, flat.shape[1], len(near))
        flat[at] = np.where(flat[at] > 0, flat[at] - 1, 1)
        return found
    near += SHIFT * np.maximum(1.0, np.abs(near)) * random.uniform(-1.0, 1.0, near.shape).astype(np.float32)
    return found


def check_is_greedy(source: Source) -> None:
    """Raises an error if the decisions of a greedy policy depend on random keys: a file would repeat one draw for ever.

    Every observation is decided with several keys, so that a rare random choice is noticed as well.
    """
    if not source.draws:
        return
    obs, memory = source.situations
    rows, block = _sizes(source)
    decide = jax.jit(jax.vmap(source.function))

    def answer(obs: Obs, memory: Any, keys: np.ndarray) -> Arrays:
        return {str(i): np.asarray(x) for i, x in enumerate(jax.tree.leaves(decide(obs, memory, as_keys(keys))))}

    answers = [_in_blocks(answer, block, obs, memory, key_data(rows, seed)) for seed in range(KEYS)]
    require(
        all(np.array_equal(x, other[name]) for other in answers[1:] for name, x in answers[0].items()),
        "The greedy policy of this run draws random numbers, for example with TAAC's `epsilon`. A file can't: set "
        "it to 0, or export the exploring policy with `explore`.",
    )


def _noise(described: Sequence[dict[str, Any]], count: int) -> Arrays:
    """Draws the random numbers that an exploring policy takes."""
    random = np.random.default_rng(0)
    draws = {
        "normal": lambda shape: random.standard_normal(shape, np.float32),
        "uniform": lambda shape: random.random(shape, np.float32),
        "key": lambda shape: key_data(count, 0),
    }
    return {each["name"]: draws[each["kind"]]((count, *each["shape"])) for each in described}


def _policy(source: Source) -> Callable[[Obs, Any, Arrays], Arrays]:
    """Returns the trained policy as a function of observations, memories and random numbers."""
    many = jax.vmap(source.function, (0, 0, 0 if source.explore else None))
    compiled = jax.jit(many)

    def decide(obs: Obs, memory: Any, noise: Arrays) -> Arrays:
        rows = len(jax.tree.leaves(obs)[0])
        keys = as_keys(noise["key"] if "key" in noise else key_data(rows, 0)) if source.explore else source.key
        if source.explore and "key" not in noise:
            closed = jax.make_jaxpr(many)(obs, memory, keys)
            inputs = jax.tree.leaves((obs, memory, keys))
            action, *new = _with_draws(closed.jaxpr, closed.consts, inputs, noise, itertools.count())
        else:
            action, after = compiled(obs, memory, keys)
            new = jax.tree.leaves(after)
        names = memory_names(memory)
        return {"action": np.asarray(action)} | dict(zip(names, map(np.asarray, new), strict=True))

    return decide


def _with_draws(jaxpr: Any, constants: Any, inputs: Any, noise: Arrays, numbers: "itertools.count[int]") -> list[Any]:
    """Computes equations with given random numbers in place of those that they draw."""
    values = dict(zip(jaxpr.constvars, constants, strict=True)) | dict(zip(jaxpr.invars, inputs, strict=True))
    for equation in needed_equations(jaxpr):
        given = [atom.val if hasattr(atom, "val") else values[atom] for atom in equation.invars]
        kind = DRAWS.get(equation.params.get("name", "")) if equation.primitive.name in CALLS else None
        if kind:
            shape = equation.outvars[0].aval.shape
            drawn = jnp.asarray(noise.get(f"noise.{next(numbers)}", np.zeros(shape, np.float32)))
            found = [drawn if kind == "normal" else drawn * (given[2] - given[1]) + given[1]]
        elif equation.primitive.name in CALLS:
            found = _with_draws(*inner_jaxpr(equation), given, noise, numbers)
        else:
            found = equation.primitive.bind(*given, **equation.params)
            found = found if equation.primitive.multiple_results else [found]
        values |= dict(zip(equation.outvars, found, strict=True))
    return [atom.val if hasattr(atom, "val") else values[atom] for atom in jaxpr.outvars]


def _differences(source: Source, expected: Arrays, found: Arrays) -> np.ndarray:
    """Returns the largest difference of each row: actions by their range, memory by its size or 1."""
    rows = np.zeros(len(expected["action"]))
    width = np.subtract(source.spec.action_high, source.spec.action_low)
    for name, x in expected.items():
        y = found[name]
        require(x.shape == y.shape, f"The file returns {name} of shape {y.shape}, not {x.shape}.")
        scale = width if name == "action" else np.maximum(1.0, np.abs(x.astype(np.float64)))
        error = np.abs(x.astype(np.float64) - y.astype(np.float64)) / scale
        rows = np.maximum(rows, error.reshape(len(rows), -1).max(axis=1, initial=0.0))
    return rows
