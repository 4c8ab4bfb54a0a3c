"""Runs the campaign of docs/learning-quality.md: a list of runs, one after the other, each resumed where it stopped.

    python -m benchmarks.campaign --list
    python -m benchmarks.campaign --folder OUT [--only NAME ...] [--core 1] [--peers .venv-peers/bin/python]
    python -m benchmarks.campaign --folder OUT --studies    # the page's studies instead of the campaign
    python -m benchmarks.campaign --folder OUT --collect    # benchmarks/results/NAME.csv, also of unfinished runs
    python -m benchmarks.quality                            # draws the page from these files

Ctrl-C or SIGTERM saves the run in progress and stops; the same command continues. The settings were fixed before the
first run, and the seeds (2000 and on) are used for nothing else. Studies have seeds from 1000 on.
"""

import argparse
import csv
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

SEED = 2000
STUDY_SEED = 1000
RESULTS = Path(__file__).parent / "results"
STATE = "campaign.csv"
"""The file of results that tells how far each run got."""
COLUMNS = ("step", "seed", "return", "seconds", "repeated")
CURVE = "benchmarks.peers.curve"
TASKS = {
    "cheetah": "HalfCheetah-v5",
    "hopper": "Hopper-v5",
    "walker": "Walker2d-v5",
    "lander": "LunarLanderContinuous-v3",
}
RECIPES = {"crossq": "--hidden 256 256"}
"""The recipes of part c, each with the options that set a width which a CPU can afford. A row here is three runs.

CrossQ was chosen before its first run, from the published values at 100,000 steps and the costs in docs/recipes.md: at
this width an update costs 1.35 of SAC's, where FlashSAC's costs 5."""
LANDER = "--preset off --warmup 10000 --lr 1e-4 --agent.normalise.rewards"
"""The published options of TAAC on LunarLander but for the batch, so that SAC has the same. Needs gymnasium[box2d]."""

SAC_CHANGES = {
    "lr": "--lr 1e-3",
    "tianshou": "--hyper.actor-lr 1e-3 --hyper.critic-lr 1e-3 --agent.fixed-temperature --hyper.temperature 0.2",
}
"""The settings of SAC that other libraries publish HalfCheetah with."""
TD3_CHANGES = {
    "base": "",
    "uniform": "--agent.networks.weights uniform",
    "orthogonal": "--agent.networks.weights orthogonal",
    "every-step": "--agent.target-every-step",
    "both": "--agent.networks.weights uniform --agent.target-every-step",
    "strict": "--no-overlap",
    "lr": "--hyper.actor-lr 1e-3 --hyper.critic-lr 1e-3",
    "warmup": "--warmup 5000",
    "noise": "--hyper.exploration-noise 0.2",
    "epsilon": "--agent.optimisers.actor.epsilon 1e-5 --agent.optimisers.critic.epsilon 1e-5",
}
"""The changes of the study of plain TD3, in the order of its table."""


@dataclass(frozen=True)
class Run:
    """A run of the campaign: its name, and what the page and the command line need.

    Args:
        part: The part of the campaign, a to e, or study.
        name: The name of its folder and of its file of results.
        label: Its label in tables and figures.
        task: A key of TASKS.
        command: The command without `--out`, as a user would type it.
        steps: Environment steps.
        seeds: The number of seeds, from SEED on.
    """

    part: str
    name: str
    label: str
    task: str
    command: str
    steps: int
    seeds: int

    @property
    def is_peer(self) -> bool:
        return CURVE in self.command


def covey_run(part: str, name: str, label: str, task: str, options: str, steps: int, seeds: int = 3) -> Run:
    """Returns a run of the `covey train` command with an evaluation of 10 episodes every 10,000 steps.

    The options that it does not name are those that a user gets: the published ones of the preset for the task.
    """
    command = (
        f"covey train {options} --env gymnasium:{TASKS[task]} --steps {steps} "
        f"--seed {SEED} --seeds {seeds} --evaluations {steps // 10_000} --episodes 10"
    )
    return Run(part, name, label, task, command, steps, seeds)


def peer_run(library: str) -> Run:
    name, steps, seeds = f"{library}-sac-hopper", 100_000, 3
    command = f"python -m {CURVE} {library} sac {TASKS['hopper']} --steps {steps} --seed {SEED} --seeds {seeds}"
    return Run("b", name, f"SAC of {library.upper()}", "hopper", command, steps, seeds)


