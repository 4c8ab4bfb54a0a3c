"""Runs covey commands in processes of their own, and says what is wrong with how they ended.

Most commands run in a fork of this process, which has imported covey but started no jax backend: that saves the two
seconds in which Python imports everything. Some run as the real command, so that nothing rests on the fork alone.
"""

import atexit
import contextlib
import os
import resource
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

CLEAN_CODES = {0, 1, 2, 130}
"""Success, an error in one sentence, a usage error, Ctrl-C."""
MOST_OUTPUT = 200_000


@dataclass(frozen=True)
class Result:
    """How a command ended: its exit code (minus the signal that ended it), its output, whether it had to be stopped."""

    arguments: list[str]
    code: int
    output: str
    seconds: float
    hung: bool = False

    def fault(self, *, killed: bool = False, traceback_of: str = "") -> str:
        """What is wrong with how the command ended, or "".

        Args:
            killed: this campaign ended it with a signal, so that the code says nothing.
            traceback_of: a traceback is right if the output also names this environment as its origin.
        """
        if self.hung:
            return f"hang: still running after {self.seconds:.0f} s"
        if "Traceback (most recent call last)" in self.output and not (traceback_of and traceback_of in self.output):
            return "traceback"
        if killed:
            return ""
        if self.code not in CLEAN_CODES:
            return f"ended by signal {-self.code}" if self.code < 0 else f"exit code {self.code}"
        if self.code in (1, 2) and not self.output.strip():
            return f"exit code {self.code} without a word"
        return ""


@dataclass
class Started:
    """A command that runs."""

    arguments: list[str]
    pid: int
    log: Path
    since: float
    code: int | None = None

    def poll(self) -> int | None:
        """The exit code once the command has ended."""
        if self.code is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.code = os.waitstatus_to_exitcode(status)
        return self.code

    def send(self, number: signal.Signals) -> None:
        """Sends a signal to the command alone, not to its children."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def wait(self, seconds: float) -> Result:
        """Waits for the end, and kills what still runs so many seconds after `since`."""
        hung = False
        while self.poll() is None:
            if time.monotonic() - self.since > seconds:
                hung = True
                break
            time.sleep(0.01)
        if self.poll() is None:
            os.kill(self.pid, signal.SIGKILL)
            while self.poll() is None:
                time.sleep(0.005)
        with contextlib.suppress(ProcessLookupError, PermissionError):  # its worker processes, if any are left
            os.killpg(self.pid, signal.SIGKILL)
        with self.log.open(errors="replace") as file:
            output = file.read(MOST_OUTPUT)
        return Result(self.arguments, self.code or 0, output, time.monotonic() - self.since, hung)


def start(
    arguments: list[str],
    log: Path,
    *,
    real: bool = False,
    folder: Path | None = None,
    environment: dict[str, str] | None = None,
    memory: int = 0,
    before: Callable[[], None] = lambda: None,
) -> Started:
    """Starts `covey ARGUMENTS` with its output in a file.

    Args:
        real: as the real command, not in a fork of this process.
        folder: the current folder of the command.
        environment: variables to set.
        memory: the most address space in bytes; 0 for no limit.
        before: what the fork does first.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    since = time.monotonic()
    if real:
        with log.open("wb") as file:
            command = [sys.executable, "-m", "covey", *arguments]
            child = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                cwd=folder,
                env={**os.environ, **(environment or {})},
                start_new_session=True,
            )
        pid = child.pid
        child.returncode = 0  # this module waits for it, not subprocess
        return Started(arguments, pid, log, since)
    pid = os.fork()
    if pid == 0:
        _child(arguments, log, folder, environment or {}, memory, before)
    return Started(arguments, pid, log, since)


def run(arguments: list[str], log: Path, seconds: float, **how: object) -> Result:
    """Runs a command to its end; the options are those of `start`."""
    return start(arguments, log, **how).wait(seconds)  # type: ignore[arg-type]


def _child(
    arguments: list[str],
    log: Path,
    folder: Path | None,
    environment: dict[str, str],
    memory: int,
    before: Callable[[], None],
) -> None:
    """The life of a fork: it runs the command and never returns."""
    code = 70
    try:
        os.setsid()
        out = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o666)
        nothing = os.open(os.devnull, os.O_RDONLY)
        for number, target in ((nothing, 0), (out, 1), (out, 2)):
            os.dup2(number, target)
        sys.stdout = open(1, "w", buffering=1, closefd=False)  # noqa: SIM115  (the standard output)
        sys.stderr = open(2, "w", buffering=1, closefd=False)  # noqa: SIM115
        signal.signal(signal.SIGINT, signal.default_int_handler)
        os.environ.update(environment)
        sys.argv = ["covey", *arguments]
        if folder:
            os.chdir(folder)
        if memory:
            resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
        from covey.cli import entry

        before()
        entry()
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
        if isinstance(end.code, str):
            print(end.code, file=sys.stderr)
    except BaseException:
        import traceback

        traceback.print_exc()
    finally:
        with contextlib.suppress(BaseException):
            atexit._run_exitfuncs()
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)


@dataclass(frozen=True)
class Batch:
    """What a fork reported before it ended: a line per item, and what went wrong with the item after the last line."""

    lines: list[str]
    fault: str


def batch(work: Callable[[Callable[[str], None]], None], log: Path, item_seconds: float, memory: int = 0) -> Batch:
    """Runs many quick items in one fork: `work` calls its argument with a line of text after each.

    A fork that ends early, or takes longer than `item_seconds` for an item, is to blame on the item after its last
    line. `memory` limits its address space.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        _batch_child(work, log, reader, writer, memory)
    os.close(writer)
    received, fault = b"", ""
    while True:
        ready, _, _ = select.select([reader], [], [], item_seconds)
        if not ready:
            fault = f"hang: longer than {item_seconds:.0f} s"
            os.kill(pid, signal.SIGKILL)
            break
        chunk = os.read(reader, 65536)
        if not chunk:
            break
        received += chunk
    os.close(reader)
    _, status = os.waitpid(pid, 0)
    code = os.waitstatus_to_exitcode(status)
    if not fault and code != 0:
        fault = (
            f"ended by signal {-code}" if code < 0 else f"exit code {code}: {log.read_text(errors='replace')[-300:]}"
        )
    return Batch(received.decode().splitlines(), fault)


def _batch_child(
    work: Callable[[Callable[[str], None]], None], log: Path, reader: int, writer: int, memory: int
) -> None:
    code = 70
    try:
        os.setsid()
        os.close(reader)
        out = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o666)
        os.dup2(out, 1)
        os.dup2(out, 2)
        sys.stdout = open(1, "w", buffering=1, closefd=False)  # noqa: SIM115  (the standard output)
        sys.stderr = open(2, "w", buffering=1, closefd=False)  # noqa: SIM115
        if memory:
            resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
        work(lambda line: _send(writer, line))
        code = 0
    except BaseException:
        import traceback

        traceback.print_exc()
    finally:
        os._exit(code)


def _send(writer: int, line: str) -> None:
    os.write(writer, (line.replace("\n", " ") + "\n").encode(errors="replace"))
