"""The generations of a run: who is copied by whom, carried out and written down in `lineage.jsonl`."""

from dataclasses import dataclass, field
from typing import Any, NamedTuple

import jax
import numpy as np

from covey.agents import forget_episode
from covey.population.crew import LostError
from covey.population.evolve import PBT, Heir, Standing, generation
from covey.population.space import named, renamed
from covey.run.files import Files
from covey.run.program import Program
from covey.run.sinks import finite
from covey.training.member import Population
from covey.training.spread import SPLIT, place


class Legacy(NamedTuple):
    """What the members that are copied leave: their numbers, their weights [k, ...] and, if asked for, their data."""

    donors: list[int]
    weights: Any = None
    data: np.ndarray | None = None


@dataclass
class Breeding:
    """What a session does at a generation. Every process decides the same, and carries out its own members' part."""

    program: Program
    pbt: PBT
    files: Files
    said: str = field(default="", init=False)
    """The last exchange in a few words."""

    def standing(self, population: Population, fitness: np.ndarray, scores: np.ndarray, failed: np.ndarray) -> Standing:
        """What is known of all members, from what this process knows of its own [p]."""
        hypers = named(population.members.hyper)
        values = {name: np.asarray(hypers[name]) for name in self.program.space}
        return self.program.crew.standing(Standing(fitness, scores, failed, values), population.members.agent)

    def start(self, standing: Standing) -> None:
        """Writes down what the members begin with."""
        own = [Heir(m, _values(standing, m), "start") for m in range(len(standing.fitness))]
        self._write(0, 0, standing, own)

    def end(self, block: int, standing: Standing) -> None:
        """Writes down how they ended, as a generation in which nobody is replaced."""
        own = [Heir(m, _values(standing, m), "kept") for m in range(len(standing.fitness))]
        self._write(self._number(block) + 1, block, standing, own)

    def breed(self, population: Population, block: int, standing: Standing, rescue: bool) -> Population:
        """The population after a generation; with `rescue`, after failed members between two of them are replaced."""
        number = self._number(block)
        heirs, legacy = self._decided(population, standing, number, block if rescue else 0)
        self._write(number, block, standing, heirs, changed=rescue)
        exchanges = [(m, heirs[m].parent) for m in self._heard if heirs[m].parent != m]
        if not exchanges:
            return population
        member, parent = exchanges[-1]
        more = f" (and {len(exchanges) - 1} more)" if len(exchanges) > 1 else ""
        self.said = f"{member} copied {parent}{more} at {block * self.program.block_steps:,}"
        return self._carry_out(population, heirs, legacy)

    @property
    def _heard(self) -> range:
        return self.program.crew.heard(self.program.loop.members)

    def _number(self, block: int) -> int:
        return sum(b <= block for b in self.program.generations)

    def _decided(
        self, population: Population, standing: Standing, number: int, rescue: int
    ) -> tuple[list[Heir], Legacy]:
        """What becomes of the members, and what they inherit. Nobody copies one whose weights are lost."""
        while True:
            heirs = generation(self.pbt, self.program.space, standing, self.program.config.seed, number, rescue)
            donors = sorted({heirs[m].parent for m in self._heard if heirs[m].parent != m})
            try:
                return heirs, self._legacy(population, donors)
            except LostError as lost:
                standing = standing._replace(failed=standing.failed | (np.arange(len(heirs)) == lost.member))

    def _legacy(self, population: Population, donors: list[int]) -> Legacy:
        """Every process must call it: weights travel."""
        if not donors:
            return Legacy(donors)
        fetch = self.program.crew.fetch
        data = fetch(population.replay.data, donors) if self.pbt.replay == "copy" else None
        return Legacy(donors, forget_episode(fetch(population.members.agent, donors)), data)

    def _carry_out(self, population: Population, heirs: list[Heir], legacy: Legacy) -> Population:
        """This process's members with what they inherit."""
        loop, old, (donors, weights, data) = self.program.loop, population.members.hyper, legacy
        hyper = {name: np.array(x) for name, x in named(old).items()}
        failed = np.zeros(loop.members, bool)
        for slot, member in enumerate(self.program.members):
            heir = heirs[member]
            if heir.parent == member:
                continue
            donor, failed[slot] = donors.index(heir.parent), heir.reason == "failed"
            population = loop.put(population, slot, *jax.tree.map(lambda x, d=donor: x[d], (weights, data)))
            for name, value in heir.hyper.items():
                hyper[name][slot] = value
        changed = place(renamed(old, hyper), loop.devices, SPLIT)
        population = population._replace(members=population.members._replace(hyper=changed))
        if failed.any():
            population = loop.restart(population, failed)
        return population

    def _write(self, number: int, block: int, standing: Standing, heirs: list[Heir], changed: bool = False) -> None:
        """A line for each member, or with `changed` for each that was replaced."""
        for member in self._heard:
            heir = heirs[member]
            if changed and heir.parent == member:
                continue
            self.files.row(
                "lineage",
                generation=number,
                step=block * self.program.block_steps,
                member=member,
                parent=None if heir.reason == "start" else heir.parent,
                fitness=finite(standing.fitness[member]),
                reason=heir.reason,
                hyper=heir.hyper,
            )
        self.files.flush()


def _values(standing: Standing, member: int) -> dict[str, float]:
    return {name: float(values[member]) for name, values in standing.hypers.items()}
