"""The learning curve of a run that is training, for a notebook."""

from collections.abc import Sequence
from io import BytesIO

from covey.plots.curves import LABELS
from covey.plots.style import COLOURS, INK, new_figure, set_steps_axis

Point = tuple[int, float, float, float]
"""An environment step, an estimate, and the ends of its interval, which are NaN if there is none."""


def live_curve(points: Sequence[Point], metric: str, steps: int) -> bytes:
    """Draws a curve as it is so far.

    Args:
        points: Its points.
        metric: The name of the metric.
        steps: The steps of the whole run, which the horizontal axis shows.

    Returns:
        The PNG.

    Example:
        >>> png = live_curve([(0, -900.0, -950.0, -850.0), (1000, -300.0, -340.0, -260.0)], "eval/return", 20_000)
    """
    figure, axes = new_figure(6.4, 3.0)
    set_steps_axis(axes)
    at, centre, low, high = zip(*points, strict=True)
    axes.fill_between(at, low, high, color=COLOURS[0], alpha=0.18, linewidth=0)
    axes.plot(at, centre, color=COLOURS[0], linewidth=1.8, marker="o", markersize=3)
    axes.set_xlim(0, steps)
    axes.set_ylabel(LABELS.get(metric, metric), color=INK)
    axes.set_xlabel("environment steps", color=INK)
    file = BytesIO()
    figure.savefig(file, format="png", dpi=100)
    return file.getvalue()
