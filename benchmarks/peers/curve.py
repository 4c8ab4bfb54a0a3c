"""Learning curves of Stable-Baselines3 and SBX with covey's settings, as a CSV file like those of the campaign.

    python -m benchmarks.peers.curve sbx sac Hopper-v5 --steps 100000 --seed 2000 --seeds 3 --out curve.csv

256 x 256 networks, batches of 256, Adam at 3e-4, tau 0.005, a discount of 0.99, 10,000 random steps, then one update
per step, and for SAC a learnt temperature: as covey on this task. A return is the mean of ten greedy episodes. Seeds
that the file already holds to their end are skipped; an interrupted one starts again.
"""

# pyright: reportMissingImports=false

import argparse
import csv
import sys
import time
from pathlib import Path

COLUMNS = ("step", "seed", "return", "seconds")


def train(library: str, agent: str, task: str, seed: int, steps: int, every: int, out: Path) -> None:
    """Trains a seed, and appends a row to the file after every `every` steps."""
    sys.argv = [sys.argv[0], "", library]  # `with_stable_baselines` reads the library from its command line
    import gymnasium
    from stable_baselines3.common.evaluation import evaluate_policy

    from benchmarks.peers.with_stable_baselines import model

    started = time.monotonic()
    options = {"tau": 0.005, "gamma": 0.99, "learning_starts": 10_000, "seed": seed, "device": "cpu"}
    learner = model(agent, gymnasium.make(task), **options, **({"ent_coef": "auto"} if agent == "sac" else {}))
    evaluation_env = gymnasium.make(task)
    evaluation_env.reset(seed=10_000 + seed)
    for step in range(0, steps + 1, every):
        if step:
            learner.learn(every, reset_num_timesteps=step == every)
        mean, _ = evaluate_policy(learner, evaluation_env, n_eval_episodes=10, warn=False)
        with out.open("a", newline="") as file:
            csv.writer(file, lineterminator="\n").writerow(
                (step, seed, f"{mean:.2f}", f"{time.monotonic() - started:.0f}")
            )
        print(f"seed {seed}  step {step}  return {mean:.1f}", flush=True)


def keep_whole_seeds(out: Path, steps: int) -> set[int]:
    """Drops the rows of seeds that did not reach their end from the file. Returns the seeds that did."""
    rows: list[list[str]] = []
    if out.exists():
        with out.open(newline="") as file:
            rows = list(csv.reader(file))[1:]
    whole = {row[1] for row in rows if row and row[0] == str(steps)}
    with out.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(COLUMNS)
        writer.writerows(row for row in rows if row and row[1] in whole)
    return {int(seed) for seed in whole}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("library", choices=("sb3", "sbx"))
    parser.add_argument("agent", choices=("sac", "td3"))
    parser.add_argument("task")
    parser.add_argument("--steps", type=int, default=100_000)
    parser.add_argument("--every", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    whole = keep_whole_seeds(options.out, options.steps)
    for seed in range(options.seed, options.seed + options.seeds):
        if seed not in whole:
            train(options.library, options.agent, options.task, seed, options.steps, options.every, options.out)


if __name__ == "__main__":
    main()
