"""Runs covey commands in separate processes, and checks how they ended.

Most commands run in a fork of this process, which has imported covey but started no jax backend: that saves two seconds
of imports. Some run as the real command, so that the campaign does not rely on forks alone.
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
"""Exit codes: success, an error message, a usage error, Ctrl-C."""
MOST_OUTPUT = 200_000


@dataclass(frozen=True)
class Result:
    """The result of a command: its exit code (or minus the signal that ended it), its output, whether it hung."""

    arguments: list[str]
    code: int
    output: str
    seconds: float
    hung: bool = False

    def fault(self, *, killed: bool = False, traceback_of: str = "") -> str:
        """Returns what is wrong with the end of the command, or "".

        Args:
            killed: The campaign ended it with a signal, so the exit code is not checked.
            traceback_of: A traceback is allowed if the output contains this text, which names its origin.
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
            return f"exit code {self.code} without a message"
        return ""


@dataclass
class Started:
    """A running command."""

    arguments: list[str]
    pid: int
    log: Path
    since: float
    code: int | None = None

    def poll(self) -> int | None:
        """Returns the exit code, or None while the command runs."""
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
        """Waits for the end, and kills a command that still runs `seconds` after `since`."""
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
        with contextlib.suppress(ProcessLookupError, PermissionError):  # remaining worker processes
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
        arguments: The arguments.
        log: The file for its output.
        real: Starts the real command instead of a fork of this process.
        folder: The current folder of the command.
        environment: Environment variables to set.
        memory: The limit of the address space in bytes; 0 for none.
        before: A function that the fork calls first.
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
        child.returncode = 0  # this module waits for it, instead of subprocess
        return Started(arguments, pid, log, since)
    pid = os.fork()
    if pid == 0:
        _child(arguments, log, folder, environment or {}, memory, before)
    return Started(arguments, pid, log, since)


def run(arguments: list[str], log: Path, seconds: float, **how: object) -> Result:
    """Runs a command to its end, with the options of `start`."""
    return start(arguments, log, **how).wait(seconds)  # type: ignore[arg-type]


def _child(
    arguments: list[str],
    log: Path,
    folder: Path | None,
    environment: dict[str, str],
    memory: int,
    before: Callable[[], None],
) -> None:
    """Runs the command in a fork. Never returns."""
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
    """The report of a fork: a line per finished item, and the fault of the next item or ""."""

    lines: list[str]
    fault: str


def batch(work: Callable[[Callable[[str], None]], None], log: Path, item_seconds: float, memory: int = 0) -> Batch:
    """Runs many short items in one fork.

    Args:
        work: Does the items, and calls its argument with a line of text after each.
        log: The file for other output.
        item_seconds: The time limit of an item. If an item exceeds it, or the fork ends early, the fault is that of
            the item after the last line.
        memory: The limit of the address space in bytes; 0 for none.
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
