"""The processes of a `jax.distributed` job: how they start, compare their options, and end together.

They communicate through the key-value store of the job's coordinator, a service in process 0. Unlike collectives, it
works when a process is missing: a process that stops writes the reason there, and a thread of every other process
watches for it.
"""

import json
import os
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from covey.errors import CoveyError, LostProcess, Stopped, require
from covey.population.processes import JaxProcesses, ProcessGroup, SingleProcess

HEARTBEAT = 50
"""Seconds without a heartbeat after which jax considers a process dead and ends the others."""
START_TIMEOUT = 300.0
"""Seconds that a process waits for the others at the start."""
QUIET = 5.0
"""Seconds of waiting before a message says so."""
POLL = 1.0
"""Seconds between checks whether another process has stopped."""
REPORT_TIMEOUT = 20.0
"""Seconds that a process with an error before the start waits for the others, to report it to them."""
LINGER = 10.0
"""Seconds that process 0 stays for the others at most; without it they lose their coordinator."""
BIND = "JAX_COORDINATOR_BIND_ADDRESS"

# Keys of the key-value store.
OPTIONS = "covey/options/"
VERDICT = "covey/verdict"
DONE = "covey/done"
STOPPED = "covey/stopped"
LEFT = "covey/left/"


_exit_now = os._exit  # taken here, because `os._exit` is replaced while an environment runs


class JobOptions(NamedTuple):
    """The job of this process, and its place in it.

    Args:
        coordinator: The address of process 0 as HOST:PORT; or `auto`, with which jax determines all three values.
        processes: The number of processes.
        process: The index of this process.
    """

    coordinator: str
    processes: int | None
    process: int | None

    def check(self) -> None:
        """Raises a CoveyError unless the three values are complete and consistent."""
        if self.coordinator == "auto":
            return
        host, _, port = self.coordinator.rpartition(":")
        require(
            bool(host) and port.isdigit() and self.processes is not None and self.process is not None,
            "A job needs all of `coordinator` HOST:PORT, `processes` N and `process` I; or `coordinator` auto where "
            "jax can determine them, as under Slurm and Kubernetes.",
        )
        require(
            self.processes is not None and self.process is not None and 0 <= self.process < self.processes,
            f"`process` must lie between 0 and {(self.processes or 0) - 1}, because `processes` is {self.processes}; "
            f"not {self.process}.",
        )


