"""Signals are obeyed within seconds, whatever the main thread is doing, and what is said of it is true."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from covey.cli import main
from covey.run.session import Session
from covey.signals import signals_to
from covey.storage.store import Store
from tests.runs import FLAGS

SCRIPT = """
import ctypes, signal, sys, threading, time
from covey.signals import LISTENER, signals_to
class Work:
    patience = 0.3
    def announce(self, number): print("heard", number, flush=True)
    def wait(self): print("waited", flush=True)
    def farewell(self): print("farewell", flush=True)
def ask(number, frame): print("asked", flush=True)
with LISTENER.listening(), signals_to(ask), LISTENER.watching(Work()):
    {body}
print("ended")
"""
BUSY = """signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])  # another thread is interrupted then
    threading.Timer(0.3, print, ("ready",), {"flush": True}).start()  # when the main thread sleeps in C
    ctypes.CDLL(None).sleep(60)"""
ANSWERS = """print("ready", flush=True)
    time.sleep(0.2)
    LISTENER.answer()
    time.sleep(1.5)"""


def signalled(body: str, times: int = 1) -> tuple[str, int, float]:
    """What a process said that was sent SIGTERM, its exit code, and after how many seconds it ended."""
    command = [sys.executable, "-c", SCRIPT.format(body=body)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as running:
        assert running.stdout is not None
        assert running.stdout.readline() == "ready\n"
        since = time.monotonic()
        for _ in range(times):
            running.send_signal(signal.SIGTERM)
            time.sleep(0.1)
        said, _ = running.communicate(timeout=60)
    return said, running.returncode, time.monotonic() - since


def test_a_main_thread_outside_of_python_is_left_behind():
    said, code, seconds = signalled(BUSY)
    assert said.split() == ["heard", "15", "waited", "farewell"] and code == 130 and seconds < 10


def test_one_that_answers_takes_its_time():
    """Several signals at once are one: a session that ends sends more than one."""
    said, code, _ = signalled(ANSWERS, times=2)
    assert said.split()[-1] == "ended" and code == 0 and said.count("heard") == 1


def test_a_hangup_is_heard_unless_it_is_ignored():
    heard: list[int] = []
    with signals_to(lambda number, frame: heard.append(number)):
        os.kill(os.getpid(), signal.SIGHUP)
    assert heard == [signal.SIGHUP]
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)  # as nohup does
    try:
        with signals_to(lambda number, frame: heard.append(number)):
            os.kill(os.getpid(), signal.SIGHUP)
        assert heard == [signal.SIGHUP]
    finally:
        signal.signal(signal.SIGHUP, before)


def test_the_step_named_is_that_of_the_newest_complete_checkpoint(tmp_path: Path, monkeypatch, capsys):
    """Also where the run is stopped at once while a checkpoint is being written."""
    out, write = tmp_path / "run", Store.write

    def slow(store: Store, *arguments: object) -> None:
        time.sleep(0.5)
        write(store, *arguments)  # type: ignore[arg-type]

    def interrupted(session: Session) -> None:
        if session.block >= 6:
            session._save()
            raise KeyboardInterrupt

    monkeypatch.setattr(Store, "write", slow)
    monkeypatch.setattr(Session, "_save_if_due", interrupted)
    assert main(["train", "td3", *FLAGS, "--out", str(out)]) == 130
    said = capsys.readouterr().out
    (saved,) = Store(out / "checkpoints", "step").steps()
    assert f"Saved at step {saved:,}. Resume with: covey resume {out}" in said


def test_an_environment_that_hangs_is_left_behind(tmp_path: Path):
    out = tmp_path / "run"
    flags = ["--env", "gymnasium:tests.host_tasks:Sleepy", "--steps", "2000", "--warmup", "200", "--evaluations", "2"]
    flags += ["--episodes", "1", "--checkpoint-minutes", "0", "--preset", "off", *FLAGS[-6:], "--out", str(out)]
    command = [sys.executable, "-m", "covey", "train", "td3", *flags]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as running:
        assert running.stdout is not None
        for line in running.stdout:
            if "asleep" in line:
                break
        time.sleep(1.0)  # the checkpoint before it is complete
        since = time.monotonic()
        running.send_signal(signal.SIGINT)
        said, _ = running.communicate(timeout=60)
        seconds = time.monotonic() - since
    assert running.returncode == 130 and seconds < 5, (seconds, said)  # 3 s, and what a busy machine adds
    saved = Store(out / "checkpoints", "step").steps()[-1]
    assert saved == 250 and "abandoned" in said and f"Saved at step {saved:,}. Resume with" in said
    assert "Traceback" not in said


LOST = """
from covey.signals import LISTENER
class Interrupts:
    def __del__(self):
        raise KeyboardInterrupt
class Fails:
    def __del__(self):
        raise ValueError("a fault")
with LISTENER.listening():
    Interrupts(), Fails()
"""


def test_an_interrupt_that_python_can_not_raise_prints_nothing():
    """One that comes while Python collects garbage is lost: the listening thread ends the process instead."""
    done = subprocess.run([sys.executable, "-c", LOST], capture_output=True, text=True, check=True)
    assert "ValueError: a fault" in done.stderr and "KeyboardInterrupt" not in done.stderr
