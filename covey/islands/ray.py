"""Islands of members on a Ray cluster: started, watched, and started again where one is lost."""

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

from covey.backend import count_cores, use_cache, use_cpu_devices
from covey.errors import CoveyError, require
from covey.islands.board import Board, Island, MemberReport
from covey.islands.merge import merge, reached
from covey.plugins import allow, allowed, append_current_folder
from covey.run.config import RunConfig, read_run_config
from covey.run.config_text import to_json
from covey.run.console import Reporter
from covey.run.program import build, part
from covey.run.session import Session
from covey.signals import signals_to
from covey.storage.folder import RunFolder

RESTARTS = 5
"""How often an island is started again without a newer checkpoint, before the run gives up."""
PATIENCE = 10.0
"""Seconds that anybody waits for the board."""
POLL, MERGE, WAITING = 0.5, 60.0, 30.0
"""Seconds between looks at the islands, between merges of their files, and until a missing worker is named."""
LOOPBACK = "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"
"""Ray's switch for clusters of several machines. Turned off, its processes listen on 127.0.0.1 alone."""


class Cluster(NamedTuple):
    """Where the islands are to run."""

    address: str = ""
    """An existing cluster's, or `auto`; by default Ray is started on this machine, and ended with the run."""


class Connection(NamedTuple):
    """Ray, connected to where the islands are to run, and the modules that they import first."""

    ray: Any
    plugins: tuple[str, ...]


class Ending(NamedTuple):
    """How an island's training ended, and what it said."""

    kind: Literal["done", "stopped", "failed"]
    text: str = ""


class RayBoardClient:
    """An island's way to a board that is a Ray actor."""

    def __init__(self, board: Any, island: int) -> None:
        self.board, self.island, self.ray = board, island, importlib.import_module("ray")

    def publish(self, reports: dict[int, MemberReport]) -> None:
        self.board.publish.remote(reports)

    def read(self) -> dict[int, MemberReport]:
        return self._get(self.board.read.remote()) or {}

    def collect(self, weights: Any) -> np.ndarray | None:
        return self._get(weights)

    def tell(self, line: str) -> None:
        self.board.tell.remote(self.island, line)

    def _get(self, reference: Any) -> Any:
        try:
            return self.ray.get(reference, timeout=PATIENCE)
        except self.ray.exceptions.RayError:
            return None


class _Lines(io.StringIO):
    """A file whose lines go to the board."""

    def __init__(self, client: RayBoardClient) -> None:
        super().__init__()
        self.client, self.rest = client, ""

    def write(self, text: str) -> int:
        *lines, self.rest = (self.rest + text).split("\n")
        for line in lines:
            self.client.tell(line)
        return len(text)


