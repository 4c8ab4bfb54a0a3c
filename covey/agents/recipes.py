"""Recipes: named sets of options for an algorithm, on any environment, each from a publication.

A recipe says what learns and how: networks, critics, optimisers, batch size, learning rates, updates per step. It does
not say for how long: steps, warm-up, replay, and what a task itself asks for (discount, reward scale), stay those of
the environment's preset. To add one, write it into RECIPES, or call `covey.register_recipe`.
"""

import dataclasses
from collections.abc import Iterator
from typing import Any, NamedTuple

from covey.agents import REGISTRY, canonical_name
from covey.errors import CoveyError, unknown


class Recipe(NamedTuple):
    """Options with a name.

    Args:
        summary: What it changes, in one line, for `covey recipes`.
        source: Where the values are published.
        options: The options, in the form that `covey.train` takes.
        notes: What it costs, and what differs from the publication.
    """

    summary: str
    source: str
    options: dict[str, Any]
    notes: str = ""


def _rates(value: float | str) -> dict[str, Any]:
    return dict.fromkeys(("actor_lr", "critic_lr", "temperature_lr"), value)


def _networks(actor: list[int], critic: list[int], **more: Any) -> dict[str, Any]:
    return {"actor": {"hidden": actor}, "critic": {"hidden": critic, **more}}


def _twenty_updates(**agent: Any) -> dict[str, Any]:
    """Returns what REDQ and DroQ share: 20 updates of the critics per step, and one of the actor."""
    return {
        "updates_per_step": 20.0,
        "agent": {"batch_size": 256, "policy_delay": 20, **agent},
        "hyper": _rates(3e-4) | {"tau": 0.005},
    }


_DECAYED = {"kind": "adamw", "weight_decay": 0.01}
_C51 = {"bins": 101, "distribution": "c51", "low": -5.0, "high": 5.0, "batch_targets": True}
_TARGET_ENTROPY = (
    "The published runs also have a target entropy for each task: per action, -0.33 on Hopper and -0.5 on HalfCheetah, "
    "Walker2d and Ant (--hyper.target-entropy)."
)

RECIPES: dict[tuple[str, str], Recipe] = {
    ("sac", "crossq"): Recipe(
        summary="batch normalisation, wide critics, no target networks",
        source="Bhatt et al., 2024, arXiv 1902.05605, and github.com/adityab/CrossQ",
        options={
            "updates_per_step": 1.0,
            "agent": {
                "batch_size": 256,
                "policy_delay": 3,
                "networks": {
                    "actor": {"hidden": [256, 256], "norm": "batch"},
                    "critic": {"hidden": [2048, 2048], "norm": "batch"},
                },
                "optimisers": {"actor": {"beta1": 0.5}, "critic": {"beta1": 0.5}},
            },
            "hyper": _rates(1e-3),
        },
        notes="The critics have 59 times as many weights as SAC's on HalfCheetah. On a CPU, narrow them: "
        "--agent.networks.critic.hidden 256 256, or --hidden 256 256 for every network.",
    ),
    ("sac", "droq"): Recipe(
        summary="dropout and layer normalisation in two critics, 20 updates per step",
        source="Hiraoka et al., 2021, arXiv 2110.02034, and the authors' code",
        options=_twenty_updates(
            critics={"number": 2, "subset": 2},
            networks=_networks([256, 256], [256, 256], norm="layer", dropout=0.01),
        ),
        notes="20 updates per step: --updates-per-step 1 --agent.policy-delay 1 makes as many as plain SAC. The best "
        f"dropout depends on the task: they publish 0.0001 (Hopper) to 0.1 (Humanoid). {_TARGET_ENTROPY}",
    ),
    ("sac", "redq"): Recipe(
        summary="ten critics, targets from two of them at random, 20 updates per step",
        source="Chen et al., 2021, arXiv 2101.05982, and github.com/watchernyu/REDQ",
        options=_twenty_updates(
            critics={"number": 10, "subset": 2},
            networks=_networks([256, 256], [256, 256]),
        ),
        notes="20 updates per step, of ten critics: --updates-per-step 1 --agent.policy-delay 1 makes as many as plain "
        f"SAC. {_TARGET_ENTROPY}",
    ),
    ("sac", "simba"): Recipe(
        summary="residual networks with layer normalisation, normalised observations, weight decay",
        source="SimBa, Lee et al., 2025, arXiv 2410.09754, and github.com/DAVIAN-Robotics/SimbaV2",
        options={
            "updates_per_step": 2.0,
            "agent": {
                "batch_size": 256,
                "networks": {
                    "actor": {"kind": "simba", "hidden": [128]},
                    "critic": {"kind": "simba", "hidden": [512, 512]},
                    "weights": "orthogonal",
                    "log_std_bound": "tanh",
                },
                "normalise": {"observations": True},
                "optimisers": {"actor": _DECAYED, "critic": _DECAYED},
            },
            "hyper": _rates(1e-4) | {"tau": 0.005, "temperature": 0.01, "target_entropy": -0.5},
        },
        notes="The critics have 58 times as many weights as SAC's on HalfCheetah, and make two updates per step. On a "
        "CPU, narrow them: --agent.networks.critic.hidden 128 128. The publication's discount depends on the length "
        "of an episode, and tasks that never terminate have one critic; set these yourself.",
    ),
    ("sac", "flash"): Recipe(
        summary="residual networks with batch normalisation, weights of unit norm, distributional critics, held noise",
        source="FlashSAC, 2026, arXiv 2604.04539, and github.com/Holiday-Robot/FlashSAC",
        options={
            "updates_per_step": 1.0,
            "agent": {
                "batch_size": 512,
                "policy_delay": 2,
                "noise_hold": 16,
                "networks": {
                    "actor": {"kind": "flash", "hidden": [128, 128]},
                    "critic": {"kind": "flash", "hidden": [256, 256]},
                    "weights": "orthogonal",
                    "log_std_bound": "tanh",
                },
                "critics": _C51,
                "normalise": {"rewards": True, "reward_bound": 5.0},
                "optimisers": {"actor": {"unit_norm": "layers"}, "critic": {"unit_norm": "layers"}},
            },
            "hyper": _rates("linear:3e-4:1.5e-4") | {"tau": 0.01, "temperature": 0.01, "target_entropy": -0.478},
        },
        notes="The critics have 15 times as many weights as SAC's on HalfCheetah. On a CPU, narrow them: "
        "--agent.networks.critic.hidden 128. With a simulator on a GPU, they publish --agent.batch-size 2048.",
    ),
    ("sac", "xqc"): Recipe(
        summary="batch normalisation before each activation, weights of unit norm, distributional critics",
        source="XQC, Palenicek et al., 2026, arXiv 2509.25174, and github.com/danielpalenicek/xqc",
        options={
            "updates_per_step": 2.0,
            "agent": {
                "batch_size": 256,
                "policy_delay": 3,
                "networks": {
                    "actor": {"kind": "xqc", "hidden": [256, 256, 256, 256]},
                    "critic": {"kind": "xqc", "hidden": [512, 512, 512, 512]},
                    "weights": "orthogonal",
                },
                "critics": _C51,
                "normalise": {"rewards": True},
                "optimisers": {"actor": {"unit_norm": "weights"}, "critic": {"unit_norm": "weights"}},
            },
            "hyper": _rates("linear:3e-4:3e-5") | {"tau": 0.005, "temperature": 0.01, "target_entropy": -0.5},
        },
        notes="The critics have 12 times as many weights as SAC's on HalfCheetah, and make two updates per step. On a "
        "CPU, narrow them: --hidden 256 256 --updates-per-step 1.",
    ),
}
"""(algorithm, name) -> recipe. The options are those of that algorithm."""


