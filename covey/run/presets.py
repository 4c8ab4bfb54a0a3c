"""Presets: options that suit an agent on an environment. They are its defaults there; a given option wins.

A recipe (covey/agents/recipes.py) is a named set of options of an agent on any environment. From weak to strong: the
plain defaults, the preset, the recipe, the options that the user gives.

Those for Gymnasium's tasks are published configurations, not tuned here. If covey lacks something that a publication
used (correlated noise, state-dependent exploration, updates in bursts), `source` says so. Those of the built-in tasks
were measured with flax's initial weights.
"""

from typing import Any, NamedTuple

from covey.agents import canonical_name
from covey.agents.recipes import find_recipe, recipes_of
from covey.errors import CoveyError, require
from covey.run.config import RunConfig, default_config
from covey.run.config_text import expanded, flat, merged


class Published(NamedTuple):
    """Options in the form that `covey.train` takes, and their source."""

    source: str
    options: dict[str, Any]


def _networks(*hidden: int) -> dict[str, Any]:
    return {"actor": {"hidden": list(hidden)}, "critic": {"hidden": list(hidden)}}


def _rates(value: float | str) -> dict[str, Any]:
    return dict.fromkeys(("actor_lr", "critic_lr", "temperature_lr"), value)


def _td3_rates(value: float) -> dict[str, Any]:
    return {"actor_lr": value, "critic_lr": value}


_LOCOMOTION = ("HalfCheetah-v5", "Hopper-v5", "Walker2d-v5", "Ant-v5")
_WIDE = _networks(400, 300)
_LONG = {"steps": 1_000_000}

_TD3_AUTHORS = "the TD3 authors' code, github.com/sfujim/TD3 (v2 tasks)"
_ZOO = "RL-Zoo, github.com/DLR-RM/rl-baselines3-zoo"
_ALF = "ALF's TAAC, arXiv 2104.06521 and github.com/hnyu/taac"

