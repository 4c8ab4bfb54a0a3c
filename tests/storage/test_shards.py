"""Checkpoints that some processes have saved, read by another number of them. `test_processes.py` has real ones."""

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from covey.errors import CoveyError
from covey.population.processes import SingleProcess
from covey.storage.folder import RunFolder
from covey.storage.layout import BEST, REPLAY, WRITTEN
from covey.storage.shards import read_newest, remove_unused
from covey.storage.store import Store

MEMBERS_OF = 4
FILES = {"metrics": {"length": 5, "crc": 7}}


@dataclass(frozen=True)
class Process(SingleProcess):
    """One of several processes, whose others agree with everything."""

    agreed: Any = None

    def gather(self, tree: Any) -> Any:
        return tree if self.agreed is None else np.array([self.agreed])


def arrays(members: range, step: int) -> dict[str, np.ndarray]:
    own = np.array(members, np.float32)
    found = {"members/agent/w": own[:, None] + step, "members/key": own.astype(np.uint32)[:, None]}
    return found | {REPLAY: np.tile(own[:, None, None], (1, 3, 2)), WRITTEN: np.array(7), "block": np.array(step)}


def save(folder: RunFolder, step: int, processes: int, keep: int = 2) -> None:
    size = MEMBERS_OF // processes
    for i in range(processes):
        own = arrays(range(i * size, (i + 1) * size), step)
        best = {BEST + "agent/w": np.full(2, 9.0)} if i == 0 else {}
        info = {"step": step, "processes": processes, "files": FILES if i == 0 else {}}
        Store(folder.shard(i), "step", keep).write(step, own | best, info)


@pytest.mark.parametrize(("before", "after"), [(2, 1), (1, 2), (4, 2), (2, 4), (1, 1), (2, 2)])
def test_every_process_reads_its_members(before: int, after: int, tmp_path: Path):
    folder, size = RunFolder(tmp_path), MEMBERS_OF // after
    save(folder, 100, before)
    for i in range(after):
        found = read_newest(folder, Process(i, after, (100, before)), size, print)
        assert found is not None
        best = {BEST + "agent/w": np.full(2, 9.0)} if i == 0 else {}
        expected = arrays(range(i * size, (i + 1) * size), 100) | best
        assert found[0].keys() == expected.keys()
        for name, x in expected.items():
            np.testing.assert_array_equal(found[0][name], x, err_msg=name)
            assert found[0][name].dtype == np.asarray(x).dtype
        assert found[1]["step"] == 100
        assert found[1]["files"] == (FILES if i == 0 or before != after else {})


def test_a_part_that_is_missing_or_damaged_is_not_mixed_with_another(tmp_path: Path):
    folder, said = RunFolder(tmp_path), []
    assert read_newest(folder, SingleProcess(), MEMBERS_OF, said.append) is None
    for step in (100, 200, 300):
        save(folder, step, 2, keep=3)
    shutil.rmtree(folder.shard(1) / "step_0000000300")
    (folder.shard(1) / "step_0000000200" / "arrays.safetensors").write_bytes(b"broken")
    found = read_newest(folder, SingleProcess(), MEMBERS_OF, said.append)
    assert found and found[1]["step"] == 100
    assert len(said) == 1 and "process-1/step_0000000200 is damaged" in said[0]
    shutil.rmtree(folder.shard(1) / "step_0000000100")
    with pytest.raises(CoveyError, match="no intact checkpoint"):
        read_newest(folder, SingleProcess(), MEMBERS_OF, said.append)


def test_parts_are_kept_until_nothing_needs_them(tmp_path: Path):
    folder = RunFolder(tmp_path)
    save(folder, 100, 4)
    save(folder, 200, 1)
    remove_unused(folder, 1)
    assert Store(folder.shard(3), "step").steps() == [100]
    save(folder, 300, 1)
    remove_unused(folder, 4)
    assert Store(folder.shard(3), "step").steps() == [100]
    remove_unused(folder, 2)
    assert not folder.shard(3).exists() and Store(folder.shard(1), "step").steps() == [100]
