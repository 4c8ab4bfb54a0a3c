"""Functions of yours that a run calls while it trains: when it logs, evaluates, and saves."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from covey.errors import require

if TYPE_CHECKING:
    from covey.evaluation.rollout import Episodes

Evaluator = Callable[[Any], Mapping[str, float]]
"""`evaluator(run)` measures the current policy of one member (see `covey.train`)."""


@dataclass(frozen=True)
class Event:
    """A moment of a training, as a callback sees it.

    Args:
        step: The environment step.
        wall: Seconds of training so far, with those before the run was resumed.
        path: The run folder; in `on_checkpoint`, the folder of the checkpoint.
        values: Arrays [P] by name, such as `train/return`: a number of each member. Empty in `on_checkpoint`.
        episodes: In `on_evaluation`, the evaluated episodes [P, E]; otherwise None.
        stop: `event.stop()` ends the run after this step: it is saved, its best policy evaluated, and `covey.train`
            returns it. It can be resumed.
        run: In `on_evaluation`, `event.run(member)` returns the run with the current policy of a member as its best,
            by default of the fittest: `event.run().policy()`, `.evaluate()`, `.video(path)`.

    Example:
        >>> def enough(event):
        ...     if event.mean["eval/return"] > -150:
        ...         event.stop()
        >>> covey.train("sac", env="pendulum", callbacks=[covey.Callback(on_evaluation=enough)])
    """

    step: int
    wall: float
    path: Path
    values: Mapping[str, np.ndarray]
    episodes: "Episodes | None"
    stop: Callable[[], None] = field(repr=False)
    run: Callable[..., Any] | None = field(default=None, repr=False)

    @property
    def mean(self) -> dict[str, float]:
        """The values, averaged over the members."""
        return {name: float(np.mean(x)) for name, x in self.values.items()}


def _nothing(event: Event) -> None:
    """Does nothing."""


@dataclass(frozen=True)
class Callback:
    """Functions that a run calls, each with an `Event`. What they return is ignored; `event.stop()` ends the run.

    They are called between two chunks of training, in the thread that trains, so training waits for them; it is the
    same to the bit with and without them. An exception ends the run after it has saved, and is raised from
    `covey.train`. The process that logs calls them: in a job of several, the first.

    Args:
        on_start: Called once when training starts or resumes.
        on_log: Called whenever the run logs: five times per evaluation. `event.values` has what was logged.
        on_evaluation: Called after each evaluation, and at step 0. `event.values` has what was logged.
        on_checkpoint: Called after a checkpoint has been written.

    Example:
        >>> wandb.init(project="covey")
        >>> log = covey.Callback(on_log=lambda event: wandb.log(event.mean, step=event.step))
        >>> covey.train("sac", env="pendulum", callbacks=[log])
    """

    on_start: Callable[[Event], Any] = _nothing
    on_log: Callable[[Event], Any] = _nothing
    on_evaluation: Callable[[Event], Any] = _nothing
    on_checkpoint: Callable[[Event], Any] = _nothing


CALLBACKS: dict[str, Callback] = {}


def register_callback(name: str, callback: Callback) -> None:
    """Adds a callback to every run that this process trains from now on.

    A plugin calls this when it is imported (`--plugin MODULE`). With `engine="ray"` every island imports the plugin,
    and calls the callback with its own members and its own folder.

    Args:
        name: Its name. A callback that has this name is replaced.
        callback: The callback.

    Example:
        >>> covey.register_callback("wandb", covey.Callback(on_log=log))
    """
    CALLBACKS[name] = _checked(callback)


class Hooks:
    """The callbacks and the evaluator of a run. An exception is kept until the run has saved.

    Args:
        callbacks: Callbacks besides the registered ones.
        evaluator: Measures each member at each evaluation.
    """

    def __init__(self, callbacks: Any = (), evaluator: Evaluator | None = None) -> None:
        self.own = tuple(_checked(each) for each in callbacks)
        self.evaluator = evaluator
        self.error: Exception | None = None
        self.stopped = False

    @property
    def callbacks(self) -> tuple[Callback, ...]:
        return (*CALLBACKS.values(), *self.own)

    @property
    def is_over(self) -> bool:
        """Whether a callback has ended the run."""
        return self.stopped or self.error is not None

    def stop(self) -> None:
        """Ends the run after the current step."""
        self.stopped = True

    def call(
        self,
        name: str,
        step: int,
        wall: float,
        path: Path,
        values: Mapping[str, np.ndarray],
        episodes: "Episodes | None" = None,
        run: Callable[..., Any] | None = None,
    ) -> None:
        """Calls the function `name` of every callback with an `Event` of the other arguments."""
        event = Event(step, wall, path, values, episodes, self.stop, run)
        for callback in self.callbacks:
            if self.error is None:
                try:
                    getattr(callback, name)(event)
                except Exception as error:
                    self.error = error

    def measure(self, run: Any) -> dict[str, float]:
        """Returns what the evaluator measures of a run's current policy."""
        if self.evaluator is None:
            return {}
        found = self.evaluator(run)
        is_valid = isinstance(found, Mapping) and all(isinstance(name, str) for name in found)
        require(is_valid, f"`evaluator` must return a dictionary of numbers by name, not {found!r}.")
        return {name: float(x) for name, x in found.items()}


def _checked(callback: Any) -> Callback:
    require(
        isinstance(callback, Callback),
        f"A callback must be a covey.Callback, as in covey.Callback(on_log=function), not {callback!r}.",
    )
    return callback
