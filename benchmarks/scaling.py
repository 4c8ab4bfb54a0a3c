"""Estimates the cost of a population on graphics cards, from measured bytes and operations.

    python -m benchmarks.scaling [--agent td3] [--members 64] [--cards 1] [--capacity 1000000] ...

Counted in the program lowered for a GPU: floating-point operations of the products. Measured (XLA's analysis of the
update compiled for a CPU): bytes read and written, kernels, bytes of a member's state. Assumed: the card's data sheet,
and the share of it that is reached. docs/scaling.md has the details.
"""

import argparse
from dataclasses import dataclass
from typing import Any

import jax

from benchmarks.noise import BATCH
from benchmarks.programs import per_update, standard_trainer, traced_update


@dataclass(frozen=True)
class Card:
    """An A100 with 80 GB: its data sheet, and the share of it that is assumed to be reached."""

    memory: float = 80e9
    flops: float = 19.5e12
    """float32, without tensor cores."""
    bandwidth: float = 2.04e12
    reached: float = 0.5
    """The share of operations and bandwidth that batched products of 256 x 256 x 256 reach."""
    launch: float = 4e-6
    """Seconds to launch a kernel."""
    host_link: float = 25e9
    network: float = 25e9
    """Bytes per second to the host, and from one process to another."""


@dataclass(frozen=True)
class Update:
    """One gradient update: products, bytes moved and kernels; the bytes of a member's state and of a step in replay."""

    flops: float
    traffic: float
    kernels: int
    state: int
    row: int


def account(name: str) -> Update:
    trainer = standard_trainer(name, capacity=1000)  # XLA counts the whole replay as read by a draw
    compiled = traced_update(trainer).lower().compile()
    costs: Any = compiled.cost_analysis()
    kernels = sum(" fusion(" in line or " dot(" in line for line in (compiled.as_text() or "").splitlines())
    state = jax.eval_shape(trainer.agent.init, trainer.initial_hyper, jax.random.key(0))
    held = sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(state))
    each = trainer.agent.plan.updates
    return Update(
        per_update(trainer).flops, costs["bytes accessed"] / each, kernels // each, held, trainer.replay.width * 4
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--agent", default="td3", choices=["td3", "sac"])
    parser.add_argument("--members", type=int, default=64)
    parser.add_argument("--cards", type=int, default=1)
    parser.add_argument("--capacity", type=int, default=1_000_000)
    parser.add_argument("--replaced", type=float, default=0.25)
    parser.add_argument("--generation", type=int, default=10_000, help="updates between generations")
    options = parser.parse_args()
    card, one = Card(), account(options.agent)
    here = options.members / options.cards
    print(f"{options.agent}, batch {BATCH}, for one member and update: {one.flops / 1e6:.0f} MFLOP, "
          f"{one.traffic / 1e6:.1f} MB moved, {one.kernels} kernels; {one.state / 1e6:.2f} MB of state, "
          f"{one.row} bytes for a step in replay")  # fmt: skip
    memory = here * (one.state + options.capacity * one.row)
    products = here * one.flops / (card.flops * card.reached)
    moved = here * one.traffic / (card.bandwidth * card.reached)
    launches = one.kernels * card.launch
    step = max(products, moved) + launches
    print(f"{here:g} members on a card of {card.memory / 1e9:.0f} GB: {memory / 1e9:.1f} GB with "
          f"{options.capacity:,} steps each")  # fmt: skip
    print(f"an update of all of them: products {1e3 * products:.2f} ms, memory {1e3 * moved:.2f} ms, launches "
          f"{1e3 * launches:.2f} ms; together {1e3 * step:.2f} ms, {here / step:,.0f} updates/s on a card, "
          f"{options.members / step:,.0f} on all")  # fmt: skip
    donors = options.replaced * options.members
    sent = donors * one.state
    host = options.replaced * here * one.state * 2 / card.host_link
    network = sent / card.network if options.cards > 1 else 0.0
    exchange = host + network
    every = options.generation * step
    print(f"a generation: {sent / 1e6:,.0f} MB of weights reach every process ({1e3 * network:.0f} ms)")
    print(f"and {1e3 * host:.0f} ms to the host and back; every {every:.0f} s, {exchange / every:.2%} of the time")
    print(f"with --pbt.replay copy: {donors * options.capacity * one.row / 1e9:,.1f} GB to every process, "
          f"{donors * options.capacity * one.row / card.network:,.0f} s")  # fmt: skip


if __name__ == "__main__":
    main()
