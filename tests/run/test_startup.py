"""What a run compiles, and when."""

import json
import os
import subprocess
import sys
from pathlib import Path

from tests.runs import FLAGS

COUNTED = """
import sys, jax
from covey.cli import main
counts = {"hits": 0, "misses": 0}
def count(event, **about):
    name = event.rpartition("cache_")[2]
    if name in counts:
        counts[name] += 1
def count_compiled(event, seconds, fun_name="", **about):
    if event.endswith("backend_compile_duration"):
        counts[fun_name] = counts.get(fun_name, 0) + 1
jax.monitoring.register_event_listener(count)
jax.monitoring.register_event_duration_secs_listener(count_compiled)
assert main(sys.argv[1:]) == 0
import json; print(json.dumps(counts))
"""


def compiled(*arguments: str) -> dict[str, int]:
    """Runs a command in a new process. Returns how many programs it read from the cache, and how many it compiled."""
    environment = os.environ | {"TF_CPP_MIN_LOG_LEVEL": "3"}
    command = [sys.executable, "-c", COUNTED, *arguments]
    done = subprocess.run(command, env=environment, check=True, stdout=subprocess.PIPE, text=True)
    return json.loads(done.stdout.splitlines()[-1])


def test_other_seeds_other_folders_and_resume_compile_nothing(tmp_path: Path):
    out = tmp_path / "run"
    compiled("train", "td3", *FLAGS, "--out", str(out))
    again = compiled("train", "td3", *FLAGS, "--out", str(tmp_path / "other"), "--seed", "5")
    assert again["misses"] == 0 and again["hits"] > 5
    longer = compiled("resume", str(out), "--steps", "1600", "--capacity", "1200")
    assert longer["misses"] == 0 and longer["hits"] > 5


def test_programs_compiled_ahead_are_not_compiled_again(tmp_path: Path):
    """Training and warm-up: one compilation each, in a thread."""
    counts = compiled("train", "td3", *FLAGS, "--out", str(tmp_path / "run"))
    assert counts["jit(_advance)"] == 2
