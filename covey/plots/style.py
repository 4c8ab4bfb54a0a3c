"""The common style of all figures: colours, axes, and how a figure or a table is written."""

import csv
from collections.abc import Iterable
from io import BytesIO, StringIO
from pathlib import Path
from typing import Any

from covey.storage.atomic import replace_output

MARKED = "#d64541"
INK = "#22303c"
GRID = "#d9dee3"
BACKGROUND = "#ffffff"
COLOURS = ("#0b6e99", "#d9730d", "#448361", "#9065b0", "#c14c8a", "#cb912f", "#337ea9", "#787774")


def write_figure(figure: Any, out: Path) -> Path:
    """Writes a figure as PNG."""
    picture = BytesIO()
    figure.savefig(picture, format="png", dpi=150)
    replace_output(out, picture.getbuffer())
    return out


def write_csv(out: Path, rows: Iterable[Iterable[Any]]) -> None:
    """Writes rows as CSV."""
    text = StringIO(newline="")
    csv.writer(text).writerows(rows)
    replace_output(out, text.getvalue().encode())


def new_figure(width: float, height: float) -> tuple[Any, Any]:
    """A figure and its axes, in the colours of all pictures."""
    figure = empty_figure(width, height)
    return figure, dressed(figure.add_subplot())


def empty_figure(width: float, height: float) -> Any:
    """A figure that has no axes yet."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained", facecolor=BACKGROUND)
    FigureCanvasAgg(figure)
    return figure


def dressed(axes: Any) -> Any:
    """Axes in the colours of all pictures."""
    axes.grid(color=GRID, linewidth=0.7)
    axes.set_axisbelow(True)
    axes.spines[:].set_color(GRID)
    axes.tick_params(colors=INK, length=0)
    return axes


def count_steps(axes: Any, most: int = 6) -> None:
    """Makes x an axis of environment steps: 500, 20k, 1.5M."""
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    axes.spines[["top", "right"]].set_visible(False)
    axes.xaxis.set_major_locator(MaxNLocator(most, steps=[1, 2, 2.5, 5, 10]))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: in_short(x)))


def in_short(number: float) -> str:
    """500, 20k or 1.5M."""
    for size, letter in ((1e6, "M"), (1e3, "k")):
        if abs(number) >= size:
            return f"{number / size:g}{letter}"
    return f"{number:g}"


def steps_figure() -> tuple[Any, Any]:
    """Returns a figure and its axes for curves over environment steps."""
    figure, axes = new_figure(7.2, 4.2)
    count_steps(axes)
    return figure, axes
