"""The sizes of modules and functions: a subject has one file, and a function is read at once."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from statistics import median, quantiles

PACKAGE = Path(__file__).parents[2] / "taskqueue_client"

PARAGRAPH = 60
"""Lines. A shorter module that only one other module imports should be a part of that module."""

LONGEST = 510
"""Lines that a module may have."""

SETS = {"models", "cli"}
"""Folders whose files are a set with one name for each subject, such as `models/artifacts.py`."""


@cache
def modules() -> dict[str, Path]:
    """The modules of the package by their dotted names, without `__init__.py` files."""
    return {_name_of(path): path for path in PACKAGE.rglob("*.py") if path.name != "__init__.py"}


@cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


def _name_of(path: Path) -> str:
    return ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts).removesuffix(".__init__")


def imports(path: Path) -> Iterator[str]:
    """The dotted names that a file imports: modules, and what it imports from them."""
    package = ".".join(path.relative_to(PACKAGE.parent).parts[:-1])
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Import):
            yield from (each.name for each in node.names)
        elif isinstance(node, ast.ImportFrom):
            parents = package.split(".")[: len(package.split(".")) + 1 - node.level] if node.level else []
            module = ".".join([*parents, *filter(None, [node.module])])
            yield module
            yield from (f"{module}.{each.name}" for each in node.names)


def importers() -> dict[str, set[Path]]:
    found: dict[str, set[Path]] = defaultdict(set)
    for path in PACKAGE.rglob("*.py"):
        for name in imports(path):
            found[name].add(path)
    return found


def lengths_of_functions() -> list[int]:
    """The lines of each function, without its docstring."""
    return [
        node.end_lineno - node.lineno + 1 - _docstring_lines(node)
        for path in modules().values()
        for node in ast.walk(tree(path))
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and node.end_lineno is not None
    ]


def _docstring_lines(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    if ast.get_docstring(node) is None:
        return 0
    first = node.body[0]
    return (first.end_lineno or first.lineno) - first.lineno + 1


def test_a_module_of_few_lines_has_more_than_one_reader() -> None:
    found = importers()
    short = {
        name: [str(each.relative_to(PACKAGE)) for each in found[name]]
        for name, path in modules().items()
        if len(path.read_text().splitlines()) < PARAGRAPH and len(found[name]) == 1
    }
    assert not short


def test_no_module_is_too_long_to_read() -> None:
    lengths = {name: len(path.read_text().splitlines()) for name, path in modules().items()}
    assert not {name: length for name, length in lengths.items() if length > LONGEST}


def test_functions_are_read_at_once() -> None:
    lengths = lengths_of_functions()
    assert median(lengths) <= 7
    assert quantiles(lengths, n=10)[-1] <= 20


def test_a_file_name_is_used_once() -> None:
    names = [path.name for path in modules().values() if path.parent.name not in SETS]
    assert not {name for name in names if names.count(name) > 1}