_TD3_TASKS = {
    **{name: Published(_TD3_AUTHORS, _LONG | {"warmup": 25_000}) for name in _LOCOMOTION},
    "InvertedDoublePendulum-v5": Published(_TD3_AUTHORS, _LONG | {"warmup": 25_000}),
    "Pendulum-v1": Published(
        f"{_ZOO} (v0)",
        {"steps": 100_000, "agent": {"batch_size": 100, "networks": _WIDE}, "hyper": _td3_rates(1e-3)},
    ),
    "MountainCarContinuous-v0": Published(
        f"{_ZOO}; there with Ornstein-Uhlenbeck noise, without which it may not learn",
        {
            "steps": 300_000,
            "agent": {"batch_size": 100, "networks": _WIDE},
            "hyper": _td3_rates(1e-3) | {"exploration_noise": 0.5},
        },
    ),
    "LunarLanderContinuous-v3": Published(
        f"{_ZOO} (v2); there with Ornstein-Uhlenbeck noise",
        {"steps": 300_000, "agent": {"networks": _WIDE}, "hyper": _td3_rates(1e-3)},
    ),
    "BipedalWalker-v3": Published(
        f"{_ZOO} (v2); there with 1,000 updates every 1,000 steps",
        {
            "steps": 2_000_000,
            "warmup": 10_000,
            "agent": {"batch_size": 100, "networks": _WIDE},
            "hyper": _td3_rates(1e-3),
        },
    ),
}
_SAC_TASKS = {
    **{name: Published(f"{_ZOO} (v3)", _LONG | {"warmup": 10_000}) for name in _LOCOMOTION},
    "InvertedDoublePendulum-v5": Published(f"{_ZOO}, its defaults for MuJoCo tasks", _LONG | {"warmup": 10_000}),
    "Pendulum-v1": Published(_ZOO, {"steps": 20_000, "warmup": 100, "hyper": _rates(1e-3)}),
    "MountainCarContinuous-v0": Published(
        f"{_ZOO}; there with state-dependent exploration, without which it may not learn",
        {
            "steps": 50_000,
            "capacity": 50_000,
            "agent": {"batch_size": 512, "networks": _networks(64, 64), "fixed_temperature": True},
            "hyper": _rates(3e-4) | {"temperature": 0.1, "discount": 0.9999, "tau": 0.01},
        },
    ),
    "LunarLanderContinuous-v3": Published(
        f"{_ZOO} (v2)",
        {
            "steps": 500_000,
            "warmup": 10_000,
            "agent": {"networks": _WIDE},
            "hyper": _rates("linear:0.00073:0.0") | {"tau": 0.01},
        },
    ),
    "BipedalWalker-v3": Published(
        f"{_ZOO}; there with state-dependent exploration and 64 updates every 64 steps",
        {
            "steps": 500_000,
            "warmup": 10_000,
            "capacity": 300_000,
            "agent": {"networks": _WIDE},
            "hyper": _rates(7.3e-4) | {"discount": 0.98, "tau": 0.02},
        },
    ),
}
_SIMPLE = {
    "steps": 100_000,
    "warmup": 10_000,
    "agent": {"batch_size": 256, "normalise": {"rewards": True}},
    "hyper": _rates(1e-4),
}
_TAAC_TASKS = {
    **{
        name: Published(
            f"{_ALF} (v2)",
            {
                "steps": 3_000_000,
                "warmup": 50_000,
                "agent": {"batch_size": 256, "advantage_clip": [0.0, float("inf")]},
                "hyper": {"action_probability": 0.184},
            },
        )
        for name in _LOCOMOTION
    },
    "InvertedDoublePendulum-v5": Published(f"{_ALF} (v2)", _SIMPLE),
    "Pendulum-v1": Published(f"{_ALF}, its values for simple control", _SIMPLE),
    "MountainCarContinuous-v0": Published(_ALF, _SIMPLE),
    "LunarLanderContinuous-v3": Published(f"{_ALF} (v2)", _SIMPLE),
    "BipedalWalker-v3": Published(
        f"{_ALF} (v2)",
        {
            "steps": 5_000_000,
            "envs": 32,
            "warmup": 20_000,
            "capacity": 3_200_000,
            "updates_per_step": 1 / 160,
            "agent": {"batch_size": 4096, "window": 6, "normalise": {"rewards": True}},
            "hyper": _rates(5e-4),
        },
    ),
}

PUBLISHED: dict[tuple[str, str], Published] = {
    (algorithm, f"gymnasium:{name}"): preset
    for algorithm, presets in (("td3", _TD3_TASKS), ("sac", _SAC_TASKS), ("taac", _TAAC_TASKS))
    for name, preset in presets.items()
}
"""(algorithm, environment) -> a published configuration."""

# Small and fast, enough for the built-in tasks. Layer normalisation of the critic stabilises the harder ones.
_SMALL = {"batch_size": 64, "networks": _networks(64, 64) | {"weights": "lecun"}}
_NORMED = {
    "batch_size": 64,
    "networks": {"actor": {"hidden": [64, 64]}, "critic": {"hidden": [64, 64], "norm": "layer"}, "weights": "lecun"},
}
_TD3 = {"actor_lr": 3e-3, "critic_lr": 3e-3, "tau": 0.02}
_TD3_NOISY = _TD3 | {"exploration_noise": 0.3}
_SAC = {"actor_lr": 3e-3, "critic_lr": 3e-3, "temperature_lr": 3e-3, "tau": 0.02}
# Skills: the models and the policy must converge together, so the learning rates decay.
_TORSO = {"hidden": [64, 64]}
_FALLING = dict.fromkeys(("actor_lr", "critic_lr", "temperature_lr"), "exponential:0.003:0.0001") | {"tau": 0.02}
_ANT_TORSO = {"hidden": [128, 128]}
_ANT_RATE = "exponential:0.001:0.0001"
_FALLING_FAR = dict.fromkeys(("actor_lr", "critic_lr", "temperature_lr"), "exponential:0.002:0.0001")

