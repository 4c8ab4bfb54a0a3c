"""Counts operations, bytes and floating-point operations of the programs that an accelerator would be given.

    python -m benchmarks.programs [--agents td3 sac] [--platform cuda]

No accelerator is needed: the programs are lowered for one, not compiled. What is counted in the lowered program is what
XLA starts from. It joins most operations into few kernels, which only a device's compiler shows, so operations are an
upper limit of kernels, and bytes (all that operations read and write, as if none were joined) one of memory traffic.
The sizes are those of benchmarks/learner.py.
"""

import argparse
import math
import re
from collections.abc import Iterable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.extend.mlir import ir

from benchmarks.noise import Noise
from covey import agents
from covey.envs.described import Described
from covey.run.config import default_config
from covey.training.device import DeviceLoop
from covey.training.trainer import Trainer, make_trainer
from covey.types import Array, Key

FREE = {
    *(f"stablehlo.{name}" for name in ("constant", "iota", "reshape", "bitcast_convert", "broadcast_in_dim", "return")),
    *("func.return", "func.func", "sdy.mesh", "sdy.sharding_constraint", "sdy.return"),
}
"""Operations that compute nothing: constants, other shapes of the same numbers, structure."""
WRITES_IN_PART = {"stablehlo.dynamic_update_slice": 1, "stablehlo.scatter": 2}
"""Operations that write a part of their first operand, and the index of the operand that is written into it."""
READS_IN_PART = {"stablehlo.dynamic_slice", "stablehlo.gather", "stablehlo.slice"}
"""Operations that read as much of their first operand as they return."""
DIMENSIONS = "dot_dimension_numbers"


class Count(NamedTuple):
    """What a program does.

    Args:
        operations: Operations that compute something.
        products: Those of them that are matrix products.
        bytes: The sizes of the operations' operands and results. Of an array that an operation reads or writes in part,
            such as the replay, only that part.
        flops: Floating-point operations of the matrix products: 2 m n k for each.
    """

    operations: float = 0.0
    products: float = 0.0
    bytes: float = 0.0
    flops: float = 0.0

    def times(self, factor: float) -> "Count":
        """Returns the count of doing this `factor` times."""
        return Count(*(factor * value for value in self))


def count(lowered: Any) -> Count:
    """Counts what a lowered program does when it runs once.

    A loop counts as often as it turns; a loop whose number of turns is an argument (the blocks of a chunk), once. Of
    several branches the largest counts.

    Args:
        lowered: A `jax.stages.Lowered`.
    """
    functions = {f.attributes["sym_name"].value: f for f in lowered.compiler_ir("stablehlo").body.operations
                 if f.operation.name == "func.func"}  # fmt: skip
    found: dict[str, Count] = {}

    def called(name: str) -> Count:
        if name not in found:
            found[name] = region(functions[name].regions[0])
        return found[name]

    def region(body: Any) -> Count:
        return total(one(operation.operation) for operation in body.blocks[0].operations)

    def one(operation: Any) -> Count:
        if operation.name == "func.call":
            return called(operation.attributes["callee"].value)
        if operation.name == "stablehlo.while":
            return region(operation.regions[1]).times(_turns(operation))
        if operation.name == "stablehlo.case":
            return max((region(branch) for branch in operation.regions), key=lambda each: each.operations)
        return Count() if operation.name in FREE else _single(operation)

    return called("main")


def total(counts: Iterable[Count]) -> Count:
    """Returns the sum of counts."""
    return Count(*(sum(values) for values in zip(Count(), *counts, strict=True)))


def _single(operation: Any) -> Count:
    """Counts one operation. Those inside of it (the sum of a reduction) are a part of it."""
    operands = [_bytes(value) for value in operation.operands]
    results = [_bytes(value) for value in operation.results]
    moved = sum(operands) + sum(results)
    if operation.name in WRITES_IN_PART:
        moved = 2 * operands[WRITES_IN_PART[operation.name]]
    elif operation.name in READS_IN_PART:
        moved = 2 * sum(results)
    if operation.name != "stablehlo.dot_general":
        return Count(1, 0, moved, 0)
    left, result = _type(operation.operands[0]).shape, _type(operation.results[0]).shape
    dimensions = re.search(r"lhs_contracting_dimensions = \[([\d, ]*)\]", str(operation.attributes[DIMENSIONS]))
    summed = [left[int(i)] for i in dimensions[1].split(",")] if dimensions else []
    return Count(1, 1, moved, 2 * math.prod(result) * math.prod(summed))