def all_runs() -> Iterator[Run]:
    """Yields the runs in the order in which they are made."""
    locomotion = ("cheetah", "hopper", "walker")
    for agent in ("td3", "sac"):
        for task in locomotion:
            yield covey_run("a", f"{agent}-{task}", agent.upper(), task, agent, 200_000)
    for library in ("sb3", "sbx"):
        yield peer_run(library)
    for recipe, width in RECIPES.items():
        for task in locomotion:
            options = f"sac --recipe {recipe} {width}"
            yield covey_run("c", f"sac-{recipe}-{task}", f"SAC, recipe {recipe}", task, options, 100_000)
    lander = {
        "taac": ("TAAC", f"taac {LANDER} --agent.batch-size 64", 3),
        "sac": ("SAC", f"sac {LANDER}", 3),
        "taac-256": ("TAAC, 256 windows", f"taac {LANDER} --agent.batch-size 256", 1),
        "taac-l": ("TAAC-L", f"taac-l {LANDER} --agent.batch-size 64", 1),
        "taac-q": ("TAAC-Q", f"taac-q {LANDER} --agent.batch-size 64", 1),
    }
    for name, (label, options, seeds) in lander.items():
        yield covey_run("d", f"{name}-lander", label, "lander", options, 100_000, seeds)
    for task in ("cheetah", "hopper"):
        yield covey_run("e", f"sac-{task}-1m", "SAC, 1M steps", task, "sac", 1_000_000, 1)


RUNS = {run.name: run for run in all_runs()}


def study_run(name: str, task: str, options: str, steps: int, seeds: int, every: int = 10_000) -> Run:
    """Returns a run of a study: of `covey train` with an evaluation of 10 episodes every `every` steps."""
    command = (
        f"covey train {options} --env gymnasium:{TASKS[task]} --steps {steps} "
        f"--seed {STUDY_SEED} --seeds {seeds} --evaluations {steps // every} --episodes 10"
    )
    return Run("study", f"study-{name}", name, task, command, steps, seeds)


def all_studies() -> Iterator[Run]:
    """Yields the runs of the page's studies: precision, SAC on HalfCheetah, TD3 one change at a time."""
    for agent in ("td3", "sac"):
        for task in ("cheetah", "hopper"):
            for precision in ("bfloat16", "float32"):
                options = f"{agent} --precision {precision}"
                yield study_run(f"precision-{agent}-{task}-{precision}", task, options, 50_000, 5)
    for name, changes in SAC_CHANGES.items():
        yield study_run(f"sac-cheetah-{name}", "cheetah", f"sac {changes}", 100_000, 2)
    for task in ("cheetah", "hopper"):
        for name, change in TD3_CHANGES.items():
            options = (
                f"td3 --preset off{' --agent.networks.weights lecun' * ('weights' not in change)} {change}".strip()
            )
            yield study_run(f"td3-{task}-{name}", task, options, 25_000, 8, every=5_000)


STUDIES = {run.name: run for run in all_studies()}


def is_finished(run: Run, folder: Path) -> bool:
    """Returns whether a run has made all its steps and its last evaluation."""
    if run.is_peer:
        rows = read_rows(folder / f"{run.name}.csv")
        return sum(int(row["step"]) == run.steps for row in rows) == run.seeds
    try:
        final = json.loads((folder / run.name / "evaluation" / "final.json").read_text())
        return final["steps"] >= run.steps
    except (OSError, ValueError, KeyError):
        return False


def command_of(run: Run, folder: Path, peers: str) -> list[str]:
    """Returns the command that starts a run, or resumes it if its folder exists."""
    words = run.command.split()
    if run.is_peer:
        return [peers, *words[1:], "--out", str(folder / f"{run.name}.csv")]
    out = folder / run.name
    covey = [sys.executable, "-m", "covey"]
    if (out / "config.json").exists():
        return [*covey, "resume", str(out)]
    return [*covey, *words[1:], "--out", str(out)]


class Runner:
    """Runs commands one at a time. SIGINT, SIGTERM and SIGHUP stop the current one, which saves itself first."""

    def __init__(self) -> None:
        self.process: subprocess.Popen[Any] | None = None
        self.stopped = False
        # Set explicitly: a background job of a shell starts with SIGINT ignored.
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, self.stop)

    def stop(self, *_: Any) -> None:
        first, self.stopped = not self.stopped, True
        if self.process is not None and first:  # covey saves at the first signal, and gives up at the second
            self.process.terminate()

    def run(self, command: list[str], log: Path) -> int:
        """Runs a command, appends what it prints to a file, and returns its exit code."""
        environment = os.environ | {"PYTHONUNBUFFERED": "1"}
        with log.open("a") as file:
            # A session of its own: the terminal's Ctrl-C reaches the command only through `stop`, once.
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                env=environment,
                start_new_session=True,
            )
            if self.stopped:
                self.process.terminate()
            code = self.process.wait()
        self.process = None
        return code


def run_all(runs: list[Run], folder: Path, peers: str) -> int:
    """Makes the runs that are not finished. Returns 0, 1 if one failed, or 130 if it was interrupted."""
    folder.mkdir(parents=True, exist_ok=True)
    runner, failed = Runner(), 0
    for run in runs:
        if runner.stopped:
            break
        if is_finished(run, folder):
            print(f"{run.name}: finished", flush=True)
            continue
        command = command_of(run, folder, peers)
        print(f"{run.name}: {' '.join(command)}", flush=True)
        (folder / f"{run.name}.json").write_text(json.dumps({"command": run.command, "commit": commit()}) + "\n")
        code = runner.run(command, folder / f"{run.name}.log")
        if not runner.stopped and code:
            failed = 1
            print(f"{run.name}: exit code {code}; see {folder / run.name}.log", flush=True)
    return 130 if runner.stopped else failed


