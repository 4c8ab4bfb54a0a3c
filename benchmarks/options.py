"""Measures each option and recipe of SAC: returns on pendulum, and time per update relative to plain SAC.

    python -m benchmarks.options [--agent sac] [--seeds 3] [--rounds 5] [--only redq droq] [--costs] [--out FILE.md]

Learning: 20,000 steps of pendulum, hidden 64 x 64, batch 64, learning rates 1e-3, and else the defaults (a recipe also
makes one update per step, and its actor learns with every update of the critics). Cost: the
training program of benchmarks.learner (HalfCheetah's sizes, hidden 256 x 256, batch 256); all options are measured in
turns in one process, and the best of the rounds is divided by plain SAC's best. `--costs` measures nothing else.
"""

import argparse
import statistics
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

import covey
from benchmarks.learner import learner, times
from covey.agents import entry
from covey.agents.recipes import RECIPES

TORSO = {"hidden": [64, 64]}
SMALL = {"networks": {"actor": TORSO, "critic": TORSO}, "batch_size": 64}
ADAMW = {"kind": "adamw", "weight_decay": 0.01}
CLIPPED = {"clip_norm": 10.0}
SHORT = {"beta1": 0.5}
RMSPROP = {"kind": "rmsprop"}
SGD = {"kind": "sgd", "momentum": 0.9}
MUON = {"kind": "muon", "momentum": 0.95}

# The arguments of `covey.train` for each option.
OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "layer-norm": {"agent": {"networks": {"critic": {"norm": "layer"}}}},
    "weight-decay": {"agent": {"optimisers": {"actor": ADAMW, "critic": ADAMW}}},
    "clip-norm": {"agent": {"optimisers": {"actor": CLIPPED, "critic": CLIPPED}}},
    "mean": {"agent": {"critics": {"combine": "mean"}}},
    "redq": {"agent": {"critics": {"number": 10, "subset": 2}}},
    "droq": {"agent": {"critics": {"subset": 2}, "networks": {"critic": {"norm": "layer", "dropout": 0.01}}}},
    "crossq": {"agent": {"networks": {"critic": {"norm": "batch"}}, "optimisers": {"actor": SHORT, "critic": SHORT}}},
    "hl-gauss": {"agent": {"critics": {"bins": 101}, "normalise": {"rewards": True}}},
    "normalise-observations": {"agent": {"normalise": {"observations": True}}},
    "normalise-rewards": {"agent": {"normalise": {"rewards": True}}},
    "n-step-3": {"agent": {"n_step": 3}},
    "2-updates-per-step": {"updates_per_step": 2.0},
    "bfloat16": {"precision": "bfloat16"},
    "sgd": {"agent": {"optimisers": {"actor": SGD, "critic": SGD}}},
    "rmsprop": {"agent": {"optimisers": {"actor": RMSPROP, "critic": RMSPROP}}},
    "muon": {"agent": {"optimisers": {"actor": MUON, "critic": MUON}}},
    "huber": {"agent": {"critics": {"td_loss": "huber"}}},
    "target-period-2": {"agent": {"target_update_period": 2}},
    "orthogonal": {"agent": {"networks": {"weights": "orthogonal"}}},
}


def narrow(recipe: str, actor: list[int], critic: list[int]) -> dict[str, Any]:
    """Returns the options of a recipe, with other sizes of the networks."""
    networks = {"actor": {"hidden": actor}, "critic": {"hidden": critic}}
    return merged(RECIPES["sac", recipe].options, {"agent": {"networks": networks}})


def merged(one: dict[str, Any], two: dict[str, Any]) -> dict[str, Any]:
    both = {name: merged(one[name], x) for name, x in two.items() if isinstance(x, dict) and name in one}
    return one | two | both


RECIPE_ROWS = {name: RECIPES["sac", name].options for name in ("crossq", "simba", "flash", "xqc")} | {
    "crossq-256": narrow("crossq", [256, 256], [256, 256]),
    "simba-128": narrow("simba", [128], [128]),
    "flash-128": narrow("flash", [64], [128]),
    "xqc-256": narrow("xqc", [256, 256], [256, 256]),
}
"""The recipes, as published and at sizes for a CPU."""
ROWS = OPTIONS | {f"recipe {name}": options for name, options in RECIPE_ROWS.items()}
SLOW = {"updates_per_step": 1.0, "agent": {"policy_delay": 1}}


def returns(agent: str, name: str, seeds: int) -> np.ndarray:
    """Trains and returns the evaluations, [evaluations, seeds]; the last is at 20,000 steps."""
    rates = {name: 1e-3 for name in entry(agent).hyper._fields if name.endswith("_lr")}
    plain = {"env": "pendulum", "steps": 20_000, "seeds": seeds, "agent": SMALL, "hyper": rates}
    options = merged(plain, ROWS[name]) if name in OPTIONS else merged(merged(ROWS[name], plain), SLOW)
    with tempfile.TemporaryDirectory() as folder:
        run = covey.train(agent, out=Path(folder) / "run", preset=False, quiet=True, **options)
        column = run.metrics()["eval/return"]
    return np.array(column["value"]).reshape(-1, seeds)


def costs(agent: str, names: list[str], rounds: int) -> dict[str, float]:
    """Measures time per update relative to the plain agent."""
    programs = {
        name: learner(agent, agent=ROWS[name].get("agent"), precision=ROWS[name].get("precision", "float32"))
        for name in dict.fromkeys(["plain", *names])
    }
    taken = times(programs, rounds)
    return {name: t / taken["plain"] for name, t in taken.items()}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--agent", default="sac", choices=["sac", "td3"])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", nargs="+", default=list(OPTIONS), choices=list(ROWS))
    parser.add_argument("--costs", action="store_true")
    parser.add_argument("--out", type=Path, default=None)
    options = parser.parse_args()
    lines = ["| option | at 20,000 steps, each seed | first evaluation at -200 or better | cost per update |",
             "|---|---|---|---|"]  # fmt: skip
    cost = costs(options.agent, options.only, options.rounds)
    for name in options.only:
        if options.costs:
            print(f"| {name} | {cost[name]:.2f} |", flush=True)
            continue
        found = returns(options.agent, name, options.seeds)
        step = 20_000 // (len(found) - 1)
        first = [int(np.argmax(column >= -200)) * step if (column >= -200).any() else 0 for column in found.T]
        reached = (
            f"{statistics.median(first):,.0f} steps (median)" if all(first) else f"{np.count_nonzero(first)} seeds"
        )
        final = ", ".join(f"{value:.0f}" for value in found[-1])
        lines.append(f"| {name} | {final} | {reached} | {cost[name]:.2f} |")
        print(lines[-1], flush=True)
    if options.out:
        options.out.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
