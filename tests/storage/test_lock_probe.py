"""A reader that looks whether a run is locked does not keep a training from starting."""

import fcntl
import threading
import time
from pathlib import Path

import pytest

from covey.errors import CoveyError
from covey.storage.folder import RunFolder


def test_a_short_look_at_the_lock_is_waited_for(tmp_path: Path):
    with (tmp_path / "lock").open("w") as probe:
        fcntl.flock(probe, fcntl.LOCK_SH)
        threading.Timer(0.06, lambda: fcntl.flock(probe, fcntl.LOCK_UN)).start()
        RunFolder(tmp_path).lock().close()
        fcntl.flock(probe, fcntl.LOCK_EX)
        began = time.monotonic()
        with pytest.raises(CoveyError, match="Another process is training"):
            RunFolder(tmp_path).lock()
        assert time.monotonic() - began < 5
