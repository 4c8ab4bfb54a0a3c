"""Measures how time and memory grow with members, environments, capacity, width, run length and checkpoints.

    python -m benchmarks.growth [--only members environments ...] [--rounds 5]
    python -m benchmarks.growth --table          # docs/growth.md and its figure, from benchmarks/results/growth.csv

Times are the best of the rounds, in turns. Memory is what XLA plans for the program: arguments and scratch space. The
exponent k of size^k is that of the upper half of the sizes, by least squares of the logarithms.
"""

import argparse
import dataclasses
import itertools
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import covey
from benchmarks.campaign import RESULTS, read_rows, write_rows
from benchmarks.costs import ROWS, drawing, writing
from benchmarks.learner import seconds
from benchmarks.noise import ACTION, BATCH, OBS, Noise
from benchmarks.quality import replace_generated
from covey.callbacks import Event
from covey.nn.parts import Networks, Torso
from covey.plots.style import COLOURS, INK, empty_figure, short_number, style_axes, write_figure
from covey.replay import Replay
from covey.storage.layout import pack, unpack
from covey.storage.store import Store

FILE = RESULTS / "growth.csv"
PAGE, IMAGE = Path("docs/growth.md"), Path("docs/images/growth.png")
BEGIN = "<!-- begin: written by `python -m benchmarks.growth` -->"
MEMBERS = (1, 2, 4, 8, 16, 32, 64)
ENVS = (1, 4, 16, 64, 256, 1024, 4096)
CAPACITIES = (10_000, 100_000, 1_000_000, 10_000_000)
WIDTHS = (64, 128, 256, 512, 1024)
LENGTH = 200_000
"""Steps of the long run."""
CONSTANT = 0.3
"""Exponents below this count as constant: compilation times alone differ by a factor of two."""
DRAWS = 1_000
"""Batches drawn in one program."""


class Row(NamedTuple):
    """A measurement: of what, against what, at which size, and its value in seconds or bytes."""

    against: str
    what: str
    size: int
    value: float


