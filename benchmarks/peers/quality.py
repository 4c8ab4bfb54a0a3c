"""Compares returns after the same number of steps, and the time to a goal: covey, SBX and Stable-Baselines3.

    python -m benchmarks.peers.quality --peers .venv-peers/bin/python [--task HalfCheetah-v5] [--steps 20000] ...
    python -m benchmarks.peers.quality --peers .venv-peers/bin/python --race   # to -200 on Pendulum-v1

All use 256 x 256 networks, batches of 256, Adam at 3e-4, the same warm-up and one update per step. Initial weights and
exploration are each library's own. A return is the mean of ten greedy episodes.
"""

import argparse
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

import covey
from covey.evaluation.stats import mean_interval

WARMUP, EVERY, GOAL, MOST = 1000, 500, -200.0, 15_000
Curves = np.ndarray
"""Returns [points, seeds]."""
STABLE = "benchmarks.peers.with_stable_baselines"


def of_covey(task: str, algorithm: str, steps: int, points: int, seeds: int, **changes: Any) -> Curves:
    changes |= {
        "steps": steps,
        "warmup": WARMUP,
        "evaluations": points,
        "episodes": 10,
        "seeds": seeds,
        "preset": False,
    }
    with tempfile.TemporaryDirectory() as folder:
        run = covey.train(algorithm, env=f"gymnasium:{task}", out=Path(folder) / "run", quiet=True, **changes)
        returns = run.metrics()["eval/return"]["value"]
        return np.asarray(returns, float).reshape(-1, seeds)[-points:]


def of_peer(python: str, library: str, task: str, agent: str, steps: int, points: int, seeds: int) -> Curves:
    """Trains the seeds of a peer in parallel, one core each, because one seed does not use all cores."""

    def of_seed(seed: int) -> list[float]:
        numbers = [str(x) for x in (seed, steps, steps // points, WARMUP)]
        command = [python, "-m", STABLE, "curve", library, task, agent, *numbers]
        environment = os.environ | {"OMP_NUM_THREADS": "1", "XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false"}
        said = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, env=environment).stdout
        return [float(x) for x in re.findall(r"return (-?[\d.]+)", said)]

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        return np.array(list(pool.map(of_seed, range(seeds)))).T


def curves(peers: str, task: str, agent: str, steps: int, points: int, seeds: int, only: list[str]) -> Iterator[str]:
    """Yields the lines of a table with a row per library: the mean over seeds at each point, and its 95 % interval."""
    work = task, agent, steps, points, seeds
    rows = {
        "covey": lambda: of_covey(*work),
        "covey, --agent.networks.weights uniform": lambda: of_covey(*work, agent={"networks": {"weights": "uniform"}}),
        "covey, --no-overlap": lambda: of_covey(*work, overlap=False),
    }
    if agent == "td3":  # SAC updates its targets at every step anyway
        name = "covey, --agent.target-every-step"
        rows[name] = lambda: of_covey(*work, agent={"target_every_step": True})
    rows |= {name: lambda name=name: of_peer(peers, name.lower(), *work) for name in ("SBX", "SB3")}
    yield " ".join(
        [f"| {agent} on {task}, {seeds} seeds |", *(f"{steps // points * (i + 1):,} |" for i in range(points))]
    )
    yield "|---" * (points + 1) + "|"
    for name, measure in rows.items():
        if not only or name in only:
            centres = [mean_interval(returns) for returns in measure()]
            yield " ".join([f"| {name} |", *(f"{x.centre:,.0f} ({x.low:,.0f} to {x.high:,.0f}) |" for x in centres)])


def race(command: list[str], environment: dict[str, str] | None = None) -> tuple[float, int]:
    """Returns the seconds from the start of a process to its first reported return above the goal, and the step."""
    start = time.perf_counter()
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=os.environ | (environment or {})
    )
    assert process.stdout is not None
    try:
        for line in process.stdout:
            told = re.search(r"step +([\d,]+) +return (-?[\d.,]+)", line)
            if told and float(told[2].replace(",", "")) >= GOAL:
                return time.perf_counter() - start, int(told[1].replace(",", ""))
        return float("inf"), MOST
    finally:
        process.kill()
        process.communicate()


def races(peers: str, agent: str, seeds: int) -> Iterator[str]:
    """Yields the lines of a table of times to the goal, including the start of the process and (mostly) compilation.

    All libraries use the same sizes; covey also runs with its preset.
    """
    with tempfile.TemporaryDirectory() as folder:
        common = ["--evaluations", str(MOST // EVERY), "--steps", str(MOST), "--episodes", "10"]
        ours = [sys.executable, "-m", "covey", "train", agent]
        sizes = [*ours, "--env", "pendulum", "--preset", "off", "--warmup", str(WARMUP), *common]
        numbers = [str(MOST), str(EVERY), str(WARMUP)]
        names = ("covey", "covey, compiled before", "covey's preset", "SBX", "SB3")
        found: dict[str, list[tuple[float, int]]] = {name: [] for name in names}
        for seed in range(seeds):
            for name in names:
                out = ["--seed", str(seed), "--out", f"{folder}/{len(found[name])}-{name}"]
                cache = "kept" if "before" in name else f"new-{name}-{seed}"
                cached = {"COVEY_CACHE": f"{folder}/{cache}"}
                if name in ("SBX", "SB3"):
                    command = [peers, "-m", STABLE, "curve", name.lower(), "Pendulum-v1", agent, str(seed), *numbers]
                    found[name].append(race(command))
                elif "preset" in name:
                    found[name].append(race([*ours, "--env", "pendulum", "--evaluations", "20", *out], cached))
                else:
                    if "before" in name and not seed:
                        race([*sizes, *out[:2], "--out", f"{folder}/first"], cached)
                    found[name].append(race([*sizes, *out], cached))
                took, at = found[name][-1]
                print(f"{agent}, seed {seed}, {name}: {took:.1f} s, step {at}", file=sys.stderr, flush=True)
    yield f"| {agent} to {GOAL:g} on Pendulum, medians of {seeds} seeds | seconds (all) | steps |"
    yield "|---|---|---|"
    for name, times in found.items():
        seconds, steps = zip(*times, strict=True)
        each = ", ".join(f"{x:.0f}" for x in sorted(seconds))
        yield f"| {name} | {statistics.median(seconds):.1f} ({each}) | {statistics.median(steps):,.0f} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peers", required=True)
    parser.add_argument("--task", default="HalfCheetah-v5")
    parser.add_argument("--agents", nargs="+", default=["td3", "sac"])
    parser.add_argument("--steps", type=int, default=20_000)
    parser.add_argument("--points", type=int, default=4)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--only", nargs="+", default=[], help="rows of the table")
    parser.add_argument("--race", action="store_true")
    parser.add_argument("--out", type=Path, default=Path("bench-peers"))
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    for agent in options.agents:
        name, lines = f"race-{agent}.md", races(options.peers, agent, options.seeds)
        if not options.race:
            work = options.task, agent, options.steps, options.points, options.seeds
            name, lines = f"learning-{agent}-{options.task}.md", curves(options.peers, *work, options.only)
        with (options.out / name).open("w") as file:
            for line in lines:
                print(line, flush=True)
                print(line, file=file, flush=True)


if __name__ == "__main__":
    main()
