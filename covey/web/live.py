"""The state of a live page: runs that are followed, and the events that bring open pages up to date."""

import json
import math
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from covey.web.comparison import compare
from covey.web.data import MOST_ROWS, thinned
from covey.web.tail import Checkpoints, MetricRow, Tail, Update

POLL = 0.5
"""Seconds between two looks at the run folders."""
REFRESH = 2.0
"""Seconds between two events with the summary of a run, at least."""
SHARE = 0.02
"""The most of the time that reading summaries may take."""
COMPARE = 10.0
"""Seconds between two comparisons of several runs, at least."""
MOST_PAUSE = 30.0
"""Seconds after which news are shown, whatever that costs."""
ALIVE = 10.0
"""Seconds after which the summary of a run that trains is read again, to notice that it has stopped."""
MOST_EVENTS = 2000
"""Events that are kept for pages that reconnect; a page that needs older ones gets everything anew."""
MOST_FILMS = 20
"""Episodes of a run that a page shows."""

Reader = Callable[[Path], dict[str, Any]]


class Event(NamedTuple):
    """An event of the page: its number, its kind, and its payload as JSON."""

    number: int
    kind: str
    data: str


class Log:
    """Numbered events, which any number of threads wait for."""

    def __init__(self) -> None:
        self._events: deque[Event] = deque(maxlen=MOST_EVENTS)
        self._changed = threading.Condition()
        self.last = 0
        self.closed = False

    def add(self, kind: str, payload: Any) -> None:
        """Adds an event."""
        data = as_json(payload)
        with self._changed:
            self.last += 1
            self._events.append(Event(self.last, kind, data))
            self._changed.notify_all()

    def after(self, number: int, timeout: float) -> list[Event] | None:
        """Waits for events later than a number; returns none after the timeout or when the log is closed.

        Returns None if events since then have been dropped, or the number is from another log.
        """
        with self._changed:
            self._changed.wait_for(lambda: self.closed or self.last != number, timeout)
            if number > self.last or (self._events and number < self._events[0].number - 1):
                return None
            return [event for event in self._events if event.number > number]

    def close(self) -> None:
        """Lets all waiting threads return."""
        with self._changed:
            self.closed = True
            self._changed.notify_all()


class Films(Protocol):
    """Plays episodes of new checkpoints (see `covey.web.player.Player`)."""

    def offer(self, index: int, folder: Path, found: Checkpoints, member: int) -> None:
        """Tells it the newest checkpoints of a run, and which member is the best now."""
        ...

    def file(self, name: str) -> Path | None:
        """Returns the file of a film by its name; None if there is no such film."""
        ...

    def stop(self) -> None:
        """Ends the process that plays, and deletes the films."""
        ...


class Followed:
    """A run that is followed: its summary, its curves and its films.

    Args:
        path: The run folder.
        read: Returns the summary of a run folder with its curves (`run_data`).
    """

    def __init__(self, path: Path, read: Reader) -> None:
        self.tail = Tail(path)
        self.curves: dict[str, dict[tuple[int, int], list[Any]]] = {}
        self.films: list[dict[str, Any]] = []
        self.note = ""
        self._path = path
        self._read = read
        self._summary = waiting(path)
        self._due = 0.0
        self._news = True

    def add(self, rows: Sequence[MetricRow]) -> bool:
        """Adds rows to the curves. Returns whether one was there before; then the later one counts."""
        again = False
        for name, step, member, value, wall in rows:
            points = self.curves.setdefault(name, {})
            again = again or (step, member) in points
            points[step, member] = [step, member, value, wall]
        return again

    def refresh(self, update: Update, now: float) -> bool:
        """Reads the summary again if that is due. Returns whether it has changed."""
        self._news = self._news or update.changed or update.reset or bool(update.rows)
        idle = self._summary.get("state") != "running" or now < self._due + ALIVE
        if now < self._due or (not self._news and idle):
            return False
        before = self._summary
        began = time.thread_time()  # on a busy machine, less than the time that passes
        try:
            found = self._read(self._path)
        except Exception as error:  # not there yet, being written, or written by another program
            found = waiting(self._path) | {"notes": [str(error)]}
        self._summary = json.loads(as_json({name: value for name, value in found.items() if name != "curves"}))
        self._due = now + pause(REFRESH, began)
        self._news = False
        return self._summary != before

    def summary(self) -> dict[str, Any]:
        """Returns the run without its curves."""
        played = {film["step"] for film in self.films}
        films = [film for film in self._summary.get("episodes", []) if film["step"] not in played] + self.films
        notes = [*self._summary.get("notes", []), *([self.note] if self.note else [])]
        return self._summary | {"episodes": films, "notes": notes}

    def whole(self) -> dict[str, Any]:
        """Returns the run with its curves, thinned if they are very long."""
        run = self.summary()
        curves = {name: list(points.values()) for name, points in self.curves.items()}
        return run | {"curves": thinned(curves, run.get("curve", ""), MOST_ROWS, run["notes"])}

    def best_member(self) -> int:
        """Returns the member with the highest return in the newest evaluation; 0 if there was none."""
        points = [p for p in self.curves.get("eval/return", {}).values() if p[2] is not None]
        newest = max((p[0] for p in points), default=0)
        return max(((p[2], p[1]) for p in points if p[0] == newest), default=(0.0, 0))[1]


