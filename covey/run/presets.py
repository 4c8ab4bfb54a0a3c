"""Presets: options that suit an algorithm on an environment. They are its defaults there; a given option wins."""

from typing import Any

from covey.run.config import RunConfig, default_config
from covey.run.published import PUBLISHED

# Small and quick: enough for the built-in tasks. Layer normalisation of the critic steadies the harder ones.
_SMALL = {"batch_size": 64, "networks": {"actor": {"hidden": [64, 64]}, "critic": {"hidden": [64, 64]}}}
_NORMED = {
    "batch_size": 64,
    "networks": {"actor": {"hidden": [64, 64]}, "critic": {"hidden": [64, 64], "norm": "layer"}},
}
_TD3 = {"actor_lr": 3e-3, "critic_lr": 3e-3, "tau": 0.02}
_TD3_NOISY = _TD3 | {"exploration_noise": 0.3}
_SAC = {"actor_lr": 3e-3, "critic_lr": 3e-3, "temperature_lr": 3e-3, "tau": 0.02}
# Skills: the models and the policy that they follow must come to rest together, so the learning rates fall.
_TORSO = {"hidden": [64, 64]}
_FALLING = dict.fromkeys(("actor_lr", "critic_lr", "temperature_lr"), "exponential:0.003:0.0001") | {"tau": 0.02}
_ANT_TORSO = {"hidden": [128, 128]}
_ANT_RATE = "exponential:0.001:0.0001"
_FALLING_FAR = dict.fromkeys(("actor_lr", "critic_lr", "temperature_lr"), "exponential:0.002:0.0001")

# A reward of 100 at the end of a long way, and observations of very different widths.
_MOUNTAIN = {
    "steps": 40_000,
    "warmup": 5_000,
    "agent": _SMALL | {"normalise": {"observations": True}},
    "hyper": {"reward_scale": 0.1},
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
    **{(name, "mountaincar"): _MOUNTAIN for name in ("taac", "taac-l", "taac-q")},
    **{(name, "pendulum"): {"steps": 10_000, "agent": _SMALL, "hyper": _SAC} for name in ("taac", "taac-l", "taac-q")},
    # A short horizon is to pay for parting at once, noise at first to let skills leave a way that they share. Neither
    # was enough alone (docs/skills.md).
    ("diayn", "point-free"): {
        "steps": 40_000,
        "agent": {"sac": _SMALL, "discriminator": _TORSO},
        "hyper": {
            "sac": _FALLING | {"target_entropy": "linear:0:-4", "discount": 0.95},
            "discriminator_lr": "exponential:0.002:0.0003",
        },
    },
    # The walls matter, so the dynamics see the position, and a new skill now and then begins anywhere. Old data are of
    # other policies, so few are kept.
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
    # The rewards of skills that hardly move yet are small beside the entropy's: ten times, as Google's DADS has it.
    ("dads", "brax:ant_omni"): {
        "steps": 1_200_000,
        "envs": 16,
        "warmup": 5_000,
        "updates_per_step": 0.25,
        "capacity": 50_000,
        "evaluations": 12,
        "agent": {
            "sac": {
                "networks": {"actor": _ANT_TORSO, "critic": _ANT_TORSO},
                "normalise": {"observations": True},
            },
            "dynamics": _ANT_TORSO,
        },
        "hyper": {
            "sac": dict.fromkeys(("actor_lr", "critic_lr", "temperature_lr"), _ANT_RATE)
            | {"temperature": 0.1, "reward_scale": 10.0},
            "dynamics_lr": _ANT_RATE,
        },
    },
    **{key: preset.options for key, preset in PUBLISHED.items()},
}
"""(algorithm, environment) -> options, in the form that `covey.train` takes."""


def preset_config(algorithm: str, **options: Any) -> RunConfig[Any, Any]:
    """The preset of an algorithm on the environment among the options, with these in its place where they differ."""
    preset = PRESETS.get((algorithm, str(options.get("env", RunConfig.env))), {})
    return default_config(algorithm, **_merged(preset, options))


def describe(algorithm: str, env: str, within: RunConfig[Any, Any] | None = None) -> str:
    """The values of a preset in one line; with a configuration, those that are in effect there. Empty without any."""
    preset = PRESETS.get((algorithm, env), {})
    config = default_config(algorithm, **preset)
    values = [(name, _value(config, name)) for name in flat(preset)]
    return ", ".join(f"{name} {x}" for name, x in values if within is None or _value(within, name) == x)


def flat(values: dict[str, Any], path: str = "") -> dict[str, Any]:
    """Nested dictionaries as one, by dotted names."""
    found = {}
    for name, value in values.items():
        found |= flat(value, f"{path}{name}.") if isinstance(value, dict) else {f"{path}{name}": value}
    return found


def _merged(old: dict[str, Any], new: dict[str, Any]) -> dict[str, Any]:
    """`old` with single values replaced by those of `new`, nested ones too."""
    both = {n: _merged(old[n], x) for n, x in new.items() if isinstance(x, dict) and isinstance(old.get(n), dict)}
    return old | new | both


def _value(config: Any, name: str) -> Any:
    for part in name.split("."):
        config = getattr(config, part)
    return config