class Worker:
    """One island, in a process of its own: a Session in a folder of its own."""

    def __init__(self, number: int, path: Path, here: Path, board: Any, cores: int, plugins: tuple[str, ...]) -> None:
        """`here` is the folder in which covey was started: the island runs there too, if it sees it."""
        self.number, self.folder, self.cores, self.plugins = number, RunFolder(path).island(number), cores, plugins
        self.here = here
        self.client = RayBoardClient(board, number)
        self.session: Session | None = None
        self.stopping = False

    def train(self) -> Ending:
        """Trains from the newest checkpoint to the end, or until it is asked to stop."""
        self.client.tell(f"process {os.getpid()} on {socket.gethostname()}")
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
        """Asks it to save and stop. It does so after the chunk that it is at."""
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
            self.folder.config.exists(),
            f"{socket.gethostname()} does not see {self.folder.path}. The run folder must lie where all machines of "
            "the cluster see it: give --out on a file system that they share.",
        )
        config = read_run_config(self.folder)
        use_cache()
        use_cpu_devices(max(1, config.members // config.islands), config.devices, self.cores)
        with self.folder.lock():
            program = build(config, Island(self.number, config.members, _donors(config), self.client))
            self.session = Session(program, self.folder, Reporter(file=_Lines(self.client)))
            self.session.stopping.asked = self.stopping
            self.session.run()


@dataclass
class _Started:
    """An island as the driver sees it."""

    worker: Any
    ending: Any
    since: float
    reached: int
    """The step that it started from."""
    restarts: int = 0
    """Without progress."""
    heard: bool = False


@dataclass
class Driver:
    """Starts the islands of a run and watches over them."""

    ray: Any
    config: RunConfig[Any, Any]
    folder: RunFolder
    reporter: Reporter
    plugins: tuple[str, ...]
    running: dict[int, _Started] = field(default_factory=dict, init=False)
    stop_asked: bool = field(default=False, init=False)
    error: CoveyError | None = field(default=None, init=False)

    def run(self) -> None:
        """Trains to the end. Raises KeyboardInterrupt if asked to stop, after all islands have saved."""
        nodes = [node["Resources"] for node in self.ray.nodes() if node["Alive"]]
        self.cores, self.accelerators = (share([n.get(x, 0.0) for n in nodes], self.config.islands) for x in RESOURCES)
        self.board = self.ray.remote(num_cpus=0, max_restarts=-1)(Board).remote(self.ray.put)
        for number in range(self.config.islands):
            self._start(number)
        try:
            with signals_to(self._ask):
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
        merged = time.monotonic()
        while self.running:
            endings = {island.ending: number for number, island in self.running.items()}
            ready, _ = self.ray.wait(list(endings), timeout=POLL)
            self._show_news()
            for ending in ready:
                self._ended(endings[ending], ending)
            if time.monotonic() - merged > MERGE:
                self._merge()
                merged = time.monotonic()
        self._show_news()

    def _start(self, number: int, restarts: int = 0) -> None:
        """Starts an island; it goes on from its newest checkpoint, if it has one."""
        resources: dict[str, Any] = {"num_cpus": self.cores, "num_gpus": self.accelerators, "max_concurrency": 2}
        if 0 < self.accelerators < 1:
            memory = f"{0.9 * self.accelerators:.3f}"
            resources["runtime_env"] = {"env_vars": {"XLA_PYTHON_CLIENT_MEM_FRACTION": memory}}
        about = (number, self.folder.path.absolute(), Path.cwd(), self.board, max(1, int(self.cores)), self.plugins)
        worker = self.ray.remote(**resources)(Worker).remote(*about)
        from_step = reached(self.folder, number)
        self.running[number] = _Started(worker, worker.train.remote(), time.monotonic(), from_step, restarts)

    def _show_news(self) -> None:
        try:
            news = self.ray.get(self.board.news.remote(), timeout=PATIENCE)
        except self.ray.exceptions.RayError:
            return  # the board is being started again: it knows nothing yet
        for number, line in news:
            self.reporter.say(f"island {number}: {line}")
            if number in self.running:
                self.running[number].heard = True
        for number, island in self.running.items():
            if not island.heard and time.monotonic() - island.since > WAITING:
                island.since = time.monotonic()
                what = f"{self.cores:g} CPUs" + (f" and {self.accelerators:g} GPUs" if self.accelerators else "")
                self.reporter.say(f"island {number}: waits until {what} of the cluster are free")

    def _ended(self, number: int, ending: Any) -> None:
        island = self.running.pop(number)
        try:
            kind, text = self.ray.get(ending)
        except self.ray.exceptions.RayError as error:
            kind, text = "lost", str(error)
        self.ray.kill(island.worker)
        if kind == "done":
            self.reporter.say(f"island {number}: done")
        elif kind != "stopped" and not self.stop_asked and not self.error:
            self.reporter.say(f"island {number}: {kind}: {_in_short(text)}")
            self._start_again(number, island, text)

    def _start_again(self, number: int, island: _Started, text: str) -> None:
        """Starts an island that failed or was lost, or gives up with what it said last."""
        step = reached(self.folder, number)
        restarts = 1 if step > island.reached else island.restarts + 1
        if restarts <= RESTARTS:
            self.reporter.say(f"island {number}: started again from step {step:,} ({restarts} of {RESTARTS})")
            self._start(number, restarts)
            return
        self.error = CoveyError(
            f"Island {number} was started again {RESTARTS} times and came no further than step {step:,}. What the "
            f"islands have saved is kept: once the cause is gone, `covey resume {self.folder.path}` goes on. It said:\n"
            f"{text.strip()}"
        )
        self._stop_all()

    def _ask(self, number: int, frame: Any) -> None:
        """The first Ctrl-C or SIGTERM lets the islands save and stop; the second stops them at once."""
        if self.stop_asked:
            raise KeyboardInterrupt
        self.stop_asked = True
        self.reporter.say("Stopping: all islands save first. (Again to stop at once.)")
        self._stop_all()

    def _stop_all(self) -> None:
        for island in self.running.values():
            if island.heard:
                island.worker.stop.remote()
            else:  # it has no worker yet, and nothing to save
                self.ray.kill(island.worker)

    def _merge(self) -> None:
        """While the islands write: what is just being replaced is merged the next time."""
        try:
            merge(self.folder, self.config.islands, self.config.members)
        except (OSError, CoveyError):
            return


RESOURCES = ("CPU", "GPU")


def train_islands(config: RunConfig[Any, Any], folder: RunFolder, reporter: Reporter, connection: Connection) -> None:
    """Trains the islands of a run to the end, and puts their files together, whatever happens."""
    for number in range(config.islands):
        if not folder.island(number).config.exists():
            folder.island(number).create(to_json(config))
    try:
        Driver(connection.ray, config, folder, reporter, connection.plugins).run()
    finally:
        merge(folder, config.islands, config.members)


@contextmanager
def connected(config: RunConfig[Any, Any], cluster: Cluster, reporter: Reporter) -> Iterator[Connection | None]:
    """A connection to a cluster, or to Ray started on this machine and ended afterwards; None for a local run.

    Enter it before jax is used: Ray forks, which jax's threads may not survive.
    """
    require(
        config.engine == "ray" or not cluster.address, f"--ray-address {cluster.address} needs a run with --engine ray."
    )
    if config.engine != "ray":
        yield None
        return
    config.check()
    part(config.members, config.islands, "islands")
    ray = _ray(cluster.address)
    if ray.is_initialized():  # by whoever called us, who also ends it
        yield Connection(ray, allowed())
        return
    _init(ray, cluster.address, reporter)
    try:
        yield Connection(ray, allowed())
    finally:
        ray.shutdown()


def _init(ray: Any, address: str, reporter: Reporter) -> None:
    quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": "ERROR"}
    # Ray lets its workers look for modules in the current folder first, so that it must be another one meanwhile.
    what = f"Connecting to Ray at {address}" if address else "Starting Ray on this machine"
    with reporter.busy(what), chdir(sys.prefix):
        if address:
            _connect(ray, address, quiet)
        else:
            _require_loopback(ray)
            ray.init("local", num_cpus=count_cores(), include_dashboard=False, **quiet)


def share(capacities: list[float], parts: int) -> float:
    """The most that each of equal parts can have, none of which lies on two machines; whole numbers or a fraction."""
    shares = {capacity / k for capacity in capacities for k in range(1, parts + 1)}
    shares = {float(int(each)) if each >= 1 else int(1e4 * each) / 1e4 for each in shares} - {0.0}
    fitting = [each for each in shares if sum(int(c / each + 1e-9) for c in capacities) >= parts]
    return max(fitting, default=0.0)


def _in_short(text: str) -> str:
    """The line of a message that says most: the first or, of a traceback, the last."""
    lines = text.strip().splitlines() or ["for no known reason"]
    return lines[-1 if lines[0].startswith("Traceback") else 0]


def _donors(config: RunConfig[Any, Any]) -> int:
    assert config.pbt
    return config.pbt.donors(config.members)


def _ray(address: str) -> Any:
    """The library. What it is told here, it reads when it is first imported."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    if not address and "ray" not in sys.modules:
        os.environ.setdefault(LOOPBACK, "0")
    try:
        return importlib.import_module("ray")
    except ImportError as error:
        raise CoveyError(f"--engine ray needs Ray ({error}): pip install 'covey[ray]'.") from None


def _require_loopback(ray: Any) -> None:
    """Raises an error where Ray would listen on more than 127.0.0.1."""
    address = ray.util.get_node_ip_address()
    require(
        address in ("127.0.0.1", "::1"),
        f"Ray would listen on {address}, where others can reach it: it was imported, or set up, before covey could "
        f"tell it not to. Set {LOOPBACK}=0 before Python starts, or call ray.init() yourself as you want it.",
    )


def _connect(ray: Any, address: str, quiet: dict[str, Any]) -> None:
    host, _, port = address.rpartition(":")
    if port.isdigit() and "/" not in host:
        try:
            socket.create_connection((host, int(port)), PATIENCE).close()  # Ray itself would try for minutes
        except OSError as error:
            raise CoveyError(f"Nothing answers at --ray-address {address}: {error}.") from None
    try:
        ray.init(address, **quiet)
    except (ConnectionError, RuntimeError, ValueError, ray.exceptions.RayError) as error:
        raise CoveyError(
            f"Ray can't connect to {address}: {_in_short(str(error))}. Has the cluster the same version of Ray and of "
            "Python? If it asks for a token, set RAY_AUTH_MODE and RAY_AUTH_TOKEN here as there."
        ) from error
