"""Environments in processes of their own, for those that are slow to step or that may crash."""

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
from covey.errors import CoveyError, require
from covey.plugins import safe_path, unset_safe_path

MOST_CRASHES = 3
"""So many crashes of a worker in a row, with fewer than CALM steps between them, end the run."""
CALM = 100
START_SECONDS = 120.0
"""How long a worker may take to start, on a busy machine."""
PR_SET_PDEATHSIG = 1
"""Linux: a process is sent a signal when the thread that started it ends."""


class CrashError(Exception):
    """A worker died, hung, or its environment raised an error; the text is the worker's own traceback, or says so."""


class Worker:
    """A process with some of the environments, and the requests under way to it."""

    def __init__(self, payload: bytes, patience: float) -> None:
        context = multiprocessing.get_context("spawn")
        self._here, there = context.Pipe()
        self.process = context.Process(target=_serve, args=(there, payload), daemon=True)
        with safe_path():
            self.process.start()
        there.close()
        Finalize(self, self.process.kill, exitpriority=1)  # workers ignore the SIGTERM that multiprocessing would send
        self._patience, self._is_up = patience, False

    def ask(self, method: str, *arguments: Any) -> None:
        with suppress(OSError):  # it died; `answer` says so
            self._here.send((method, arguments))

    def answer(self) -> Any:
        """What the oldest request gave."""
        if not self._is_up:
            self._receive(START_SECONDS)
            self._is_up = True
        return self._receive(self._patience)

    def _receive(self, patience: float) -> Any:
        try:
            if not self._here.poll(patience):
                raise CrashError(f"it did not answer within {patience:g} s")
            went_well, value = self._here.recv()
        except (EOFError, OSError):
            self.process.join(1.0)
            raise CrashError(f"its process died (exit code {self.process.exitcode})") from None
        if not went_well:
            raise CrashError(value)
        return value

    def call(self, method: str, *arguments: Any) -> Any:
        self.ask(method, *arguments)
        return self.answer()

    def stop(self) -> None:
        self._here.close()
        self.process.kill()
        self.process.join()


class WorkerBatch:
    """N environments spread over processes. A process that dies or hangs is started again, with new episodes."""

    def __init__(
        self, make: Callable[[int], HostBatch], count: int, workers: int, name: str, patience: float = 60.0
    ) -> None:
        import cloudpickle

        require(0 < workers <= count, f"--workers {workers} must lie between 1 and the {count} environments.")
        shares = np.array_split(np.arange(count), workers)
        self._places = [slice(int(share[0]), int(share[-1]) + 1) for share in shares]
        self._payloads = [cloudpickle.dumps((make, len(share))) for share in shares]
        self._patience, self._name = patience, name
        self._seeds = np.zeros(count, np.uint32)
        self._crashes, self._calm = np.zeros(workers, int), np.zeros(workers, int)
        self._workers = [Worker(payload, patience) for payload in self._payloads]

    def reset(self, seeds: np.ndarray) -> np.ndarray:
        self._seeds = np.array(seeds, np.uint32)
        return np.concatenate(self._all("reset", seeds))

    def restart(self, seeds: np.ndarray) -> None:
        self._seeds = np.array(seeds, np.uint32)
        self._all("restart", seeds)

    def step(self, actions: np.ndarray) -> HostStep:
        for worker, place in zip(self._workers, self._places, strict=True):
            worker.ask("step", actions[place])
        return HostStep(*map(np.concatenate, zip(*(self._stepped(i) for i in range(len(self._workers))), strict=True)))

    def save(self) -> np.ndarray:
        return np.concatenate(self._all("save"))

    def load(self, states: np.ndarray) -> None:
        self._all("load", states)

    def frame(self, number: int) -> np.ndarray:
        at = next(i for i, place in enumerate(self._places) if place.start <= number < place.stop)
        return self._workers[at].call("frame", number - self._places[at].start)

    def close(self) -> None:
        for worker in self._workers:
            worker.stop()

    def _all(self, method: str, *each: np.ndarray) -> list[Any]:
        """A request to every worker, with its share of arrays [N, ...]."""
        for worker, place in zip(self._workers, self._places, strict=True):
            worker.ask(method, *(x[place] for x in each))
        try:
            return [worker.answer() for worker in self._workers]
        except CrashError as error:
            raise CoveyError(f"A worker of the environment {self._name} failed: {error}") from None

    def _stepped(self, number: int) -> HostStep:
        try:
            found = self._workers[number].answer()
            self._calm[number] += 1
            return found
        except CrashError as error:
            return self._started_again(number, str(error))

    def _started_again(self, number: int, reason: str) -> HostStep:
        """A new worker in the place of one that failed: its episodes are broken, and others begin."""
        self._crashes[number] = self._crashes[number] + 1 if self._calm[number] < CALM else 1
        self._calm[number] = 0
        self._workers[number].stop()
        require(
            self._crashes[number] < MOST_CRASHES,
            f"A worker of the environment {self._name} failed {self._crashes[number]} times in a row, with fewer than "
            f"{CALM} steps in between. The last time: {reason}",
        )
        place, worker = self._places[number], Worker(self._payloads[number], self._patience)
        self._workers[number] = worker
        sequence = np.random.SeedSequence([*self._seeds[place].tolist(), 1])
        self._seeds[place] = sequence.generate_state(place.stop - place.start)
        try:
            obs = worker.call("reset", self._seeds[place])
        except CrashError as error:
            return self._started_again(number, str(error))
        none = np.zeros(len(obs), bool)
        return HostStep(obs, np.zeros(len(obs), np.float32), none, none, ~none)


def _serve(requests: Connection, payload: bytes) -> None:
    """A worker's life: it answers until nobody asks any more."""
    import cloudpickle

    unset_safe_path()
    _end_with_parent()
    batches: list[HostBatch] = []

    def begin() -> None:
        make, count = cloudpickle.loads(payload)
        batches.append(make(count))

    with suppress(EOFError, OSError):  # the process that trains is gone
        requests.send(_answer(begin))
        while batches:
            method, arguments = requests.recv()
            requests.send(_answer(getattr(batches[0], method), *arguments))


def _answer(work: Callable[..., Any], *arguments: Any) -> tuple[bool, Any]:
    """Whether it went well, and the result or what went wrong."""
    try:
        return True, work(*arguments)
    except CoveyError as error:
        return False, str(error)
    except Exception:
        return False, traceback.format_exc().rstrip()


def _end_with_parent() -> None:
    """Ends this process with the one that trains, however that ends and whatever an environment does meanwhile.

    Signals to the whole group, such as Ctrl-C, a closed terminal or a job that is ended, are for the process that
    trains: it saves first, and needs its environments for that.
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
