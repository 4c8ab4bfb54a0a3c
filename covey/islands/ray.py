"""Runs islands on a Ray cluster: starts them, watches them, and restarts those that are lost."""

import importlib
import io
import os
import socket
import sys
import time
import traceback
from collections.abc import Iterator
from contextlib import chdir, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

from covey.backend import count_cores, on_device, use_cache, use_cpu_devices
from covey.callbacks import Hooks
from covey.errors import CoveyError, require
from covey.install import install_command
from covey.islands.board import Board, Island, MemberReport
from covey.islands.merge import fingerprint, merge, reached
from covey.plugins import allow, allowed, append_current_folder
from covey.run.config import RunConfig, read_run_config
from covey.run.config_text import to_json
from covey.run.console import Reporter
from covey.run.program import build, part
from covey.run.run import Run
from covey.run.session import Session
from covey.signals import signals_to
from covey.storage.folder import RunFolder

RESTARTS = 5
"""Restarts of an island without a newer checkpoint, before the run gives up."""
TIMEOUT = 10.0
"""Seconds to wait for the board, or for a cluster to answer."""
POLL = 0.5
"""Seconds between checks of the islands."""
MERGE = 60.0
"""Seconds between merges of their files."""
WAITING = 30.0
"""Seconds until a message names the resources that an island is waiting for."""
LOOPBACK = "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"
"""Ray's switch for clusters of several machines. With 0, its processes listen on 127.0.0.1 only."""


class Cluster(NamedTuple):
    """The cluster that runs the islands.

    Args:
        address: The address of an existing cluster, or `auto`. By default, Ray is started on this machine and stopped
            with the run.
    """

    address: str = ""


class Connection(NamedTuple):
    """A connection to Ray, and the plugins that the islands import first."""

    ray: Any
    plugins: tuple[str, ...]


class Ending(NamedTuple):
    """How an island's training ended, with its error message if it failed."""

    kind: Literal["done", "stopped", "failed"]
    text: str = ""


class RayBoardClient:
    """An island's access to a board that is a Ray actor (see `BoardClient`)."""

    def __init__(self, board: Any, island: int) -> None:
        self.board = board
        self.island = island
        self.ray = importlib.import_module("ray")

    def publish(self, reports: dict[int, MemberReport]) -> None:
        self.board.publish.remote(reports)

    def read(self) -> dict[int, MemberReport]:
        return self._get(self.board.read.remote()) or {}

    def collect(self, weights: Any) -> np.ndarray | None:
        return self._get(weights)

    def log(self, line: str) -> None:
        self.board.log.remote(self.island, line)

    def _get(self, reference: Any) -> Any:
        try:
            return self.ray.get(reference, timeout=TIMEOUT)
        except self.ray.exceptions.RayError:
            return None


class _BoardLog(io.StringIO):
    """A file whose lines are logged on the board."""

    def __init__(self, client: RayBoardClient) -> None:
        super().__init__()
        self.client = client
        self.rest = ""

    def write(self, text: str) -> int:
        *lines, self.rest = (self.rest + text).split("\n")
        for line in lines:
            self.client.log(line)
        return len(text)