def _type(value: Any) -> Any:
    return ir.RankedTensorType(value.type)


def _bytes(value: Any) -> int:
    """Returns the size of an array."""
    kind = _type(value)
    bits = re.search(r"\d+", str(kind.element_type))
    return math.prod(kind.shape) * max(8, int(bits[0] if bits else 8)) // 8


def _turns(loop: Any) -> int:
    """Returns how often a loop turns: up to the constant that its counter is compared with, from 0 on; otherwise 1."""
    *_, compared, _ = loop.regions[0].blocks[0].operations
    limit = compared.operands[1].owner
    constant = getattr(limit, "name", "") == "stablehlo.constant"
    return int(re.search(r"dense<(\d+)>", str(limit.attributes["value"]))[1]) if constant else 1  # type: ignore[index]


def standard_trainer(name: str, capacity: int = 100_000) -> Trainer:
    """Returns the training of an agent with its default options, on an environment that costs nothing."""
    entry = agents.entry(name)
    env = Described(Noise()) if entry.is_skill_agent else Noise()
    return make_trainer(entry.make(default_config(name).agent, env.spec), env, entry.hyper(), capacity=capacity)  # type: ignore[arg-type]


def traced_update(trainer: Trainer) -> Any:
    """Returns the program of one call of an agent's `update`, with a batch drawn from replay, traced."""
    agent, replay = trainer.agent, trainer.replay

    def update(state: Any, hyper: Any, held: Any, bits: Array, key: Key) -> Any:
        return agent.update(state, hyper, replay.sample_bits(held, agent.plan, bits, 0), key)

    def inputs(hyper: Any) -> Any:
        key = jax.random.key(0)
        bits = jnp.zeros(agent.plan.batch_size, jnp.uint32)
        return agent.init(hyper, key), hyper, replay.init(1), bits, key

    return jax.jit(update).trace(*jax.eval_shape(inputs, jax.tree.map(jnp.float32, trainer.initial_hyper)))


def per_update(trainer: Trainer, platform: str = "cuda") -> Count:
    """Counts one gradient update, lowered for a platform."""
    return count(traced_update(trainer).lower(lowering_platforms=(platform,))).times(1 / trainer.agent.plan.updates)


def per_update_of_chunk(trainer: Trainer, platform: str = "cuda") -> Count:
    """Counts the whole training program of one member, environment steps and replay writes included, per update."""
    loop = DeviceLoop(trainer, 1, "map")
    traced = jax.jit(loop.advance).trace(loop.template(), jax.ShapeDtypeStruct((), jnp.int32))
    updates = trainer.iterations * trainer.updates * trainer.agent.plan.updates
    return count(traced.lower(lowering_platforms=(platform,))).times(1 / updates)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--agents", nargs="+", default=list(agents.REGISTRY))
    parser.add_argument("--platform", default="cuda", choices=["cpu", "cuda", "rocm", "tpu"])
    options = parser.parse_args()
    print("| agent | operations | matrix products | MB, nothing joined | MFLOP of products | operations of the whole "
          "program |\n|---|---:|---:|---:|---:|---:|")  # fmt: skip
    for name in options.agents:
        trainer = standard_trainer(name)
        one, whole = per_update(trainer, options.platform), per_update_of_chunk(trainer, options.platform)
        print(f"| {name} | {one.operations:,.0f} | {one.products:,.0f} | {one.bytes / 1e6:,.1f} | "
              f"{one.flops / 1e6:,.1f} | {whole.operations:,.0f} |")  # fmt: skip


if __name__ == "__main__":
    main()
