"""The processes of a `jax.distributed` job: how they meet, compare their options, and end together.

They talk through the key-value store of the job's coordinator, a service in process 0, which needs no collective: a
process that stops leaves a sentence there, and a thread of every other one looks for it.
"""

import json
import os
import socket
import sys
import threading
import time
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from covey.errors import CoveyError, LostProcess, Stopped, require
from covey.population.processes import JaxProcesses, ProcessGroup, SingleProcess

HEARTBEAT = 50
"""Seconds without a sign of life after which jax takes a process for dead, and ends the others."""
PATIENCE, QUIET = 300.0, 5.0
"""Seconds that a process waits for the others at the start, and those of them in which it says nothing."""
LOOK, TELL, LAST = 1.0, 20.0, 10.0
"""Seconds between looks at who has stopped; to tell of an error before the start; and that process 0 stays at most,
because the others lose their coordinator with it."""
BIND = "JAX_COORDINATOR_BIND_ADDRESS"
OPTIONS, VERDICT, DONE = "covey/options/", "covey/verdict", "covey/done"
STOPPED, LEFT = "covey/stopped", "covey/left/"


_leave_process = os._exit  # as it is here: while an environment runs, it is another


class Place(NamedTuple):
    """Which process of which job this is. The coordinator is HOST:PORT, or `auto`: jax then finds out all three."""

    coordinator: str
    processes: int | None
    process: int | None

    def check(self) -> None:
        """Raises a CoveyError unless the three fit together."""
        if self.coordinator == "auto":
            return
        host, _, port = self.coordinator.rpartition(":")
        require(
            bool(host) and port.isdigit() and self.processes is not None and self.process is not None,
            "A job needs all three of --coordinator HOST:PORT --processes N --process I; or --coordinator auto where "
            "jax can find out, as under Slurm and Kubernetes.",
        )
        require(
            self.processes is not None and self.process is not None and 0 <= self.process < self.processes,
            f"--process {self.process} must lie between 0 and {(self.processes or 0) - 1}, the last of --processes "
            f"{self.processes}.",
        )


@dataclass
class Job:
    """One process of a job that has met the others."""

    client: Any
    coordinator: str
    index: int
    count: int
    lock: threading.Lock = field(default_factory=threading.Lock)

    def compare(self, options: Mapping[str, Any]) -> None:
        """Raises the same error in all processes unless all were given the same options."""
        self.client.key_value_set(f"{OPTIONS}{self.index}", json.dumps(options))
        if self.index == 0:
            self.client.key_value_set(VERDICT, json.dumps(self._difference(options)))
        verdict = json.loads(self._wait(VERDICT))
        require(not verdict, verdict)

    def _difference(self, options: Mapping[str, Any]) -> str:
        """How another process's options differ from those of this one; empty if none do."""
        for process in range(1, self.count):
            theirs = json.loads(self._wait(f"{OPTIONS}{process}"))
            names = [n for n in {**options, **theirs} if json.dumps(options.get(n)) != json.dumps(theirs.get(n))]
            if names:
                values = (f"{n} is {options.get(n)!r} in process 0 and {theirs.get(n)!r} in {process}" for n in names)
                return f"The processes of this job were not given the same options: {'; '.join(values)}."
        return ""

    def _wait(self, key: str) -> str:
        try:
            return self.client.blocking_key_value_get(key, int(1000 * PATIENCE))
        except RuntimeError as error:
            raise CoveyError(f"The processes of this job can't compare their options: {_first(error)}") from error

    def stopped(self) -> str:
        """What the first process that stopped has said; empty while all run."""
        found = self._get(STOPPED)
        process, text = json.loads(found) if found else (self.index, "")
        return "" if process == self.index else f"Process {process} of this job has stopped: {text}"

    def _get(self, key: str) -> str | None:
        try:
            return self.client.key_value_try_get(key)
        except RuntimeError:  # there is none, or the job is over
            return None

    def watch(self) -> None:
        """Ends this process soon after another one has stopped, wherever it waits."""
        while True:
            time.sleep(LOOK)
            said = self.stopped()
            if said:
                with self.lock:
                    print(f"covey: {said}", file=sys.stderr, flush=True)
                    self._leave(1)

    def wait_for_first(self) -> None:
        """Waits until process 0 is done too, which evaluates and draws at the end: jax would wait 5 minutes alone."""
        if self.index == 0:
            self._tell(DONE, "")
        while self.index > 0 and self._get(DONE) is None:
            time.sleep(LOOK)

    def has_coordinator(self) -> bool:
        """Whether process 0 is there. A call to one that is not would take long, and jax aborts meanwhile."""
        return self.index == 0 or _answers(self.coordinator)

    def end(self, text: str, code: int) -> None:
        """Tells the others that this process stops, and stops it."""
        with self.lock:
            if not self.has_coordinator():
                _exit(code)
            self._tell(STOPPED, json.dumps([self.index, text.partition("\n")[0]]))
            self._leave(code)

    def _leave(self, code: int) -> None:
        """Ends the process without jax's own ending, which would wait for all others. Process 0 goes last."""
        self._tell(f"{LEFT}{self.index}", "")
        since = time.monotonic()
        while self.index == 0 and self._left() < self.count and time.monotonic() - since < LAST:
            time.sleep(0.1)
        _exit(code)

    def _left(self) -> int:
        try:
            return len(self.client.key_value_dir_get(LEFT))
        except RuntimeError:
            return self.count

    def _tell(self, key: str, value: str) -> None:
        try:
            self.client.key_value_set(key, value)
        except RuntimeError:
            return  # another process was faster, or the coordinator is gone


