"""What a gradient update is made of, counted in the program that a GPU would be given."""

from collections.abc import Callable
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from benchmarks import learner
from benchmarks.programs import Count, count, per_update, per_update_of_chunk, standard_trainer
from covey import agents
from covey.types import Array

PER_UPDATE = {
    "td3": Count(446, 18, 84.2e6, 414.6e6),
    "sac": Count(893, 28, 115.5e6, 581.6e6),
    "taac": Count(1118, 39, 123.7e6, 652.5e6),
    "taac-l": Count(1175, 41, 127.2e6, 675.5e6),
    "taac-q": Count(1224, 43, 130.6e6, 698.5e6),
    "diayn": Count(1184, 45, 154.7e6, 804.1e6),
    "dads": Count(1755, 47, 173.6e6, 740.1e6),
    "metra": Count(1228, 50, 159.6e6, 857.1e6),
}
"""Printed by `python -m benchmarks.programs`. Whoever changes them changes the table in docs/accelerators.md."""


@cache
def update_of(agent: str) -> Count:
    return per_update(standard_trainer(agent))


@pytest.mark.parametrize("agent", agents.REGISTRY)
def test_an_update_is_as_much_work_as_it_was(agent: str):
    found = update_of(agent)
    assert found == pytest.approx(PER_UPDATE[agent], rel=0.05)
    assert found.products == PER_UPDATE[agent].products


def test_the_whole_program_is_as_much_work_as_it_was():
    """Environment steps, replay writes and random numbers included."""
    found = per_update_of_chunk(standard_trainer("td3"))
    assert found == pytest.approx(Count(942, 21, 85.2e6, 414.7e6), rel=0.05)


@pytest.mark.parametrize("agent", ["td3", "sac"])
def test_products_are_those_that_are_counted_by_hand(agent: str):
    assert update_of(agent).flops == learner.flops(agent, 256)


def counted(function: Callable[..., Any], *shapes: tuple[int, ...]) -> Count:
    traced = jax.jit(function).trace(*(jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes))
    return count(traced.lower(lowering_platforms=("cuda",)))


def test_a_formula():
    """A product of [2, 3] and [3, 4], tanh and a sum; other shapes and constants are no work."""
    found = counted(lambda x, y: jnp.sum(jnp.tanh(x @ y).reshape(-1)), (2, 3), (3, 4))
    product, tanh, total = 6 + 12 + 8, 8 + 8, 8 + 1 + 1  # the sum starts from a zero
    assert found == Count(3, 1, 4 * (product + tanh + total), 2 * 2 * 3 * 4)


def test_loops_and_branches():
    """A loop is as much work as its turns, functions are it at every call, and of two branches one runs."""
    eight = counted(lambda x: jax.lax.fori_loop(0, 8, lambda i, y: y @ y, x), (4, 4))
    assert (eight.products, eight.flops) == (8, 8 * 2 * 4**3)
    one_or_two = counted(lambda x: jax.lax.cond(x[0, 0] > 0, lambda: x @ x @ x, lambda: x @ x), (4, 4))
    assert one_or_two.products == 2
    square = jax.jit(lambda x: x @ x)
    assert counted(lambda x: square(square(x)), (4, 4)).products == 2
    unknown = counted(lambda x, n: jax.lax.fori_loop(0, n.astype(int), lambda i, y: y @ y, x), (4, 4), ())
    assert unknown.products == 1


@pytest.mark.parametrize("rows", [1_000, 1_000_000])
def test_an_array_that_is_read_and_written_in_part_counts_in_part(rows: int):
    def program(held: Array, new: Array) -> tuple[Array, Array]:
        return jax.lax.dynamic_update_slice(held, new, (0, 0)), held[jnp.array([7, 5, 3])]

    moved = 4 * 8 * 2 * (2 + 3)
    assert moved <= counted(program, (rows, 8), (2, 8)).bytes < 1.5 * moved, "and some indices"
