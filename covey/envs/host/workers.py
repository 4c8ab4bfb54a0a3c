"""Host environments in worker processes, for those that are slow to step or may crash."""

import ctypes
import multiprocessing
import signal
import sys
import threading
import traceback
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.connection import Connection, wait
from multiprocessing.util import Finalize
from typing import Any

import numpy as np

from covey.envs.base import HostBatch, HostStep
from covey.envs.host.parts import joined
from covey.errors import CoveyError, require
from covey.observation import Obs
from covey.plugins import safe_path, unset_safe_path

MOST_CRASHES = 3
"""The run ends when a worker crashes this many times with fewer than CALM steps between the crashes."""
CALM = 100
START_SECONDS = 120.0
"""The longest that a worker may take to start, also on a busy machine."""
PR_SET_PDEATHSIG = 1
"""Linux's `prctl` option: the signal that a process gets when the thread that started it ends."""


class CrashError(Exception):
    """A worker died or hung, or its environment raised an error (the message is then the worker's traceback)."""


class Worker:
    """A worker process with some of the environments. Requests are answered in order.

    Args:
        payload: A pickled pair: a function that opens a batch, and the number of environments.
        patience: Seconds that a request may take.
    """

    def __init__(self, payload: bytes, patience: float) -> None:
        context = multiprocessing.get_context("spawn")
        self._here, there = context.Pipe()
        self.process = context.Process(target=_serve, args=(there, payload), daemon=True)
        with safe_path():
            self.process.start()
        there.close()
        # At exit multiprocessing would send SIGTERM, which workers ignore.
        Finalize(self, self.process.kill, exitpriority=1)
        self._patience = patience
        self._is_up = False

    def ask(self, method: str, *arguments: Any) -> None:
        """Sends a request: a method of HostBatch and its arguments."""
        with suppress(OSError):  # the worker died: `answer` raises the error
            self._here.send((method, arguments))

    def answer(self) -> Any:
        """Waits for the result of the oldest request; raises a CrashError if it failed."""
        if not self._is_up:
            self._receive(START_SECONDS)
            self._is_up = True
        return self._receive(self._patience)

    def _receive(self, patience: float) -> Any:
        try:
            if not self._here.poll(patience):
                raise CrashError(f"it did not answer within {patience:g} s")
            succeeded, value = self._here.recv()
        except (EOFError, OSError):
            self.process.join(1.0)
            raise CrashError(f"its process died (exit code {self.process.exitcode})") from None
        if not succeeded:
            raise CrashError(value)
        return value

    def call(self, method: str, *arguments: Any) -> Any:
        """Sends a request and waits for its result."""
        self.ask(method, *arguments)
        return self.answer()

    def stop(self) -> None:
        """Kills the process."""
        self._here.close()
        self.process.kill()
        self.process.join()