class Worker:
    """A Ray actor that trains one island: a `Session` in the island's own folder.

    Args:
        number: The index of the island.
        path: The folder of the run.
        here: The folder in which covey was started. The worker runs there too, if its machine has it.
        board: The board, a Ray actor.
        cores: CPU cores of this worker.
        plugins: Modules to import first.
    """

    def __init__(self, number: int, path: Path, here: Path, board: Any, cores: int, plugins: tuple[str, ...]) -> None:
        self.number = number
        self.folder = RunFolder(path).island(number)
        self.here = here
        self.cores = cores
        self.plugins = plugins
        self.client = RayBoardClient(board, number)
        self.session: Session | None = None
        self.stopping = False

    def train(self) -> Ending:
        """Trains from the newest checkpoint to the end, or until it is asked to stop."""
        self.client.log(f"process {os.getpid()} on {socket.gethostname()}")
        try:
            self._train()
        except KeyboardInterrupt:
            return Ending("stopped")
        except CoveyError as error:
            return Ending("failed", str(error))
        except Exception:
            return Ending("failed", traceback.format_exc())
        return Ending("done")

    def stop(self) -> None:
        """Requests a stop: the island saves and stops after the current chunk."""
        self.stopping = True
        if self.session:
            self.session.stopping.asked = True

    def _train(self) -> None:
        with suppress(OSError):
            os.chdir(self.here)
        if self.plugins:
            append_current_folder()
        allow(*self.plugins)
        for name in self.plugins:
            importlib.import_module(name)
        require(
            self.folder.has_config(),
            f"{socket.gethostname()} has no folder {self.folder.path}. All machines of the cluster need access to the "
            "run folder: set `out` to a folder on a shared file system.",
        )
        config = read_run_config(self.folder)
        use_cache()
        use_cpu_devices(max(1, config.members // config.islands), config.devices, self.cores)
        with self.folder.lock(), on_device(config.device):
            program = build(config, Island(self.number, config.members, _donors(config), self.client))
            run = Run(self.folder, config, program.policy)
            self.session = Session(program, run, Reporter(file=_BoardLog(self.client)), Hooks())
            self.session.stopping.asked = self.stopping
            try:
                self.session.run()
            finally:
                self.session.end()


@dataclass
class _RunningIsland:
    """An island as the driver sees it."""

    worker: Any
    ending: Any
    """A reference to its future `Ending`."""
    waiting_since: float
    start_step: int
    restarts: int = 0
    """Restarts without progress."""
    has_reported: bool = False
    """Its worker has logged something, so it has started."""


@dataclass
class Driver:
    """Starts the islands of a run and watches over them."""

    ray: Any
    config: RunConfig[Any, Any]
    folder: RunFolder
    reporter: Reporter
    plugins: tuple[str, ...]
    running: dict[int, _RunningIsland] = field(default_factory=dict, init=False)
    stop_asked: bool = field(default=False, init=False)
    error: CoveyError | None = field(default=None, init=False)
    merged: list[Any] = field(default_factory=list, init=False)
    """The fingerprint of the islands' files when they were last merged."""

    def run(self) -> None:
        """Trains to the end. After a stop request it raises KeyboardInterrupt, once all islands have saved."""
        nodes = [node["Resources"] for node in self.ray.nodes() if node["Alive"]]
        self.cores, self.accelerators = (share([n.get(x, 0.0) for n in nodes], self.config.islands) for x in RESOURCES)
        self.board = self.ray.remote(num_cpus=0, max_restarts=-1)(Board).remote(self.ray.put)
        for number in range(self.config.islands):
            self._start(number)
        try:
            with signals_to(self._on_signal):
                self._watch()
        finally:
            for island in self.running.values():
                self.ray.kill(island.worker)
            self.ray.kill(self.board)
        if self.error:
            raise self.error
        if self.stop_asked:
            raise KeyboardInterrupt

    def _watch(self) -> None:
        merged_at = time.monotonic()
        while self.running:
            endings = {island.ending: number for number, island in self.running.items()}
            ready, _ = self.ray.wait(list(endings), timeout=POLL)
            self._print_log()
            for ending in ready:
                self._ended(endings[ending], ending)
            if time.monotonic() - merged_at > MERGE:
                self._merge()
                merged_at = time.monotonic()
        self._print_log()

    def _start(self, number: int, restarts: int = 0) -> None:
        """Starts an island, from its newest checkpoint if it has one."""
        resources: dict[str, Any] = {"num_cpus": self.cores, "num_gpus": self.accelerators, "max_concurrency": 2}
        if 0 < self.accelerators < 1:
            memory = f"{0.9 * self.accelerators:.3f}"
            resources["runtime_env"] = {"env_vars": {"XLA_PYTHON_CLIENT_MEM_FRACTION": memory}}
        about = (number, self.folder.path.absolute(), Path.cwd(), self.board, max(1, int(self.cores)), self.plugins)
        worker = self.ray.remote(**resources)(Worker).remote(*about)
        start_step = reached(self.folder, number)
        self.running[number] = _RunningIsland(worker, worker.train.remote(), time.monotonic(), start_step, restarts)

    def _print_log(self) -> None:
        """Prints the lines that the islands have logged, and names the resources that one is waiting for."""
        try:
            lines = self.ray.get(self.board.take_log.remote(), timeout=TIMEOUT)
        except self.ray.exceptions.RayError:
            return  # the board is being restarted and is empty
        for number, line in lines:
            self.reporter.say(f"island {number}: {line}")
            if number in self.running:
                self.running[number].has_reported = True
        for number, island in self.running.items():
            if not island.has_reported and time.monotonic() - island.waiting_since > WAITING:
                island.waiting_since = time.monotonic()
                resources = f"{self.cores:g} CPUs" + (f" and {self.accelerators:g} GPUs" if self.accelerators else "")
                self.reporter.say(f"island {number}: waiting for {resources} of the cluster")

    def _ended(self, number: int, ending: Any) -> None:
        """Handles the end of an island's worker."""
        island = self.running.pop(number)
        try:
            kind, text = self.ray.get(ending)
        except self.ray.exceptions.RayError as error:
            kind, text = "lost", str(error)
        self.ray.kill(island.worker)
        if kind == "done":
            self.reporter.say(f"island {number}: done")
        elif kind != "stopped" and not self.stop_asked and not self.error:
            self.reporter.say(f"island {number}: {kind}: {_summary(text)}")
            self._restart(number, island, text)

    def _restart(self, number: int, island: _RunningIsland, text: str) -> None:
        """Restarts an island that failed or was lost; without progress for too long, gives up with its last error."""
        step = reached(self.folder, number)
        restarts = 1 if step > island.start_step else island.restarts + 1
        if restarts <= RESTARTS:
            self.reporter.say(f"island {number}: restarted from step {step:,} ({restarts} of {RESTARTS})")
            self._start(number, restarts)
            return
        self.error = CoveyError(
            f"Island {number} was restarted {RESTARTS} times without getting beyond step {step:,}. All checkpoints are "
            f"kept: remove the cause, then continue with `covey resume {self.folder.path}`. Its last error:\n"
            f"{text.strip()}"
        )
        self._stop_all()

    def _on_signal(self, number: int, frame: Any) -> None:
        """Lets the islands save and stop at the first Ctrl-C or SIGTERM; stops at once at the second."""
        if self.stop_asked:
            raise KeyboardInterrupt
        self.stop_asked = True
        self.reporter.say("Stopping: all islands save first. (Press Ctrl-C again to stop at once.)")
        self._stop_all()

    def _stop_all(self) -> None:
        for island in self.running.values():
            if island.has_reported:
                island.worker.stop.remote()
            else:  # its worker has not started: there is nothing to save
                self.ray.kill(island.worker)

    def _merge(self) -> None:
        """Merges the islands' files while they train, if there is anything new.

        A file that is being replaced at this moment can't be read; it is merged the next time.
        """
        try:
            found = fingerprint(self.folder, self.config.islands)
            if found != self.merged:
                merge(self.folder, self.config.islands, self.config.members)
                self.merged = found
        except (OSError, CoveyError):
            return


RESOURCES = ("CPU", "GPU")
"""Names of Ray's resources: cores and accelerators."""


def train_islands(config: RunConfig[Any, Any], folder: RunFolder, reporter: Reporter, connection: Connection) -> None:
    """Trains the islands of a run to the end. Merges their files even if it fails."""
    for number in range(config.islands):
        if not folder.island(number).has_config():
            folder.island(number).create(to_json(config))
    try:
        Driver(connection.ray, config, folder, reporter, connection.plugins).run()
    finally:
        merge(folder, config.islands, config.members)


@contextmanager
def connected(config: RunConfig[Any, Any], cluster: Cluster, reporter: Reporter) -> Iterator[Connection | None]:
    """Connects to a cluster, or starts Ray on this machine and stops it afterwards; yields None for a local run.

    Enter it before jax is used: Ray forks the process, and jax's threads do not survive that.
    """
    require(config.engine == "ray" or not cluster.address, f"`ray_address` {cluster.address} needs `engine` ray.")
    if config.engine != "ray":
        yield None
        return
    config.check()
    part(config.members, config.islands, "islands")
    ray = _import_ray(cluster.address)
    if ray.is_initialized():  # by the caller, who also shuts it down
        yield Connection(ray, allowed())
        return
    _init(ray, cluster.address, reporter)
    try:
        yield Connection(ray, allowed())
    finally:
        ray.shutdown()


def _init(ray: Any, address: str, reporter: Reporter) -> None:
    quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": "ERROR"}
    # Ray's workers search the current folder for modules first, so it must be another one meanwhile.
    what = f"Connecting to Ray at {address}" if address else "Starting Ray on this machine"
    with reporter.busy(what), chdir(sys.prefix):
        if address:
            _connect(ray, address, quiet)
        else:
            _require_loopback(ray)
            ray.init("local", num_cpus=count_cores(), include_dashboard=False, **quiet)


def share(capacities: list[float], parts: int) -> float:
    """Returns the largest share of a resource that each of equal parts can have, each part on a single machine.

    It is a whole number, or a fraction below 1.

    Args:
        capacities: The resource of each machine.
        parts: The number of parts.
    """
    shares = {capacity / k for capacity in capacities for k in range(1, parts + 1)}
    shares = {float(int(each)) if each >= 1 else int(1e4 * each) / 1e4 for each in shares} - {0.0}
    fitting = [each for each in shares if sum(int(c / each + 1e-9) for c in capacities) >= parts]
    return max(fitting, default=0.0)


def _summary(text: str) -> str:
    """Returns the most informative line of a message: the first or, of a traceback, the last."""
    lines = text.strip().splitlines() or ["for an unknown reason"]
    return lines[-1 if lines[0].startswith("Traceback") else 0]


def _donors(config: RunConfig[Any, Any]) -> int:
    """Returns how many members of all islands may be copied."""
    assert config.pbt
    return config.pbt.donors(config.members)


def _import_ray(address: str) -> Any:
    """Imports Ray, which reads these environment variables when it is first imported."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    if not address and "ray" not in sys.modules:
        os.environ.setdefault(LOOPBACK, "0")
    try:
        return importlib.import_module("ray")
    except ImportError as error:
        raise CoveyError(f"`engine` ray needs Ray ({error}). Install it:\n  {install_command('ray')}") from None


def _require_loopback(ray: Any) -> None:
    """Raises a CoveyError if Ray would listen on another address than 127.0.0.1."""
    address = ray.util.get_node_ip_address()
    require(
        address in ("127.0.0.1", "::1"),
        f"Ray would listen on {address}, where other machines can reach it, because it was imported or configured "
        f"before covey could prevent that. Set {LOOPBACK}=0 before Python starts, or call ray.init() yourself.",
    )


def _connect(ray: Any, address: str, quiet: dict[str, Any]) -> None:
    host, _, port = address.rpartition(":")
    if port.isdigit() and "/" not in host:
        try:
            socket.create_connection((host, int(port)), TIMEOUT).close()  # Ray itself would try for minutes
        except OSError as error:
            raise CoveyError(f"Nothing answers at `ray_address` {address}: {error}.") from None
    try:
        ray.init(address, **quiet)
    except (ConnectionError, RuntimeError, ValueError, ray.exceptions.RayError) as error:
        raise CoveyError(
            f"Ray can't connect to {address}: {_summary(str(error))}. Does the cluster have the same versions of Ray "
            "and Python? If it requires a token, set RAY_AUTH_MODE and RAY_AUTH_TOKEN here as there."
        ) from error
