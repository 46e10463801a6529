"""How the examples of a document are run.

Blocks in `python` are executed, one after the other in one namespace. Blocks in `console` are commands and
their output, where `...` stands for anything. A comment before a block may say what else to do with it:

    <!-- file: NAME -->        the block is the content of a file in the directory in which all examples run
    <!-- until: Ctrl-C -->     the command does not end: it is interrupted when it has printed what is shown
    <!-- not run: REASON -->   the block is not run

A comment that begins with `hidden` contains Python that readers don't see.
"""

from __future__ import annotations

import ast
import builtins
import doctest
import inspect
import re
import signal
import subprocess
import symtable
import textwrap
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from threading import Timer

from sybil import Document, Example, Region
from sybil.document import PythonDocStringDocument
from sybil.evaluators.python import PythonEvaluator
from sybil.parsers.doctest import DocTestParser
from sybil.parsers.markdown.lexers import DirectiveInHTMLCommentLexer, RawFencedCodeBlockLexer
from sybil.typing import Evaluator

_COMMENT = re.compile(r"<!-- (file|until|not run): (.+?) -->\s*\Z")
_COMMAND = re.compile(r"^\$ (.*(?:\n> .*)*)\n?", re.MULTILINE)
_HIDDEN = re.compile(r"<!--.*?-->", re.DOTALL)
_SHELL_TIMEOUT = 120  # seconds: a command that hangs must not hang the tests

_fences = RawFencedCodeBlockLexer(re.compile(r"\{?(?P<language>[\w-]*)\}?[^\n]*\n"))
_hidden = DirectiveInHTMLCommentLexer("hidden")
_run_python = PythonEvaluator()
_compare = doctest.OutputChecker().check_output

NOT_CODE = {"text", "toctree", "eval-rst", "image", "figure", "include", "literalinclude", "glossary"}
"""Fenced blocks that are output, pictures, or for Sphinx; `tests/examples` runs the included files."""

_STATEMENTS = (
    ast.Assign,
    ast.AsyncFor,
    ast.AsyncWith,
    ast.Call,
    ast.For,
    ast.Import,
    ast.ImportFrom,
    ast.With,
)
"""Syntax of Python that no English sentence has: a paragraph with it is code."""


def read_page(path: Path) -> Document:
    """Return a page of documentation with its examples."""
    return Document.parse(str(path), _parse_page)


def read_docstrings(path: Path) -> Document:
    """Return a module with the examples in its docstrings."""
    return PythonDocStringDocument.parse(str(path), DocTestParser())


def run(document: Document) -> int:
    """Run all examples of a document; return their number."""
    document.namespace["__name__"] = "__main__"
    count = 0
    for example in document.examples():
        example.evaluate()
        count += 1
    return count


def left_alone(path: Path) -> list[str]:
    """Return the languages of those blocks of a page that look like examples and are not run."""
    page = Document(path.read_text(), str(path))
    blocks = [(region.lexemes["language"], _said_before(page, region.start)) for region in _fences(page)]
    return [language for language, (kind, _) in blocks if kind == "not run" or language == "text"]


def unexplained_names(path: Path) -> set[str]:
    """Return names in examples of a page that no example defines, and the text does not have as code.

    Hidden blocks do not count, as readers don't see them.
    """
    page = Document(path.read_text(), str(path))
    # Python 3.14 itself adds a name to modules with annotations in an `if` or a loop.
    known = {*dir(builtins), "__conditional_annotations__"}
    text, unknown = _HIDDEN.sub("", page.text), set[str]()
    for region in _fences(page):
        text = text.replace(region.lexemes["source"], "")
        if region.lexemes["language"] == "python" and not _said_before(page, region.start)[0]:
            block = symtable.symtable(region.lexemes["source"], path.name, "exec")
            known |= {each.get_name() for each in block.get_symbols() if _is_defined(each)}
            unknown |= _names_read(block) - known
    return {name for name in unknown if f"`{name}`" not in text}


def _is_defined(symbol: symtable.Symbol) -> bool:
    return symbol.is_assigned() or symbol.is_imported()


def _names_read(block: symtable.SymbolTable) -> set[str]:
    """Return the global names that a block reads, also in its functions and classes."""
    read = {each.get_name() for each in block.get_symbols() if each.is_global() and each.is_referenced()}
    return read.union(*map(_names_read, block.get_children()))


def left_alone_in_docstrings(path: Path) -> list[str]:
    """Return the paragraphs of a module's docstrings that are code and are not run."""
    nodes = ast.walk(ast.parse(path.read_text()))
    texts = [each.value for each in nodes if isinstance(each, ast.Constant) and isinstance(each.value, str)]
    return [
        paragraph
        for text in texts
        for paragraph in re.split(r"\n\s*\n", inspect.cleandoc(text))
        if "+SKIP" in paragraph or ("\n" in paragraph and _is_code(paragraph))
    ]


def _is_code(paragraph: str) -> bool:
    try:
        tree = ast.parse(textwrap.dedent(paragraph).replace("\N{HORIZONTAL ELLIPSIS}", "..."))
    except SyntaxError:
        return False
    return any(isinstance(node, _STATEMENTS) for node in ast.walk(tree))


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
    kind, value = _said_before(example.document, example.start)
    language: str = example.region.lexemes["language"]
    if kind == "file":
        Path(value).write_text(example.parsed)
        return None
    if kind == "not run":
        return None
    if language == "python":
        _run_python(example)
        return None
    if kind == "until":
        return _run_until_interrupted(example)
    if language == "console":
        return _run_console(example)
    return f"nothing is known of the language {language!r}: say `not run`, and why"


def _said_before(document: Document, start: int) -> tuple[str, str]:
    """Return the kind and the value of the comment right before a block; both are empty if there is none."""
    before = _COMMENT.search(document.text[:start])
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
        elif problem := _difference(command, expected, done.stdout):
            return problem
    return None


def _run_until_interrupted(example: Example) -> str | None:
    ((command, expected),) = _commands(example.parsed)
    lines = (expected or "").splitlines(keepends=True)
    with subprocess.Popen(["bash", "-ec", f"exec {command}"], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        limit = Timer(_SHELL_TIMEOUT, process.kill)  # then reading its output ends
        limit.start()
        printed = "".join(islice(process.stdout, len(lines)))
        process.send_signal(signal.SIGINT)
        process.communicate()
        limit.cancel()
    if problem := _difference(command, "".join(lines), printed):
        return problem
    if process.returncode < 0:
        return f"$ {command}\nended by signal {-process.returncode}, not by itself when it was interrupted"
    return None


def _difference(command: str, expected: str, printed: str) -> str | None:
    if _compare(expected, printed, doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE):
        return None
    return f"$ {command}\nexpected:\n{expected}\ngot:\n{printed}"


def _commands(source: str) -> Iterator[tuple[str, str | None]]:
    """Yield each command with its output; None where the block does not show any."""
    parts = _COMMAND.split(source)
    for command, output in zip(parts[1::2], parts[2::2], strict=True):
        yield command.replace("\n> ", "\n"), output if output.strip() else None
