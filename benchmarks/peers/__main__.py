"""Compares covey with QDax, SBX, Stable-Baselines3 and prt-rl: the same work, in turns, in one run.

    make bench-peers            # installs them in a separate environment, .venv-peers
    python -m benchmarks.peers --peers .venv-peers/bin/python [--only td3 sac ...] [--rounds 7] [--out FOLDER]

Each library runs in its own process, which waits while another one works. Ratios are taken within a round, and their
medians are reported. FOLDER gets the table, the chart and all measured times.
"""

import argparse
import json
import platform
import statistics
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.learner import flops
from benchmarks.peers.report import chart, table

STABLE = "with_stable_baselines"
LIBRARIES = {"covey": "with_covey", "QDax": "with_qdax", "SBX": STABLE, "SB3": STABLE, "prt-rl": "with_prt"}
LIMIT = "limit"


@dataclass(frozen=True)
class Workload:
    """A comparison.

    Args:
        title: A description for the table.
        unit: The unit of the rates.
        peers: The libraries that take part.
        targets: The ratios to libraries that covey should reach; `limit`: the share of the limit.
        gflop: The matrix work of one unit, if it is known.
    """

    title: str
    unit: str
    peers: tuple[str, ...]
    targets: dict[str, float]
    gflop: float = 0.0


LEARNER = {LIMIT: 0.85, "QDax": 1.4, "SBX": 2.0, "SB3": 3.0}
INSERT = ("QDax", "SB3")
WORKLOADS = {
    "td3": Workload("TD3 learner", "updates/s", ("QDax", "SBX", "SB3", "prt-rl"), LEARNER, flops("td3", 256) / 1e9),
    "sac": Workload("SAC learner", "updates/s", ("QDax", "SBX", "SB3"), LEARNER, flops("sac", 256) / 1e9),
    "td3-bfloat16": Workload("TD3 learner, covey in bfloat16", "updates/s", ("QDax", "SBX", "SB3"), {}),
    "sac-bfloat16": Workload("SAC learner, covey in bfloat16", "updates/s", ("QDax", "SBX", "SB3"), {}),
    "td3-8": Workload("8 TD3 members", "updates/s", ("QDax",), {"QDax": 1.5}, flops("td3", 256) / 1e9),
    "sac-8": Workload("8 SAC members", "updates/s", ("QDax",), {"QDax": 1.5}, flops("sac", 256) / 1e9),
    "generation": Workload("PBT generation, 2 of 8 copied with 100,000 rows each", "per s", ("QDax",), {}),
    "dads": Workload("DADS learner, 5 skills", "updates/s", ("QDax",), {}),
    "halfcheetah": Workload(
        "TD3 on HalfCheetah-v5, an update per step", "steps/s", ("SBX", "SB3", "prt-rl"), {"SBX": 2.0, "SB3": 3.5}
    ),
    "halfcheetah-sac": Workload(
        "SAC on HalfCheetah-v5, an update per step", "steps/s", ("SBX", "SB3"), {"SBX": 2.0, "SB3": 3.5}
    ),
    "halfcheetah-bfloat16": Workload(
        "TD3 on HalfCheetah-v5, covey in bfloat16", "steps/s", ("SBX", "SB3"), {"SBX": 2.0, "SB3": 3.5}
    ),
    "pixels": Workload("SAC learner, images of 64 x 64 x 9, Nature's encoders, batch 64", "updates/s", ("SB3",), {}),
    "brax": Workload("TD3 on Brax halfcheetah, 16 environments, an update per step", "steps/s", ("QDax",), {}),
    "insert-10000": Workload("insert into 10,000 rows", "rows/s", INSERT, {}),
    "insert-100000": Workload("insert into 100,000 rows", "rows/s", INSERT, {}),
    "insert-1000000": Workload("insert into 1,000,000 rows", "rows/s", INSERT, {}),
}


class Participant:
    """The process of a library."""

    def __init__(self, library: str, work: str, python: str, log: Path) -> None:
        module = f"benchmarks.peers.{LIBRARIES.get(library, 'with_covey')}"
        command = [python, "-m", module, work, library.lower()]
        self.log = log.open("w")
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.log, text=True
        )

    def receive(self) -> dict[str, Any]:
        """Returns its next answer, and skips other output."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith("{"):
                return json.loads(line)
        return {"failed": True}

    def rate(self) -> float:
        """Runs one round and returns units per second."""
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        told = self.receive()
        return told["amount"] / told["seconds"]

    def close(self) -> None:
        self.process.kill()
        self.process.communicate()
        self.log.close()


def compare(name: str, peers: str, rounds: int, out: Path) -> dict[str, Any]:
    """Returns units per second of every library in every round, or the reason why a library does not run."""
    workload = WORKLOADS[name]
    asked = {"covey": sys.executable} | dict.fromkeys(workload.peers, peers)
    if workload.gflop:
        asked[LIMIT] = sys.executable
    here, rates, failed, versions = {}, {}, {}, {}
    for library, python in asked.items():
        log = out / f"{name}-{library}.log"
        work = {LIMIT: LIMIT, "covey": name}.get(library, name.removesuffix("-bfloat16"))
        one = Participant(library, work, python, log)
        told = one.receive()
        if "failed" in told:
            one.close()
            failed[library] = (log.read_text().strip().splitlines() or ["no output"])[-1]
            print(f"{name}: {library} does not run: {failed[library]}", flush=True)
            continue
        here[library], versions[library] = one, told["versions"]
        rates[library] = []
    for turn in range(rounds):
        for library, one in here.items():
            rates[library].append(one.rate())
        said = ", ".join(f"{library} {values[-1]:,.0f}" for library, values in rates.items())
        print(f"{name}, round {turn + 1}: {said}", flush=True)
    for one in here.values():
        one.close()
    if LIMIT in rates:  # products per second, as units of this work per second
        per_product = 2 * 256**3 / 1e9 / workload.gflop
        rates[LIMIT] = [rate * per_product for rate in rates[LIMIT]]
    return {"rates": rates, "failed": failed, "versions": versions}


def summary(name: str, found: dict[str, Any]) -> dict[str, Any]:
    """Returns medians, and the median of covey's ratios to each library within a round."""
    rates = found["rates"]
    ratios = {
        library: statistics.median(a / b for a, b in zip(rates["covey"], values, strict=True))
        for library, values in rates.items()
        if library != "covey"
    }
    workload = WORKLOADS[name]
    return {
        "title": workload.title,
        "unit": workload.unit,
        "median": {library: statistics.median(values) for library, values in rates.items()},
        "ratio": ratios,
        "targets": workload.targets,
        "failed": found["failed"],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peers", required=True, help="the Python interpreter with the other libraries")
    parser.add_argument("--only", nargs="+", default=list(WORKLOADS), choices=list(WORKLOADS))
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--out", type=Path, default=Path("bench-peers"))
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    file = options.out / "results.json"
    results: dict[str, Any] = json.loads(file.read_text()) if file.exists() else {}
    for name in options.only:
        results[name] = compare(name, options.peers, options.rounds, options.out)
        file.write_text(json.dumps(results, indent=1))
    rows = {name: summary(name, results[name]) for name in WORKLOADS if name in results}
    versions: dict[str, str] = {}
    for found in results.values():
        for told in found["versions"].values():
            versions |= told
    text = table(rows, versions, platform.machine())
    (options.out / "table.md").write_text(text)
    chart(rows, options.out / "peers.png")
    print(text)


if __name__ == "__main__":
    main()