class Live:
    """Follows runs in a thread of its own, and logs an event for everything that is new.

    Args:
        folders: The run folders.
        read: Returns the summary of a run folder with its curves (`run_data`).

    Example:
        >>> live = Live([Path("runs/pendulum-td3-0")], run_data)
        >>> live.start()
        >>> runs, number = live.snapshot()
        >>> events = live.log.after(number, timeout=10.0)
    """

    def __init__(self, folders: Sequence[Path], read: Reader) -> None:
        self.log = Log()
        self.player: Films | None = None
        self._runs = [Followed(folder, read) for folder in folders]
        self._folders = list(folders)
        self._lock = threading.RLock()
        self._stopped = threading.Event()
        self._due = time.monotonic() + COMPARE
        self._compared: list[int] = []
        self._thread = threading.Thread(target=self._follow, name="covey-watch", daemon=True)

    def start(self) -> None:
        """Reads everything once, then follows."""
        self.poll()
        self._thread.start()

    def stop(self) -> None:
        """Stops following, and ends all streams."""
        self._stopped.set()
        self.log.close()
        if self._thread.is_alive():
            self._thread.join()

    def snapshot(self) -> tuple[list[dict[str, Any]], int]:
        """Returns all runs, and the number of the last event that they contain."""
        with self._lock:
            return [run.whole() for run in self._runs], self.log.last

    def show(self, index: int, film: dict[str, Any]) -> None:
        """Adds an episode of a run; of those with the same step, the later counts."""
        with self._lock:
            run = self._runs[index]
            run.note = ""
            run.films = [*(each for each in run.films if each["step"] != film["step"]), film][-MOST_FILMS:]
            self.log.add("episode", [index, film])

    def explain(self, index: int, note: str) -> None:
        """Shows why a run has no film."""
        with self._lock:
            run = self._runs[index]
            if run.note != note:
                run.note = note
                self.log.add("run", [index, run.summary()])

    def poll(self) -> None:
        """Looks at every run folder once."""
        self._compare(time.monotonic())
        for index, run in enumerate(self._runs):
            update = run.tail.poll()
            with self._lock:
                if update.reset:
                    run.curves = {}
                again = run.add(update.rows)
                changed = run.refresh(update, time.monotonic())
                if update.reset or again:
                    self.log.add("reset", [index, run.whole()])
                else:
                    if update.rows:
                        rows = [[index, r.name, r.step, r.member, r.value, r.wall] for r in update.rows]
                        self.log.add("rows", rows)
                    if changed:
                        self.log.add("run", [index, run.summary()])
            if self.player:
                self.player.offer(index, self._folders[index], run.tail.checkpoints(), run.best_member())

    def _compare(self, now: float) -> None:
        """Compares the runs again, if that is due and one of them has been evaluated since."""
        points = [len(points) for run in self._runs for points in run.curves.values()]
        if len(self._runs) < 2 or now < self._due or points == self._compared:
            return
        self._compared = points
        began = time.thread_time()
        with self._lock:
            self.log.add("comparison", compare([run.whole() for run in self._runs]))
        self._due = now + pause(COMPARE, began)

    def _follow(self) -> None:
        told = ""
        while not self._stopped.wait(POLL):
            try:
                self.poll()
            except Exception as error:  # one strange file must not end the page
                text = f"covey watch: {type(error).__name__}: {error}"
                if text != told:
                    print(text, file=sys.stderr)
                told = text


def pause(least: float, began: float) -> float:
    """Returns the seconds until work is done again that began at a `time.thread_time()`."""
    return min(MOST_PAUSE, max(least, (time.thread_time() - began) / SHARE))


def as_json(payload: Any) -> str:
    """Returns JSON text; NaN and infinities, which JSON lacks, become null."""
    try:
        return json.dumps(payload, allow_nan=False)
    except ValueError:
        return json.dumps(_finite(payload), allow_nan=False)


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _finite(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def waiting(path: Path) -> dict[str, Any]:
    """Returns the summary of a run folder that does not exist yet."""
    texts = {"name": path.name, "path": path.name, "agent": "", "env": "", "state": "stopped", "command": ""}
    numbers = {"step": 0, "steps": 0, "members": 1, "seed": 0, "seconds": 0.0, "population": False}
    unknown = dict.fromkeys(("started", "steps_per_second", "seconds_left", "final", "best_step"))
    lists = {name: [] for name in ("changes", "checkpoints", "lineage", "episodes", "doctor", "notes")}
    tables = {name: {} for name in ("versions", "config", "differs", "hyper", "skills", "media")}
    about = {"curve": "eval/return", "summary": [f"Waiting for the run folder {path.name}."]}
    return {**texts, **numbers, **unknown, **lists, **tables, **about}