class WorkerBatch:
    """A `HostBatch` of N environments in worker processes. A worker that dies or hangs is restarted with new episodes.

    Args:
        make: Opens a batch of a given size in a worker.
        count: N.
        workers: The number of processes.
        name: The environment's name, for error messages.
        patience: Seconds that a step may take.
        parts: The number of parts of the reward; 0 if it has one.
    """

    def __init__(
        self,
        make: Callable[[int], HostBatch],
        count: int,
        workers: int,
        name: str,
        patience: float = 60.0,
        parts: int = 0,
    ) -> None:
        require(
            0 < workers <= count, f"`workers` must be between 1 and {count}, the number of environments, not {workers}."
        )
        shares = np.array_split(np.arange(count), workers)
        self._places = [slice(int(share[0]), int(share[-1]) + 1) for share in shares]
        self._payloads = [_pickled((make, len(share)), name) for share in shares]
        self._parts = (parts,) if parts else ()
        self._patience = patience
        self._name = name
        self._seeds = np.zeros(count, np.uint32)
        self._crashes = np.zeros(workers, int)
        self._calm = np.zeros(workers, int)
        self._workers = [Worker(payload, patience) for payload in self._payloads]

    def reset(self, seeds: np.ndarray) -> Obs:
        self._seeds = np.array(seeds, np.uint32)
        return joined(self._all("reset", seeds))

    def restart(self, seeds: np.ndarray) -> None:
        self._seeds = np.array(seeds, np.uint32)
        self._all("restart", seeds)

    def step(self, actions: np.ndarray) -> HostStep:
        for worker, place in zip(self._workers, self._places, strict=True):
            worker.ask("step", actions[place])
        obs, *others = zip(*(self._stepped(i) for i in range(len(self._workers))), strict=True)
        return HostStep(joined(obs), *map(np.concatenate, others))

    def save(self) -> np.ndarray:
        return np.concatenate(self._all("save"))

    def load(self, states: np.ndarray) -> None:
        self._all("load", states)

    def frame(self, index: int) -> np.ndarray:
        at = next(i for i, place in enumerate(self._places) if place.start <= index < place.stop)
        return self._workers[at].call("frame", index - self._places[at].start)

    def close(self) -> None:
        for worker in self._workers:
            worker.stop()

    def _all(self, method: str, *each: np.ndarray) -> list[Any]:
        """Sends a request to every worker, with its part of the arrays [N, ...], and returns the results."""
        for worker, place in zip(self._workers, self._places, strict=True):
            worker.ask(method, *(x[place] for x in each))
        try:
            return [worker.answer() for worker in self._workers]
        except CrashError as error:
            raise CoveyError(f"A worker of the environment {self._name} failed: {error}") from None

    def _stepped(self, index: int) -> HostStep:
        """Returns a worker's results of a step; restarts it if it failed."""
        try:
            found = self._workers[index].answer()
            self._calm[index] += 1
            return found
        except CrashError as error:
            return self._restarted(index, str(error))

    def _restarted(self, index: int, reason: str) -> HostStep:
        """Replaces a worker that failed: its episodes are broken, and new ones start from new seeds."""
        self._crashes[index] = self._crashes[index] + 1 if self._calm[index] < CALM else 1
        self._calm[index] = 0
        self._workers[index].stop()
        require(
            self._crashes[index] < MOST_CRASHES,
            f"A worker of the environment {self._name} failed {self._crashes[index]} times in a row, with fewer than "
            f"{CALM} steps in between. The last time: {reason}",
        )
        place = self._places[index]
        worker = Worker(self._payloads[index], self._patience)
        self._workers[index] = worker
        sequence = np.random.SeedSequence([*self._seeds[place].tolist(), 1])
        self._seeds[place] = sequence.generate_state(place.stop - place.start)
        try:
            obs = worker.call("reset", self._seeds[place])
        except CrashError as error:
            return self._restarted(index, str(error))
        none = np.zeros(place.stop - place.start, bool)
        return HostStep(obs, np.zeros((len(none), *self._parts), np.float32), none, none, ~none)


def _pickled(payload: Any, name: str) -> bytes:
    import cloudpickle

    try:
        return cloudpickle.dumps(payload)
    except Exception as error:  # an object may raise anything when it is pickled
        raise CoveyError(
            f"The environment {name} can't be sent to worker processes: {type(error).__name__}: {error}. Pass a class "
            "or a function that makes it from what it can import, or leave `workers` out."
        ) from None


def _serve(requests: Connection, payload: bytes) -> None:
    """Runs in a worker: opens the batch and answers requests until the connection closes."""
    import cloudpickle

    unset_safe_path()
    _end_with_parent()
    batches: list[HostBatch] = []

    def start() -> None:
        make, count = cloudpickle.loads(payload)
        batches.append(make(count))

    with suppress(EOFError, OSError):  # the training process has ended
        requests.send(_answer(start))
        while batches:
            method, arguments = requests.recv()
            requests.send(_answer(getattr(batches[0], method), *arguments))


def _answer(work: Callable[..., Any], *arguments: Any) -> tuple[bool, Any]:
    """Returns (True, the result), or (False, the error message)."""
    try:
        return True, work(*arguments)
    except CoveyError as error:
        return False, str(error)
    except Exception:
        return False, traceback.format_exc().rstrip()


def _end_with_parent() -> None:
    """Ends this worker when the training process ends, however that happens and whatever an environment is doing.

    Signals that the whole process group gets (Ctrl-C, a closed terminal, the end of a job) are ignored here: the
    training process handles them, and needs its environments to save a checkpoint first.
    """
    for name in ("SIGINT", "SIGTERM", "SIGHUP"):
        if hasattr(signal, name):
            signal.signal(getattr(signal, name), signal.SIG_IGN)
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    parent = multiprocessing.parent_process()
    assert parent

    def watch() -> None:
        wait([parent.sentinel])
        signal.raise_signal(signal.SIGKILL)

    threading.Thread(target=watch, name="covey-parent", daemon=True).start()
