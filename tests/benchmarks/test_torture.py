"""The fault campaign in its shortest form: one round of what is quick. `make torture` is the long one."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def torture(*options: str) -> str:
    command = [sys.executable, "-m", "benchmarks.torture", *options]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def trials(table: str, campaign: str) -> int:
    return sum(
        int(number.replace(",", "")) for number in re.findall(rf"\| {campaign} \| [^|]* \| ([\d,]+) \| 0 \|", table)
    )


@pytest.mark.slow
def test_no_fault_of_a_short_campaign_is_lost(tmp_path: Path):
    table = torture("--minutes", "0", "--seed", "0", "--only", "corruption", "arguments", "--scratch", str(tmp_path))
    assert trials(table, "corruption") >= 60 and trials(table, "arguments") >= 40


@pytest.mark.skipif(sys.platform != "linux", reason="the shim is for Linux")
def test_a_call_that_fails_is_noticed(tmp_path: Path):
    """The campaign can fail: one that expects another outcome of a failed call says so."""
    code = (
        "import ctypes, os, sys\n"
        "from pathlib import Path\n"
        "from benchmarks.torture.injection import Site, arm\n"
        "folder = Path(sys.argv[1])\n"
        "arm(folder, Site('write', '/file*'), 1, 28, folder.parent / 'calls')\n"
        "for i in range(3):\n"
        "    try:\n"
        "        (folder / f'file{i}').write_text('x')\n"
        "    except OSError as error:\n"
        "        print(i, error.errno)\n"
    )
    from benchmarks.torture.__main__ import compiled_shim

    library = compiled_shim(tmp_path)
    (tmp_path / "folder").mkdir()
    environment = {**os.environ, "LD_PRELOAD": str(library)}
    command = [sys.executable, "-c", code, str(tmp_path / "folder")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, env=environment, check=True)
    assert done.stdout == "1 28\n"
    calls = (tmp_path / "calls").read_text().splitlines()
    assert "FAILED /file1" in calls and sum(call.startswith("write /file") for call in calls) >= 3
