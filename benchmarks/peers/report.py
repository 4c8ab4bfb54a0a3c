"""Writes a comparison as a table and as a bar chart."""

from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt

ORDER = ("limit", "QDax", "SBX", "SB3", "prt-rl")
SHADES = {"QDax": "#4c78a8", "SBX": "#72b7b2", "SB3": "#f58518", "prt-rl": "#b279a2"}


def table(rows: dict[str, dict[str, Any]], versions: dict[str, str], machine: str) -> str:
    """Returns Markdown: units per second, and in brackets covey's ratio to each library; bold if below the target."""
    lines = ["| work | unit | covey | share of the limit | " + " | ".join(ORDER[1:]) + " |", "|---" * 8 + "|"]
    for row in rows.values():
        cells = [row["title"], row["unit"], _number(row["median"]["covey"]), _share(row)]
        cells += [_cell(row, library) for library in ORDER[1:]]
        lines.append("| " + " | ".join(cells) + " |")
    told = ", ".join(f"{name} {number}" for name, number in sorted(versions.items()))
    return "\n".join([*lines, "", f"Medians. (covey's ratio to the library; **bold** below its target.) {told}.", ""])


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}"


def _share(row: dict[str, Any]) -> str:
    if "limit" not in row["ratio"]:
        return ""
    return _marked(f"{row['ratio']['limit']:.2f}", row, "limit")


def _cell(row: dict[str, Any], library: str) -> str:
    if library in row["failed"]:
        return "does not run"
    if library not in row["ratio"]:
        return ""
    ratio = row["ratio"][library]
    ratio = _marked(f"{ratio:,.0f}x" if ratio >= 100 else f"{ratio:.2f}x", row, library)
    return f"{_number(row['median'][library])} ({ratio})"


def _marked(text: str, row: dict[str, Any], library: str) -> str:
    return f"**{text}**" if row["ratio"][library] < row["targets"].get(library, 0) else text


def chart(rows: dict[str, dict[str, Any]], path: Path) -> None:
    """Draws the speed relative to covey's, with a group of bars for each workload."""
    shown = [row for name, row in rows.items() if not name.startswith("insert")]
    figure, axes = plt.subplots(figsize=(9, 0.8 + 0.72 * len(shown)), layout="constrained")
    for place, row in enumerate(shown):
        bars = ["covey", *(library for library in SHADES if library in row["ratio"])]
        height = 0.8 / len(bars)
        for i, library in enumerate(bars):
            share = 1.0 if library == "covey" else 1 / row["ratio"][library]
            y = place - 0.4 + (i + 0.5) * height
            axes.barh(y, share, height * 0.9, color=SHADES.get(library, "#2f2f2f"))
            axes.text(share + 0.01, y, f"{library} {_number(row['median'][library])}", va="center", fontsize=7)
    axes.set_yticks(range(len(shown)), [f"{row['title']}\n({row['unit']})" for row in shown], fontsize=8)
    axes.invert_yaxis()
    axes.set_xlim(0, max(1.2, *(1 / r + 0.2 for row in shown for lib, r in row["ratio"].items() if lib != "limit")))
    axes.set_xlabel("speed, as a share of covey's in the same round")
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=150)
    plt.close(figure)
