"""Compares TAAC and its variants with SAC and TD3 on one task: a table and learning curves.

    python -m benchmarks.taac [--env mountaincar] [--seeds 5] [--steps 40000] [--only taac sac] [--out FOLDER]
    python -m benchmarks.taac --cost [--rounds 5]
    python -m benchmarks.taac --warm-up

All use one environment, hidden 64 x 64, batch 64, running normalisation of observations, 5,000 random steps, and else
their defaults. On mountaincar rewards are scaled by 0.1, because the reward at the goal is 100. FOLDER gets table.md,
curves.png, curves.csv and the run folders.

--cost: the time of one update relative to SAC's, with the same number of samples (64 windows of 4 steps; SAC: 256
steps), HalfCheetah's sizes, hidden 256 x 256; measured in turns in one process, the best of the rounds.

--warm-up: how often 5,000 random steps of mountaincar reach the flag, depending on how often the random action changes.
"""

import argparse
import tempfile
from functools import partial
from pathlib import Path
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np

import covey
from benchmarks.learner import learner, times
from covey.agents.taac import TAAC, TAACConfig, TAACHyper, TAACState
from covey.envs.builtin.mountaincar import MountainCar
from covey.plots.curves import curve, plot_curves
from covey.training.member import where
from covey.types import Array, Key

# Rows of the table: the algorithm, and the fields that differ from its defaults.
AGENTS: dict[str, tuple[str, dict[str, Any]]] = {
    "taac": ("taac", {}),
    "taac-l": ("taac-l", {}),
    "taac-q": ("taac-q", {}),
    "taac-alf-target": ("taac", {"target": "alf"}),
    "taac-random-switch-0.5": ("taac", {"random_switch": 0.5}),
    "taac-one-step": ("taac", {"window": 2}),
    "sac": ("sac", {}),
    "td3": ("td3", {}),
}
TORSO = {"hidden": [64, 64]}
AGENT = {"networks": {"actor": TORSO, "critic": TORSO}, "batch_size": 64, "normalise": {"observations": True}}
HYPER = {"mountaincar": {"reward_scale": 0.1}}
ENOUGH = {"mountaincar": 92.0, "pendulum": -200.0}
"""The return that counts as solved."""


def row(name: str, run: covey.Run, seeds: int, enough: float) -> str:
    metrics = run.metrics()
    returns = np.array(metrics["eval/return"]["value"]).reshape(-1, seeds)
    steps = np.unique(metrics["eval/return"]["step"])
    first = [f"{steps[np.argmax(column >= enough)]:,.0f}" if (column >= enough).any() else "-" for column in returns.T]
    final = ", ".join(f"{value:.0f}" for value in returns[-1])
    repeated = "-"
    if "eval/repeated" in metrics:
        repeated = ", ".join(f"{x:.2f}" for x in metrics["eval/repeated"]["value"][-seeds:])
    return f"| {name} | {final} | {np.sum(returns[-1] >= enough)} of {seeds} | {', '.join(first)} | {repeated} |"


def costs(rounds: int) -> None:
    taken = times({name: learner(name) for name in ("sac", "taac", "taac-l", "taac-q")}, rounds)
    for name, seconds in taken.items():
        print(f"{name:7} {1000 * seconds:6.2f} ms per update, {seconds / taken['sac']:.2f} of SAC's")


def found(rate: float, key: Key) -> Array:
    """Returns how often 5,000 random steps of TAAC reach mountaincar's flag."""
    env, hyper, none = MountainCar(), TAACHyper(), cast(TAACState, None)
    taac = TAAC(TAACConfig(random_switch=rate), env.spec)
    memory = taac.begin(none, hyper, key)

    def step(carry: Any, key: Key) -> tuple[Any, None]:
        state, obs, memory, lasted, arrivals = carry
        key_act, key_step, key_reset = jax.random.split(key, 3)
        decision = taac.act(none, hyper, memory, obs, key_act, "random")
        state, outcome = env.step(state, decision.action, key_step)
        ended = outcome.terminated | (lasted + 1 >= env.spec.episode_length)
        fresh = (*env.reset(key_reset), taac.begin(none, hyper, key), jnp.int32(0))
        after = where(ended, fresh, (state, outcome.obs, decision.memory, lasted + 1))
        return (*after, arrivals + outcome.terminated), None

    start = (*env.reset(key), memory, jnp.int32(0), jnp.int32(0))
    return jax.lax.scan(step, start, jax.random.split(key, 5_000))[0][-1]


def warm_ups() -> None:
    keys = jax.random.split(jax.random.key(0), 512)
    for rate in (1.0, 0.5, 0.2, 0.1, 0.05):
        arrivals = jax.jit(jax.vmap(partial(found, rate)))(keys)
        print(f"the action changes at {rate:4} of the steps: the flag is found in {np.mean(arrivals > 0):.1%} "
              f"of 512 warm-ups, {np.mean(arrivals):.1f} times in the mean")  # fmt: skip


def table(options: argparse.Namespace) -> None:
    out = options.out or Path(tempfile.mkdtemp())
    enough = ENOUGH[options.env]
    lines = [f"| | return at the end, each seed | {enough:g} or better | first there at step | repeated |",
             "|---|---|---|---|---|"]  # fmt: skip
    for name in options.only:
        algorithm, differs = AGENTS[name]
        run = covey.train(
            algorithm,
            env=options.env,
            steps=options.steps,
            warmup=5_000,
            seeds=options.seeds,
            episodes=20,
            preset=False,
            quiet=True,
            out=out / name,
            agent=AGENT | differs,
            hyper=HYPER.get(options.env, {}),
        )
        lines.append(row(name, run, options.seeds, enough))
        print(lines[-1], flush=True)
    (out / "table.md").write_text("\n".join(lines) + "\n")
    curves = [curve(covey.load(out / name).metrics(), label=name) for name in options.only]
    plot_curves(curves, out / "curves.png", title=f"{options.env}, {options.seeds} seeds")
    print(f"table and curves: {out}")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--cost", action="store_true")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--warm-up", action="store_true")
    parser.add_argument("--env", default="mountaincar", choices=list(ENOUGH))
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=40_000)
    parser.add_argument("--only", nargs="+", default=list(AGENTS), choices=list(AGENTS))
    parser.add_argument("--out", type=Path, default=None)
    options = parser.parse_args()
    if options.cost:
        costs(options.rounds)
    elif options.warm_up:
        warm_ups()
    else:
        table(options)


if __name__ == "__main__":
    main()
