"""Carries out population-based training: ranks the members, and replaces some by perturbed copies of others."""

from typing import Any, NamedTuple

import jax
import numpy as np

from covey.errors import require, unknown
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
    """The members that come from other processes.

    Args:
        donors: Their indices.
        agents: Their agent states [k, ...].
        replay: Their replay data, with `PBT.replay` `copy`.
    """

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
    """Collects what a generation is decided from. Use it to rank members by something other than their returns.

    Args:
        population: The members of this process, p of P.
        fitness: Their fitness [p]; higher is better. A member whose fitness is not finite counts as failed.
        scores: The values [p, n] that the fitness is the mean of, for `PBT.significance`.
        space: The hyper-parameters that are tuned.
        failed: Members [p] that must be replaced; by default those with a quantity that was not finite in training.
        group: The processes that share the population. Collective: all of them must call this function.

    Returns:
        The ranking of all members [P], the same on every process.

    Example:
        >>> lengths = covey.evaluate(loop, population).length        # the longest episodes win
        >>> ranking = rank(population, lengths.mean(axis=1), lengths, space)
        >>> population, successors = covey.exchange(covey.PBT(), loop, population, ranking, space)
    """
    hypers = by_name(population.members.hyper)
    for name in searched(space):
        if name not in hypers:
            raise unknown("hyper-parameter", name, hypers)
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

    The worst members become copies of the best, with perturbed hyper-parameters. They keep their environments, their
    random streams and (unless `PBT.replay` is `copy`) their replay. Members that have failed also get new environments
    and a replay without the records that are not finite, and count as sound again.

    The result depends only on the arguments: the same seed and generation give the same exchange on any number of
    processes.

    Args:
        pbt: How many members are replaced, and by whom. Its `interval` and `fitness` are the caller's business here.
        loop: The loop that trains the population.
        population: The members of this process. It may be donated: use the returned one.
        returns: Episode returns [members, episodes], or a `Ranking` made by `rank` for any other fitness.
        space: The hyper-parameters that are tuned, and their ranges.
        seed: The seed of the population.
        generation: The number of this generation; each has its own random numbers.
        rescue: If not 0, replaces only members that have failed. The number selects the random numbers, so that several
            rescues within a generation differ.
        group: The processes that share the population. Collective: all of them must call this function.

    Returns:
        The new population, and a `Successor` for every member: its parent, its hyper-parameters and the reason.

    Example:
        >>> for generation in range(20):
        ...     population = loop.advance(population, blocks=50)
        ...     returns = covey.evaluate(loop, population, episodes=20).returns
        ...     population, successors = covey.exchange(
        ...         covey.PBT(), loop, population, returns, covey.SAC_SPACE, seed=0, generation=generation
        ...     )
    """
    require(
        pbt.replay != "share" or loop.trainer.shared,
        "`pbt.replay` is share, but the members have separate replays. Make the trainer with shared=True.",
    )
    ranking = returns if isinstance(returns, Ranking) else _rank_returns(population, loop, returns, space, group)
    while True:
        successors = decide(pbt, searched(space), ranking, seed, generation, rescue)
        parents = {m: successors[m].parent for m in group.reported_members(loop.members)}
        sent = sorted({p for m, p in parents.items() if p // loop.members != m // loop.members})  # between processes
        try:
            data = _fetch(pbt, population, sent, group)
            break
        except MemberLostError as lost:  # its island is gone: decide again without this donor
            ranking = ranking._replace(failed=ranking.failed | (np.arange(len(successors)) == lost.member))
    if any(m != parent for m, parent in parents.items()):
        population = _replace(pbt, loop, population, successors, data, group.local_members(loop.members))
    return population, successors


def _rank_returns(
    population: Population, loop: Loop, returns: np.ndarray, space: Space, group: ProcessGroup
) -> Ranking:
    """Ranks members by the mean of their episode returns [members, episodes]."""
    scores = np.asarray(returns)
    require(
        scores.ndim == 2 and len(scores) == loop.members,
        f"`returns` must have the shape [members, episodes] with {loop.members} members, not {list(scores.shape)}.",
    )
    return rank(population, scores.mean(axis=1), scores, space, group=group)


def _fetch(pbt: PBT, population: Population, donors: list[int], group: ProcessGroup) -> DonorData:
    """Fetches the donors' arrays. Collective: all processes must call it, because weights are exchanged."""
    if not donors:
        return DonorData(donors)
    replay = group.fetch(population.replay.stored, donors) if pbt.replay == "copy" else None
    agents = group.fetch(population.members.agent, donors)
    return DonorData(donors, forget_episode(agents), replay)


def _replace(
    pbt: PBT, loop: Loop, population: Population, successors: list[Successor], data: DonorData, local: range
) -> Population:
    """Writes the donors' arrays and the new hyper-parameters into this process's members."""
    old = population.members.hyper
    hyper = {name: np.array(values) for name, values in by_name(old).items()}
    failed = np.zeros(loop.members, bool)
    donors = list(range(loop.members))
    for slot, member in enumerate(local):
        successor = successors[member]
        if successor.parent == member:
            continue
        failed[slot] = successor.reason == "failed"
        for name, value in successor.hyper.items():
            hyper[name][slot] = value
        if successor.parent in local:
            donors[slot] = local.index(successor.parent)
            continue
        donor = data.donors.index(successor.parent)
        agent, replay = jax.tree.map(lambda x, d=donor: x[d], (data.agents, data.replay))
        population = loop.put(population, slot, agent, replay)
    population = loop.copy(population, donors, pbt.replay == "copy")
    changed = place(with_values(old, hyper), loop.devices, SPLIT)
    population = population._replace(members=population.members._replace(hyper=changed))
    return _restart(loop, population, failed) if failed.any() else population


def _restart(loop: Loop, population: Population, failed: np.ndarray) -> Population:
    """Gives failed members [p] new environments; they count as sound again."""
    population = loop.restart(population, failed)
    tally = population.members.tally
    fault = np.where(failed[:, None], np.int32(-1), np.asarray(tally.fault))
    tally = tally._replace(fault=place(fault, loop.devices, SPLIT))
    return population._replace(members=population.members._replace(tally=tally))
