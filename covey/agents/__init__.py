"""The algorithms, by name. To add one, write a file beside this one and an entry in REGISTRY."""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

from covey.agents.sac import SAC, SAC_SPACE, SACConfig, SACHyper
from covey.agents.skills.dads import DADS, DADS_SPACE, DADSConfig, DADSHyper
from covey.agents.skills.diayn import DIAYN, DIAYN_SPACE, DIAYNConfig, DIAYNHyper
from covey.agents.skills.goals import Towards
from covey.agents.skills.metra import METRA, METRA_SPACE, METRAConfig, METRAHyper
from covey.agents.skills.planner import Planner
from covey.agents.taac import TAAC, TAAC_SPACE, TAACConfig, TAACHyper
from covey.agents.td3 import TD3, TD3_SPACE, TD3Config, TD3Hyper
from covey.errors import unknown
from covey.hyper.range import Space


class Entry(NamedTuple):
    """An algorithm in the registry.

    Args:
        config: Its Config type, a frozen dataclass.
        hyper: Its Hyper type, a NamedTuple of numbers.
        space: A range for every hyper-parameter, by name; within a nested Hyper by path, as in `sac.actor_lr`.
        make: `make(config, spec)` returns the agent.
        summary: One line for `covey agents`.
        is_skill_agent: True if `make` returns a SkillAgent. Its environments append the descriptor and the return so
            far to the observation, and its newest policy counts as the best, because no reward ranks its policies.
        fitness: The measure that ranks a population, unless the user names another.
        curve: The metric of the learning curve.
        progress: Measures of skills for the progress line; those that a run does not have are left out.
        make_planner: `make_planner(agent, planning)` returns a policy that reaches goals; None if the agent has none.

    Example:
        >>> entry = covey.Entry(config=DPGConfig, hyper=DPGHyper, space=DPG_SPACE, make=DPG, summary="policy gradient")
        >>> covey.register_agent("dpg", entry)
        >>> covey.train("dpg", env="point")
    """

    config: Any
    hyper: Any
    space: Space
    make: Callable[..., Any]
    summary: str
    is_skill_agent: bool = False
    fitness: str = "return"
    curve: str = "eval/return"
    progress: tuple[str, ...] = ()
    make_planner: Callable[..., Any] | None = None


_TAAC = Entry(
    config=TAACConfig,
    hyper=TAACHyper,
    space=TAAC_SPACE,
    make=partial(TAAC, order=0),
    summary="actor-critic that learns when to repeat the last action",
)

REGISTRY: dict[str, Entry] = {
    "td3": Entry(
        config=TD3Config,
        hyper=TD3Hyper,
        space=TD3_SPACE,
        make=TD3,
        summary="twin delayed deep deterministic policy gradient",
    ),
    "sac": Entry(
        config=SACConfig,
        hyper=SACHyper,
        space=SAC_SPACE,
        make=SAC,
        summary="soft actor-critic with a learnt temperature",
    ),
    "taac": _TAAC,
    "taac-l": _TAAC._replace(
        make=partial(TAAC, order=1), summary="TAAC that continues along a line instead of repeating the action"
    ),
    "taac-q": _TAAC._replace(
        make=partial(TAAC, order=2), summary="TAAC that continues along a parabola instead of repeating the action"
    ),
    "diayn": Entry(
        config=DIAYNConfig,
        hyper=DIAYNHyper,
        space=DIAYN_SPACE,
        make=DIAYN,
        summary="learns skills that a discriminator can tell apart",
        is_skill_agent=True,
        fitness="information",
        curve="skills/information",
        progress=("information", "accuracy"),
        make_planner=Towards,
    ),
    "dads": Entry(
        config=DADSConfig,
        hyper=DADSHyper,
        space=DADS_SPACE,
        make=DADS,
        summary="learns skills with predictable effects, and can plan with them",
        is_skill_agent=True,
        fitness="information",
        curve="skills/information",
        progress=("information", "accuracy", "explained_10"),
        make_planner=Planner,
    ),
    "metra": Entry(
        config=METRAConfig,
        hyper=METRAHyper,
        space=METRA_SPACE,
        make=METRA,
        summary="learns skills that go far in different directions, and reaches goals with them",
        is_skill_agent=True,
        fitness="dependency",
        curve="skills/dependency",
        progress=("dependency", "squared_step", "cells"),
        make_planner=Towards,
    ),
}


def entry(name: str) -> Entry:
    """Returns the entry of an algorithm.

    Args:
        name: Its name in the registry, such as `sac`; capitals do not matter.

    Returns:
        The entry.

    Raises:
        CoveyError: There is no such algorithm. The message suggests similar names.

    Example:
        >>> covey.agents.entry("sac").hyper().discount
        0.99
    """
    return REGISTRY[canonical_name(name)]


def canonical_name(name: str) -> str:
    """Returns the name of an algorithm as in the registry: `TD3` is `td3`, and `taac_l` is `taac-l`.

    Args:
        name: Its name in any case, with hyphens or underscores.

    Raises:
        CoveyError: There is no such algorithm. The message suggests similar names.
    """
    if name in REGISTRY:
        return name
    names = {_folded(each): each for each in REGISTRY}
    if _folded(name) not in names:
        raise unknown("agent", name.lower(), REGISTRY)
    return names[_folded(name)]


def _folded(name: str) -> str:
    return name.casefold().replace("_", "-")
