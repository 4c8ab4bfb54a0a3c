"""Exported policies where there is no JAX: their return in fresh virtual environments, and the time of one decision.

    covey train sac --env gymnasium:Pendulum-v1 --steps 8000 --out runs/deploy
    python -m benchmarks.deploy runs/deploy
    python -m benchmarks.deploy --parity          # trains every agent for a few thousand steps, and exports it

Each format plays 100 episodes in an environment of its own, which has Gymnasium and what the format needs, but neither
JAX nor covey. The return must be that of the trained policy.
"""

import argparse
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import covey
from covey.evaluation.stats import mean_interval
from covey.export import runner

EPISODES = 100
STEPS = 6000
PLAY = """\
import sys
import gymnasium as gym
import numpy as np
assert not {"jax", "covey"} & set(sys.modules)
%s
env = gym.make(sys.argv[1])
for seed in range(int(sys.argv[2])):
    obs, _ = env.reset(seed=seed)
    total, done = 0.0, False
    while not done:
        obs, reward, terminated, truncated, _ = env.step(act(obs.astype(np.float32)))
        total += float(reward)
        done = terminated or truncated
    print(total)
for name in ("jax", "covey"):
    try:
        __import__(name)
    except ImportError:
        continue
    sys.exit(f"{name} is installed here")
"""
ACT = {
    "onnx": """\
import onnxruntime
session = onnxruntime.InferenceSession("policy.onnx", providers=["CPUExecutionProvider"])
act = lambda obs: session.run(["action"], {"obs": obs[None]})[0][0]
""",
    "numpy": """\
from runner import Policy
policy = Policy("policy.npz")
act = lambda obs: policy(obs)
""",
    "c": """\
import ctypes
library = ctypes.CDLL("./policy.so")
def act(obs):
    action = np.zeros(library.actions(), np.float32)
    library.act(obs.ctypes.data_as(ctypes.c_void_p), action.ctypes.data_as(ctypes.c_void_p))
    return action
""",
}
PACKAGES = {"onnx": ["onnxruntime"], "numpy": [], "c": []}
C_LIBRARY = """\
#include "policy.h"
int actions(void) { return POLICY_ACTION; }
void act(const float *obs, float *action) {
  policy_memory memory;
  policy_reset(&memory);
  policy_act(obs, &memory, action);
}
"""


def main() -> None:
    """Prints both tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run", type=Path, nargs="?")
    parser.add_argument("--parity", action="store_true")
    parser.add_argument("--episodes", type=int, default=EPISODES)
    options = parser.parse_args()
    if options.parity:
        parity()
        return
    run = covey.load(options.run)
    with tempfile.TemporaryDirectory() as folder:
        files = {kind: run.export(Path(folder) / kind, format=kind).path for kind in (*ACT, "jax")}
        print("| format | return of 100 episodes | installed beside Gymnasium |\n|---|---|---|")
        print(f"| trained policy | {run.evaluate(options.episodes).mean} | covey |")
        for kind in ACT:
            returns = played(kind, files[kind].parent, run.config.env.removeprefix("gymnasium:"), options.episodes)
            print(f"| {kind} | {mean_interval(returns)} | {' '.join(PACKAGES[kind]) or 'nothing'} |", flush=True)
        print("\n| decision with | one observation | 64 observations |\n|---|---:|---:|")
        policies: dict[str, Any] = {"JAX (`run.policy`)": run.policy()}
        policies |= {kind: covey.load_policy(file) for kind, file in files.items()}
        for name, policy in policies.items():
            size = run.best.program.spec.obs_size
            one, many = (latency(policy, np.zeros(shape, np.float32)) for shape in ((size,), (64, size)))
            print(f"| {name} | {one:.0f} us | {many:.0f} us |")


def parity() -> None:
    """Prints how far the exported files of every agent differ from the trained policy."""
    print(f"| agent | task | steps | {' | '.join((*ACT, 'jax'))} | ties |\n|---|---|---:|{'---:|' * (len(ACT) + 2)}")
    for name in covey.agents.REGISTRY:
        env = "point-free" if covey.agents.entry(name).is_skill_agent else "pendulum"
        with tempfile.TemporaryDirectory() as folder:
            run = covey.train(name, env=env, steps=STEPS, evaluations=2, out=Path(folder) / "run", quiet=True)
            proofs = [run.export(format=kind).proof for kind in (*ACT, "jax")]
        shown = " | ".join(f"{proof.difference:.1e}" for proof in proofs)
        print(f"| {name} | {env} | {STEPS:,} | {shown} | {max(proof.ties for proof in proofs)} |", flush=True)


def played(kind: str, folder: Path, env: str, episodes: int) -> np.ndarray:
    """Returns the returns of episodes in a fresh virtual environment."""
    subprocess.run([sys.executable, "-m", "venv", folder / "venv"], check=True)
    python = folder / "venv" / "bin" / "python"
    packages = ["gymnasium[classic-control]", *PACKAGES[kind]]
    subprocess.run([python, "-m", "pip", "install", "--quiet", *packages], check=True, capture_output=True)
    if kind == "numpy":
        (folder / "runner.py").write_bytes(Path(runner.__file__).read_bytes())
    if kind == "c":
        (folder / "library.c").write_text(C_LIBRARY)
        command = ["cc", "-O2", "-Wall", "-Werror", "-shared", "-fPIC", "-o", "policy.so", "library.c", "-lm"]
        subprocess.run(command, check=True, cwd=folder)
    (folder / "play.py").write_text(PLAY % ACT[kind])
    command = [python, "play.py", env, str(episodes)]
    found = subprocess.run(command, check=True, cwd=folder, capture_output=True, text=True)
    return np.array([float(line) for line in found.stdout.splitlines()])


def latency(policy: Callable[[np.ndarray], np.ndarray], obs: np.ndarray) -> float:
    """Returns the median time of a decision in microseconds."""
    policy.reset()  # type: ignore[attr-defined]
    times = []
    for _ in range(300):
        start = time.perf_counter()
        policy(obs)
        times.append(time.perf_counter() - start)
    return 1e6 * float(np.median(times))


if __name__ == "__main__":
    main()
