"""covey trains continuous-control agents, discovers their skills, and tunes them as a population, in JAX.

Three tiers, and where to find them:

1. Runs, with a folder, exact resume, progress and figures: `train`, `evolve`, `resume`, `load`, `Run`.
2. The library, in memory, with no file and no terminal: environments (`envs`), agents (`TD3`, `SAC`, `TAAC`, `DIAYN`,
   `DADS`, `METRA`), `make_trainer`, `DeviceLoop`, `HostLoop`, `evaluate`, `PBT`, `exchange`, `draw_hypers`.
3. Parts, for your own training loop: `Agent.update`, `Replay.add` and `Replay.sample`, and the modules of `covey.nn`.

Your own environments, adapters, agents, networks and trackers get a name with the `register_*` functions.

Names are imported when they are first used, so `import covey` is fast and touches no device.
"""

import sys

# `python -m covey` puts the current folder before all packages, where a jax.py would be taken for jax. Nothing but
# `sys`, which is built in, may be imported before this. (While Python looks for a module, `sys.argv[0]` is "-m".)
if sys.argv[:1] == ["-m"] and sys.orig_argv[-len(sys.argv)].removeprefix("-m") == "covey" and not sys.flags.safe_path:
    del sys.path[0]

import importlib
import os
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

# XLA logs a page for each program that it loads from its cache, about tuning flags that do not matter. It reads this
# variable at its first import (`covey.backend.silence_xla` helps if jax came first). Errors are raised all the same.
if "jax" not in sys.modules:
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

if TYPE_CHECKING:
    from covey import agents, envs
    from covey.agent import Agent, Critic, Decision, Policy, SamplePlan
    from covey.agents import Entry
    from covey.agents.sac import SAC, SAC_SPACE, SACConfig, SACHyper
    from covey.agents.skills.dads import DADS, DADS_SPACE, DADSConfig, DADSHyper
    from covey.agents.skills.diayn import DIAYN, DIAYN_SPACE, DIAYNConfig, DIAYNHyper
    from covey.agents.skills.metra import METRA, METRA_SPACE, METRAConfig, METRAHyper
    from covey.agents.taac import TAAC, TAAC_SPACE, TAACConfig, TAACHyper
    from covey.agents.targets import register_target
    from covey.agents.td3 import TD3, TD3_SPACE, TD3Config, TD3Hyper
    from covey.api import (
        evolve,
        load,
        register_actor_head,
        register_agent,
        register_critic_head,
        register_encoder,
        register_env,
        register_recipe,
        register_torso,
        report,
        resume,
        skills_page,
        train,
    )
    from covey.callbacks import Callback, Event, register_callback
    from covey.envs import register_adapter
    from covey.envs.base import Env, HostEnv
    from covey.envs.wrappers import WithDescriptor
    from covey.errors import CoveyError
    from covey.evaluation.evaluate import evaluate
    from covey.evaluation.policy import TrainedPolicy
    from covey.evaluation.rollout import Episodes
    from covey.evaluation.summary import Evaluation
    from covey.export.check import Proof
    from covey.export.export import Export
    from covey.export.policy import ExportedPolicy, load_policy
    from covey.hyper.range import Range, Space
    from covey.hyper.schedule import Schedule
    from covey.hyper.space import draw_hypers
    from covey.nn.critics import Critics
    from covey.nn.encoders import Image
    from covey.nn.optim import register_optimiser
    from covey.nn.parts import Networks, Torso
    from covey.observation import Observation, Part
    from covey.population.exchange import exchange
    from covey.population.pbt import PBT, Ranking, Successor
    from covey.population.processes import ProcessGroup, SingleProcess
    from covey.publish import model_card
    from covey.replay import Replay, ReplayState
    from covey.run.config import RunConfig
    from covey.run.run import Run
    from covey.storage.metrics import register_sink
    from covey.training.collect import Rollout, collect, new_world
    from covey.training.device import DeviceLoop
    from covey.training.host import HostLoop
    from covey.training.loop import Loop
    from covey.training.member import Population
    from covey.training.trainer import Trainer, make_trainer
    from covey.types import Descriptor, EnvSpec, Step

_NAMES = {
    "agent": "Agent Critic Decision Policy SamplePlan",
    "agents": "Entry",
    "agents.sac": "SAC SAC_SPACE SACConfig SACHyper",
    "agents.skills.dads": "DADS DADS_SPACE DADSConfig DADSHyper",
    "agents.skills.diayn": "DIAYN DIAYN_SPACE DIAYNConfig DIAYNHyper",
    "agents.skills.metra": "METRA METRA_SPACE METRAConfig METRAHyper",
    "agents.taac": "TAAC TAAC_SPACE TAACConfig TAACHyper",
    "agents.targets": "register_target",
    "agents.td3": "TD3 TD3_SPACE TD3Config TD3Hyper",
    "api": "evolve load register_actor_head register_agent register_critic_head register_encoder register_env "
    "register_recipe register_torso report resume skills_page train",
    "callbacks": "Callback Event register_callback",
    "envs": "register_adapter",
    "envs.base": "Env HostEnv",
    "envs.wrappers": "WithDescriptor",
    "errors": "CoveyError",
    "evaluation.evaluate": "evaluate",
    "evaluation.policy": "TrainedPolicy",
    "evaluation.rollout": "Episodes",
    "evaluation.summary": "Evaluation",
    "export.check": "Proof",
    "export.export": "Export",
    "export.policy": "ExportedPolicy load_policy",
    "hyper.range": "Range Space",
    "hyper.schedule": "Schedule",
    "hyper.space": "draw_hypers",
    "nn.critics": "Critics",
    "nn.encoders": "Image",
    "nn.optim": "register_optimiser",
    "nn.parts": "Networks Torso",
    "observation": "Observation Part",
    "population.exchange": "exchange",
    "population.pbt": "PBT Ranking Successor",
    "population.processes": "ProcessGroup SingleProcess",
    "publish": "model_card",
    "replay": "Replay ReplayState",
    "run.config": "RunConfig",
    "run.run": "Run",
    "storage.metrics": "register_sink",
    "training.collect": "Rollout collect new_world",
    "training.device": "DeviceLoop",
    "training.host": "HostLoop",
    "training.loop": "Loop",
    "training.member": "Population",
    "training.trainer": "Trainer make_trainer",
    "types": "Descriptor EnvSpec Step",
}
"""The module of every public name. The block for type checkers above says the same; a test compares the two."""
_MODULE_OF = {name: f"covey.{module}" for module, names in _NAMES.items() for name in names.split()}
_MODULES = ("agents", "envs")

__all__ = ["__version__", *_MODULE_OF, *_MODULES]  # pyright: ignore[reportUnsupportedDunderAll]


def __dir__() -> list[str]:
    """Lists the public names, also those that are not imported yet."""
    return sorted(__all__)


def __getattr__(name: str) -> Any:
    if name in _MODULE_OF:
        return getattr(importlib.import_module(_MODULE_OF[name]), name)
    if name in _MODULES:
        return importlib.import_module(f"covey.{name}")
    raise AttributeError(f"module 'covey' has no attribute {name!r}")