class Program:
    """A compiled training program with its population.

    Args:
        loop: The loop.
        rows: Steps of each environment in a call, roughly.
        warmup: Collect only.
    """

    def __init__(self, loop: covey.DeviceLoop, rows: int, warmup: bool = False) -> None:
        trainer = loop.trainer
        self.blocks = max(1, rows // trainer.block_rows)
        self.rows = self.blocks * trainer.block_rows
        jax.clear_caches()
        since = time.perf_counter()
        lowered = type(loop)._advance.lower(loop, loop.template(), jnp.int32(1), warmup=warmup)
        self.compiled = lowered.compile()
        self.compilation = time.perf_counter() - since
        analysis: Any = self.compiled.memory_analysis()
        self.memory = analysis.argument_size_in_bytes + analysis.temp_size_in_bytes
        filled = loop.advance(loop.init(seed=0), -(-10 // trainer.block_rows), warmup=True)
        self.population: Any = filled

    def time(self) -> float:
        """Measures the seconds of a step of all environments and members, with its updates."""

        def run() -> Any:
            self.population = self.compiled(self.population, jnp.int32(self.blocks))
            return self.population.members.tally

        return seconds(run) / self.rows


def td3(hidden: int, batch: int, spec: Any) -> covey.TD3:
    torso = Torso(hidden=(hidden, hidden))
    return covey.TD3(covey.TD3Config(Networks(actor=torso, critic=torso), batch_size=batch, policy_delay=1), spec)


def best(rounds: int, measures: dict[int, Callable[[], float]]) -> dict[int, float]:
    """Measures in turns; returns the shortest time of each."""
    found = dict.fromkeys(measures, float("inf"))
    for _ in range(rounds):
        for size, measure in measures.items():
            found[size] = min(found[size], measure())
    return found


def of_programs(against: str, label: str, rounds: int, programs: dict[int, Program]) -> Iterator[Row]:
    """Yields the time, memory and compilation time of programs by size."""
    times = best(rounds + 1, {size: program.time for size, program in programs.items()})
    for size, program in programs.items():
        yield Row(against, f"time, {label}", size, times[size])
        yield Row(against, f"memory, {label}", size, program.memory)
        yield Row(against, f"compilation, {label}", size, program.compilation)


def members(rounds: int) -> Iterator[Row]:
    """Measures a step and an update of every member: narrow networks in lock-step, wide ones one after the other."""
    env = Noise()
    for hidden, batch, axis in ((64, 64, "vmap"), (256, BATCH, "map")):
        trainer = covey.make_trainer(td3(hidden, batch, env.spec), env, covey.TD3Hyper(), capacity=10_000)
        trainer = dataclasses.replace(trainer, iterations=10)
        programs = {n: Program(covey.DeviceLoop(trainer, n, axis), 10) for n in MEMBERS}  # type: ignore[arg-type]
        yield from of_programs("members", f"{hidden} units, {axis}", rounds, programs)


def environments(rounds: int) -> Iterator[Row]:
    """Measures a step of all environments (pendulum), without and with one update of 256 transitions."""
    env = covey.envs.make("pendulum")
    agent = td3(64, BATCH, env.spec)
    for label, warmup in (("collection", True), ("with an update", False)):
        programs = {}
        for n in ENVS:
            trainer = covey.make_trainer(agent, env, covey.TD3Hyper(), envs=n, updates_per_step=1 / n, capacity=100 * n)
            programs[n] = Program(covey.DeviceLoop(trainer), 100, warmup)
        yield from of_programs("environments", label, rounds, programs)


def widths(rounds: int) -> Iterator[Row]:
    """Measures an update against the width of two hidden layers, whose weights grow with its square."""
    env = Noise()
    programs = {}
    for width in WIDTHS:
        trainer = covey.make_trainer(td3(width, BATCH, env.spec), env, covey.TD3Hyper(), capacity=10_000)
        programs[width] = Program(covey.DeviceLoop(dataclasses.replace(trainer, iterations=10)), 10)
    yield from of_programs("width", "an update", rounds, programs)


def capacities(rounds: int) -> Iterator[Row]:
    """Measures writing a row and drawing a batch, in a full buffer."""
    bits = jax.random.bits(jax.random.key(0), (DRAWS, BATCH), jnp.uint32)
    measures: dict[str, dict[int, Callable[[], float]]] = {"time, a row is written": {}, "time, 256 are drawn": {}}
    for capacity in CAPACITIES:
        replay = Replay(capacity, 1, OBS, ACTION)
        write = writing(replay)
        draw = drawing(replay)
        held = [write(replay.init()._replace(written=jnp.int32(capacity)))]

        def written(write: Any = write, held: list[Any] = held) -> float:
            def run() -> Any:
                held[0] = write(held[0])
                return held[0]

            return seconds(run) / ROWS

        def drawn(draw: Any = draw, held: list[Any] = held) -> float:
            return seconds(lambda: draw(held[0], bits)) / DRAWS

        for what, measure in zip(measures, (written, drawn), strict=True):
            measure()  # compiles
            measures[what][capacity] = measure
        yield Row("capacity", "memory, the replay", capacity, capacity * replay.record_bytes)
    for what, of_sizes in measures.items():
        yield from (Row("capacity", what, size, value) for size, value in best(rounds, of_sizes).items())


def checkpoints(rounds: int) -> Iterator[Row]:
    """Measures checkpoints of one member whose replay is full: written with digests and synced, and read again."""
    env = Noise()
    for capacity in CAPACITIES:
        trainer = covey.make_trainer(td3(256, BATCH, env.spec), env, covey.TD3Hyper(), capacity=capacity)
        loop = covey.DeviceLoop(trainer)
        population = loop.init(seed=0)
        replay = population.replay._replace(written=jnp.int32(capacity))._asdict()
        tree = {"members": population.members, "replay": replay, "block": population.block}
        held: list[float] = []
        size = 0
        for step in range(1, 1 + max(2, rounds // 2)):
            with tempfile.TemporaryDirectory() as folder:
                store = Store(Path(folder) / "checkpoints", "step")
                store.folder.mkdir()
                start = time.perf_counter()
                store.write(step, pack(tree, {}), {"step": step, "wall": 0.0, "best": None, "files": {}})
                middle = time.perf_counter()
                template = loop.template()
                shapes = {"members": template.members, "replay": template.replay._asdict(), "block": template.block}
                unpack(shapes, store.read(step)[0])
                held += [middle - start, time.perf_counter() - middle]
                size = sum(x.stat().st_size for x in store.folder.rglob("*") if x.is_file())
        yield Row("checkpoint", "time, written", capacity, min(held[::2]))
        yield Row("checkpoint", "time, read", capacity, min(held[1::2]))
        yield Row("checkpoint", "memory, on the disk", capacity, size)


def length(rounds: int) -> Iterator[Row]:
    """Measures a run of 200,000 steps on pendulum at each of its 20 evaluations; the replay is full after 20,000."""
    seen: list[tuple[int, float, float, float]] = []

    def look(event: Event) -> None:
        resident = int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
        files = [x for x in event.path.rglob("*") if x.is_file() and "checkpoints" not in x.parts]
        seen.append((event.step, event.wall, resident, sum(x.stat().st_size for x in files)))

    with tempfile.TemporaryDirectory() as folder:
        covey.train(
            "td3",
            env="pendulum",
            steps=LENGTH,
            capacity=LENGTH // 10,
            evaluations=20,
            out=Path(folder) / "run",
            callbacks=[covey.Callback(on_evaluation=look)],
            quiet=True,
        )
    # The first interval has the warm-up and the compilation.
    for before, after in itertools.pairwise(seen[1:]):
        yield Row("length", "time, a step", after[0], (after[1] - before[1]) / (after[0] - before[0]))
        yield Row("length", "memory, resident", after[0], after[2])
        yield Row("length", "memory, files", after[0], after[3])


PARTS = {
    "length": length,  # first: the others would add to the resident memory
    "members": members,
    "environments": environments,
    "width": widths,
    "capacity": capacities,
    "checkpoint": checkpoints,
}
AXES = {
    "members": "members",
    "environments": "environments",
    "capacity": "steps in the replay",
    "width": "units of a hidden layer",
    "length": "environment steps",
    "checkpoint": "steps in the replay",
}
SQUARE = {"width"}
"""Sizes of which the weights are the square."""


def exponent(sizes: np.ndarray, values: np.ndarray) -> float:
    """Returns k of value = c * size^k, by least squares of the logarithms over the upper half of the sizes."""
    upper = sizes >= np.sqrt(sizes[0] * sizes[-1])
    return float(np.polyfit(np.log(sizes[upper]), np.log(values[upper]), 1)[0])


def verdict(against: str, k: float) -> str:
    """Returns the name of an exponent, such as "constant"."""
    if k < CONSTANT:
        return "constant"
    if against in SQUARE and k > 1.2:
        return "linear in the weights" if k <= 2.15 else "**more than linear in the weights**"
    return "at most linear" if k <= 1.15 else "**more than linear**"


def unit(what: str, value: float) -> str:
    """Returns a value with its unit."""
    names = ("B", "kB", "MB", "GB") if what.startswith("memory") else ("ns", "µs", "ms", "s")
    value = value if what.startswith("memory") else value * 1e9
    power = min(int(np.log10(max(value, 1.0)) // 3), 3)
    return f"{value / 1000**power:.3g} {names[power]}"


def series(rows: list[dict[str, str]]) -> dict[tuple[str, str], tuple[np.ndarray, np.ndarray]]:
    """Returns sizes and values by (against, what)."""
    found: dict[tuple[str, str], list[tuple[float, float]]] = {}
    for row in rows:
        found.setdefault((row["against"], row["what"]), []).append((float(row["size"]), float(row["value"])))
    return {key: (np.array(points)[:, 0], np.array(points)[:, 1]) for key, points in found.items()}


def table(rows: list[dict[str, str]]) -> str:
    """Returns the table of the docs."""
    lines = ["| against | what | from | to | exponent | |", "|---|---|---|---|---:|---|"]
    for (against, what), (sizes, values) in series(rows).items():
        k = exponent(sizes, values)
        ends = [f"{unit(what, values[i])} at {int(sizes[i]):,}" for i in (0, -1)]
        lines.append(f"| {against} | {what} | {' | '.join(ends)} | {k:.2f} | {verdict(against, k)} |")
    return "\n".join(lines)


def render(page: str, rows: list[dict[str, str]]) -> str:
    """Returns the page with the table of the rows."""
    return replace_generated(page, table(rows) + "\n", BEGIN)


def draw(rows: list[dict[str, str]]) -> None:
    """Draws time and memory against each size, with logarithmic axes."""
    from matplotlib.ticker import FuncFormatter, NullFormatter

    figure = empty_figure(7.6, 10.0)
    shown = series(rows)
    order = list(AXES)
    for column, against in enumerate(order):
        for i, kind in enumerate(("time", "memory")):
            place = (2 * (column // 3) + i) * 3 + column % 3
            axes = style_axes(figure.add_subplot(4, 3, place + 1))
            lines = {what: x for (of, what), x in shown.items() if of == against and what.startswith(kind)}
            for colour, (what, (sizes, values)) in zip(COLOURS, lines.items(), strict=False):
                label = f"{what.partition(', ')[2]}: {exponent(sizes, values):.2f}"
                shown_values = values / 1e6 if kind == "memory" else values * 1e3
                axes.plot(sizes, shown_values, color=colour, linewidth=1.4, marker="o", markersize=3, label=label)
            axes.set(xscale="log", yscale="log")
            for axis in (axes.xaxis, axes.yaxis):
                axis.set_major_formatter(FuncFormatter(lambda value, _: short_number(value)))
                axis.set_minor_formatter(NullFormatter())
            axes.set_xlabel(AXES[against], color=INK, fontsize=7)
            axes.set_ylabel("MB" if kind == "memory" else "ms", color=INK, fontsize=7)
            axes.set_title(f"{kind} against {against}", loc="left", color=INK, fontsize=8)
            axes.tick_params(labelsize=6)
            low, high = axes.get_ylim()
            if high < 30 * low:  # so that a constant looks like one
                axes.set_ylim((low * high) ** 0.5 / 30, (low * high) ** 0.5 * 30)
            if lines:
                axes.legend(fontsize=6, frameon=False)
    write_figure(figure, IMAGE)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", default=list(PARTS), choices=PARTS)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--table", action="store_true")
    options = parser.parse_args()
    os.environ["COVEY_CACHE"] = "off"  # compilation is measured
    for part in () if options.table else options.only:
        kept = [row for row in read_rows(FILE) if row["against"] != part]
        found = []
        for row in PARTS[part](options.rounds):
            print(f"{row.against} {row.size:,}: {row.what} {unit(row.what, row.value)}", flush=True)
            found.append(row._asdict())
        write_rows(FILE, [*kept, *found])
    rows = read_rows(FILE)
    draw(rows)
    PAGE.write_text(render(PAGE.read_text(), rows))
    print(table(rows))


if __name__ == "__main__":
    main()
