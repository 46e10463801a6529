"""How the examples of a document are run.

Blocks in `python` are executed, one after the other in one namespace, and blocks in `console` are
commands with what they print, where `...` stands for anything. Two comments before a block say what
else to do with it:

    <!-- file: NAME -->        it is the content of that file, in the directory that all examples run in
    <!-- not run: REASON -->   it is left alone

and a comment that begins with `hidden` holds Python that readers don't see.
"""

from __future__ import annotations

import doctest
import re
import subprocess
from collections.abc import Iterable, Iterator
from pathlib import Path

from sybil import Document, Example, Region
from sybil.document import PythonDocStringDocument
from sybil.evaluators.python import PythonEvaluator
from sybil.parsers.doctest import DocTestParser
from sybil.parsers.markdown.lexers import DirectiveInHTMLCommentLexer, RawFencedCodeBlockLexer
from sybil.typing import Evaluator

_COMMENT = re.compile(r"<!-- (file|not run): (.+?) -->\s*\Z")
_COMMAND = re.compile(r"^\$ (.*(?:\n> .*)*)\n?", re.MULTILINE)
_SHELL_TIMEOUT = 120  # seconds: a command that hangs must not hang the tests

_fences = RawFencedCodeBlockLexer(re.compile(r"\{?(?P<language>[\w-]*)\}?[^\n]*\n"))
_hidden = DirectiveInHTMLCommentLexer("hidden")
_run_python = PythonEvaluator()
_compare = doctest.OutputChecker().check_output

NOT_CODE = {"text", "toctree", "eval-rst", "image", "figure", "include", "glossary"}
"""What stands between fences, and is output, a picture, or for Sphinx."""


def read_page(path: Path) -> Document:
    """A page of documentation with its examples."""
    return Document.parse(str(path), _parse_page)


def read_docstrings(path: Path) -> Document:
    """A module with the examples of its docstrings."""
    return PythonDocStringDocument.parse(str(path), DocTestParser())


def run(document: Document) -> int:
    """Run all examples of a document; how many there were."""
    document.namespace["__name__"] = "__main__"
    count = 0
    for example in document.examples():
        example.evaluate()
        count += 1
    return count


def _parse_page(document: Document) -> Iterable[Region]:
    for region in _hidden(document):
        yield _example(region, _run_python)
    for region in _fences(document):
        if region.lexemes["language"] not in NOT_CODE:
            yield _example(region, _evaluate)


def _example(region: Region, evaluator: Evaluator) -> Region:
    region.parsed = region.lexemes["source"]
    region.evaluator = evaluator
    return region


def _evaluate(example: Example) -> str | None:
    kind, value = _said_before(example)
    language: str = example.region.lexemes["language"]
    if kind == "file":
        Path(value).write_text(example.parsed)
        return None
    if kind == "not run":
        return None
    if language == "python":
        _run_python(example)
        return None
    if language == "console":
        return _run_console(example)
    return f"nothing is known of the language {language!r}: say `not run`, and why"


def _said_before(example: Example) -> tuple[str, str]:
    """What a comment right before a block says: its kind and its value, both empty if there is none."""
    before = _COMMENT.search(example.document.text[: example.start])
    return (before[1], before[2]) if before else ("", "")


def _run_console(example: Example) -> str | None:
    for command, expected in _commands(example.parsed):
        done = subprocess.run(
            ["bash", "-ec", command],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=_SHELL_TIMEOUT,
            check=False,
        )
        if expected is None:
            if done.returncode:
                return f"$ {command}\nexit status {done.returncode}\n{done.stdout}"
        elif not _compare(expected, done.stdout, doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE):
            return f"$ {command}\nexpected:\n{expected}\ngot:\n{done.stdout}"
    return None


def _commands(source: str) -> Iterator[tuple[str, str | None]]:
    """Each command with what it prints; None where the block does not say."""
    parts = _COMMAND.split(source)
    for command, output in zip(parts[1::2], parts[2::2], strict=True):
        yield command.replace("\n> ", "\n"), output if output.strip() else None
