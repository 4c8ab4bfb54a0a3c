"""`python -m benchmarks.torture --minutes 10`: runs the fault campaigns, and prints a table of trials and failures.

All randomness comes from the printed seed. With --results FILE, trials are appended to a file, and the table includes
all trials in it. The exit code is 1 if a trial failed.
"""

import argparse
import collections
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

from benchmarks.torture.world import Trial, World

SHARES = {
    "kills": 0.24,
    "storage": 0.05,
    "injection": 0.29,
    "corruption": 0.12,
    "arguments": 0.12,
    "faulty": 0.06,
    "jobs": 0.08,
    "readers": 0.02,
    "growth": 0.02,
}
"""The campaigns, and each one's share of the time."""
SHIM = Path(__file__).with_name("shim.c")


def main() -> int:
    options = _options()
    _reset_signals()
    if "torture" not in os.environ.get("LD_PRELOAD", ""):
        _with_shim(options.only)  # restarts this program
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    # Less optimised programs compile in a third of the time, and their results are as exact.
    os.environ.setdefault("XLA_FLAGS", "--xla_backend_optimization_level=1 --xla_cpu_use_fusion_emitters=false")
    _import_everything()
    print(f"seed {options.seed}, {options.minutes:g} minutes: {', '.join(options.only)}", flush=True)
    scratch = Path(tempfile.mkdtemp(prefix="covey-torture-", dir=options.scratch))
    world = World(scratch, random.Random(options.seed), options.minutes)
    results = Path(options.results) if options.results else scratch / "results.jsonl"
    with results.open("a") as file:
        failures = 0
        for trial in _trials(world, options.only):
            file.write(json.dumps({"seed": options.seed, **trial._asdict()}) + "\n")
            file.flush()
            if trial.fault:
                failures += 1
                print(f"FAILED {trial.campaign}: {trial.what}\n  {trial.fault}", flush=True)
    print(table([Trial(*(row[name] for name in Trial._fields)) for row in map(json.loads, results.open())]))
    if failures:
        print(f"The files of the {failures} failures are in {scratch}.")
    else:
        shutil.rmtree(scratch, ignore_errors=True)
    return int(failures > 0)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.torture", description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0, help="approximate duration (default: 10)")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10**6), help="the random seed")
    parser.add_argument(
        "--only", nargs="+", choices=list(SHARES), default=list(SHARES), help="the campaigns (default: all)"
    )
    parser.add_argument("--results", help="a JSONL file to append the trials to")
    parser.add_argument("--scratch", help="a folder for the runs (default: the system's temporary folder)")
    return parser.parse_args()


def _trials(world: World, names: list[str]) -> Iterator[Trial]:
    """Yields the trials of all campaigns, at least one step of each. The next one has used the least of its share."""
    end = time.monotonic() + 60.0 * world.minutes
    campaigns = {name: import_module(f"benchmarks.torture.{name}").trials(world) for name in names}
    used = dict.fromkeys(names, 0.0)
    while campaigns and (time.monotonic() < end or 0.0 in used.values()):
        name = min(campaigns, key=lambda each: used[each] / SHARES[each])
        since = time.monotonic()
        trials = next(campaigns[name], None)
        used[name] += time.monotonic() - since
        if trials is None:
            del campaigns[name]
            continue
        yield from trials
        world.tidy(keep=any(trial.fault for trial in trials))


def table(trials: list[Trial]) -> str:
    """Returns a table of the trials and failures of each campaign and kind."""
    counts = collections.Counter((trial.campaign, trial.kind) for trial in trials)
    failures = collections.Counter((trial.campaign, trial.kind) for trial in trials if trial.fault)
    lines = ["| campaign | kind | trials | failures |", "|---|---|---:|---:|"]
    for key in sorted(counts, key=lambda key: (list(SHARES).index(key[0]), key[1])):
        lines.append(f"| {key[0]} | {key[1]} | {counts[key]:,} | {failures[key]:,} |")
    lines.append(f"| all | | {sum(counts.values()):,} | {sum(failures.values()):,} |")
    return "\n".join(lines)


def compiled_shim(folder: Path) -> Path:
    """Compiles the library that makes file calls fail into a folder, and returns its path."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None or sys.platform != "linux":
        sys.exit("The campaigns `storage` and `injection` need Linux and a C compiler. Leave them out with --only.")
    library = folder / "torture.so"
    subprocess.run([compiler, "-O2", "-shared", "-fPIC", "-o", str(library), str(SHIM), "-ldl"], check=True)
    return library


def _with_shim(only: list[str]) -> None:
    """Restarts this program with the shim loaded, if a campaign needs it."""
    if not {"storage", "injection"} & set(only):
        return
    library = compiled_shim(Path(tempfile.mkdtemp(prefix="covey-shim-")))
    os.environ["LD_PRELOAD"] = f"{library} {os.environ.get('LD_PRELOAD', '')}".strip()
    os.execv(sys.executable, [sys.executable, "-m", "benchmarks.torture", *sys.argv[1:]])


def _reset_signals() -> None:
    """Restores the default handlers: under nohup or in a script's background, signals are ignored and inherited."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


def _import_everything() -> None:
    """Imports what the commands need, so that forks don't have to. It must not start a jax backend."""
    for name in ("cli", "api", "run.session", "run.config", "run.console", "plots.population", "run.skills"):
        import_module(f"covey.{name}")
    for name in ("tyro", "matplotlib.pyplot", "PIL.Image", "gymnasium", "scipy.special", "safetensors.numpy"):
        import_module(name)


if __name__ == "__main__":
    sys.exit(main())