class Found(NamedTuple):
    """A recipe as an algorithm takes it.

    Args:
        recipe: The recipe.
        owner: The algorithm that it is written for.
        part: The field in which the algorithm holds the owner, such as `sac` of DIAYN; empty if it is the owner.
    """

    recipe: Recipe
    owner: str
    part: str = ""

    @property
    def notes(self) -> str:
        """The notes, with the flags of the algorithm."""
        below = f"{self.part}." if self.part else ""
        return self.recipe.notes.replace("--agent.", f"--agent.{below}").replace("--hyper.", f"--hyper.{below}")

    def placed(self, options: dict[str, Any]) -> dict[str, Any]:
        """Returns options of the owner as those of the algorithm: `agent` and `hyper` belong to its part."""
        inner = ("agent", "hyper") if self.part else ()
        return {name: {self.part: value} if name in inner else value for name, value in options.items()}


def recipes_of(algorithm: str) -> dict[str, Found]:
    """Returns the recipes that an algorithm takes by name: its own, and those of an algorithm that it holds.

    Args:
        algorithm: The agent. DIAYN and DADS hold a SAC, so they take SAC's recipes.
    """
    algorithm = canonical_name(algorithm)
    held = {
        name: Found(recipe, owner, part)
        for part, owner in _parts(algorithm)
        for (own, name), recipe in RECIPES.items()
        if own == owner
    }
    return held | {name: Found(recipe, own) for (own, name), recipe in RECIPES.items() if own == algorithm}


def find_recipe(algorithm: str, name: str) -> Found:
    """Returns a recipe of an algorithm.

    Args:
        algorithm: The agent.
        name: The name of the recipe; capitals do not matter.

    Raises:
        CoveyError: There is no such recipe. The message lists those of the algorithm.
    """
    known = recipes_of(algorithm)
    if name.casefold() in known:
        return known[name.casefold()]
    takers = [each for each in REGISTRY if recipes_of(each)]
    if not known:
        raise CoveyError(f"There is no recipe for {algorithm}. There are for: {', '.join(takers)}.")
    error = str(unknown(f"recipe for {algorithm}", name, known))
    listed = f"There are: {', '.join(sorted(known))}."
    raise CoveyError(error if listed in error else f"{error} {listed}")


def _parts(algorithm: str) -> Iterator[tuple[str, str]]:
    """Yields the fields of an algorithm's Config and Hyper that hold those of another algorithm, and which."""
    config, hyper = REGISTRY[algorithm].config(), REGISTRY[algorithm].hyper()
    if not dataclasses.is_dataclass(config):
        return
    for each in dataclasses.fields(config):
        inner = type(getattr(config, each.name))
        for name, other in REGISTRY.items():
            if other.config is inner and isinstance(getattr(hyper, each.name, None), other.hyper):
                yield each.name, name
