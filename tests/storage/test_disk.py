"""The operating system is called in one module, which the fault tests replace."""

import pytest

from tests.architecture.source import MODULES, calls

CALLS = (
    *("open", "replace", "rename", "unlink", "remove", "mkdir", "makedirs", "listdir", "fsync", "ftruncate", "write"),
    *("pwrite", "pread", "preadv", "rmdir"),
)
FORBIDDEN = {f"os.{name}" for name in CALLS} | {"shutil.rmtree", "shutil.move", "open"}


@pytest.mark.parametrize("module", [m for m in MODULES if m.startswith(("storage/", "plots/", "run/", "islands/"))])
def test_files_are_opened_replaced_and_removed_in_one_module(module: str):
    if module != "storage/disk":
        assert not FORBIDDEN & calls(module)
