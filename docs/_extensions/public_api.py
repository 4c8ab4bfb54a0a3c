"""The API reference, driven by docs/api/names.toml.

The directive `public-api` documents one page of the list: its `names`, which live in `covey`, or its `modules`. The
build fails if a listed name or module does not exist, if a name of `covey.__all__` is not listed, or if a page of the
list has no directive.
"""

import importlib
import inspect
import re
import sys
import tomllib
from contextlib import suppress
from pathlib import Path
from types import ModuleType
from typing import Annotated, Any, get_args, get_origin

from docutils import nodes
from docutils.statemachine import StringList
from sphinx.addnodes import pending_xref
from sphinx.errors import PycodeError
from sphinx.pycode import ModuleAnalyzer
from sphinx.util import logging
from sphinx.util.docutils import SphinxDirective

import covey

log = logging.getLogger(__name__)

CONSTRUCTORS = ("__call__",)
"""Special methods that are documented with their class."""


class PublicAPI(SphinxDirective):
    """Documents the public names or modules of one page: a table of all, then each in full."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        page = self.arguments[0]
        entry = pages(self.config)[page]
        self.env.note_dependency(self.config.public_api_list)
        listed = [f"covey.{name}" for name in entry.get("names", [])] + entry.get("modules", [])
        found = [name for name in listed if _exists(name)]
        missing = [name for name in listed if name not in found]
        for name in missing:
            _complain(self.config, f"docs/api/names.toml lists {name}, which does not exist")
        text = ["```{eval-rst}", *_overview(found), ""]
        for name in found:
            text += [*_directive(name, self.config), ""]
        text.append("```")
        self.env.metadata[self.env.docname]["public_api"] = page
        parsed = nodes.Element()
        self.state.nested_parse(StringList(text, source=f"docs/api/names.toml [{page}]"), 0, parsed)
        if missing:
            parsed += nodes.paragraph(text=f"Not in this version yet: {', '.join(missing)}.")
        return parsed.children


def pages(config: Any) -> dict[str, dict[str, list[str]]]:
    """Page -> the `names` or the `modules` that it documents."""
    return tomllib.loads(Path(config.public_api_list).read_text())


def public_names(config: Any) -> list[str]:
    """All names of the list, without `covey.`."""
    return [name for entry in pages(config).values() for name in entry.get("names", [])]


def _value(name: str) -> Any:
    """The object of a full name, which may be a module."""
    home, _, last = name.rpartition(".")
    if home == "covey" and last in covey.__all__:
        return getattr(covey, last)
    return importlib.import_module(name)


def _exists(name: str) -> bool:
    try:
        _value(name)
    except (AttributeError, ModuleNotFoundError):
        return False
    return True


def _overview(names: list[str]) -> list[str]:
    """A table of the names and the first sentence about each."""
    rows = [".. list-table::", "   :widths: auto", ""]
    for name in names:
        role = "py:mod" if isinstance(_value(name), ModuleType) else "py:obj"
        rows += [f"   * - :{role}:`{name}`", f"     - {_summary(name)}"]
    return rows


def _summary(name: str) -> str:
    text = " ".join(code_as_in_markdown(_doc(name)).split("\n\n")[0].split())
    first = re.match(r"(.+?\.)(?=\s+[A-Z]|$)", text)
    return first[1] if first else text


def _is_data(value: Any) -> bool:
    return not (isinstance(value, ModuleType) or inspect.isclass(value) or inspect.isroutine(value))


def _doc(name: str) -> str:
    """The docstring of a name. Data have the string below their assignment, which only the source shows."""
    value, short = _value(name), name.rsplit(".", 1)[-1]
    if not _is_data(value):
        return inspect.getdoc(value) or ""
    for module in [m for key, m in sorted(sys.modules.items()) if key.startswith("covey.")]:
        if vars(module).get(short) is value:
            with suppress(PycodeError):
                found = ModuleAnalyzer.for_module(module.__name__).find_attr_docs().get(("", short))
                if found:
                    return "\n".join(found)
    return "Search ranges of the hyper-parameters." if isinstance(value, dict) else ""


def _directive(name: str, config: Any) -> list[str]:
    """The autodoc directive for one name, by what it is."""
    value = _value(name)
    if isinstance(value, ModuleType):
        documented = ", ".join(public_names(config))
        return [f".. automodule:: {value.__name__}", "   :members:", f"   :exclude-members: {documented}"]
    if inspect.isclass(value):
        special = [m for m in CONSTRUCTORS if m in vars(value)]
        options = ["   :members:", *([f"   :special-members: {', '.join(special)}"] if special else [])]
        return [f".. autoclass:: {name}", *options]
    if inspect.isroutine(value):
        return [f".. autofunction:: {name}"]
    home, short = name.rsplit(".", 1)
    text = code_as_in_markdown(_doc(name)).split("\n")
    head = [f".. py:currentmodule:: {home}", "", f".. py:data:: {short}", ""]
    return [*head, *(f"   {line}" for line in text), "", *_ranges(value)]


def _ranges(value: Any) -> list[str]:
    """A search space as a table."""
    if not isinstance(value, dict):
        return []
    rows = ["   .. list-table::", "      :header-rows: 1", "      :widths: auto", ""]
    rows += ["      * - hyper-parameter", "        - range", "        - scale", "        - searched by default"]
    for name, each in value.items():
        cells = (f"``{name}``", f"{each.low:g} to {each.high:g}", f"``{each.scale}``", "yes" if each.searched else "no")
        rows += [f"      {'* ' if i == 0 else '  '}- {cell}" for i, cell in enumerate(cells)]
    return rows


def _complain(config: Any, text: str) -> None:
    if config.public_api_draft:
        log.info("draft: %s", text)
    else:
        log.warning(text, type="public_api")


def check_list(app: Any, env: Any) -> None:
    """Every public name is on one page, and every page of the list is written."""
    listed, names = pages(app.config), public_names(app.config)
    for name in sorted(set(covey.__all__) - set(names) - {"__version__"}):
        _complain(app.config, f"covey.{name} is public, but docs/api/names.toml does not list it")
    for name in sorted({name for name in names if names.count(name) > 1}):
        _complain(app.config, f"docs/api/names.toml lists {name} twice")
    written = {data.get("public_api") for data in env.metadata.values()}
    for page in sorted(set(listed) - written):
        _complain(app.config, f"no page documents [{page}] of docs/api/names.toml")


def code_as_in_markdown(text: str) -> str:
    """Docstrings write `code`, and blocks of code after a colon, as Markdown does: doubles the marks for Sphinx."""
    text = BLOCK.sub(r"::\n\n\1", text)
    return CODE.sub(lambda m: f"``{m[1]}``" + ("\\ " if m[2] else ""), text)


WRITTEN: dict[str, list[str]] = {}
"""The docstrings by full name, before napoleon reads them."""
BLOCK = re.compile(r"(?m)(?<!:):\n\n( {4,}\S)")
CODE = re.compile(r"(?<![`:\w\\])`([^`]+)`(?![`_])(?=(\w?))")


def tidy(app: Any, what: str, name: str, value: Any, options: Any, lines: list[str]) -> None:
    """Reads `code` as Markdown does, and drops the text that Python itself gives to the fields of a NamedTuple."""
    if lines and lines[0].startswith("Alias for field number"):
        lines.clear()
    lines[:] = code_as_in_markdown("\n".join(lines)).split("\n")
    WRITTEN[name] = list(lines)


def keep_colons(app: Any, what: str, name: str, value: Any, options: Any, lines: list[str]) -> None:
    """Undoes what napoleon did to the text of an attribute, in which it takes all before a colon for a type."""
    if what in ("attribute", "data", "property"):
        lines[:] = WRITTEN.pop(name, lines)


def no_signature(app: Any, what: str, name: str, value: Any, *_: Any) -> tuple[str, str] | None:
    """A protocol is never called, so it is shown without arguments."""
    return ("", "") if what == "class" and getattr(value, "_is_protocol", False) else None


def dashes(app: Any, tree: nodes.document) -> None:
    """A dash between an argument and its description."""
    for text in list(tree.findall(nodes.Text)):
        if text.astext() == " -- ":
            text.parent.replace(text, nodes.Text(" \u2013 "))


def plain_types(app: Any) -> None:
    """Shows a field that is annotated for the command line, `Annotated[int, ...]`, as what it is, `int`."""
    for name in public_names(app.config):
        value = _value(f"covey.{name}") if _exists(f"covey.{name}") else None
        if inspect.isclass(value):
            for types in (vars(value).get("__annotations__", {}), getattr(value.__init__, "__annotations__", {})):
                types.update({k: get_args(x)[0] for k, x in types.items() if get_origin(x) is Annotated})


def resolve(app: Any, env: Any, node: pending_xref, content: nodes.Node) -> nodes.Node | None:
    """A reference to `covey.types.EnvSpec` leads to `covey.EnvSpec`; types that are not public stay plain text."""
    if node.get("refdomain") != "py":
        return None
    short = node["reftarget"].rsplit(".", 1)[-1]
    if short in public_names(app.config) and node["reftarget"] != f"covey.{short}":
        domain = env.get_domain("py")
        found = domain.resolve_xref(env, node["refdoc"], app.builder, "obj", f"covey.{short}", node, content)
        if found is not None:
            return found
    return content if _is_type(node) else None


def _is_type(node: pending_xref) -> bool:
    """Whether a reference comes from a type annotation, and not from somebody who wrote a role."""
    written = node.get("reftype") == "obj" and not node["reftarget"].startswith("typing.")
    return not node.get("refexplicit") and node.get("reftype") in ("class", "obj", "exc") and not written


def setup(app: Any) -> dict[str, Any]:
    app.add_config_value("public_api_list", "", "env")
    app.add_config_value("public_api_draft", False, "env")
    app.add_directive("public-api", PublicAPI)
    app.connect("builder-inited", plain_types)
    app.connect("env-check-consistency", check_list)
    app.connect("autodoc-process-docstring", tidy, priority=400)
    app.connect("autodoc-process-docstring", keep_colons, priority=600)
    app.connect("autodoc-process-signature", no_signature)
    app.connect("doctree-read", dashes)
    app.connect("missing-reference", resolve)
    return {"parallel_read_safe": True}
