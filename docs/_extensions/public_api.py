"""The API reference, driven by docs/api/names.toml.

The directive `public-api` documents one page of the list: its `names`, all of which live in `covey`, or its `modules`. The
build fails if a listed name or module does not exist, if a name of `covey.__all__` is not listed, or if a page of the
list has no directive.
"""

import importlib
import inspect
import tomllib
from pathlib import Path
from types import ModuleType
from typing import Any

import covey
from docutils import nodes
from docutils.statemachine import StringList
from sphinx.addnodes import pending_xref
from sphinx.util import logging
from sphinx.util.docutils import SphinxDirective

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
        text = ["```{eval-rst}", ".. autosummary::", "   :nosignatures:", "", *(f"   {name}" for name in found), ""]
        for name in found:
            text += [*_directive(name), ""]
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


def _directive(name: str) -> list[str]:
    """The autodoc directive for one name, by what it is."""
    value = _value(name)
    if isinstance(value, ModuleType):
        return [f".. automodule:: {value.__name__}", "   :members:"]
    if inspect.isclass(value):
        special = [m for m in CONSTRUCTORS if m in vars(value)]
        options = ["   :members:", *([f"   :special-members: {', '.join(special)}"] if special else [])]
        return [f".. autoclass:: {name}", *options]
    if callable(value):
        return [f".. autofunction:: {name}"]
    return [f".. autodata:: {name}", "   :no-value:"]


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


def tidy(app: Any, what: str, name: str, value: Any, options: Any, lines: list[str]) -> None:
    """Drops the text that Python itself gives to the fields of a NamedTuple."""
    if lines and lines[0].startswith("Alias for field number"):
        lines.clear()


def resolve(app: Any, env: Any, node: pending_xref, content: nodes.Node) -> nodes.Node | None:
    """A reference to `covey.types.EnvSpec` leads to `covey.EnvSpec`; other types that are not public stay plain text."""
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
    return not node.get("refexplicit") and node.get("reftype") in ("class", "obj", "data", "exc")


def setup(app: Any) -> dict[str, Any]:
    app.add_config_value("public_api_list", "", "env")
    app.add_config_value("public_api_draft", False, "env")
    app.add_directive("public-api", PublicAPI)
    app.connect("env-check-consistency", lambda app, env: check_list(app, env))
    app.connect("autodoc-process-docstring", tidy)
    app.connect("missing-reference", resolve)
    return {"parallel_read_safe": True}
