"""Population-based training carried out: members are ranked, and some are replaced by perturbed copies of others."""

from typing import Any, NamedTuple

import jax
import numpy as np

from covey.hyper.names import by_name, with_values
from covey.hyper.range import Space
from covey.hyper.space import searched
from covey.nn.normalise import forget_episode
from covey.population.pbt import PBT, Ranking, Successor, decide
from covey.population.processes import SINGLE_PROCESS, MemberLostError, ProcessGroup
from covey.training.loop import Loop
from covey.training.member import Population
from covey.training.sharding import SPLIT, place


class DonorData(NamedTuple):
    """The members that are copied: their indices, agent states [k, ...] and, with `replay="copy"`, replay data."""

    donors: list[int]
    agents: Any = None
    replay: Any = None


def rank(
    population: Population,
    fitness: np.ndarray,
    scores: np.ndarray,
    space: Space,
    failed: np.ndarray | None = None,
    group: ProcessGroup = SINGLE_PROCESS,
) -> Ranking:
    """Collects what a generation is decided from, over all processes.

    Args:
        population: This process's members.
        fitness: Their fitness [p]; higher is better.
        scores: The values [p, n] that the fitness is the mean of, for a significance test.
        space: The hyper-parameters that are tuned.
        failed: Members [p] that must be replaced; by default those with a quantity that was not finite.
        group: The processes that share the population.

    Returns:
        The ranking of all members [P].
    """
    hypers = by_name(population.members.hyper)
    values = {name: np.asarray(hypers[name]) for name in searched(space)}
    if failed is None:
        failed = np.asarray(population.members.tally.fault)[:, 0] >= 0
    return group.gather_ranking(Ranking(fitness, scores, failed, values), population.members.agent)


def exchange(
    pbt: PBT,
    loop: Loop,
    population: Population,
    returns: np.ndarray | Ranking,
    space: Space,
    seed: int = 0,
    generation: int = 0,
    *,
    rescue: int = 0,
    group: ProcessGroup = SINGLE_PROCESS,
) -> tuple[Population, list[Successor]]:
    """Carries out one generation of population-based training.

    The worst members become copies of the best, with perturbed hyper-parameters. The result depends only on the
    arguments: the same seed and generation give the same exchange on any number of processes.

    Args:
        pbt: How many members are replaced, and by whom.
        loop: The loop that trains the population.
        population: The members of this process.
        returns: Episode returns [members, episodes], or a `Ranking` made by `rank` for any other fitness.
        space: The hyper-parameters that are tuned, and their ranges.
        seed: The seed of the population.
        generation: The number of this generation; each has its own random numbers.
        rescue: If not 0, replaces only members that have failed, with random numbers of this number.
        group: The processes that share the population. Collective: all of them must call this function.

    Returns:
        The new population, and for every member its parent, its hyper-parameters and the reason.

    Example:
        >>> returns = covey.evaluate(loop, population, episodes=20).returns
        >>> population, successors = covey.exchange(covey.PBT(), loop, population, returns, covey.SAC_SPACE)
    """
    if isinstance(returns, Ranking):
        ranking = returns
    else:
        scores = np.asarray(returns)
        ranking = rank(population, scores.mean(axis=1), scores, space, group=group)
    reported = group.reported_members(loop.members)
    while True:
        successors = decide(pbt, searched(space), ranking, seed, generation, rescue)
        donors = sorted({successors[m].parent for m in reported if successors[m].parent != m})
        try:
            data = _fetch(pbt, population, donors, group)
            break
        except MemberLostError as lost:  # its island is gone: decide again without it
            ranking = ranking._replace(failed=ranking.failed | (np.arange(len(successors)) == lost.member))
    if donors:
        population = _replace(loop, population, successors, data, group.local_members(loop.members))
    return population, successors


def _fetch(pbt: PBT, population: Population, donors: list[int], group: ProcessGroup) -> DonorData:
    """Fetches the donors' arrays. Collective: all processes must call it, because weights are exchanged."""
    if not donors:
        return DonorData(donors)
    replay = group.fetch(population.replay.data, donors) if pbt.replay == "copy" else None
    agents = group.fetch(population.members.agent, donors)
    return DonorData(donors, forget_episode(agents), replay)


def _replace(
    loop: Loop, population: Population, successors: list[Successor], data: DonorData, local: range
) -> Population:
    """Writes the donors' arrays and the new hyper-parameters into this process's members."""
    old = population.members.hyper
    hyper = {name: np.array(values) for name, values in by_name(old).items()}
    failed = np.zeros(loop.members, bool)
    for slot, member in enumerate(local):
        successor = successors[member]
        if successor.parent == member:
            continue
        donor = data.donors.index(successor.parent)
        failed[slot] = successor.reason == "failed"
        agent, replay = jax.tree.map(lambda x, d=donor: x[d], (data.agents, data.replay))
        population = loop.put(population, slot, agent, replay)
        for name, value in successor.hyper.items():
            hyper[name][slot] = value
    changed = place(with_values(old, hyper), loop.devices, SPLIT)
    population = population._replace(members=population.members._replace(hyper=changed))
    return _restart(loop, population, failed) if failed.any() else population


def _restart(loop: Loop, population: Population, failed: np.ndarray) -> Population:
    """Restarts failed members [p], which count as sound again."""
    population = loop.restart(population, failed)
    tally = population.members.tally
    fault = np.where(failed[:, None], np.int32(-1), np.asarray(tally.fault))
    tally = tally._replace(fault=place(fault, loop.devices, SPLIT))
    return population._replace(members=population.members._replace(tally=tally))