@dataclass
class Job:
    """One process of a job that has joined the others."""

    client: Any
    coordinator: str
    index: int
    count: int
    lock: threading.Lock = field(default_factory=threading.Lock)

    def compare(self, options: Mapping[str, Any]) -> None:
        """Raises the same CoveyError in all processes unless all have the same options."""
        self.client.key_value_set(f"{OPTIONS}{self.index}", json.dumps(options))
        if self.index == 0:
            self.client.key_value_set(VERDICT, json.dumps(self._difference(options)))
        verdict = json.loads(self._wait(VERDICT))
        require(not verdict, verdict)

    def _difference(self, options: Mapping[str, Any]) -> str:
        """Returns how another process's options differ from this one's; empty if none do."""
        for process in range(1, self.count):
            theirs = json.loads(self._wait(f"{OPTIONS}{process}"))
            names = [n for n in {**options, **theirs} if json.dumps(options.get(n)) != json.dumps(theirs.get(n))]
            if names:
                values = (f"{n} is {options.get(n)!r} in process 0 and {theirs.get(n)!r} in {process}" for n in names)
                return f"The processes of this job have different options: {'; '.join(values)}."
        return ""

    def _wait(self, key: str) -> str:
        try:
            return self.client.blocking_key_value_get(key, int(1000 * START_TIMEOUT))
        except RuntimeError as error:
            raise CoveyError(f"The processes of this job can't compare their options: {_first(error)}") from error

    def stopped(self) -> str:
        """Returns which other process stopped first, and its reason; empty while all run."""
        found = self._get(STOPPED)
        process, reason = json.loads(found) if found else (self.index, "")
        return "" if process == self.index else f"Process {process} of this job has stopped: {reason}"

    def _get(self, key: str) -> str | None:
        try:
            return self.client.key_value_try_get(key)
        except RuntimeError:  # no such key, or the job is over
            return None

    def watch(self) -> None:
        """Ends this process soon after another one has stopped, even if it is waiting in a collective."""
        while True:
            time.sleep(POLL)
            reason = self.stopped()
            if reason:
                with self.lock:
                    print(f"covey: {reason}", file=sys.stderr, flush=True)
                    self._leave(1)

    def wait_for_first(self) -> None:
        """Waits until process 0, which evaluates and draws at the end, is done: jax would give up after 5 minutes."""
        if self.index == 0:
            self._set(DONE, "")
        while self.index > 0 and self._get(DONE) is None:
            time.sleep(POLL)

    def has_coordinator(self) -> bool:
        """Returns whether process 0 answers. If not, a call to it would block until jax aborts the process."""
        return self.index == 0 or _answers(self.coordinator)

    def end(self, reason: str, code: int) -> None:
        """Reports to the others that this process stops, and ends it."""
        with self.lock:
            if not self.has_coordinator():
                _exit(code)
            self._set(STOPPED, json.dumps([self.index, reason.partition("\n")[0]]))
            self._leave(code)

    def _leave(self, code: int) -> None:
        """Ends the process without jax's shutdown, which would wait for all others. Process 0 ends last."""
        self._set(f"{LEFT}{self.index}", "")
        since = time.monotonic()
        while self.index == 0 and self._left() < self.count and time.monotonic() - since < LINGER:
            time.sleep(0.1)
        _exit(code)

    def _left(self) -> int:
        """Returns the number of processes that have ended."""
        try:
            return len(self.client.key_value_dir_get(LEFT))
        except RuntimeError:
            return self.count

    def _set(self, key: str, value: str) -> None:
        with suppress(RuntimeError):  # another process was faster, or the coordinator is gone
            self.client.key_value_set(key, value)


class _Current:
    """The job of this process, if it belongs to one. jax, too, allows only one per process."""

    planned: JobOptions | None = None
    joining: bool = False
    job: Job | None = None


def plan(options: JobOptions) -> None:
    """Declares that this process will join a job, so that errors before that are reported to the others too."""
    options.check()
    _Current.planned = options


def join(options: JobOptions, timeout: float = START_TIMEOUT) -> Job:
    """Joins a `jax.distributed` job, and waits until all processes have."""
    options.check()
    _Current.planned = None
    bind = None if options.coordinator == "auto" else os.environ.get(BIND) or options.coordinator
    if bind and options.process == 0:
        _require_free(bind)
    _Current.joining = True
    state = _initialize(options, bind, timeout)
    job = Job(state.client, state.coordinator_address, state.process_id, state.num_processes)
    _Current.job = job
    _Current.joining = False
    threading.Thread(target=job.watch, name="covey-job", daemon=True).start()
    return job


def process_group(options: JobOptions | None) -> ProcessGroup:
    """Joins a job and returns its process group; without a job, the group of this process alone."""
    if options is None:
        return SingleProcess()
    join(options)
    import jax

    return JaxProcesses(jax.process_index(), jax.process_count())


def compare(options: Mapping[str, Any]) -> None:
    """Raises a CoveyError in all processes of the job unless they have the same options. No effect without a job."""
    if _Current.job:
        _Current.job.compare(options)


@contextmanager
def ending_together(describe: Callable[[CoveyError], str] = str) -> Iterator[None]:
    """Ends all processes of a job when one of them fails. No effect without a job.

    Args:
        describe: Returns the message of an error as the user should see it.
    """
    try:
        yield
    except Stopped:
        _done()
        raise
    except BaseException as error:
        if _Current.planned or _Current.joining or _Current.job:
            _fail(error, describe)
        raise
    _done()


def _done() -> None:
    if _Current.job:
        _Current.job.wait_for_first()


