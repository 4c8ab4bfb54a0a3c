"""The algorithms, by name. A new one is a file beside this and a line in REGISTRY."""

from functools import partial
from typing import Any

import jax
import numpy as np

from covey.agent import Entry
from covey.agents.dads import DADS, DADS_SPACE, DADSConfig, DADSHyper
from covey.agents.diayn import DIAYN, DIAYN_SPACE, DIAYNConfig, DIAYNHyper
from covey.agents.sac import SAC, SAC_SPACE, SACConfig, SACHyper
from covey.agents.taac import TAAC, TAAC_SPACE, TAACConfig, TAACHyper
from covey.agents.td3 import TD3, TD3_SPACE, TD3Config, TD3Hyper
from covey.errors import unknown
from covey.nn.normalise import Seen

REGISTRY: dict[str, Entry] = {
    "td3": Entry(TD3Config, TD3Hyper, TD3_SPACE, TD3, "twin delayed deterministic policy gradient"),
    "sac": Entry(SACConfig, SACHyper, SAC_SPACE, SAC, "soft actor-critic with a learnt temperature"),
    "taac": Entry(TAACConfig, TAACHyper, TAAC_SPACE, partial(TAAC, order=0), "learns when to repeat an action"),
    "taac-l": Entry(TAACConfig, TAACHyper, TAAC_SPACE, partial(TAAC, order=1), "and when to go on along a line"),
    "taac-q": Entry(TAACConfig, TAACHyper, TAAC_SPACE, partial(TAAC, order=2), "and when to go on along a parabola"),
    "diayn": Entry(DIAYNConfig, DIAYNHyper, DIAYN_SPACE, DIAYN, "learns skills that can be told apart", skills=True),
    "dads": Entry(DADSConfig, DADSHyper, DADS_SPACE, DADS, "learns skills whose effect it can predict", skills=True),
}


def entry(name: str) -> Entry:
    """The registered algorithm, or an error with the nearest names."""
    if name not in REGISTRY:
        raise unknown("agent", name, REGISTRY)
    return REGISTRY[name]


def forget_episode(state: Any) -> Any:
    """An agent's state for a copy of it, which acts in other environments: its statistics begin a new episode."""

    def is_seen(part: Any) -> bool:
        return isinstance(part, Seen)

    def forget(part: Any) -> Any:
        return part._replace(running=np.zeros_like(part.running)) if is_seen(part) else part

    return jax.tree.map(forget, state, is_leaf=is_seen)
