"""The common style of all figures: colours, axes, numbers, and how figures and tables are written."""

import csv
from base64 import b64encode
from collections.abc import Iterable
from io import BytesIO, StringIO
from pathlib import Path, PosixPath
from typing import Any

from covey.storage.atomic import replace_output

HIGHLIGHT = "#d64541"
INK = "#22303c"
GRID = "#d9dee3"
BACKGROUND = "#ffffff"
COLOURS = ("#0b6e99", "#d9730d", "#448361", "#9065b0", "#c14c8a", "#cb912f", "#337ea9", "#787774")


def empty_figure(width: float, height: float) -> Any:
    """Returns a figure without axes."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained", facecolor=BACKGROUND)
    FigureCanvasAgg(figure)
    return figure


def new_figure(width: float, height: float) -> tuple[Any, Any]:
    """Returns a figure and its axes."""
    figure = empty_figure(width, height)
    return figure, style_axes(figure.add_subplot())


def steps_figure(panels: int = 1) -> tuple[Any, list[Any]]:
    """Returns a figure and the axes of its panels, one below the other, for curves over environment steps."""
    figure = empty_figure(7.2, 4.2 if panels == 1 else 1.2 + 2.2 * panels)
    found: list[Any] = []
    for i in range(panels):
        found.append(style_axes(figure.add_subplot(panels, 1, i + 1, sharex=found[0] if found else None)))
        set_steps_axis(found[-1])
        found[-1].tick_params(labelbottom=i == panels - 1)
    return figure, found


def style_axes(axes: Any) -> Any:
    """Gives axes the common colours. Returns them."""
    axes.grid(color=GRID, linewidth=0.7)
    axes.set_axisbelow(True)
    axes.spines[:].set_color(GRID)
    axes.tick_params(colors=INK, length=0)
    return axes


def set_steps_axis(axes: Any, ticks: int = 6) -> None:
    """Labels the horizontal axis with environment steps, such as 500, 20k, 1.5M, with at most `ticks` ticks."""
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    axes.spines[["top", "right"]].set_visible(False)
    axes.xaxis.set_major_locator(MaxNLocator(ticks, steps=[1, 2, 2.5, 5, 10]))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: short_number(x)))


def set_title(axes: Any, title: str) -> None:
    """Sets the title of axes."""
    axes.set_title(title, loc="left", color=INK, fontsize=12)


def short_number(number: float, digits: int = 6) -> str:
    """Returns a number in short, such as 500, 20k or 1.5M, with at most `digits` significant digits."""
    number = float(f"{number:.{digits}g}")  # first, so that 999,999 becomes 1M and not 1000k
    for size, letter in ((1e6, "M"), (1e3, "k")):
        if abs(number) >= size:
            return f"{number / size:.{digits}g}{letter}"
    return f"{number:.{digits}g}"


class Picture(PosixPath):
    """The path of a PNG, a GIF or an MP4. A notebook shows the picture instead of the path."""

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, str]:
        """Returns the file as IPython displays it."""
        plain = {"text/plain": str(self)}
        if self.suffix not in (".png", ".gif", ".mp4") or not self.is_file():
            return plain
        data = b64encode(self.read_bytes()).decode()
        if self.suffix == ".png":
            return plain | {"image/png": data}
        film = f'<video controls src="data:video/mp4;base64,{data}"></video>'
        return plain | {"text/html": film if self.suffix == ".mp4" else f'<img src="data:image/gif;base64,{data}"/>'}


def write_figure(figure: Any, out: Path) -> Picture:
    """Writes a figure as PNG. Returns its path."""
    picture = BytesIO()
    figure.savefig(picture, format="png", dpi=150)
    replace_output(out, picture.getbuffer())
    return Picture(out)


def write_csv(out: Path, rows: Iterable[Iterable[Any]]) -> None:
    """Writes rows as CSV."""
    text = StringIO(newline="")
    csv.writer(text).writerows(rows)
    replace_output(out, text.getvalue().encode())