def _fail(error: BaseException, describe: Callable[[CoveyError], str]) -> None:
    """Prints why this process stops, reports it to the others, and ends the process."""
    match error:
        case LostProcess() if _Current.job and _Current.job.has_coordinator():
            reason, code = _Current.job.stopped() or describe(error), 1
        case CoveyError():
            reason, code = describe(error), error.exit_code
        case KeyboardInterrupt():
            reason, code = "It was interrupted.", 130
        case SystemExit():  # a message or the help was printed already
            reason, code = "It was given wrong options.", error.code
        case _:
            traceback.print_exception(error)
            reason, code = f"{type(error).__name__}: {error}", 1
    if isinstance(error, CoveyError):
        print(f"covey: {reason}", file=sys.stderr, flush=True)
    if code:
        _end(reason, code if isinstance(code, int) else 1)


def _end(reason: str, code: int) -> None:
    """Ends this process and all others of its job, which print the reason."""
    if _Current.planned:
        with suppress(CoveyError):
            join(_Current.planned, REPORT_TIMEOUT)
    if _Current.job:
        _Current.job.end(reason, code)
    _exit(code)  # a thread of jax may still try to join, and would keep Python from ending


def _initialize(options: JobOptions, bind: str | None, timeout: float) -> Any:
    """Starts jax's distributed service in a thread, so that this one can report the wait and be interrupted."""
    import jax
    from jax._src import distributed  # jax has no public way to the key-value store

    errors: list[BaseException] = []

    def work() -> None:
        try:
            jax.distributed.initialize(
                None if options.coordinator == "auto" else options.coordinator,
                options.processes,
                options.process,
                initialization_timeout=int(timeout) + 60,  # longer than ours, because jax aborts the process
                heartbeat_timeout_seconds=HEARTBEAT,
                coordinator_bind_address=bind,
            )
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=work, name="covey-join", daemon=True)
    thread.start()
    thread.join(QUIET)
    if thread.is_alive() and timeout > REPORT_TIMEOUT:
        print(f"Waiting for {_missing(options)}.", file=sys.stderr, flush=True)
    thread.join(timeout - QUIET)
    require(
        not thread.is_alive(), f"The job did not start within {timeout:g} s: it is waiting for {_missing(options)}."
    )
    if errors:
        raise CoveyError(f"The job at {options.coordinator} can't be joined: {_first(errors[0])}") from errors[0]
    return distributed.global_state


def _missing(options: JobOptions) -> str:
    """Returns which processes are missing, as far as this one can know."""
    if options.coordinator == "auto":
        return "the other processes of the job"
    if options.process == 0:
        return f"the other processes of the {options.processes} of the job at {options.coordinator}"
    if not _answers(options.coordinator):
        return f"process 0: nothing answers at {options.coordinator} yet"
    return f"the other processes of the job at {options.coordinator}, where process 0 or another program answers"


def _answers(address: str) -> bool:
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), 1.0).close()
    except OSError:
        return False
    return True


def _require_free(address: str) -> None:
    """Raises a CoveyError if the coordinator could not listen at the address: jax would crash."""
    host, _, port = address.rpartition(":")
    try:
        found = socket.getaddrinfo(host.strip("[]"), int(port), type=socket.SOCK_STREAM)
        family, kind, protocol, _, where = found[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as jax does: a job may have just ended here
            probe.bind(where)
            probe.listen()
    except (OSError, OverflowError) as error:
        raise CoveyError(
            f"Process 0 can't listen at {address}: {error}. Set `coordinator` to an address of this machine with a "
            f"free port; if the others reach it under another address, set {BIND}=HOST:PORT here."
        ) from error


def _first(error: BaseException) -> str:
    """Returns the first line of an error's message, or its type."""
    return (str(error).splitlines() or [type(error).__name__])[0][:200]


def _exit(code: int) -> None:
    """Ends the process at once, without Python's shutdown."""
    with suppress(OSError, ValueError):  # the other end of a pipe may be closed
        sys.stdout.flush()
        sys.stderr.flush()
    if sys.stdout.isatty():
        os.write(1, b"\x1b[?25h")  # show the cursor, which a progress bar hides
    _exit_now(code)
