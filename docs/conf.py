# ruff: noqa: INP001 - Sphinx runs this file; there is no package around it
"""How the documentation is built: `make docs`, where every warning is an error."""

from __future__ import annotations

import re
from itertools import groupby

from sphinx.application import Sphinx

from taskqueue_client import __version__

project = "taskqueue_client"
version = release = __version__
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx.ext.viewcode"]
exclude_patterns = ["_build"]

html_theme = "furo"
html_title = f"taskqueue_client {__version__}"
html_show_copyright = False

myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 3

default_role = "code"  # for code between single backticks that goes on in the next line
autodoc_member_order = "bysource"
autodoc_typehints_format = "short"
autodoc_preserve_defaults = True
napoleon_numpy_docstring = False
napoleon_use_ivar = True

_BEFORE_NAPOLEON = 400
_CODE = re.compile(r"(?<![`:])`([^`]+)`(?!`)")


def read_markdown(app: Sphinx, what: str, name: str, obj: object, options: object, lines: list[str]) -> None:
    """Make reStructuredText of what docstrings have of Markdown: code, and drawn trees."""
    del app, what, name, obj, options
    paragraphs = [[*group] for _, group in groupby(lines, key=bool)]
    lines[:] = [line for paragraph in paragraphs for line in _converted(paragraph)]


def _converted(paragraph: list[str]) -> list[str]:
    if any("── " in line for line in paragraph):
        return ["::", "", *(f"    {line}" for line in paragraph)]
    return [_CODE.sub(r"``\1``", line) for line in paragraph]


def setup(app: Sphinx) -> None:
    """Called by Sphinx."""
    app.connect("autodoc-process-docstring", read_markdown, priority=_BEFORE_NAPOLEON)
