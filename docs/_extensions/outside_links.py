"""Links to files outside of docs/ work on the site as they do in the repository.

Some files of the repository's root are pages of the site too (PAGES): the page below `project/` shows the file's text,
and links to the file lead to the page. Links to Python files stay: the site offers these files for download.
"""

import posixpath
import re
from pathlib import Path
from typing import Any

PAGES = {
    "CHANGELOG.md": "project/changelog",
    "CODE_OF_CONDUCT.md": "project/code-of-conduct",
    "CONTRIBUTING.md": "project/contributing",
    "SECURITY.md": "project/security",
}
FILES = {page: file for file, page in PAGES.items()}
LINK = re.compile(r"\]\((?!https?:|#)([^)#\s]+)(#[^)\s]*)?\)")


def rewrite(app: Any, name: str, source: list[str]) -> None:
    """Replaces the text of a page in PAGES by that of its file, and links to the files in PAGES by links to pages."""
    folder = posixpath.dirname(name)
    if name in FILES:
        path = Path(app.srcdir).parent / FILES[name]
        app.env.note_dependency(str(path))
        source[0] = LINK.sub(lambda m: f"]({posixpath.relpath(m[1], 'docs/' + folder)}{m[2] or ''})", path.read_text())

    def to_page(match: re.Match[str]) -> str:
        target = posixpath.normpath(posixpath.join("docs", folder, match[1]))
        if target not in PAGES:
            return match[0]
        return f"]({posixpath.relpath(PAGES[target] + '.md', folder or '.')}{match[2] or ''})"

    source[0] = LINK.sub(to_page, source[0])


def setup(app: Any) -> dict[str, Any]:
    app.connect("source-read", rewrite)
    return {"parallel_read_safe": True}