class _Current:
    """The job of this process, if it belongs to one: jax knows no more than one, either."""

    planned: Place | None = None
    joining: bool = False
    job: Job | None = None


def plan(place: Place) -> None:
    """Says that this process belongs to a job which it will join: an error before is told to the others too."""
    place.check()
    _Current.planned = place


def join(place: Place, patience: float = PATIENCE) -> Job:
    """Joins a `jax.distributed` job: waits until all processes are there."""
    place.check()
    _Current.planned = None
    bind = None if place.coordinator == "auto" else os.environ.get(BIND) or place.coordinator
    if bind and place.process == 0:
        _require_free(bind)
    _Current.joining = True
    state = _initialize(place, bind, patience)
    job = Job(state.client, state.coordinator_address, state.process_id, state.num_processes)
    _Current.job, _Current.joining = job, False
    threading.Thread(target=job.watch, name="covey-job", daemon=True).start()
    return job


def process_group(place: Place | None) -> ProcessGroup:
    """Joins a job and returns its process group; without a job, the group of this process alone."""
    if place is None:
        return SingleProcess()
    join(place)
    import jax

    return JaxProcesses(jax.process_index(), jax.process_count())


def compare(options: Mapping[str, Any]) -> None:
    """Raises an error in all processes of this one's job, if it has one, unless they were given the same options."""
    if _Current.job:
        _Current.job.compare(options)


@contextmanager
def ending_together() -> Iterator[None]:
    """Ends all processes of a job with the first that fails. Does nothing where there is none."""
    try:
        yield
    except Stopped:
        _done()
        raise
    except BaseException as error:
        if _Current.planned or _Current.joining or _Current.job:
            _fail(error)
        raise
    _done()


def _done() -> None:
    if _Current.job:
        _Current.job.wait_for_first()


def _fail(error: BaseException) -> None:
    """Says why this process stops, here and to the others, and ends it."""
    match error:
        case LostProcess() if _Current.job and _Current.job.has_coordinator():
            said, code = _Current.job.stopped() or str(error), 1
        case CoveyError():
            said, code = str(error), 1
        case KeyboardInterrupt():
            said, code = "It was interrupted.", 130
        case SystemExit():  # a message was printed, or the help that was asked for
            said, code = "It was given wrong options.", error.code
        case _:
            traceback.print_exception(error)
            said, code = f"{type(error).__name__}: {error}", 1
    if isinstance(error, CoveyError):
        print(f"covey: {said}", file=sys.stderr, flush=True)
    if code:
        _end(said, code if isinstance(code, int) else 1)


def _end(text: str, code: int) -> None:
    """Ends this process and all others of its job, which say why."""
    if _Current.planned:
        with suppress(CoveyError):
            join(_Current.planned, TELL)
    if _Current.job:
        _Current.job.end(text, code)
    _exit(code)  # a thread of jax's may still try to join, and would keep Python from ending


def _initialize(place: Place, bind: str | None, patience: float) -> Any:
    """Lets jax meet the others in a thread, so that this one can say that it waits, and can be interrupted."""
    import jax
    from jax._src import distributed  # jax has no public way to the key-value store

    errors: list[BaseException] = []

    def work() -> None:
        try:
            jax.distributed.initialize(
                None if place.coordinator == "auto" else place.coordinator,
                place.processes,
                place.process,
                initialization_timeout=int(patience) + 60,  # then jax itself would abort
                heartbeat_timeout_seconds=HEARTBEAT,
                coordinator_bind_address=bind,
            )
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=work, name="covey-join", daemon=True)
    thread.start()
    thread.join(QUIET)
    if thread.is_alive() and patience > TELL:
        print(f"Waiting for {_missing(place)}.", file=sys.stderr, flush=True)
    thread.join(patience - QUIET)
    require(not thread.is_alive(), f"The job did not start in {patience:g} s: it still waits for {_missing(place)}.")
    if errors:
        raise CoveyError(f"The job at {place.coordinator} can't be joined: {_first(errors[0])}") from errors[0]
    return distributed.global_state


def _missing(place: Place) -> str:
    """Who is not there yet, as far as this process can know."""
    if place.coordinator == "auto":
        return "the other processes of the job"
    if place.process == 0:
        return f"the other processes of the {place.processes} of the job at {place.coordinator}"
    if not _answers(place.coordinator):
        return f"process 0: nothing answers at {place.coordinator} yet"
    return f"the other processes of the job at {place.coordinator}, where process 0 or another program answers"


def _answers(address: str) -> bool:
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), 1.0).close()
    except OSError:
        return False
    return True


def _require_free(address: str) -> None:
    """Raises an error where the coordinator could not listen: jax would crash."""
    host, _, port = address.rpartition(":")
    try:
        found = socket.getaddrinfo(host.strip("[]"), int(port), type=socket.SOCK_STREAM)
        family, kind, protocol, _, where = found[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # where a job has just ended, as jax does
            probe.bind(where)
            probe.listen()
    except (OSError, OverflowError) as error:
        raise CoveyError(
            f"Process 0 can't listen at {address}: {error}. Give --coordinator an address of this machine and a free "
            f"port; where the others reach it under another address, set {BIND}=HOST:PORT here."
        ) from error


def _first(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0][:200]


def _exit(code: int) -> None:
    with suppress(OSError, ValueError):  # nobody may read it any more
        sys.stdout.flush()
        sys.stderr.flush()
    if sys.stdout.isatty():
        os.write(1, b"\x1b[?25h")  # the cursor, which a progress bar hides
    _leave_process(code)
