"""Writes pages: one HTML file with everything in it, which makes no request."""

import json
from base64 import b64encode
from collections.abc import Sequence
from functools import cache
from hashlib import sha256
from html import escape
from importlib.resources import files
from typing import Any

from covey.web.comparison import compare

POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src 'self' data: blob:; media-src 'self' data: blob:"
"""What a browser may load: only what is in the page and, of a live page, what its own server has."""


def render(runs: list[dict[str, Any]], live: str = "") -> str:
    """Returns the page of one or more runs as HTML.

    Args:
        runs: The runs (see `covey.web.data.run_data`).
        live: The URL path of a stream of events (server-sent) with which the page grows; none by default.

    Returns:
        The whole page. Data are in a block of JSON with the id `data`, and are shown as text, never as HTML.

    Example:
        >>> Path("report.html").write_text(render([run_data(Path("runs/pendulum-td3-0"))]))
    """
    data: dict[str, Any] = {"runs": runs, "comparison": compare(runs) if len(runs) > 1 else None, "live": live}
    scripts = [static("uPlot.min.js"), static("parts.js") + static("page.js")]
    title = ", ".join(str(run["name"]) for run in runs)
    return document(title, data, scripts, [static("uPlot.min.css"), static("page.css")])


def document(title: str, data: Any, scripts: Sequence[str], styles: Sequence[str]) -> str:
    """Returns a page as HTML: one file with everything in it.

    Args:
        title: The title.
        data: JSON values, in a block with the id `data`.
        scripts: JavaScript that shows them. The page allows no other.
        styles: CSS.
    """
    digests = " ".join(f"'sha256-{b64encode(sha256(text.encode()).digest()).decode()}'" for text in scripts)
    return "\n".join(
        [
            "<!doctype html>",
            '<html lang="en">',
            "<head>",
            '<meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f'<meta http-equiv="Content-Security-Policy" content="{POLICY}; connect-src \'self\'; '
            f'script-src {digests}">',
            f"<title>{escape(title)}</title>",
            f"<style>{chr(10).join(styles)}</style>",
            "</head>",
            "<body>",
            "<noscript>This page draws with JavaScript, which is switched off here.</noscript>",
            f'<script type="application/json" id="data">{as_script(data)}</script>',
            *(f"<script>{text}</script>" for text in scripts),
            "</body>",
            "</html>",
            "",
        ]
    )


def as_script(values: Any) -> str:
    """Returns JSON that can't end the block of a page that it is in."""
    text = json.dumps(values, allow_nan=False, separators=(",", ":"))
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")


@cache
def static(name: str) -> str:
    """Returns a file that is part of the package."""
    return (files("covey.web") / "static" / name).read_text()