# A sparse reward of 100, and observations of very different scales.
_MOUNTAIN = {
    "steps": 40_000,
    "warmup": 5_000,
    "agent": _SMALL | {"normalise": {"observations": True}},
    "hyper": {"reward_scale": 0.1},
}

# A thousand environments, with few updates per step on large batches (docs/many-environments.md).
_MANY = {
    "steps": 2_000_000,
    "envs": 1024,
    "updates_per_step": 8 / 1024,
    "warmup": 20_000,
    "evaluations": 10,
    "episodes": 64,
    "agent": {"batch_size": 1024, "networks": _networks(128, 128)},
}

PRESETS: dict[tuple[str, str], dict[str, Any]] = {
    ("td3", "pendulum"): {"steps": 10_000, "agent": _NORMED, "hyper": _TD3_NOISY},
    ("td3", "point"): {"steps": 8_000, "agent": _SMALL, "hyper": _TD3},
    ("td3", "reacher"): {"steps": 25_000, "agent": _NORMED, "hyper": _TD3_NOISY | {"discount": 0.97}},
    ("td3", "cartpole-swingup"): {"steps": 30_000, "agent": _NORMED, "hyper": _TD3_NOISY},
    ("sac", "pendulum"): {"steps": 10_000, "agent": _SMALL, "hyper": _SAC},
    ("sac", "point"): {"steps": 8_000, "agent": _SMALL, "hyper": _SAC},
    ("sac", "reacher"): {"steps": 25_000, "agent": _SMALL, "hyper": _SAC | {"discount": 0.97}},
    ("sac", "cartpole-swingup"): {"steps": 30_000, "agent": _NORMED, "hyper": _SAC},
    ("sac", "playground:CartpoleSwingup"): _MANY | {"hyper": _rates(1e-3) | {"tau": 0.02}},
    **{(name, "mountaincar"): _MOUNTAIN for name in ("taac", "taac-l", "taac-q")},
    **{(name, "pendulum"): {"steps": 10_000, "agent": _SMALL, "hyper": _SAC} for name in ("taac", "taac-l", "taac-q")},
    # The wall below the goal is a local optimum. Random actions that are held find the way around it in a long warm-up,
    # which costs little time (docs/presets.md).
    ("sac", "pointmaze"): {
        "steps": 350_000,
        "warmup": 300_000,
        "warmup_actions": "policy",
        "evaluations": 35,
        "agent": _NORMED | {"noise_hold": 64},
        "hyper": _rates(1e-3) | {"tau": 0.01},
    },
    ("taac", "pointmaze"): {
        "steps": 125_000,
        "warmup": 100_000,
        "agent": _NORMED | {"random_switch": 0.05},
        "hyper": _rates(1e-3) | {"tau": 0.01},
    },
    # The short horizon rewards skills that separate at once; the early entropy lets them leave a common path. Neither
    # was enough alone (docs/skills.md).
    ("diayn", "point-free"): {
        "steps": 40_000,
        "agent": {"sac": _SMALL, "discriminator": _TORSO},
        "hyper": {
            "sac": _FALLING | {"target_entropy": "linear:0:-4", "discount": 0.95},
            "discriminator_lr": "exponential:0.002:0.0003",
        },
    },
    # The walls matter, so the dynamics see the position, and skills are resampled within an episode. Old data come from
    # other policies, so little is kept.
    ("dads", "point-free"): {
        "steps": 25_000,
        "capacity": 5_000,
        "agent": {
            "sac": _SMALL,
            "dynamics": _TORSO,
            "learn_variance": True,
            "omit": 0,
            "samples": 20,
            "skills": {"resample": 0.1},
        },
        "hyper": {
            "sac": _FALLING_FAR | {"tau": 0.01, "target_entropy": -3.0},
            "dynamics_lr": "exponential:0.002:0.0003",
        },
    },
    # The rewards of skills that hardly move are small compared to the entropy, so they are scaled by 10, as in Google's
    # DADS. Skills are directions: in the middle of a square, skills learn to stand still.
    ("dads", "brax:ant_omni"): {
        "steps": 600_000,
        "envs": 16,
        "warmup": 5_000,
        "updates_per_step": 0.25,
        "capacity": 50_000,
        "evaluations": 10,
        "agent": {
            "sac": {
                "networks": {"actor": _ANT_TORSO, "critic": _ANT_TORSO, "weights": "lecun"},
                "normalise": {"observations": True},
            },
            "dynamics": _ANT_TORSO,
            "skills": {"prior": "sphere"},
        },
        "hyper": {
            "sac": dict.fromkeys(("actor_lr", "critic_lr", "temperature_lr"), _ANT_RATE)
            | {"temperature": 0.1, "reward_scale": 10.0},
            "dynamics_lr": _ANT_RATE,
        },
    },
    # Its skills hardly walk, whatever was tried (docs/skills.md): for comparison with the others.
    ("diayn", "brax:ant_omni"): {
        "steps": 400_000,
        "envs": 16,
        "warmup": 5_000,
        "updates_per_step": 0.25,
        "capacity": 50_000,
        "evaluations": 4,
        "agent": {
            "sac": {
                "networks": {"actor": _ANT_TORSO, "critic": _ANT_TORSO, "weights": "lecun"},
                "normalise": {"observations": True},
            },
            "discriminator": _ANT_TORSO,
            "skills": {"number": 16},
        },
        "hyper": {
            "sac": dict.fromkeys(("actor_lr", "critic_lr", "temperature_lr"), _ANT_RATE)
            | {"temperature": 0.1, "reward_scale": 10.0},
            "discriminator_lr": _ANT_RATE,
        },
    },
    ("metra", "point-free"): {
        "steps": 10_000,
        "agent": {"sac": _SMALL, "representation": _TORSO},
        "hyper": {"sac": _rates(1e-3), "representation_lr": 1e-3, "dual_lr": 1e-3},
    },
    ("metra", "brax:ant_omni"): {
        "steps": 1_000_000,
        "envs": 16,
        "warmup": 5_000,
        "updates_per_step": 0.25,
        "capacity": 200_000,
        "evaluations": 10,
        "agent": {
            "sac": {
                "networks": {"actor": _ANT_TORSO, "critic": _ANT_TORSO, "weights": "lecun"},
                "normalise": {"observations": True},
            },
            "representation": _ANT_TORSO,
        },
        "hyper": {"sac": {"temperature": 0.1}},
    },
    **{key: preset.options for key, preset in PUBLISHED.items()},
}
"""(algorithm, environment) -> options, in the form that `covey.train` takes."""


