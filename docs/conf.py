"""Sphinx configuration. `make docs` builds the site into docs/_build/html; warnings are errors."""

import os
import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE / "_extensions"))

import covey  # noqa: E402

project = "covey"
author = "The covey developers"
copyright = "the covey developers"
version = release = covey.__version__

# While the package changes: COVEY_DOCS_DRAFT=1 reports missing API names without failing, and runs no notebook.
draft = bool(os.environ.get("COVEY_DOCS_DRAFT"))

extensions = [
    "myst_nb",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx.ext.viewcode",
    "sphinx_copybutton",
    "public_api",
    "outside_links",
]
root_doc = "index"
exclude_patterns = ["_build", "_extensions"]
nitpicky = True
smartquotes = False

# Pages. A block of code without a language is a command or its output.
highlight_language = "none"
myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 4
if draft:
    suppress_warnings = ["myst-nb.lexer"]  # known only once the kernel has run

# The notebook runs at every build. An error in a cell, or a cell that takes too long, fails the build.
nb_execution_mode = "off" if draft else "force"
nb_execution_raise_on_error = True
nb_execution_timeout = 300
nb_merge_streams = True

# The API reference
public_api_list = str(HERE / "api" / "names.toml")
public_api_draft = draft
autodoc_default_options = {"no-value": True}
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
autodoc_preserve_defaults = True
autodoc_class_signature = "mixed"
napoleon_google_docstring = True
napoleon_numpy_docstring = False
napoleon_use_rtype = False
napoleon_use_ivar = True
add_module_names = False
default_role = "code"  # docstrings write `name` as Markdown does
maximum_signature_line_length = 88

# HTML. Everything comes from the theme's own files: the site works offline.
html_theme = "furo"
html_title = "covey"
html_show_sphinx = False
html_copy_source = False
html_static_path = ["_static"]
html_css_files = ["covey.css"]
html_theme_options = {"navigation_with_keys": True}
copybutton_prompt_text = r"\$ "
copybutton_prompt_is_regexp = True
