"""Compares the speed of two checkouts of covey: `python -m benchmarks.compare --before FOLDER [--after FOLDER]`.

Every round measures each quantity in both checkouts, in random order and in separate processes. The table shows medians
and the median of the rounds' ratios (after / before), so that a slow minute of the machine affects both equally. A
first round, which compiles the programs, is not counted.
"""

import argparse
import os
import random
import re
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

CHECKPOINT = """
import sys, tempfile, time
from pathlib import Path
import numpy as np
try:
    from covey.storage.store import Store
except ImportError:  # an earlier commit
    from covey.run.checkpoint import Store
arrays = {f"a{i}": np.random.default_rng(i).random((2500, 1000), np.float32) for i in range(20)}
store = Store(Path(tempfile.mkdtemp()) / "checkpoints", "step")
store.folder.mkdir()
since = time.perf_counter()
for step in range(1, 6):
    store.write(step, arrays, {"step": step})
    if sys.argv[1] == "read":
        store.read_newest(print)
print(time.perf_counter() - since)
import shutil; shutil.rmtree(store.folder)
"""
SMALL = ["--preset", "off", "--evaluations", "1", "--episodes", "1", "--warmup", "1000", "--checkpoint-minutes", "1"]
COMMANDS = {
    "host loop, steps/s": ["train", "td3", "--env", "gymnasium:HalfCheetah-v5", "--steps", "5000", *SMALL],
    "device loop, steps/s": ["train", "td3", "--env", "pendulum", "--steps", "6000", *SMALL],
}
TINY = ["train", "td3", "--env", "point", "--steps", "1200", "--warmup", "400", "--envs", "2", "--evaluations", "3"]
TINY += ["--episodes", "4", "--agent.batch-size", "8"]
TINY += ["--agent.networks.actor.hidden", "16", "--agent.networks.critic.hidden", "16"]


def measures(checkout: Path) -> dict[str, float]:
    """Measures each quantity once: seconds (lower is better) or steps per second (higher is better)."""
    environment = {**os.environ, "PYTHONPATH": str(checkout), "TF_CPP_MIN_LOG_LEVEL": "3"}

    def seconds(*arguments: str) -> float:
        since = time.perf_counter()
        subprocess.run([sys.executable, *arguments], env=environment, cwd=checkout, check=True, capture_output=True)
        return time.perf_counter() - since

    def printed(*arguments: str) -> str:
        command = [sys.executable, *arguments]
        done = subprocess.run(command, env=environment, cwd=checkout, check=True, capture_output=True, text=True)
        return done.stdout

    found = {
        "covey --help, s": seconds("-m", "covey", "--help"),
        "import covey; covey.train, s": seconds("-c", "import covey; covey.train"),
        "five checkpoints of 200 MB written, s": float(printed("-c", CHECKPOINT, "write")),
        "written and read, s": float(printed("-c", CHECKPOINT, "read")),
    }
    with tempfile.TemporaryDirectory() as folder:
        found["a tiny run from start to end, s"] = seconds("-m", "covey", *TINY, "--out", f"{folder}/tiny")
        for number, (name, arguments) in enumerate(COMMANDS.items()):
            text = printed("-m", "covey", *arguments, "--out", f"{folder}/{number}")
            found[name] = float(re.findall(r"([\d,]+) steps/s", text)[-1].replace(",", ""))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.compare", description=__doc__)
    parser.add_argument("--before", type=Path, required=True, help="a checkout of the earlier commit")
    parser.add_argument(
        "--after", type=Path, default=Path(), help="a checkout of the later commit (default: the current folder)"
    )
    parser.add_argument("--rounds", type=int, default=7)
    options = parser.parse_args()
    checkouts = {"before": options.before.absolute(), "after": options.after.absolute()}
    for checkout in checkouts.values():
        measures(checkout)
    rounds = []
    for _ in range(options.rounds):
        order = random.sample(list(checkouts), 2)
        rounds.append({name: measures(checkouts[name]) for name in order})
    print("| quantity | before | after | after / before |\n|---|---:|---:|---:|")
    for name in rounds[0]["before"]:
        before, after = (statistics.median(each[which][name] for each in rounds) for which in ("before", "after"))
        ratio = statistics.median(each["after"][name] / each["before"][name] for each in rounds)
        print(f"| {name} | {before:.3g} | {after:.3g} | {ratio:.3f} |")


if __name__ == "__main__":
    main()
