"""Limits: what no machine can do is refused before anything is compiled, and what runs is not."""

import math
import re
import subprocess
import sys
from pathlib import Path

import pytest

from covey.cli import main
from covey.errors import CoveyError
from covey.run.config import default_config
from covey.run.limits import Need, check_memory, memory_plan, training_needs
from covey.run.policy import build_policy
from covey.run.program import build

GIB = 2**30
WIDE = {"batch_size": 65_536, "networks": {"actor": {"hidden": [256, 256]}, "critic": {"hidden": [256, 256]}}}
SMALL = {"batch_size": 64, "networks": {"actor": {"hidden": [64]}, "critic": {"hidden": [64]}}}


@pytest.mark.parametrize(
    ("verb", "message"),
    [
        (["eval", "RUN", "--episodes", "2147483647"], "--episodes must be at most 1,000,000, not 2147483647"),
        (["video", "RUN", "--steps", "2147483647"], "--steps must be at most 100,000"),
        (["plan", "RUN", "--random", "2147483647"], "--random must be at most 10,000"),
        (["plan", "RUN", "--goal", "1,1", "--steps", "2147483647"], "--steps must be at most 100,000"),
        (["plan", "RUN", "--random", "1", "--planning.horizon", "1000000000"], "horizon must be at most 10,000"),
        (["resume", "RUN", "--evaluations", "1000000000"], "--evaluations must be at most 100,000"),
        (["resume", "RUN", "--episodes", "2147483648"], "--episodes must be at most 1,000,000"),
        (["train", "td3", "--config", "RUN/config.json", "--envs", "2000000000"], "--envs must be at most 1,000,000"),
    ],
)
def test_the_numbers_of_every_verb(verb: list[str], message: str, tmp_path: Path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run = tmp_path / "run"
    run.mkdir()
    (run / "config.json").write_text('{"algorithm": "td3", "env": "point"}')
    assert main([text.replace("RUN", str(run)) for text in verb]) == 1
    assert message in capsys.readouterr().err


def test_a_seed_beyond_the_range():
    program = build_policy(default_config("td3", env="point").resolved())
    with pytest.raises(CoveyError, match="`seed` must lie between"):
        program.stream(1, 2**40)


def test_more_evaluations_than_blocks_are_as_many_as_blocks():
    program = build(default_config("td3", env="point", steps=2_000, evaluations=100_000).resolved())
    assert program.evaluations == program.logs == tuple(range(1, program.total + 1))


@pytest.mark.parametrize(
    ("options", "free", "message"),
    [
        ({"agent": WIDE}, 20, ""),
        (
            {"agent": WIDE},
            1,
            r"about 2\.\d GiB .* for the 131,072 transitions of an update, and 1\.0 GiB .* Lower `agent\.batch_size`",
        ),
        ({"agent": SMALL, "seeds": 4096, "population_axis": "vmap"}, 20, ""),
        ({"agent": SMALL, "seeds": 4096, "population_axis": "vmap"}, 2, "the replay.* Lower `capacity`"),
        ({"agent": SMALL, "envs": 16_384, "steps": 200_000, "warmup": 50_000}, 20, ""),
        ({"agent": SMALL, "updates_per_step": 10_000.0}, 0.1, "the random numbers of 500,000 updates.* Lower `upd"),
        ({"agent": SMALL, "episodes": 1_000_000}, 0.05, "1,000,000 evaluation environments.* Lower `episodes`"),
        ({"agent": SMALL, "env": "gymnasium:Pendulum-v1", "episodes": 100_000}, 20, "evaluation.* Lower `episodes`"),
        ({"algorithm": "dads", "agent": {"sac": WIDE | {"networks": {}}}}, 0.5, "Lower `agent.sac.batch_size`"),
    ],
)
def test_memory_is_estimated_before_anything_is_compiled(options, free: float, message: str, monkeypatch):
    """What fits is built; what does not is refused, with the option that takes most."""
    monkeypatch.setattr("covey.run.limits.free_memory", lambda: free * GIB)
    options = {"env": "point", "steps": 20_000} | options
    config = default_config(options.pop("algorithm", "td3"), **options).resolved()
    if not message:
        assert build(config).total > 0
        return
    with pytest.raises(CoveyError, match=message):
        build(config)


class Accelerator:
    """A device with a memory of its own, of which jax and others use a part."""

    platform = "gpu"

    def __init__(self, free: float) -> None:
        self.free = free

    def memory_stats(self) -> dict[str, int]:
        return {"bytes_limit": int(80 * GIB), "bytes_in_use": int((80 - self.free) * GIB)}


@pytest.mark.parametrize(
    ("members", "devices", "free", "plan"),
    [
        (
            1,
            1,
            2,
            r"^memory in MiB: about 420 of 2,048 free on a device; replay 420, networks 1, rest 1$",
        ),
        (8, 4, 2, r"about 840 of 2,048 free on a device; replay 840"),
        (8, 1, 2, r"need about 3\.3 GiB of memory, 3\.3 GiB of it for the replay, and 2\.0 GiB are free\. Lower `cap"),
        (1, 1, 0, r"0\.0 GiB are free\. Lower `capacity`"),
    ],
)
def test_the_memory_of_an_accelerator(members: int, devices: int, free: float, plan: str, monkeypatch):
    """The part of the members that a device has, against what is free there and not on the host."""
    config = default_config("td3", env="point", steps=20_000, agent=SMALL, capacity=10_000_000).resolved()
    trainer = build(config).loop.trainer
    monkeypatch.setattr("covey.run.limits.local_devices", lambda: [Accelerator(free)])
    needs = training_needs(config, trainer, members, devices, "vmap")
    if plan.endswith(("cap", "`capacity`")):
        with pytest.raises(CoveyError, match=plan):
            check_memory(needs)
        return
    check_memory(needs)
    assert re.search(plan, memory_plan(needs))


def test_where_the_free_memory_is_not_known(monkeypatch):
    monkeypatch.setattr("covey.run.limits.free_memory", lambda: math.inf)
    assert memory_plan([Need("the replay", 5e6, "", "replay")]) == "memory in MiB: about 5; replay 5"


def test_a_policy_is_evaluated_where_its_training_would_not_fit(monkeypatch):
    monkeypatch.setattr("covey.run.limits.free_memory", lambda: 0.5 * GIB)
    config = default_config("td3", env="point", agent=WIDE).resolved()
    with pytest.raises(CoveyError, match=r"Lower `agent\.batch_size`"):
        build(config)
    assert build_policy(config).agent is not None


def test_a_limit_of_the_process_counts():
    code = (
        "import resource; resource.setrlimit(resource.RLIMIT_AS, (6 * 2**30, 6 * 2**30))\n"
        "from covey.run.limits import free_memory; print(free_memory())"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert 0 < float(done.stdout) < 6 * GIB