class Basis(NamedTuple):
    """The options that a configuration starts from, before those that the user gives.

    Args:
        preset: Whether they include the preset for the agent and the environment, if there is one.
        recipe: The name of a recipe; empty without.
    """

    preset: bool = True
    recipe: str = ""

    def config(self, algorithm: str, **options: Any) -> RunConfig[Any, Any]:
        """Returns the configuration of an algorithm with the given options."""
        algorithm = canonical_name(algorithm)
        require(isinstance(self.recipe, str), f"`recipe` must be the name of a recipe, not {self.recipe!r}.")
        for name in ("agent", "hyper") if self.recipe else ():
            given = options.get(name, {})
            require(
                isinstance(given, dict),
                f"`recipe` and a whole {type(given).__name__} as `{name}` exclude each other: give a dictionary of the "
                "options that differ from the recipe.",
            )
        preset = PRESETS.get((algorithm, str(options.get("env", RunConfig.env))), {}) if self.preset else {}
        based = merged(preset, self.options(algorithm))
        return default_config(algorithm, **merged(based, expanded(algorithm, options)))

    def origins(self, config: RunConfig[Any, Any]) -> dict[str, str]:
        """Returns which values in effect in a configuration come from the preset or the recipe, by dotted names."""
        preset = values_of(config.algorithm, config.env, config) if self.preset else {}
        found = dict.fromkeys(preset, "preset")
        if self.recipe:
            found |= dict.fromkeys(_in_effect(config.algorithm, self.options(config.algorithm), config), "recipe")
        return found

    def shown(self, config: RunConfig[Any, Any]) -> "Basis":
        """Returns the basis without a preset that is not in effect, or that has values of the recipe alone."""
        return self._replace(preset="preset" in self.origins(config).values())

    def options(self, algorithm: str) -> dict[str, Any]:
        """Returns the options of the recipe; none without one."""
        return recipe_options(algorithm, self.recipe) if self.recipe else {}


