"""The statements that the local queue gives to SQLite."""

from __future__ import annotations

import ast
import re

from tests.words.test_module_sizes import PACKAGE

_NUMBERED = re.compile(r"\?\d")


def test_no_statement_has_numbered_parameters_as_early_releases_of_python_3_12_warn_of_them() -> None:
    numbered = [
        f"{path.relative_to(PACKAGE)}:{node.lineno}: {node.value}"
        for path in PACKAGE.glob("local/**/*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and _NUMBERED.search(node.value)
    ]
    assert numbered == []
