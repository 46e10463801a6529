# ruff: noqa: INP001 - Sphinx runs this file; there is no package around it
"""How the documentation is built: `make docs`, where every warning is an error."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import groupby
from typing import Any

from docutils import nodes
from sphinx.application import Sphinx

from taskqueue_client import __version__

project = "taskqueue_client"
version = release = __version__
extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx.ext.viewcode",
    "sphinx_copybutton",
]
exclude_patterns = ["_build", "benchmarks"]  # the latter are parts of a page

html_theme = "furo"
html_title = f"taskqueue_client {__version__}"
html_show_copyright = False
copybutton_prompt_text = r"\$ |> |>>> |\.\.\. "
copybutton_prompt_is_regexp = True

myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 3

default_role = "code"  # for code between single backticks that goes on in the next line
autodoc_member_order = "bysource"
autodoc_typehints_format = "short"
autodoc_preserve_defaults = True
napoleon_numpy_docstring = False
napoleon_use_ivar = True
napoleon_custom_sections = [("Settings", "params_style")]

_BEFORE_NAPOLEON = 400
_NOT_LINKED = (nodes.reference, nodes.title)
_CODE = re.compile(r"(?<![`:])`([^`]+)`(?!`)")


def read_markdown(app: Sphinx, what: str, name: str, obj: object, options: object, lines: list[str]) -> None:
    """Convert the Markdown in docstrings (code and drawn trees) to reStructuredText."""
    del app, name, obj, options
    paragraphs = [[*group] for _, group in groupby(lines, key=bool)]
    lines[:] = [line for paragraph in paragraphs for line in _converted(paragraph)]
    if what in {"attribute", "data", "property"}:
        # napoleon reads "Name: description" in the first line of these as a type and a description
        lines[:1] = [part for line in lines[:1] for part in line.replace(": ", ":\n", 1).split("\n")]


def _converted(paragraph: list[str]) -> list[str]:
    if any("── " in line for line in paragraph):
        return ["::", "", *(f"    {line}" for line in paragraph)]
    return [_CODE.sub(r"``\1``", line) for line in paragraph]


def link_names(app: Sphinx, doctree: nodes.document, docname: str) -> None:
    """Link names of classes and exceptions in running text to the reference."""
    linked = _linked(app.env.get_domain("py").data["objects"])
    for literal in list(doctree.findall(nodes.literal)):
        entry = linked.get(literal.astext())
        if entry is None or any(isinstance(each, _NOT_LINKED) for each in _ancestors(literal)):
            continue
        uri = f"{app.builder.get_relative_uri(docname, entry.docname)}#{entry.node_id}"
        reference = nodes.reference("", "", internal=True, refuri=uri)
        literal.replace_self(reference)
        reference += literal


def _linked(objects: dict[str, Any]) -> dict[str, Any]:
    """Return the documented classes by their names without modules."""
    kinds = {"class", "exception"}
    return {name.rpartition(".")[2]: each for name, each in objects.items() if each.objtype in kinds}


def _ancestors(node: nodes.Node) -> Iterator[nodes.Node]:
    while (node := node.parent) is not None:
        yield node


def setup(app: Sphinx) -> None:
    """Called by Sphinx."""
    app.connect("autodoc-process-docstring", read_markdown, priority=_BEFORE_NAPOLEON)
    app.connect("doctree-resolved", link_names)
