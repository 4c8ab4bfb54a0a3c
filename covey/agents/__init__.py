"""The algorithms, by name. A new one is a file beside this and a line in REGISTRY."""

from functools import partial
from typing import Any, NamedTuple

from covey.agents.sac import SAC, SAC_SPACE, SACConfig, SACHyper
from covey.agents.skills.dads import DADS, DADS_SPACE, DADSConfig, DADSHyper
from covey.agents.skills.diayn import DIAYN, DIAYN_SPACE, DIAYNConfig, DIAYNHyper
from covey.agents.taac import TAAC, TAAC_SPACE, TAACConfig, TAACHyper
from covey.agents.td3 import TD3, TD3_SPACE, TD3Config, TD3Hyper
from covey.errors import unknown
from covey.hyper.range import Range


class Entry(NamedTuple):
    """An algorithm in the registry.

    Args:
        config: Its Config type.
        hyper: Its Hyper type.
        space: A range for every hyper-parameter, by its name; within a nested Hyper by its path, as in `sac.actor_lr`.
        make: `make(config, spec)` returns the agent.
        summary: One line for `covey agents`.
        is_skill_agent: It makes a SkillAgent. Its environments append the descriptor and the return so far to the
            observation, and its newest policy counts as the best, because no reward ranks them.
        fitness: The measure that a population is ranked by, unless the user names another.
        curve: The metric of the learning curve.
        progress: Measures of skills that the progress line shows.
        make_planner: `make_planner(agent, planning)` returns a policy that reaches goals, if the agent can plan.
    """

    config: Any
    hyper: Any
    space: dict[str, Range]
    make: Any
    summary: str
    is_skill_agent: bool = False
    fitness: str = "return"
    curve: str = "eval/return"
    progress: tuple[str, ...] = ()
    make_planner: Any = None


REGISTRY: dict[str, Entry] = {
    "td3": Entry(TD3Config, TD3Hyper, TD3_SPACE, TD3, "twin delayed deterministic policy gradient"),
    "sac": Entry(SACConfig, SACHyper, SAC_SPACE, SAC, "soft actor-critic with a learnt temperature"),
    "taac": Entry(TAACConfig, TAACHyper, TAAC_SPACE, partial(TAAC, order=0), "learns when to repeat an action"),
    "taac-l": Entry(TAACConfig, TAACHyper, TAAC_SPACE, partial(TAAC, order=1), "and when to go on along a line"),
    "taac-q": Entry(TAACConfig, TAACHyper, TAAC_SPACE, partial(TAAC, order=2), "and when to go on along a parabola"),
    "diayn": Entry(
        DIAYNConfig, DIAYNHyper, DIAYN_SPACE, DIAYN, "learns skills that can be told apart", is_skill_agent=True
    ),
    "dads": Entry(
        DADSConfig, DADSHyper, DADS_SPACE, DADS, "learns skills whose effect it can predict", is_skill_agent=True
    ),
}


def entry(name: str) -> Entry:
    """The registered algorithm, or an error with the nearest names."""
    if name not in REGISTRY:
        raise unknown("agent", name, REGISTRY)
    return REGISTRY[name]
