"""Measures the time from the shell to the first updates: `python -m benchmarks.startup [--before FOLDER]`.

A run of `covey train td3 --env pendulum --preset off` is ended after its first block of 100 updates: once with nothing
compiled before, and again with what that run has cached. With `--before`, another checkout is measured in turns with
this one. The table shows medians and, in brackets, the smallest and the largest.
"""

import argparse
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

TRAIN = ["train", "td3", "--env", "pendulum", "--preset", "off", "--steps", "20000", "--evaluations", "200"]
TRAIN += ["--warmup", "100"]
UPDATED = "step        200 "
"""The line after the first block with updates."""
VERBS = ("--help", "envs", "agents", "presets", "recipes", "train --help", "train td3 --help", "plot --help")


def seconds(checkout: Path, cache: str, *arguments: str, until: str = "") -> float:
    """Runs a command of a checkout. Returns the seconds to its end, or to the line that starts with `until`."""
    environment = {**os.environ, "PYTHONPATH": str(checkout), "COVEY_CACHE": cache}
    since = time.perf_counter()
    command = [sys.executable, "-m", "covey", *arguments]
    with subprocess.Popen(command, env=environment, cwd=cache, stdout=subprocess.PIPE, text=True) as running:
        assert running.stdout is not None
        for line in running.stdout:
            if until and line.startswith(until):
                found = time.perf_counter() - since
                running.kill()
                return found
    if until or running.returncode:
        raise SystemExit(f"{' '.join(command)} ended with code {running.returncode}.")
    return time.perf_counter() - since


def measures(checkout: Path, verbs: bool) -> dict[str, float]:
    """Measures each quantity once, in seconds."""
    with tempfile.TemporaryDirectory() as folder:
        if verbs:
            return {f"covey {verb}": seconds(checkout, folder, *verb.split()) for verb in VERBS}
        return {
            f"first updates, {what}": seconds(checkout, folder, *TRAIN, "--out", f"{folder}/{what}", until=UPDATED)
            for what in ("nothing compiled before", "cached")
        }


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.startup", description=__doc__)
    parser.add_argument("--before", type=Path, help="another checkout to compare with")
    parser.add_argument("--verbs", action="store_true", help="measure the commands that do not train instead")
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    checkouts = {"now": Path().absolute()} | ({"before": options.before.absolute()} if options.before else {})
    rounds = []
    for _ in range(options.rounds):
        order = random.sample(list(checkouts), len(checkouts))
        found = {name: measures(checkouts[name], options.verbs) for name in order}
        rounds.append(found)
    names = sorted(checkouts)
    ratio = " now / before |" if options.before else ""
    print(f"| seconds | {' | '.join(names)} |{ratio}\n|---{'|---:' * (len(names) + bool(ratio))}|")
    for what in rounds[0]["now"]:
        columns = [[each[name][what] for each in rounds] for name in names]
        texts = [f"{statistics.median(x):.2f} ({min(x):.2f} to {max(x):.2f})" for x in columns]
        if options.before:
            texts.append(f"{statistics.median(each['now'][what] / each['before'][what] for each in rounds):.2f}")
        print(f"| {what} | {' | '.join(texts)} |")


if __name__ == "__main__":
    main()
