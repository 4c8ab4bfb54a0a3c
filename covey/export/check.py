"""The proof that an exported file is the trained policy: both decide at the same observations and memories."""

import itertools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from covey.errors import require
from covey.export.opened import Arrays, Opened
from covey.export.source import Source, as_keys, key_data
from covey.export.trace import CALLS, DRAWS, memory_names, needed_equations

LIMIT = 1e-5
"""The largest difference, as a share of the range of an action."""
KEYS = 8
"""Random keys with which a greedy policy decides at each observation, always alike."""
NEARBY, SHIFT = 16, 1e-5
"""A decision is a tie if the trained policy itself decides like the file at one of so many observations nearby."""


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
    obs, memory = source.situations
    shown = opened.about["observation"]["shape"]
    require(shown == [source.spec.obs_size], f"The file takes observations of shape {shown}, not {obs.shape[1:]}.")
    names = [each["name"] for each in opened.about["memory"]]
    require(names == list(memory_names(memory)), f"The file has the memory {names}, the policy another.")
    noise = _noise(opened.about["noise"], len(obs))
    decide = _policy(source, noise)
    expected = decide(obs, memory)
    leaves = [np.asarray(x) for x in jax.tree.leaves(memory)]
    found = opened.step({"obs": obs} | dict(zip(names, leaves, strict=True)) | noise)
    error = _differences(source, expected, found)
    limit = 0.0 if opened.is_exact else LIMIT
    wrong = np.flatnonzero(~(error <= limit))
    ties = [row for row in wrong if _is_tie(source, decide, obs, memory, found, int(row))]
    compared = np.delete(error, ties)
    proof = Proof(len(obs), float(compared.max(initial=0.0)), len(ties))
    require(
        bool((compared <= limit).all()) and len(ties) <= len(obs) // 100,
        f"The file decides differently from the trained policy: {proof}. At most {limit:g} is allowed.",
    )
    return proof


def check_is_greedy(source: Source) -> None:
    """Raises an error if the decisions of a greedy policy depend on random keys: a file would repeat one draw for ever.

    Every observation is decided with several keys, so that a rare random choice is noticed as well.
    """
    obs, memory = source.situations
    decide = jax.jit(jax.vmap(source.function))
    answers = [jax.tree.leaves(decide(obs, memory, as_keys(key_data(len(obs), seed)))) for seed in range(KEYS)]
    require(
        all(np.array_equal(a, b) for other in answers[1:] for a, b in zip(answers[0], other, strict=True)),
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


def _policy(source: Source, noise: Arrays) -> Callable[[np.ndarray, Any], Arrays]:
    """Returns the trained policy as a function of observations and memories, with these random numbers."""
    many = jax.vmap(source.function, (0, 0, 0 if source.explore else None))

    def decide(obs: Any, memory: Any) -> Arrays:
        keys = as_keys(noise["key"] if "key" in noise else key_data(len(obs), 0)) if source.explore else source.key
        if source.explore and "key" not in noise:
            closed = jax.make_jaxpr(many)(obs, memory, keys)
            inputs = jax.tree.leaves((obs, memory, keys))
            action, *new = _with_draws(closed.jaxpr, closed.consts, inputs, noise, itertools.count())
        else:
            action, after = jax.jit(many)(obs, memory, keys)
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
            params = equation.params
            inner = next(params[each] for each in ("jaxpr", "call_jaxpr", "fun_jaxpr") if each in params)
            found = _with_draws(getattr(inner, "jaxpr", inner), getattr(inner, "consts", ()), given, noise, numbers)
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


def _is_tie(
    source: Source, decide: Callable[[np.ndarray, Any], Arrays], obs: np.ndarray, memory: Any, found: Arrays, row: int
) -> bool:
    """Returns whether the trained policy decides like the file at an observation that is almost the same."""
    random = np.random.default_rng(row)
    nearby = np.array(obs)
    scale = SHIFT * np.maximum(1.0, np.abs(obs[row]))
    nearby[:NEARBY] = obs[row] + scale * random.uniform(-1.0, 1.0, (NEARBY, obs.shape[1])).astype(np.float32)
    same = jax.tree.map(lambda x: np.concatenate([np.repeat(x[row : row + 1], NEARBY, axis=0), x[NEARBY:]]), memory)
    answers = decide(nearby, same)
    repeated = {
        name: np.concatenate([np.repeat(x[row : row + 1], NEARBY, axis=0), x[NEARBY:]]) for name, x in found.items()
    }
    return bool((_differences(source, answers, repeated)[:NEARBY] < 100 * SHIFT).any())
