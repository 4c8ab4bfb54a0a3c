"""What a run compiles, and when."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

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


def compiled(cache: Path, *arguments: str) -> dict[str, int]:
    """Runs a command in a new process. Returns how many programs it found in the cache and how many not, and by name
    how many it compiled or read."""
    environment = os.environ | {"COVEY_CACHE": str(cache), "TF_CPP_MIN_LOG_LEVEL": "3"}
    command = [sys.executable, "-c", COUNTED, *arguments]
    done = subprocess.run(command, env=environment, check=True, stdout=subprocess.PIPE, text=True)
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.slow
def test_each_program_is_compiled_once(tmp_path: Path):
    """Once in a process, although threads compile ahead; and never again for another seed, another folder or resume."""
    cache, out = tmp_path / "cache", tmp_path / "run"
    first = compiled(cache, "train", "td3", *FLAGS, "--out", str(out))
    assert first["hits"] == 0 and first["misses"] > 5
    assert first["jit(_advance)"] == 2, "the warm-up and the training"
    again = compiled(cache, "train", "td3", *FLAGS, "--out", str(tmp_path / "other"), "--seed", "5")
    assert again["misses"] == 0 and again["hits"] == first["misses"]
    longer = compiled(cache, "resume", str(out), "--steps", "1600", "--capacity", "1200")
    assert longer["misses"] == 0 and longer["hits"] > 5