PLAIN = Basis(preset=False)
"""The plain defaults."""


def preset_config(algorithm: str, **options: Any) -> RunConfig[Any, Any]:
    """Returns the configuration of the preset for an algorithm and an environment, with the given options."""
    return Basis().config(algorithm, **options)


def recipe_names(algorithm: str) -> tuple[str, ...]:
    """Returns the names of the recipes that an algorithm takes."""
    return tuple(recipes_of(algorithm))


def recipe_options(algorithm: str, name: str) -> dict[str, Any]:
    """Returns the options of a recipe for an algorithm; those of an inner SAC (DIAYN, DADS) are below `sac`."""
    found = find_recipe(algorithm, name)
    return found.placed(expanded(found.owner, found.recipe.options))


def recipe_text(algorithm: str, name: str) -> str:
    """Returns the options of a recipe for an algorithm in one line, by dotted names."""
    values = _in_effect(algorithm, recipe_options(algorithm, name), None)
    return ", ".join(f"{path} {_text(value)}" for path, value in values.items())


def _text(value: Any) -> str:
    if isinstance(value, tuple):
        return " ".join(map(_text, value))
    return f"{value:g}" if isinstance(value, float) else str(value)


def describe(algorithm: str, env: str, within: RunConfig[Any, Any] | None = None) -> str:
    """Returns a preset in one line; with a configuration, only the values in effect there. Empty without one."""
    return ", ".join(f"{name} {x}" for name, x in values_of(algorithm, env, within).items())


def values_of(algorithm: str, env: str, within: RunConfig[Any, Any] | None = None) -> dict[str, Any]:
    """Returns the values of a preset by dotted names; with a configuration, only those in effect there."""
    return _in_effect(algorithm, PRESETS.get((algorithm, env), {}), within)


def _in_effect(algorithm: str, options: dict[str, Any], within: RunConfig[Any, Any] | None) -> dict[str, Any]:
    """Returns options by dotted names, as a configuration has them; only those in effect in `within`, if given."""
    config = default_config(algorithm, **options)
    values = {name: _value(config, name) for name in flat(options)}
    return {name: x for name, x in values.items() if within is None or _value(within, name) == x}


def with_source(error: CoveyError, config: RunConfig[Any, Any], basis: Basis) -> CoveyError:
    """Returns an error that also says which of the options that it names have their value from a preset or a recipe."""
    texts = {"preset": f"preset for {config.algorithm} on {config.env}", "recipe": f"recipe {basis.recipe}"}
    named = {name: texts[origin] for name, origin in basis.origins(config).items() if f"`{name}`" in str(error)}
    if not named or error.owner is not None:
        return error
    parts = []
    for origin in dict.fromkeys(named.values()):
        values = [f"`{name}` {_value(config, name)}" for name, each in named.items() if each == origin]
        parts.append(f"{' and '.join(values)} {'comes' if len(values) == 1 else 'come'} from the {origin}")
    return CoveyError(f"{error} ({', and '.join(parts)}.)")


def _value(config: Any, name: str) -> Any:
    for part in name.split("."):
        config = getattr(config, part)
    return config