def commit() -> str:
    """Returns the short hash of the checkout, with `+` if files differ from it, or an empty string."""
    words = ["git", "-C", str(RESULTS), "describe", "--always", "--dirty=+", "--exclude=*"]
    return subprocess.run(words, capture_output=True, text=True, check=False).stdout.strip()


def read_rows(path: Path) -> list[dict[str, str]]:
    """Reads a CSV file; an absent one has no rows."""
    if not path.exists():
        return []
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def evaluations(out: Path) -> tuple[list[dict[str, Any]], int]:
    """Reads the evaluations of a run folder, finished or not.

    Returns:
        Rows of step, seed, return, seconds (wall time of one seed so far: that of the run over its seeds) and, for
        agents that repeat actions, repeated; and the step that the run has reached.
    """
    config = json.loads((out / "config.json").read_text())
    first, members, reached = config["seed"], config.get("members") or config["seeds"], 0
    rows: dict[tuple[int, int], dict[str, Any]] = {}
    for line in (out / "metrics.jsonl").read_text().splitlines():
        try:
            told = json.loads(line)
        except ValueError:  # the last line of a killed run
            continue
        reached = max(reached, told["step"])
        key = told["step"], first + told["member"]
        if told["name"] == "eval/return":
            row = rows.setdefault(key, {"step": key[0], "seed": key[1]})
            row |= {"return": f"{told['value']:.2f}", "seconds": f"{told['wall'] / members:.0f}"}
        elif told["name"] == "eval/repeated":
            rows.setdefault(key, {"step": key[0], "seed": key[1]})["repeated"] = f"{told['value']:.3f}"
    return [rows[key] for key in sorted(rows) if "return" in rows[key]], reached


def write_rows(path: Path, rows: list[dict[str, Any]]) -> None:
    """Writes a CSV file with the columns that any row has, those of a curve in their usual order."""
    names = list(dict.fromkeys(name for row in rows for name in row))
    names.sort(key=lambda name: COLUMNS.index(name) if name in COLUMNS else len(COLUMNS))
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, names, restval="", lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def collect(runs: list[Run], folder: Path, results: Path = RESULTS) -> None:
    """Writes the curve of each run that has begun, and how far each got, to the folder of results."""
    state: dict[str, dict[str, Any]] = {row["name"]: {**row} for row in read_rows(results / STATE)}
    for run in runs:
        if run.is_peer:
            found = read_rows(folder / f"{run.name}.csv")
            rows: list[dict[str, Any]] = sorted(found, key=lambda row: (int(row["step"]), int(row["seed"])))
            reached = int(rows[-1]["step"]) if rows else 0
        elif (folder / run.name / "metrics.jsonl").exists():
            rows, reached = evaluations(folder / run.name)
        else:
            continue
        if not rows:
            continue
        write_rows(results / f"{run.name}.csv", rows)
        about = folder / f"{run.name}.json"
        at = json.loads(about.read_text())["commit"] if about.exists() else ""
        finished = "yes" if is_finished(run, folder) else "no"
        state[run.name] = {"name": run.name, "reached": reached, "finished": finished, "commit": at}
        print(f"{run.name}: {reached:,} of {run.steps:,} steps")
    if state:
        write_rows(results / STATE, [state[name] for name in sorted(state)])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, help="where the runs are, outside of the repository")
    parser.add_argument("--only", nargs="+", choices=[*RUNS, *STUDIES], metavar="NAME", help="only these runs")
    parser.add_argument("--studies", action="store_true", help="the studies, not the campaign")
    parser.add_argument("--core", type=int, help="pin the runs to one core")
    parser.add_argument("--peers", default=".venv-peers/bin/python", help="the Python that has SB3 and SBX")
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--collect", action="store_true")
    options = parser.parse_args()
    chosen = STUDIES if options.studies else RUNS
    runs = [run for run in [*RUNS.values(), *STUDIES.values()] if run.name in (options.only or chosen)]
    if options.list:
        for run in runs:
            print(f"{run.part} {run.name}\n    {run.command}")
        return
    if options.folder is None:
        parser.error("--folder is needed")
    if options.collect:
        collect(runs, options.folder)
        return
    if options.core is not None:
        os.sched_setaffinity(0, {options.core})
        os.environ["OMP_NUM_THREADS"] = "1"  # PyTorch would start a thread per core of the machine
    sys.exit(run_all(runs, options.folder.resolve(), options.peers))


if __name__ == "__main__":
    main()
