"""The generations of a run: `exchange` at the right moments, recorded in `lineage.jsonl`."""

from dataclasses import dataclass, field

import numpy as np

from covey.population.exchange import exchange, rank
from covey.population.pbt import PBT, Ranking, Successor
from covey.run.program import Program
from covey.storage.metrics import RunFiles, finite
from covey.training.member import Population


@dataclass
class Tuning:
    """Tunes the members of a session. Every process decides the same, and replaces its own members."""

    program: Program
    pbt: PBT
    files: RunFiles
    last_exchange: str = field(default="", init=False)
    """The last exchange in a few words, for the progress line."""

    def rank(self, population: Population, fitness: np.ndarray, scores: np.ndarray, failed: np.ndarray) -> Ranking:
        """Returns the ranking of all members, from this process's fitness and scores."""
        program = self.program
        return rank(population, fitness, scores, program.space, failed, program.group)

    def start(self, ranking: Ranking) -> None:
        """Records the initial members."""
        self._write(0, 0, ranking, _unchanged(ranking, "start"))

    def end(self, block: int, ranking: Ranking) -> None:
        """Records the final members, as a generation in which none is replaced."""
        self._write(self._number(block) + 1, block, ranking, _unchanged(ranking, "kept"))

    def exchange(self, population: Population, block: int, ranking: Ranking, rescue: bool) -> Population:
        """Carries out a generation; with `rescue`, replaces only failed members, between two generations."""
        program = self.program
        number = self._number(block)
        population, successors = exchange(
            self.pbt,
            program.loop,
            population,
            ranking,
            program.space,
            program.config.seed,
            number,
            rescue=block if rescue else 0,
            group=program.group,
        )
        self._write(number, block, ranking, successors, changed=rescue)
        copies = [(m, successors[m].parent) for m in self.program.reported_members if successors[m].parent != m]
        if copies:
            member, parent = copies[-1]
            more = f" (and {len(copies) - 1} more)" if len(copies) > 1 else ""
            self.last_exchange = f"{member} copied {parent}{more} at {block * program.block_steps:,}"
        return population

    def _number(self, block: int) -> int:
        return sum(b <= block for b in self.program.generations)

    def _write(
        self, number: int, block: int, ranking: Ranking, successors: list[Successor], changed: bool = False
    ) -> None:
        """Writes a line for each member; with `changed`, only for those that were replaced."""
        for member in self.program.reported_members:
            successor = successors[member]
            if changed and successor.parent == member:
                continue
            self.files.row(
                "lineage",
                generation=number,
                step=block * self.program.block_steps,
                member=member,
                parent=None if successor.reason == "start" else successor.parent,
                fitness=finite(ranking.fitness[member]),
                reason=successor.reason,
                hyper=successor.hyper,
            )
        self.files.flush()


def _unchanged(ranking: Ranking, reason: str) -> list[Successor]:
    """Returns every member as its own successor."""
    values = [
        {name: float(column[member]) for name, column in ranking.hypers.items()}
        for member in range(len(ranking.fitness))
    ]
    return [Successor(member, hyper, reason) for member, hyper in enumerate(values)]  # type: ignore[arg-type]
