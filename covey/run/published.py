"""Presets for Gymnasium's tasks, taken from published configurations and not tuned here.

Where covey lacks what a publication used (correlated noise, state-dependent exploration, updates in bursts), the rest
of its values stand, and `source` says so. Those of PyTorch's programs start with PyTorch's weights.
"""

from typing import Any, NamedTuple


class Published(NamedTuple):
    """Options in the form that `covey.train` takes, and where they are from."""

    source: str
    options: dict[str, Any]


_PYTORCH = {"weights": "uniform"}


def _networks(*hidden: int) -> dict[str, Any]:
    return {"actor": {"hidden": list(hidden)}, "critic": {"hidden": list(hidden)}, **_PYTORCH}


def _rates(value: float | str) -> dict[str, Any]:
    return dict.fromkeys(("actor_lr", "critic_lr", "temperature_lr"), value)


def _td3_rates(value: float) -> dict[str, Any]:
    return {"actor_lr": value, "critic_lr": value}


_LOCOMOTION = ("HalfCheetah-v5", "Hopper-v5", "Walker2d-v5", "Ant-v5")
_WIDE = _networks(400, 300)
_LONG = {"steps": 1_000_000, "agent": {"networks": _PYTORCH}}

_TD3_AUTHORS = "the TD3 authors' code, github.com/sfujim/TD3 (v2 tasks)"
_ZOO = "RL-Zoo, github.com/DLR-RM/rl-baselines3-zoo"
_ALF = "ALF's TAAC, arXiv 2104.06521 and github.com/hnyu/taac"

_TD3 = {
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
_SAC = {
    **{name: Published(f"{_ZOO} (v3)", _LONG | {"warmup": 10_000}) for name in _LOCOMOTION},
    "InvertedDoublePendulum-v5": Published(f"{_ZOO}, its defaults for MuJoCo tasks", _LONG | {"warmup": 10_000}),
    "Pendulum-v1": Published(
        _ZOO, {"steps": 20_000, "warmup": 100, "agent": {"networks": _PYTORCH}, "hyper": _rates(1e-3)}
    ),
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
_TAAC = {
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
    for algorithm, presets in (("td3", _TD3), ("sac", _SAC), ("taac", _TAAC))
    for name, preset in presets.items()
}
"""(algorithm, environment) -> a published configuration."""
